// SPDX-License-Identifier: Apache-2.0
// Launches the contexts of a case and compares bits.
#pragma once

#include <vector>

#include "run/run_result.hpp"
#include "run/stage.hpp"

namespace checkop {

/// The outputs of the first launch of the full batch.
struct FirstOutputs {
  const std::vector<Tensor>& host;
  const std::vector<BufferPtr>& there;  ///< on the device, from Stage::copy_outputs()
};

/// Launches the contexts that `checks` request and records in `result` how they changed the bits of `first`. `full`
/// holds the full batch; its per-row tensors are freed on the way.
void run_contexts(Device& device, const checkop_kernel& kernel, const Case& c, const std::vector<Tensor>& inputs,
                  const FirstOutputs& first, const RunChecks& checks, Stage& full, RunResult& result);

}  // namespace checkop
