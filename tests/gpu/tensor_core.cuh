// SPDX-License-Identifier: Apache-2.0
// Multiplies given blocks on the device's tensor cores.
#pragma once

#include <cstdint>
#include <vector>

namespace checkop {

/// c += x y^T for c.size()/128 problems, each x[16, 16], y[8, 16] in fp16 or bf16 bits and c[16, 8], all row-major.
void multiply_on_tensor_cores(bool bf16, const std::vector<uint16_t>& x, const std::vector<uint16_t>& y,
                              std::vector<float>& c);

/// c += x y^T for c.size()/2048 problems, each x[64, 32], y[32, 32] of e4m3 codes and c[64, 32], all row-major.
void multiply_codes_on_tensor_cores(const std::vector<uint8_t>& x, const std::vector<uint8_t>& y,
                                    std::vector<float>& c);

/// Whether the model of tensor_core.hpp covers the device.
bool has_sm90();

}  // namespace checkop
