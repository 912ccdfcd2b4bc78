// SPDX-License-Identifier: Apache-2.0
// The passes of a product of a batch of rows with one matrix. matmul and det_gemm have the same mathematics and differ
// in what a contract may demand of them.
#pragma once

#include <array>

#include "operator/operator.hpp"

namespace checkop {

/// a[batch, seq, k_dim], b[k_dim, n_dim] -> c[batch, seq, n_dim], and the gradients of a and b; defined in matmul.cpp.
extern const std::array<Pass, 2> kMatmulPasses;

}  // namespace checkop
