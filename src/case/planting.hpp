// SPDX-License-Identifier: Apache-2.0
// Changes random inputs so that softmax kernels meet what trained and broken models give them.
#pragma once

#include <vector>

#include "case/case.hpp"

namespace checkop {

/// The extent of dimension `spec.fan_in`. Throws std::out_of_range unless it is at least 1.
int64_t fan_in_of(const Case& c, const TensorSpec& spec);

/// Mode peaked: in about 70 % of the rows the target's probability becomes about 0.5, 0.9, 0.999 or 1 - 1e-6, by row.
/// Passes without targets stay random.
void plant_targets(const Case& c, unsigned threads, std::vector<Tensor>& tensors);

/// Mode extreme, for inputs that are logits: kinds of rows alternate, see LogitKind.
void plant_extreme_logits(const Case& c, unsigned threads, std::vector<Tensor>& tensors);

/// Mode extreme, for logits that are products of queries and keys, or of hidden rows and the rows of a weight: kinds of
/// rows alternate, see ProductKind.
void plant_extreme_products(const Case& c, std::vector<Tensor>& tensors);

/// Whether inputs of the operator have mode extreme.
bool takes_extremes(const Operator& op);

}  // namespace checkop
