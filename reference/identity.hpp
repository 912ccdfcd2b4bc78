// SPDX-License-Identifier: Apache-2.0
// Identities: conditions that correct outputs meet without any gold, as residuals that are 0 in exact arithmetic. They
// cover all rows.
#pragma once

#include <vector>

#include "logit_transform.hpp"
#include "operator/operator.hpp"
#include "product.hpp"

namespace checkop {

/// Freivalds' check of output `index` = x * y + bias. For random signs r, every row of (output - bias) r must equal the
/// row of x (y r); this takes three passes over the matrices instead of a product. Emits a residual "freivalds" per
/// row.
/// The errors e of a row's elements add up to more than t*sqrt(sum e^2) with probability at most 2*exp(-t^2/2), because
/// they are independent of the signs; t is 7. So the coefficients are 7 times the root of the sum of squares of
/// emit_product's coefficients of the elements, with (a + b + c)^2 <= 3(a^2 + b^2 + c^2). A stored value errs by half
/// an ulp, which is u_out times the larger of its size and the smallest normal number f: sum max(v^2, f^2) <= sum v^2 +
/// n f^2. The rows of the product are those of the output from `first_row` on.
/// Source: Freivalds, "Probabilistic machines can use less running time", IFIP Congress 1977.
void check_product(const IdentityArgs& args, int index, const Factor& x, const Factor& y, const Tensor* bias = nullptr,
                   int64_t first_row = 0);

/// Rows of output `index` with active[row] == 0 must be exactly 0. Emits a residual "masked_zero" per such row: the
/// largest |element|.
void check_zero_rows(const IdentityArgs& args, int index, const std::vector<char>& active);

/// Rows of output `index` are gradients g*(onehot - softmax(logits)), whose elements sum to 0. Emits a residual
/// "row_sum" per row. The coefficients are those of LogitGradient, summed over the row with sum p = 1. The remaining
/// terms are bounded by the entropy of a softmax over V columns, at most log V, which also bounds the mean distance
/// from the maximum. `logits` and `grad` are indices of inputs. Rows with active[row] == 0 are left out. A `transform`
/// of the logits must be linear: then all gradients of a row have the same factor. `unit`: unit roundoff to which the
/// logarithms of the probabilities p are rounded; 0 for no rounding. Each logarithm is off by at most unit*|log p|, so
/// the sum of p is off by at most sum p^(1 - unit) - 1 <= V^unit - 1, and the row by g times that. A log p that is
/// subnormal errs by unit times the smallest normal number of the output's dtype. `unit_of_dz`: unit roundoff to which
/// the gradients with respect to the transformed logits are rounded; 0 for no rounding.
void check_row_sums(const IdentityArgs& args, int index, int logits, int grad, const std::vector<char>& active,
                    const LogitTransform& transform, double unit, double unit_of_dz);

}  // namespace checkop
