// SPDX-License-Identifier: Apache-2.0
// gae: generalised advantage estimation over the unmasked tokens of each sequence.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <vector>

#include "base/error.hpp"
#include "gold_element.hpp"
#include "left_out.hpp"
#include "operator/operator.hpp"
#include "policy.hpp"

namespace checkop {

extern const Emulation kGaeForward;  // emulation/gae.cpp

namespace gae {
namespace {

constexpr std::string_view kRow = "batch seq";
constexpr TensorSpec kRewards{"rewards", kRow, Fill::normal, "", DType::f32, false, true};
constexpr TensorSpec kValues{"values", kRow, Fill::normal, "", DType::f32, false, true};
constexpr TensorSpec kMask{"mask", kRow, Fill::mask, "", DType::u8};
constexpr TensorSpec kLastValues{"last_values", "batch", Fill::normal, "", DType::f32, true, true};
enum Input : int { kOfRewards, kOfValues, kOfMask, kOfLastValues };

constexpr std::array kForwardIn{kRewards, kValues, kMask, kLastValues};
constexpr std::array kForwardOut{
    OutputSpec{{"advantages", kRow, Fill::normal, "", DType::f32}, Numerics::reduction, "seq", /*sampled=*/true},
    OutputSpec{{"returns", kRow, Fill::normal, "", DType::f32}, Numerics::reduction, "seq", /*sampled=*/true},
};

enum Attr : size_t { kOfGamma, kOfLambda };
constexpr std::array kAttrs{AttrSpec{"gamma", 1, "discount of a later token's reward and value"},
                            AttrSpec{"lambda", 1, "discount of a later token's error of value, besides gamma"}};

/// Roundings that a factor costs: of itself to fp32, and of its product; none for 1.
double units_of(double factor) {
  return factor == 1 ? 0 : static_cast<double>(static_cast<float>(factor)) == factor ? 1 : 2;
}

/// Gold of gae. Over the unmasked tokens of a sequence, where t' is the next unmasked token after t:
///   in:  rewards, values[batch, seq], mask[batch, seq], last_values[batch] optional
///   out: advantages[batch, seq]: A_t = d_t + gamma lambda A_t',  d_t = r_t + gamma V_t' - V_t
///        returns[batch, seq] = A + V
///   after the last token A_t' = 0 and V_t' = last_values, or 0 without this input; masked tokens: 0
/// Masked tokens are never read; they may hold anything.
/// A is the sum of (gamma lambda)^k (r + gamma V' - V). A partial sum in any order is at most the sum of their sizes,
/// and the k-th term has the roundings of k factors. Source: Schulman et al., arXiv 1506.02438; masked tokens as in
/// verl.
void forward(const GoldArgs& args) {
  const Tensor &rewards = args.in(kOfRewards), &values = args.in(kOfValues), &mask = args.in(kOfMask);
  const int64_t seq = mask.shape.back();
  const double gamma = args.attrs[kOfGamma], both = gamma * args.attrs[kOfLambda];
  const double of_gamma = units_of(gamma), of_both = of_gamma + units_of(args.attrs[kOfLambda]);
  args.for_rows(0, mask.count() / std::max<int64_t>(seq, 1), [&](int64_t sequence) {
    GoldElements a(seq), returns(seq);
    double next_value = args.has(kOfLastValues) ? args.in(kOfLastValues).at(sequence) : 0;
    GoldElement next{0, 0, 0};
    for (int64_t t = seq; t-- > 0;) {
      const int64_t at = sequence * seq + t;
      if (mask.at(at) == 0) continue;
      const double value = values.at(at), later = gamma * next_value;
      const double size = std::abs(rewards.at(at)) + std::abs(later) + std::abs(value);
      next = {(rewards.at(at) - value) + later + both * next.value, size + both * next.magnitude,
              2 * size + of_gamma * std::abs(later) + both * (next.rounding + of_both * next.magnitude)};
      next_value = value;
      a.set(t, next);
      returns.set(t, next + exact(value));
    }
    a.emit(args, 0, sequence);
    returns.emit(args, 1, sequence);
  });
}

Work work(const GoldArgs& args) {
  const std::vector<char> used = read_mask(args.in(kOfMask));
  return {0, bytes_left_out(args.in(kOfRewards), used) + bytes_left_out(args.in(kOfValues), used)};
}

constexpr std::array kPasses{Pass{"forward", kForwardIn, kForwardOut, forward, nullptr, work, &kGaeForward}};

void validate(const CaseSizes& sizes) {
  for (const auto& [attr, flag] : {std::pair{kOfGamma, "--gamma"}, std::pair{kOfLambda, "--lambda"}}) {
    if (sizes.attrs[attr] >= 0 && sizes.attrs[attr] <= 1) continue;
    throw InputError(flag, fmt::format("expected a number from 0 to 1, got {}", sizes.attrs[attr]), "1 is usual");
  }
}

/// Masked tokens hold payloads.
void refine(const FillArgs& args) {
  const Tensor& mask = *args.find("mask");
  for (int64_t i = 0; i < mask.count(); ++i) {
    if (mask.at(i) != 0) continue;
    const uint64_t kind = payload_kind(args, static_cast<uint64_t>(i));
    plant_payload(args, *args.find("rewards"), 1, i, kind);
    plant_payload(args, *args.find("values"), 1, i, kind);
  }
}

}  // namespace
}  // namespace gae

extern const Operator kGae;
constexpr Operator kGae{"gae",
                        "reduction",
                        "A = r + gamma V' - V + gamma lambda A', V' and A' of the next unmasked token; returns = A + V",
                        "batch",
                        gae::kAttrs,
                        gae::kPasses,
                        gae::validate,
                        gae::refine,
                        /*parallel_dim=*/"",
                        /*left_out=*/"masked tokens"};

}  // namespace checkop
