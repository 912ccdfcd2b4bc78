// SPDX-License-Identifier: Apache-2.0
// Checks kernels inside a test binary: one that is right, and some that fail in different ways.
#include <check_operator_gtest.h>
#include <gtest/gtest-spi.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>

namespace {

/// y[r,h] = x[r,h] * weight[h] / sqrt(mean_h x[r,h]^2 + eps), in fp32 on the CPU. An `eps_factor` other than 1 is a
/// bug.
checkop_status rms_norm(const checkop_call* call, float eps_factor) {
  if (call->inputs[0].dtype != CHECKOP_F32 || !checkop_all_contiguous(call)) return CHECKOP_UNSUPPORTED;
  const int64_t* shape = call->inputs[0].shape;
  const int64_t rows = shape[0] * shape[1], hidden = shape[2];
  const float* x = static_cast<const float*>(call->inputs[0].data);
  const float* weight = static_cast<const float*>(call->inputs[1].data);
  float* y = static_cast<float*>(call->outputs[0].data);
  const float eps = static_cast<float>(call->attrs[0].value) * eps_factor;
  for (int64_t r = 0; r < rows; ++r, x += hidden, y += hidden) {
    float sum = 0;
    for (int64_t h = 0; h < hidden; ++h) sum += x[h] * x[h];
    const float scale = 1 / std::sqrt(sum / static_cast<float>(hidden) + eps);
    for (int64_t h = 0; h < hidden; ++h) y[h] = x[h] * scale * weight[h];
  }
  return CHECKOP_OK;
}

checkop_status my_launch(const checkop_call* call) { return rms_norm(call, 1); }
checkop_status without_eps(const checkop_call* call) { return rms_norm(call, 0); }
checkop_status crashing(const checkop_call*) { std::abort(); }

TEST(RmsNorm, Mine) { EXPECT_OPERATOR_PASSES("rms_norm", my_launch, "cases.json", "--device cpu"); }

TEST(RmsNorm, MineInOneSize) {
  EXPECT_OPERATOR_PASSES("rms_norm", my_launch, "--device cpu --dtype fp32 --batch 4 --seq 16 --hidden 768");
}

// The tests below show what failures look like; your own tests do not need them.

TEST(RmsNorm, AMissingEpsFails) {
  EXPECT_NONFATAL_FAILURE(EXPECT_OPERATOR_PASSES("rms_norm", without_eps, "cases.json", "--device cpu"),
                          "rms_norm/forward  without_eps  fp32  batch=2 seq=1 hidden=1 seed=123");
  EXPECT_NONFATAL_FAILURE(EXPECT_OPERATOR_PASSES("rms_norm", without_eps, "cases.json", "--device cpu"),
                          "rms_norm_test --gtest_filter=RmsNorm.AMissingEpsFails");
}

TEST(RmsNorm, ACrashIsAFailureAndTheTestGoesOn) {
  EXPECT_NONFATAL_FAILURE(EXPECT_OPERATOR_PASSES("rms_norm", crashing, "--device cpu --batch 1 --seq 2 --hidden 8"),
                          "killed by signal 6");
}

TEST(RmsNorm, WhatIsNotSupportedFails) {
  EXPECT_NONFATAL_FAILURE(EXPECT_OPERATOR_PASSES("rms_norm", my_launch, "--device cpu --dtype bf16"), "unsupported");
}

TEST(RmsNorm, AWrongQuestionFails) {
  EXPECT_NONFATAL_FAILURE(EXPECT_OPERATOR_PASSES("rmsnorm", my_launch, "--device cpu"), "did you mean 'rms_norm'?");
  EXPECT_NONFATAL_FAILURE(EXPECT_OPERATOR_PASSES("rms_norm", my_launch, "none.json", "--device cpu"), "none.json");
  EXPECT_NONFATAL_FAILURE(EXPECT_OPERATOR_PASSES("rms_norm", my_launch, "cases.json", "--device cpu --filter x"),
                          "nothing was checked");
  EXPECT_NONFATAL_FAILURE(EXPECT_OPERATOR_PASSES("rms_norm", my_launch, "--device cpu --json out.json"),
                          "--json has no effect here");
}

}  // namespace
