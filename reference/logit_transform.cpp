// SPDX-License-Identifier: Apache-2.0
// Refuses attributes that transform no logit, and reduces transformed logits.
#include "logit_transform.hpp"

#include <fmt/format.h>

#include <vector>

#include "base/error.hpp"

namespace checkop {

void validate_temperature(double temperature) {
  if (!(temperature > 0))
    throw InputError("--temperature", fmt::format("expected a number above 0, got {}", temperature),
                     "1 leaves logits as they are");
}

void validate_logit_transform(const CaseSizes& sizes, size_t temperature, size_t softcap) {
  validate_temperature(sizes.attrs[temperature]);
  if (!(sizes.attrs[softcap] >= 0))
    throw InputError("--softcap", fmt::format("expected 0 or a number above it, got {}", sizes.attrs[softcap]),
                     "0 leaves logits as they are");
}

void add_logits(SoftmaxRow& softmax, std::span<const TransformedLogit> logits) {
  static thread_local std::vector<double> z, magnitude, rounding, slack;
  for (auto* array : {&z, &magnitude, &rounding, &slack}) array->resize(logits.size());
  for (size_t v = 0; v < logits.size(); ++v) {
    z[v] = logits[v].z.value, magnitude[v] = logits[v].z.magnitude, rounding[v] = logits[v].z.rounding;
    slack[v] = logits[v].slack;
  }
  softmax.add(z.data(), std::ssize(z), {magnitude.data(), rounding.data(), slack.data()});
}

}  // namespace checkop
