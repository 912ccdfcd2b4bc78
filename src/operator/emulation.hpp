// SPDX-License-Identifier: Apache-2.0
// Emulates kernels without a GPU: computes a pass in fp32, in one of the summation orders that kernels use, with one of
// their typical faults.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "operator/operator.hpp"

namespace checkop {

/// A summation order. Every plan is correct; results differ in their last bits.
struct Plan {
  enum class Order : uint8_t {
    serial,    ///< from the first term to the last
    reversed,  ///< from the last term to the first
    pairwise,  ///< recursive halves, down to runs of 8
    blocked,   ///< runs of `width` terms, whose sums are added in order: a thread's tile, a K block
    split,     ///< `width` runs of equal length, whose sums are added in order: split K, ranks of a group
  };
  Order order = Order::serial;
  int64_t width = 0;
  bool fma = false;  ///< products are added without being rounded first

  /// The longest chain of additions for a sum of `terms` terms.
  int64_t chain(int64_t terms) const;
};
std::string to_string(const Plan& plan);  ///< "blocked 64, fma"
/// Serial, reversed, pairwise, blocked and split plans in several widths, each with and without fma.
std::span<const Plan> all_plans();

/// A planted fault of a kind that real kernels have.
struct FaultSpec {
  std::string_view name;
  std::string_view meaning;  ///< a sentence for tables
  /// Kinds of failure, one of which must be reported: "accuracy"; "nonfinite" for a fault that reads planted NaN or
  /// overflows; "accuracy nonfinite" where the data decide.
  std::string_view kind = "accuracy";
  std::string_view dtypes = "";  ///< dtypes in which it is visible, "bf16 fp16"; "" for all
  std::string_view needs =
      "";  ///< optional tensors that must be present, "sinks lse"; "-mask": one that must be absent
  std::string_view recipes = "";     ///< recipes that each permit this fault, except in fp16
  std::string_view input_mode = "";  ///< "extreme" or "captured" if no other data show it

  /// Whether a case with these optional tensors meets `needs`.
  bool applies_with(const std::set<std::string, std::less<>>& optionals) const;
};

/// Faults of sums, products and exponentials, which Arithmetic implements. An emulation lists the ones that its pass
/// can have and that change its outputs.
namespace faults {
inline constexpr FaultSpec kLastTileSkipped{"last_tile_skipped", "the last tile of a sum is left out"};
inline constexpr FaultSpec kLastKDropped{"last_k_dropped", "the last term of every dot product is left out"};
inline constexpr FaultSpec kLastKTileDropped{"last_k_tile_dropped", "the last tile of every dot product is left out"};
inline constexpr FaultSpec kBf16Accumulator{
    "bf16_accumulator", "sums are kept in bf16", "accuracy", "", "", "sums_by_token_in_16_bit sums_by_slot_in_16_bit"};
inline constexpr FaultSpec kBf16Partials{
    "bf16_partials", "the sums of four parts are rounded to bf16 and then added", "accuracy", "", "", kPartials};
inline constexpr FaultSpec kPartialLost{"partial_lost", "of four parts of a sum, the last is lost"};
inline constexpr FaultSpec kBf16Exponential{
    "bf16_exponential", "exponentials are rounded to bf16", "accuracy", "", "", "p_in_16_bit dz_in_16_bit"};
inline constexpr FaultSpec kTf32Factors{
    "tf32_factors", "operands of products are rounded to TF32 (11 bits)", "accuracy", "fp32", "", kTf32Operands};
}  // namespace faults

/// fp32 arithmetic with a plan, at most one fault, and the roundings of recipes.
class Arithmetic {
 public:
  explicit Arithmetic(const Plan& plan, std::string_view fault = "", ActiveRecipes recipes = {});

  /// Whether the fault of this name is active.
  bool has(std::string_view fault) const { return fault_ == fault; }
  const Plan& plan() const { return plan_; }
  /// Whether the kernel rounds where the recipe of this name says.
  bool rounds(std::string_view recipe) const { return recipes_.has(recipe); }
  /// x rounded to the dtype of the case if `rounds`, else x.
  float rounded_if(bool rounds, float x) const { return rounds ? static_cast<float>(recipes_.round(x)) : x; }

  /// term(0) + ... + term(n - 1), for sums that are not dot products.
  template <class Term>
  float sum(int64_t n, const Term& term) const {
    return add_up(skip_tile_ ? n - tile_of(n) : n, [&](float total, int64_t i) { return total + term(i); });
  }

  /// Dot product of n elements of `a` and `b` with strides `a_step` and `b_step`, in floats.
  float dot(int64_t n, const float* a, int64_t a_step, const float* b, int64_t b_step) const {
    const int64_t kept = terms_of(n);
    if (plan_.fma && !bf16_accumulator_) {
      return add_up(
          kept, [=](float total, int64_t i) { return std::fma(a[i * a_step], b[i * b_step], total); },
          rounds_partials_);
    }
    return add_up(
        kept, [=](float total, int64_t i) { return total + a[i * a_step] * b[i * b_step]; }, rounds_partials_);
  }

  /// `count` dot products of `a` with b, b + b_next, b + 2 b_next and so on: the bits of dot(), many times faster.
  void dots(int64_t count, float* to, int64_t n, const float* a, int64_t a_step, const float* b, int64_t b_step,
            int64_t b_next) const;

  float exponential(float x) const { return bf16_exponential_ ? to_bf16(std::exp(x)) : std::exp(x); }

