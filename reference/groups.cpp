// SPDX-License-Identifier: Apache-2.0
// Reads and plants groups, and computes the moments of a set.
#include "groups.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/error.hpp"

namespace checkop {

std::vector<int64_t> read_groups(const Tensor* boundaries, int64_t batch, double samples) {
  std::vector<int64_t> bounds;
  if (boundaries == nullptr) {
    for (int64_t i = 0; i <= batch; i += static_cast<int64_t>(samples)) bounds.push_back(i);
    return bounds;
  }
  bounds.resize(static_cast<size_t>(boundaries->count()));
  decode_int(boundaries->dtype, boundaries->bytes.data(), bounds.data(), bounds.size());
  const auto refuse = [](size_t i, int64_t value, const std::string& rule) {
    throw InputError("input 'group_boundaries'", fmt::format("element {} is {}{}", i, value, rule),
                     "give boundaries that start with 0, increase, and end with the batch");
  };
  if (bounds.front() != 0) refuse(0, bounds.front(), ", not 0");
  if (bounds.back() != batch) {
    refuse(bounds.size() - 1, bounds.back(), fmt::format(", not the batch, which is {}", batch));
  }
  for (size_t i = 1; i < bounds.size(); ++i) {
    if (bounds[i] <= bounds[i - 1]) refuse(i, bounds[i], ", not above the one before it");
  }
  return bounds;
}

void validate_groups(const CaseSizes& sizes, double samples) {
  const int64_t batch = sizes.dim("batch"), bounds = sizes.dim("group_bounds");
  if (sizes.has("group_boundaries")) {
    if (bounds < 2 || bounds > batch + 1) {
      throw InputError("--group-bounds",
                       fmt::format("{} boundaries cannot cut a batch of {} into groups of one or more", bounds, batch),
                       "give 2 to batch + 1");
    }
  } else if (!(samples >= 2) || !(samples <= static_cast<double>(batch)) || samples != std::floor(samples) ||
             batch % static_cast<int64_t>(samples) != 0) {
    throw InputError("--samples-per-prompt",
                     fmt::format("expected an integer >= 2 that divides the batch of {}, got {}", batch, samples),
                     "choose another batch, or give groups with --with group_boundaries");
  }
}

void plant_boundaries(const FillArgs& args, int64_t batch) {
  Tensor* const boundaries = args.find("group_boundaries");
  if (boundaries == nullptr) return;
  const int64_t groups = boundaries->count() - 1;
  int64_t bound = 0;
  for (int64_t i = 0; i <= groups; ++i) {
    if (i > 0) bound = std::clamp(batch * i * i / (groups * groups), bound + 1, batch - (groups - i));
    boundaries->set(i, static_cast<double>(bound));
  }
}

void Moments::add(double x) {
  if (values.empty()) first = x;
  equal = equal && x == first;
  values.push_back(x);
}

void Moments::finish(bool unbiased) {
  const auto n = static_cast<double>(std::max<int64_t>(std::ssize(values), 1));
  for (const double x : values) mean += x - first, size += std::abs(x);
  mean /= n, size /= n;
  for (const double x : values) variance += away(x) * away(x);
  variance /= unbiased ? std::max(n - 1, 1.0) : n;
}

GoldElement Moments::centred(double x) const { return {away(x), size, std::abs(whole_mean()) + std::abs(away(x))}; }

GoldElement Moments::standardised(double x, double s, double of_variance) const {
  const GoldElement d = centred(x);
  const double a = d.value / s, share = std::abs(a);
  return {a, d.magnitude / s + of_variance * share, d.rounding / s + 4 * share};
}

}  // namespace checkop
