// SPDX-License-Identifier: Apache-2.0
// The passes of the product of a batch of rows with one matrix. matmul and det_gemm compute the same function and
// differ only in the requirements of contracts.
#pragma once

#include <array>

#include "operator/operator.hpp"

namespace checkop {

/// a[batch, seq, k_dim], b[k_dim, n_dim] -> c[batch, seq, n_dim], and the gradients of a and b; defined in matmul.cpp.
extern const std::array<Pass, 2> kMatmulPasses;

}  // namespace checkop
