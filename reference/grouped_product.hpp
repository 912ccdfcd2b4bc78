// SPDX-License-Identifier: Apache-2.0
// The passes of grouped_gemm and masked_grouped_gemm, whose rows are each multiplied by the matrix of their expert.
// They tell the layout of the rows from the rank of `a`; see RowGroups::of().
#pragma once

#include "operator/operator.hpp"
#include "product.hpp"

namespace checkop::grouped_product {

/// The inputs of both operators; `groups` are offsets or counts.
enum Input : int { kOfA, kOfB, kOfGroups, kOfGradC };

/// Gold of the forward pass.
///   in:  a[rows, k_dim], b[experts, n_dim, k_dim], where the rows of each expert lie     out: c[rows, n_dim]
///   c_r = a_r b_e^T for the rows of expert e, 0 for those of no expert
/// The rows of no expert are never read; they may hold anything.
/// Throws InputError for groups that RowGroups::require_order() refuses.
void forward(const GoldArgs& args);

/// Gold of the gradients.
///   in:  as forward, then grad_c[rows, n_dim]
///   out: da[rows, k_dim] = grad_c b_e for the rows of expert e, 0 for those of no expert
///        db[experts, n_dim, k_dim]: db_e = grad_c_e^T a_e of the rows of expert e, 0 for an expert without rows
/// Source: differentiated by hand; checked by gradient_test.
void backward(const GoldArgs& args);

void model_forward(const ModelArgs& args);
void model_backward(const ModelArgs& args);
void check_forward(const IdentityArgs& args);
void check_backward(const IdentityArgs& args);
/// The rows of no expert are not read, nor are matrices of experts without rows.
Work forward_work(const GoldArgs& args);
Work backward_work(const GoldArgs& args);

inline constexpr std::array kForwardRecipes{tf32_operands("c")};
inline constexpr std::array kBackwardRecipes{tf32_operands("da db")};

}  // namespace checkop::grouped_product
