// SPDX-License-Identifier: Apache-2.0
// What right outputs meet without any gold, checked on all of them: residuals that are 0 in exact arithmetic.
#pragma once

#include <vector>

#include "operator/operator.hpp"
#include "product.hpp"

namespace checkop {

/// Freivalds' check of output `index` = x * y + bias: for random signs r, every row of (output - bias) r must equal
/// that of x (y r), which takes three passes over the matrices instead of a product. Emits a residual "freivalds" per
/// row. Errors e of a row's elements add up to more than t*sqrt(sum e^2) with probability at most 2*exp(-t^2/2), since
/// they can't know the signs; t is 7. So the coefficients are 7 times the root of the sum of squares of what
/// emit_product gives each element, with (a + b + c)^2 <= 3(a^2 + b^2 + c^2). What is stored errs by half an ulp, u_out
/// times the larger of its size and the smallest normal number f: sum max(v^2, f^2) <= sum v^2 + n f^2. Source:
/// Freivalds, "Probabilistic machines can use less running time", IFIP Congress 1977.
void check_product(const IdentityArgs& args, int index, const Factor& x, const Factor& y, const Tensor* bias = nullptr);

/// Rows of output `index` where active[row] == 0 must be 0, exactly: a residual "masked_zero" with the largest
/// |element|.
void check_zero_rows(const IdentityArgs& args, int index, const std::vector<char>& active);

/// Rows of output `index` are gradients g*(onehot - softmax(logits)), whose elements sum to 0: a residual "row_sum".
/// The coefficients are LogitGradient's, summed over the row with sum p = 1 and with what bounds the rest: the entropy
/// of a softmax over V columns, and so its mean distance from the maximum, is at most log V. `logits` and `grad` are
/// the indices of the inputs; rows with active[row] == 0 are left out.
void check_row_sums(const IdentityArgs& args, int index, int logits, int grad, const std::vector<char>& active);

}  // namespace checkop
