// SPDX-License-Identifier: Apache-2.0
// Summation plans, and arithmetic with planted faults.
#include "operator/emulation.hpp"

#include <fmt/format.h>

#include <array>
#include <bit>

#include "base/parallel.hpp"

namespace checkop {
namespace {

std::string_view name_of(Plan::Order order) {
  switch (order) {
    case Plan::Order::serial:
      return "serial";
    case Plan::Order::reversed:
      return "reversed";
    case Plan::Order::pairwise:
      return "pairwise";
    case Plan::Order::blocked:
      return "blocked";
    case Plan::Order::split:
      return "split";
  }
  return "?";
}

}  // namespace

int64_t Plan::chain(int64_t terms) const {
  int64_t longest = terms;
  switch (order) {
    case Order::serial:
    case Order::reversed:
      break;
    case Order::pairwise:
      longest = 8 + std::bit_width(static_cast<uint64_t>(terms / 8));
      break;
    case Order::blocked:
      longest = std::min(width, terms) + terms / width;
      break;
    case Order::split:
      longest = terms / width + width;
      break;
  }
  return std::min(longest, terms);
}

std::string to_string(const Plan& plan) {
  std::string text(name_of(plan.order));
  if (plan.width > 0) text += fmt::format(" {}", plan.width);
  return plan.fma ? text + ", fma" : text;
}

std::span<const Plan> all_plans() {
  using enum Plan::Order;
  static constexpr std::array kPlans{
      Plan{serial},       Plan{serial, 0, true},    Plan{reversed},     Plan{reversed, 0, true},
      Plan{pairwise},     Plan{pairwise, 0, true},  Plan{blocked, 16},  Plan{blocked, 16, true},
      Plan{blocked, 128}, Plan{blocked, 128, true}, Plan{blocked, 512}, Plan{blocked, 512, true},
      Plan{split, 2},     Plan{split, 2, true},     Plan{split, 8},     Plan{split, 8, true},
  };
  return kPlans;
}

Arithmetic::Arithmetic(const Plan& plan, std::string_view fault, ActiveRecipes recipes)
    : plan_(plan),
      fault_(fault),
      recipes_(std::move(recipes)),
      skip_tile_(fault == faults::kLastTileSkipped.name),
      dropped_k_tile_(fault == faults::kLastKTileDropped.name),
      bf16_accumulator_(fault == faults::kBf16Accumulator.name),
      bf16_partials_(fault == faults::kBf16Partials.name),
      partial_lost_(fault == faults::kPartialLost.name),
      bf16_exponential_(fault == faults::kBf16Exponential.name),
      tf32_factors_(fault == faults::kTf32Factors.name),
      rounds_partials_(recipes_.has(kPartials)),
      dropped_k_(fault == faults::kLastKDropped.name ? 1 : 0) {}

std::vector<float> Arithmetic::factors(std::vector<float> values) const {
  if (rounds_factors())
    std::transform(values.begin(), values.end(), values.begin(), [](float x) { return rounded(x, 13); });
  return values;
}

bool FaultSpec::applies_with(const std::set<std::string, std::less<>>& optionals) const {
  if (needs.starts_with('-')) return !optionals.contains(needs.substr(1));
  return std::ranges::all_of(split_dims(needs), [&](std::string_view name) { return optionals.contains(name); });
}

std::vector<float> EmulationArgs::floats(int index) const {
  constexpr size_t kAtOnce = size_t{1} << 14;
  const Tensor& t = in(index);
  const DTypeInfo& type = info(t.dtype);
  std::vector<float> values(static_cast<size_t>(t.count()));
  parallel_for(static_cast<int64_t>((values.size() + kAtOnce - 1) / kAtOnce), [&](int64_t part) {
    const size_t first = static_cast<size_t>(part) * kAtOnce, n = std::min(kAtOnce, values.size() - first);
    std::array<double, kAtOnce> decoded;
    type.decode(t.bytes.data() + first * type.bytes, decoded.data(), n);
    std::copy_n(decoded.begin(), n, values.begin() + static_cast<int64_t>(first));
  });
  return values;
}

std::vector<int64_t> EmulationArgs::integers(int index) const {
  const Tensor& t = in(index);
  std::vector<int64_t> values(static_cast<size_t>(t.count()));
  decode_int(t.dtype, t.bytes.data(), values.data(), values.size());
  return values;
}

void EmulationArgs::parallel_for(int64_t n, const std::function<void(int64_t)>& body) const {
  checkop::parallel_for(threads, n, body);
}

}  // namespace checkop
