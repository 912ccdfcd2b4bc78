// SPDX-License-Identifier: Apache-2.0
// The table of metrics.
#include "contract/gate.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdlib>

namespace checkop {
namespace {

constexpr GateKey real(std::string_view name, double Gate::*place, bool required = true,
                       Looser looser = Looser::larger) {
  return {name, place, nullptr, 0, required, looser, {}};
}
constexpr GateKey integer(std::string_view name, int64_t Gate::*place, double least, Looser looser,
                          bool required = true) {
  return {name, nullptr, place, least, required, looser, {}};
}
constexpr GateKey word(std::string_view name, int64_t Gate::*place, std::span<const std::string_view> words) {
  return {name, nullptr, place, 0, true, Looser::any, words};
}

constexpr GateKey kLimit = real("limit", &Gate::limit);
// Step and bias describe the hardware; their defaults are one rounding per term, to nearest.
constexpr std::array kBoundRatioKeys{
    kLimit, real("lambda", &Gate::lambda), integer("max_chain", &Gate::max_chain, 0, Looser::larger_or_zero),
    integer("step", &Gate::step, 1, Looser::smaller, false), real("bias_ulps", &Gate::bias_ulps, false)};
constexpr std::array kToleranceKeys{real("atol", &Gate::atol), real("rtol", &Gate::rtol),
                                    integer("either", &Gate::either, 0, Looser::smaller, false)};
constexpr std::array kLimitOnly{kLimit};
// A larger block hides single elements, a smaller one is mostly rounding noise, so neither direction is stricter.
constexpr std::array kBlockKeys{kLimit, integer("rows", &Gate::rows, 1, Looser::any),
                                integer("columns", &Gate::columns, 1, Looser::any)};
constexpr std::array kBiasKeys{kLimit, real("one_sided", &Gate::one_sided)};
constexpr std::array kArchs{kModelledArchs[0].key};
static_assert(kArchs.size() == kModelledArchs.size());
constexpr std::array<std::string_view, 1> kOrders{"ascending"};
constexpr std::array kModelKeys{word("arch", &Gate::arch, kArchs), integer("block", &Gate::block, 1, Looser::any),
                                word("order", &Gate::order, kOrders)};
constexpr std::array kClipKeys{kLimit, real("clip_eps", &Gate::clip_eps, true, Looser::any)};

struct Entry {
  Metric metric;
  std::string_view name;
  std::span<const GateKey> keys;
};
constexpr std::array kTable{
    Entry{Metric::bound_ratio, "bound_ratio", kBoundRatioKeys},
    Entry{Metric::atol_rtol, "atol_rtol", kToleranceKeys},
    Entry{Metric::bits, "bits", {}},
    Entry{Metric::ulp, "ulp", kLimitOnly},
    Entry{Metric::rel_l2, "rel_l2", kLimitOnly},
    Entry{Metric::cosine, "cosine", kLimitOnly},
    Entry{Metric::block_rel_l2, "block_rel_l2", kBlockKeys},
    Entry{Metric::max_vs_baseline, "max_vs_baseline", kLimitOnly},
    Entry{Metric::vs_baseline, "vs_baseline", kLimitOnly},
    Entry{Metric::vs_reference, "vs_reference", kLimitOnly},
    Entry{Metric::bound_rms, "bound_rms", kLimitOnly},
    Entry{Metric::noise_rms, "noise_rms", kLimitOnly},
    Entry{Metric::bias_t, "bias_t", kBiasKeys},
    Entry{Metric::identities, "identities", kLimitOnly},
    Entry{Metric::bits_of_model, "bits_of_model", kModelKeys},
    Entry{Metric::max_abs_dlogp, "max_abs_dlogp", kLimitOnly},
    Entry{Metric::k3_mean, "k3_mean", kLimitOnly},
    Entry{Metric::k3_max, "k3_max", kLimitOnly},
    Entry{Metric::ratio_deviation, "ratio_deviation", kLimitOnly},
    Entry{Metric::clip_flips, "clip_flips", kClipKeys},
};

constexpr bool table_is_in_order() {
  for (size_t i = 0; i < kTable.size(); ++i)
    if (kTable[i].metric != static_cast<Metric>(i)) return false;
  return true;
}
static_assert(table_is_in_order(), "kTable has every Metric, in the order of the enum");

const Entry& entry(Metric metric) { return kTable.at(static_cast<size_t>(metric)); }

/// What one value of a metric is computed from.
enum class Scope : uint8_t { element, output, tokens };

// Without a default, so that a new metric does not compile until it has a scope.
Scope scope_of(Metric metric) {
  switch (metric) {
    case Metric::bound_ratio:
    case Metric::atol_rtol:
    case Metric::bits:
    case Metric::ulp:
      return Scope::element;
    case Metric::rel_l2:
    case Metric::cosine:
    case Metric::block_rel_l2:
    case Metric::max_vs_baseline:
    case Metric::vs_baseline:
    case Metric::vs_reference:
    case Metric::bound_rms:
    case Metric::noise_rms:
    case Metric::bias_t:
    case Metric::identities:
    case Metric::bits_of_model:
      return Scope::output;
    case Metric::max_abs_dlogp:
    case Metric::k3_mean:
    case Metric::k3_max:
    case Metric::ratio_deviation:
    case Metric::clip_flips:
      return Scope::tokens;
  }
  std::abort();  // no Metric
}

}  // namespace

std::string_view to_string(Metric metric) { return entry(metric).name; }

std::span<const Metric> all_metrics() {
  static const auto kAll = [] {
    std::array<Metric, kTable.size()> all{};
    for (size_t i = 0; i < all.size(); ++i) all[i] = kTable[i].metric;
    return all;
  }();
  return kAll;
}

bool is_elementwise(Metric metric) { return scope_of(metric) == Scope::element; }

bool is_of_bits(Metric metric) { return metric == Metric::bits || metric == Metric::bits_of_model; }

bool is_of_tokens(Metric metric) { return scope_of(metric) == Scope::tokens; }

TokenQuantity token_quantity(const OutputSpec& output) {
  if (output.numerics != Numerics::logprob) return TokenQuantity::none;
  if (output.tensor.name == "logp") return TokenQuantity::logp;
  return output.tensor.name == "ratio" ? TokenQuantity::ratio : TokenQuantity::none;
}

std::span<const GateKey> keys_of(Metric metric) { return entry(metric).keys; }

std::string GateKey::text_in(const Gate& gate) const {
  return words.empty() ? fmt::format("{}", value_in(gate)) : std::string(words[static_cast<size_t>(gate.*integer)]);
}

ModelOrder model_order(const Gate& gate) { return {gate.block, 1}; }

const ModelledArch& modelled_arch(const Gate& gate) { return kModelledArchs.at(static_cast<size_t>(gate.arch)); }

bool loosens(const GateKey& key, double from, double to) {
  switch (key.looser) {
    case Looser::larger:
      return to > from;
    case Looser::larger_or_zero:
      return from != 0 && (to > from || to == 0);
    case Looser::smaller:
      return to < from;
    case Looser::any:
      return to != from;
  }
  return true;
}

}  // namespace checkop
