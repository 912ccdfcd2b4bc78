// SPDX-License-Identifier: Apache-2.0
// Computes softmax statistics of a row, and reads ids.
#include "softmax.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"

namespace checkop {

void SoftmaxRow::add(const double* z, int64_t n, const LogitErrors& errors) {
  double top = max;
  for (int64_t i = 0; i < n; ++i) {
    if (z[i] != z[i]) top = z[i];  // a NaN stays, because the comparison below is false for it
    if (z[i] > top) top = z[i];
  }
  if (top != max && max != -INFINITY) {
    const double shift = top - max, scale = std::exp(-shift);
    spread = scale * (spread + shift * sum);
    sum *= scale;
    weighted *= scale, rounded *= scale;
    slack *= scale, slack_square *= scale * scale;
  }
  max = top;
  if (max == -INFINITY) return;  // only -inf so far: every term is 0
  for (int64_t i = 0; i < n; ++i) {
    const double below = max - z[i], term = std::exp(-below);
    if (term == 0) continue;  // also keeps inf*0 out of the spread
    sum += term;
    spread += term * below;
    if (errors.magnitude != nullptr) weighted += term * errors.magnitude[i];
    if (errors.rounding != nullptr) rounded += term * errors.rounding[i];
    if (errors.slack == nullptr || errors.slack[i] == 0) continue;
    const double off = term * std::expm1(errors.slack[i]);
    slack += off, slack_square += off * off;
  }
}

RowScratch& row_scratch(int64_t vocab) {
  static thread_local RowScratch buffers;
  for (auto* array : {&buffers.z, &buffers.value, &buffers.magnitude, &buffers.rounding}) {
    array->resize(static_cast<size_t>(vocab));
  }
  return buffers;
}

SoftmaxRow read_row(const Tensor& logits, int64_t row, std::vector<double>& z) {
  decode_row(logits, row, z);
  SoftmaxRow softmax;
  softmax.add(z.data(), std::ssize(z));
  return softmax;
}

std::vector<int64_t> read_ids(const Tensor& ids, int64_t vocab, std::optional<int64_t> except) {
  std::vector<int64_t> values(static_cast<size_t>(ids.count()));
  decode_int(ids.dtype, ids.bytes.data(), values.data(), values.size());
  const auto bad =
      std::find_if(values.begin(), values.end(), [&](int64_t id) { return (id < 0 || id >= vocab) && id != except; });
  if (bad != values.end()) {
    throw InputError("input '" + ids.name + "'",
                     fmt::format("element {} is {}, outside [0, {})", bad - values.begin(), *bad, vocab),
                     except ? fmt::format("give ids of existing tokens, or the ignore_index {}", *except)
                            : "give ids of existing tokens");
  }
  return values;
}

}  // namespace checkop
