// SPDX-License-Identifier: Apache-2.0
// Mode captured: tensors of a training step and an RL step of a small language model, see scripts/captured.py. Trained
// weights, activations and gradients differ from normal ones: channels that stand out, attention to few keys, likely
// targets, gradients of 1e-6.
#pragma once

#include "case/case.hpp"

namespace checkop {

/// Whether the file has an input of the operator.
bool is_captured(const Operator& op);

/// Sets `tensor`, which is input `spec` of `c`, where the file has it. Other sizes than those of the file repeat its
/// rows and columns, or take the first ones; ids are taken modulo the vocabulary. The data do not depend on the seed.
void fill_captured(const Case& c, const TensorSpec& spec, unsigned threads, Tensor& tensor);

}  // namespace checkop
