// SPDX-License-Identifier: Apache-2.0
// A digest of tensors, for "was this the same data?". Not cryptographic.
#pragma once

#include <string>
#include <vector>

#include "tensor/tensor.hpp"

namespace checkop {

/// 16 hex digits over names, dtypes, shapes and bytes; the same for any number of threads.
std::string tensor_digest(const std::vector<Tensor>& tensors, unsigned threads);

}  // namespace checkop
