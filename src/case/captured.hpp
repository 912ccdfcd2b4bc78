// SPDX-License-Identifier: Apache-2.0
// Mode captured: tensors of a training step and an RL step of a small language model, see scripts/captured.py. Their
// magnitudes are not those of random data: activations reach 17, and most gradients lie below 1e-4.
#pragma once

#include "case/case.hpp"

namespace checkop {

/// Whether the file has an input of the operator.
bool is_captured(const Operator& op);

/// Fills `tensor`, input `spec` of `c`, if the file has that input. A larger tensor repeats the rows and columns of the
/// file, a smaller one has the first of them; ids are taken modulo the vocabulary. The data do not depend on the seed.
void fill_captured(const Case& c, const TensorSpec& spec, unsigned threads, Tensor& tensor);

}  // namespace checkop
