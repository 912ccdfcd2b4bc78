// SPDX-License-Identifier: Apache-2.0
// Tests that only a Hopper GPU runs.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

namespace checkop::kernels {

class OnSm90 : public testing::Test {
 protected:
  void SetUp() override {
    int major = 0, minor = 0;
    ASSERT_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), cudaSuccess);
    ASSERT_EQ(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0), cudaSuccess);
    if (major != 9 || minor != 0) GTEST_SKIP() << "wgmma exists on sm_90 alone";
  }
};

}  // namespace checkop::kernels
