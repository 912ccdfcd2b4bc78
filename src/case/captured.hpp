// SPDX-License-Identifier: Apache-2.0
// Mode captured: tensors of a training step and an RL step of a small language model, see scripts/captured.py. They are
// of other sizes than normal data: activations of up to 17, most gradients below 1e-4.
#pragma once

#include "case/case.hpp"

namespace checkop {

/// Whether the file has an input of the operator.
bool is_captured(const Operator& op);

/// Sets `tensor`, which is input `spec` of `c`, where the file has it. Other sizes than those of the file repeat its
/// rows and columns, or take the first ones; ids are taken modulo the vocabulary. The data do not depend on the seed.
void fill_captured(const Case& c, const TensorSpec& spec, unsigned threads, Tensor& tensor);

}  // namespace checkop