  /// Whether the multiplier rounds the operands of products.
  bool rounds_factors() const { return tf32_factors_ || recipes_.has(kTf32Operands); }
  /// Whether products depend on nothing but their operands and the plan.
  bool has_plain_products() const {
    return !(rounds_factors() || dropped_k_tile_ || dropped_k_ > 0 || bf16_accumulator_ || bf16_partials_ ||
             partial_lost_ || rounds_partials_);
  }
  /// Operands of products as the multiplier rounds them.
  std::vector<float> factors(std::vector<float> values) const;

  static float to_bf16(float x) { return rounded(x, 16); }  ///< to nearest, ties to even
  /// Tile length: a quarter of a short sum, 128 terms of a long one.
  static int64_t tile_of(int64_t n) { return n < 2 ? 0 : std::clamp<int64_t>(n / 4, 1, 128); }

 private:
  static constexpr int64_t kParts = 4;

  /// The nearest float with `dropped` fewer fraction bits, ties to even. NaN and infinity are unchanged.
  static float rounded(float x, int dropped) {
    const auto bits = std::bit_cast<uint32_t>(x);
    const uint32_t lowest = 1U << dropped, half = lowest >> 1;
    const float nearest = std::bit_cast<float>((bits + half - 1 + ((bits >> dropped) & 1U)) & ~(lowest - 1));
    return std::isfinite(x) ? nearest : x;
  }

  /// Number of a dot product's n terms that are added.
  int64_t terms_of(int64_t n) const {
    return n - std::min(dropped_k_tile_ ? tile_of(n) : dropped_k_, std::max<int64_t>(n - 1, 0));
  }

  /// step(total, i) adds term i to total. `rounds_partials`: the sums of four parts are rounded to the dtype of the
  /// case.
  template <class Step>
  float add_up(int64_t n, const Step& step, bool rounds_partials = false) const {
    if (bf16_partials_ || partial_lost_ || rounds_partials) {
      float total = 0;
      for (int64_t part = 0; part < kParts - (partial_lost_ && n >= kParts ? 1 : 0); ++part) {
        const float of_part = run(part * n / kParts, (part + 1) * n / kParts, step);
        total += bf16_partials_ ? to_bf16(of_part) : rounded_if(rounds_partials, of_part);
      }
      return total;
    }
    switch (plan_.order) {
      case Plan::Order::serial:
        return run(0, n, step);
      case Plan::Order::reversed:
        return run(0, n, [&](float total, int64_t i) { return step(total, n - 1 - i); });
      case Plan::Order::pairwise:
        return halves(0, n, step);
      case Plan::Order::blocked:
        return runs((n + plan_.width - 1) / plan_.width, [&](int64_t block) {
          return run(block * plan_.width, std::min(n, (block + 1) * plan_.width), step);
        });
      case Plan::Order::split:
        return runs(plan_.width,
                    [&](int64_t part) { return run(part * n / plan_.width, (part + 1) * n / plan_.width, step); });
    }
    return NAN;
  }

  template <class Step>
  float run(int64_t begin, int64_t end, const Step& step) const {
    float total = 0;
    for (int64_t i = begin; i < end; ++i) total = kept(step(total, i));
    return total;
  }
  template <class Part>
  float runs(int64_t n, const Part& part) const {
    float total = 0;
    for (int64_t i = 0; i < n; ++i) total = kept(total + part(i));
    return total;
  }
  template <class Step>
  float halves(int64_t begin, int64_t end, const Step& step) const {
    if (end - begin <= 8) return run(begin, end, step);
    const int64_t middle = begin + (end - begin) / 2;
    return kept(halves(begin, middle, step) + halves(middle, end, step));
  }
  /// A partial sum as the accumulator stores it.
  float kept(float total) const { return bf16_accumulator_ ? to_bf16(total) : total; }

  Plan plan_;
  std::string fault_;
  ActiveRecipes recipes_;
  bool skip_tile_, dropped_k_tile_, bf16_accumulator_, bf16_partials_, partial_lost_, bf16_exponential_, tf32_factors_,
      rounds_partials_;
  int64_t dropped_k_;
};

/// Values of every output of a pass, row-major, computed but not yet rounded to the stored dtype; empty for an output
/// that is absent or not asked for.
using Values = std::vector<std::vector<double>>;

/// Arguments of an emulation: the stored inputs, the arithmetic and the outputs.
struct EmulationArgs {
  std::span<const Tensor* const> inputs;  ///< in the order of the pass; nullptr for an absent optional input
  std::span<const double> attrs;
  const Arithmetic& arithmetic;
  Values& outputs;       ///< sized as the outputs, filled with 0; empty for an absent one. See Emulation::skips_empty
  unsigned threads = 1;  ///< results do not depend on it
  std::span<const int64_t> bounds = {};  ///< bounds of the ranks' parts of the parallel dimension; empty: no ranks
  KeptResults* kept = nullptr;           ///< nullptr: for this emulation alone

  const Tensor& in(int index) const { return *inputs[static_cast<size_t>(index)]; }
  bool has(int index) const { return inputs[static_cast<size_t>(index)] != nullptr; }
  std::vector<double>& out(int index) const { return outputs[static_cast<size_t>(index)]; }
  /// Input `index` as fp32; fp64 values are rounded once.
  std::vector<float> floats(int index) const;
  std::vector<int64_t> integers(int index) const;
  void parallel_for(int64_t n, const std::function<void(int64_t)>& body) const;
};

/// A pass as a kernel would compute it; see Pass::emulation.
struct Emulation {
  void (*run)(const EmulationArgs&);
  std::span<const FaultSpec> faults;  ///< faults that `run` or its arithmetic implements
  bool skips_empty = false;           ///< `run` leaves out a present output that is empty, for it is not asked for
};

}  // namespace checkop
