// SPDX-License-Identifier: Apache-2.0
// Creates the tensors of a case. Every input element depends only on (seed, operator, tensor name, index).
#pragma once

#include <functional>
#include <vector>

#include "base/random.hpp"
#include "case/case.hpp"

namespace checkop {

/// The inputs of `c.pass` in its order; an absent optional input is a Tensor with an empty name. The bytes do not
/// depend on `threads`; row r of a per-row tensor does not depend on the number of rows. `left_out` changes only
/// elements that no output depends on. `give` replaces generated tensors by given ones. It is called before planting,
/// so that the other inputs fit the given ones (a given mask decides what is left out), and at the end, to undo
/// planting.
std::vector<Tensor> make_inputs(const Case& c, unsigned threads, LeftOut left_out = LeftOut::nonfinite,
                                const std::function<void(std::vector<Tensor>&)>& give = nullptr);

/// Fills the inputs of Fill::saved from the others: the gold of the forward pass, rounded once to each input's dtype.
/// make_inputs() calls it; call it again after replacing other inputs.
void fill_saved(const Case& c, unsigned threads, std::vector<Tensor>& inputs);

/// Zero-filled outputs of `c`, in the order of the pass; an absent optional output is a Tensor with an empty name.
std::vector<Tensor> make_outputs(const Case& c);

}  // namespace checkop
