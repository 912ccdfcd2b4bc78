// SPDX-License-Identifier: Apache-2.0
// Refuses attributes that transform no logit.
#include "logit_transform.hpp"

#include <fmt/format.h>

#include "base/error.hpp"

namespace checkop {

void validate_logit_transform(const CaseSizes& sizes, size_t temperature, size_t softcap) {
  if (!(sizes.attrs[temperature] > 0))
    throw InputError("--temperature", fmt::format("expected a number above 0, got {}", sizes.attrs[temperature]),
                     "1 leaves logits as they are");
  if (!(sizes.attrs[softcap] >= 0))
    throw InputError("--softcap", fmt::format("expected 0 or a number above it, got {}", sizes.attrs[softcap]),
                     "0 leaves logits as they are");
}

}  // namespace checkop
