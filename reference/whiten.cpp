// SPDX-License-Identifier: Apache-2.0
// whiten: unmasked elements with mean 0 and variance 1.
#include <fmt/format.h>

#include <array>
#include <cmath>

#include "base/error.hpp"
#include "groups.hpp"
#include "left_out.hpp"
#include "operator/operator.hpp"
#include "policy.hpp"

namespace checkop {

extern const Emulation kWhitenForward;  // emulation/whiten.cpp

namespace whiten {
namespace {

constexpr std::string_view kRow = "batch seq";
constexpr TensorSpec kX{"x", kRow, Fill::normal, "", DType::f32, false, true};
constexpr TensorSpec kMask{"mask", kRow, Fill::mask, "", DType::u8, /*optional=*/true};
constexpr int kOfX = 0, kOfMask = 1;

constexpr std::array kForwardIn{kX, kMask};
constexpr std::array kForwardOut{
    OutputSpec{{"y", kRow, Fill::normal, "", DType::f32}, Numerics::reduction, "batch*seq"}};

enum Attr : size_t { kOfShift, kOfUnbiased, kOfEps };
constexpr std::array kAttrs{AttrSpec{"shift", 1, "1: the mean becomes 0; 0: the mean is added again"},
                            AttrSpec{"unbiased", 1, "1: the variance is divided by n - 1; 0: by n"},
                            AttrSpec{"eps", 1e-8, "is added to the variance"}};

std::vector<char> kept_by(const GoldArgs& args) {
  if (args.has(kOfMask)) return read_mask(args.in(kOfMask));
  return std::vector<char>(static_cast<size_t>(args.in(kOfX).count()), 1);
}

/// Gold of whiten. Over the n elements where the mask is not 0:
///   in:  x[batch, seq], mask[batch, seq] optional
///   out: y[batch, seq] = (x - mean)/sqrt(var + eps),  plus the mean without shift;  masked: 0
/// Fewer than two elements: 0. Masked elements are never read; they may hold anything.
/// Source: verl's masked_whiten.
void forward(const GoldArgs& args) {
  const Tensor& x = args.in(kOfX);
  const int64_t seq = x.shape.back();
  const std::vector<char> kept = kept_by(args);
  Moments moments;
  for (size_t i = 0; i < kept.size(); ++i)
    if (kept[i] != 0) moments.add(x.at(static_cast<int64_t>(i)));
  moments.finish(args.attrs[kOfUnbiased] != 0);
  const double square = moments.variance + args.attrs[kOfEps], s = std::sqrt(square);
  const bool enough = std::ssize(moments.values) > 1;
  args.parallel_for(std::ssize(kept) / seq, [&](int64_t row) {
    GoldElements y(seq);
    for (int64_t t = 0; t < seq && enough; ++t) {
      const int64_t i = row * seq + t;
      if (kept[static_cast<size_t>(i)] == 0) continue;
      GoldElement e = moments.standardised(x.at(i), s, 0.5 * moments.variance / square);
      // Equal elements: a kernel gets distances of exactly 0 only if it takes them from one of the elements.
      if (moments.equal) e = {0, moments.size / s, 0};
      if (args.attrs[kOfShift] == 0)
        e = e + GoldElement{moments.whole_mean(), moments.size, std::abs(moments.whole_mean())};
      y.set(t, e);
    }
    y.emit(args, 0, row);
  });
}

Work work(const GoldArgs& args) { return {0, bytes_left_out(args.in(kOfX), kept_by(args))}; }

constexpr std::array kPasses{Pass{"forward", kForwardIn, kForwardOut, forward, nullptr, work, &kWhitenForward}};

void validate(const CaseSizes& sizes) {
  for (const auto& [attr, flag] : {std::pair{kOfShift, "--shift"}, std::pair{kOfUnbiased, "--unbiased"}}) {
    if (sizes.attrs[attr] == 0 || sizes.attrs[attr] == 1) continue;
    throw InputError(flag, fmt::format("expected 0 or 1, got {}", sizes.attrs[attr]), "1 is usual");
  }
  if (!(sizes.attrs[kOfEps] > 0) || !std::isfinite(sizes.attrs[kOfEps])) {
    throw InputError("--eps", fmt::format("expected a number above 0, got {}", sizes.attrs[kOfEps]), "1e-8 is usual");
  }
}

/// Values far from 0, so that a variance computed as the mean of squares minus the square of the mean loses its digits.
/// Masked elements hold payloads.
void refine(const FillArgs& args) {
  constexpr double kOffset = 2048;
  Tensor& x = *args.find("x");
  const Tensor* const mask = args.find("mask");
  for (int64_t i = 0; i < x.count(); ++i) {
    if (args.mode == InputMode::random) x.set(i, x.at(i) + kOffset);
    if (mask != nullptr && mask->at(i) == 0) plant_payload(args, x, 1, i, payload_kind(args, static_cast<uint64_t>(i)));
  }
}

}  // namespace
}  // namespace whiten

extern const Operator kWhiten;
constexpr Operator kWhiten{"whiten",
                           "reduction",
                           "y = (x - mean)/sqrt(var + eps) over all unmasked elements; masked: 0",
                           "",
                           whiten::kAttrs,
                           whiten::kPasses,
                           whiten::validate,
                           whiten::refine,
                           /*parallel_dim=*/"",
                           /*left_out=*/"masked elements"};

}  // namespace checkop
