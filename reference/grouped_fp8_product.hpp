// SPDX-License-Identifier: Apache-2.0
// The pass of grouped_fp8_block_gemm and masked_grouped_fp8_block_gemm. It tells the layout of the rows from the rank
// of `a`; see RowGroups::of().
#pragma once

#include <string_view>

#include "operator/operator.hpp"

namespace checkop::grouped_fp8_product {

/// The inputs of both operators; `groups` are offsets or counts.
enum Input : int { kOfA, kOfScaleA, kOfB, kOfScaleB, kOfGroups };

/// Gold.
///   in:  a[rows, k_dim], b[experts, n_dim, k_dim] e4m3, where the rows of each expert lie
///        scale_a[rows, k_dim/128], scale_b[experts, n_dim/128, k_dim/128] fp32
///   out: d[rows, n_dim]: the rows of expert e are those of fp8_block_gemm with the b and scale_b of e;  0 for rows of
///        no expert
/// The rows of no expert are never read; they may hold anything.
/// Throws InputError for groups that RowGroups::require_order() refuses.
/// The gradient by the numbers of a is the same operation, of codes of the upstream gradient and of the transposed b.
void forward(const GoldArgs& args);

void model_forward(const ModelArgs& args);
void identities(const IdentityArgs& args);
Work work(const GoldArgs& args);

/// In mode extreme, if left-out data are `nonfinite`, all codes of b of experts without rows are NaN. `given` names the
/// offsets or counts.
void plant_unused_experts(const FillArgs& args, std::string_view given);

}  // namespace checkop::grouped_fp8_product
