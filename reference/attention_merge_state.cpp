// SPDX-License-Identifier: Apache-2.0
// attention_merge_state: attention over all keys from the outputs and log-sum-exps of attention over parts of them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/error.hpp"
#include "gold_element.hpp"
#include "left_out.hpp"
#include "operator/operator.hpp"
#include "softmax.hpp"

namespace checkop {

extern const Emulation kAttentionMergeStateForward,
    kAttentionMergeStateBackward;  // emulation/attention_merge_state.cpp

namespace attention_merge_state {
namespace {

constexpr std::string_view kParts = "tokens parts heads head_dim", kPartRows = "tokens parts heads",
                           kOutputs = "tokens heads head_dim", kRows = "tokens heads";
constexpr TensorSpec kPartO{"part_o", kParts}, kPartLse{"part_lse", kPartRows, Fill::normal, "", DType::f32};
enum Input : int { kOfO, kOfLse, kOfGradO, kOfGradLse };
enum Output : int { kO, kLse };
enum Gradient : int { kDPartO, kDPartLse };

constexpr std::array kForwardIn{kPartO, kPartLse};
constexpr std::array kForwardOut{
    OutputSpec{{"o", kOutputs}, Numerics::reduction, "parts"},
    OutputSpec{{"lse", kRows, Fill::normal, "", DType::f32, /*optional=*/true}, Numerics::logprob, "parts"}};
constexpr std::array kBackwardIn{kPartO, kPartLse, TensorSpec{"grad_o", kOutputs, Fill::upstream},
                                 TensorSpec{"grad_lse", kRows, Fill::upstream, "", DType::f32, /*optional=*/true}};
constexpr std::array kBackwardOut{
    OutputSpec{{"dpart_o", kParts}, Numerics::composite, "parts"},
    OutputSpec{{"dpart_lse", kPartRows, Fill::normal, "", DType::f32}, Numerics::composite, "parts head_dim"}};

size_t at(int64_t i) { return static_cast<size_t>(i); }

/// One token, decoded: o[parts, heads, head_dim] and lse[parts, heads].
struct Token {
  int64_t parts, heads, head_dim;
  std::vector<double> o, lse;

  Token(const GoldArgs& args, int64_t token)
      : parts(args.in(kOfO).shape[1]),
        heads(args.in(kOfO).shape[2]),
        head_dim(args.in(kOfO).shape[3]),
        o(at(parts * heads * head_dim)),
        lse(at(parts * heads)) {
    decode_row(args.in(kOfO), token, o);
    decode_row(args.in(kOfLse), token, lse);
    for (int64_t i = 0; i < parts * heads; ++i) {
      if (lse[at(i)] != INFINITY) continue;
      throw InputError("input 'part_lse'",
                       fmt::format("token {}, part {}, head {} is infinite", token, i / heads, i % heads),
                       "give a finite number, or -inf for a part without keys");
    }
  }
  int64_t row(int64_t part, int64_t head) const { return part * heads + head; }
  double o_at(int64_t part, int64_t head, int64_t d) const { return o[at(row(part, head) * head_dim + d)]; }
};

/// The parts of one head that have keys, and the weight of each: w_p = exp(lse_p - max)/sum exp(lse_p - max).
/// With sums that grow by G, w errs by w (G growth + u rounding): the exponential and the sum of all of them, whose
/// arguments are rounded, and a division. Of one part alone w is 1 in every kernel, and has no error: o is a copy. Its
/// lse may still be converted, to base 2 and back.
struct Weights {
  std::vector<int64_t> parts;
  std::vector<double> w, rounding;
  double growth = 0;
  GoldElement lse{-INFINITY, 0, 0};

  Weights(const Token& token, int64_t head) {
    SoftmaxRow softmax;
    std::vector<double> z;
    for (int64_t p = 0; p < token.parts; ++p) {
      const double lse_p = token.lse[at(token.row(p, head))];
      if (lse_p != -INFINITY) parts.push_back(p), z.push_back(lse_p);
    }
    if (parts.empty()) return;
    softmax.add(z.data(), std::ssize(z));
    const bool is_alone = parts.size() == 1;
    growth = is_alone ? 0 : 1;
    for (const double each : z) {
      const double below = std::abs(each - softmax.max);
      w.push_back(std::exp(each - softmax.max) / softmax.sum);
      rounding.push_back(is_alone ? 0 : 2 * kExpUnits + kArgumentUnits * (below + softmax.mean_spread()) + 2);
    }
    lse = {softmax.lse(), growth, softmax.lse_rounding()};
  }
};

/// Gold of attention_merge_state.
///   in:  part_o[tokens, parts, heads, head_dim], part_lse[tokens, parts, heads], natural logarithms
///   out: o[tokens, heads, head_dim], optional lse[tokens, heads]
///   lse = log sum_p exp(lse_p),  o = sum_p w_p o_p,  w_p = exp(lse_p - lse)
/// A part without keys has an lse of -inf: it weighs nothing, and its o is never read. Without any keys o is 0 and lse
/// -inf. Throws InputError for an lse of +inf.
void forward(const GoldArgs& args) {
  args.for_rows(kO, args.in(kOfO).shape[0], [&](int64_t t) {
    const Token token(args, t);
    GoldElements o(token.heads * token.head_dim), lse(token.heads);
    for (int64_t head = 0; head < token.heads; ++head) {
      const Weights weights(token, head);
      lse.set(head, weights.lse);
      for (int64_t d = 0; d < token.head_dim; ++d) {
        GoldElement sum{0, 0, 0};
        for (size_t i = 0; i < weights.parts.size(); ++i) {
          const double x = token.o_at(weights.parts[i], head, d), size = std::abs(weights.w[i] * x);
          sum.value += weights.w[i] * x;
          if (weights.growth == 0) continue;
          sum.magnitude += size * (1 + weights.growth);
          sum.rounding += size * (weights.rounding[i] + 1) + kFlushUnits * std::abs(x);
        }
        o.set(head * token.head_dim + d, sum);
      }
    }
    o.emit(args, kO, t);
    if (!args.output_shapes[kLse].empty()) lse.emit(args, kLse, t);
  });
}

/// Gold of attention_merge_state's gradients.
///   in:  as forward, then grad_o[tokens, heads, head_dim], optional grad_lse[tokens, heads]
///   out: dpart_o, dpart_lse, shaped as part_o and part_lse
///   dpart_o = w_p grad_o,  dpart_lse = w_p (grad_o (o_p - o) + grad_lse);  0 for a part without keys
/// Errors, with S_p = sum_d |grad_o o_p| and S = sum_p w_p S_p:
///   dpart_lse: w_p (S_p + S (2 + growth) + |grad_o (o_p - o) + grad_lse| growth),
///     rounding w_p (2 S_p + sum_q w_q S_q (rounding_q + 2) + |...| (rounding_p + 3) + |grad_lse|)
/// Source: differentiated by hand; checked by gradient_test.
void backward(const GoldArgs& args) {
  args.for_rows(kDPartO, args.in(kOfO).shape[0], [&](int64_t t) {
    const Token token(args, t);
    GoldElements dpart_o(std::ssize(token.o)), dpart_lse(std::ssize(token.lse));
    for (int64_t head = 0; head < token.heads; ++head) {
      const Weights weights(token, head);
      const int64_t first = (t * token.heads + head) * token.head_dim;
      std::vector<double> c(weights.parts.size()), size(c);
      double mean = 0, mean_size = 0, mean_rounding = 0;
      for (size_t i = 0; i < c.size(); ++i) {
        for (int64_t d = 0; d < token.head_dim; ++d) {
          const double term = args.in(kOfGradO).at(first + d) * token.o_at(weights.parts[i], head, d);
          c[i] += term, size[i] += std::abs(term);
        }
        mean += weights.w[i] * c[i], mean_size += weights.w[i] * size[i];
        mean_rounding += weights.w[i] * size[i] * (weights.rounding[i] + 2);
      }
      const double of_lse = args.has(kOfGradLse) ? args.in(kOfGradLse).at(t * token.heads + head) : 0;
      for (size_t i = 0; i < c.size(); ++i) {
        const int64_t row = token.row(weights.parts[i], head);
        const double w = weights.w[i], off = c[i] - mean + of_lse;
        for (int64_t d = 0; d < token.head_dim; ++d) {
          const double g = args.in(kOfGradO).at(first + d), value = w * g;
          dpart_o.set(row * token.head_dim + d,
                      {value, std::abs(value) * weights.growth,
                       std::abs(value) * (weights.rounding[i] + 1) + kFlushUnits * std::abs(g)});
        }
        dpart_lse.set(
            row, {w * off, w * (size[i] + mean_size * (2 + weights.growth) + std::abs(off) * weights.growth),
                  w * (2 * size[i] + mean_rounding + std::abs(off) * (weights.rounding[i] + 3) + std::abs(of_lse)) +
                      kFlushUnits * (std::abs(off) + 1)});
      }
    }
    dpart_o.emit(args, kDPartO, t);
    dpart_lse.emit(args, kDPartLse, t);
  });
}

/// The outputs of parts without keys are not read.
Work work(const GoldArgs& args) {
  const Tensor &o = args.in(kOfO), &lse = args.in(kOfLse);
  std::vector<char> used(at(lse.count()));
  for (int64_t i = 0; i < lse.count(); ++i) used[at(i)] = lse.at(i) != -INFINITY ? 1 : 0;
  return {0, static_cast<double>(std::count(used.begin(), used.end(), 0)) * static_cast<double>(o.shape[3]) *
                 static_cast<double>(info(o.dtype).bytes)};
}

/// Some parts have no keys, some heads none in any part; their outputs are payloads. In mode wide log-sum-exps are far
/// from each other, and from 0: kinds of tokens alternate.
void refine(const FillArgs& args) {
  if (args.mode == InputMode::constant) return;
  Tensor &o = *args.find("part_o"), &lse = *args.find("part_lse");
  const int64_t parts = lse.shape[1], heads = lse.shape[2], head_dim = o.shape[3];
  constexpr std::array<double, 4> kGaps{0, 4, 600, 1}, kOffsets{0, 0, 100, 1e4};
  for (int64_t t = 0; t < lse.shape[0]; ++t) {
    for (int64_t part = 0; part < parts; ++part) {
      for (int64_t head = 0; head < heads; ++head) {
        const int64_t row = (t * parts + part) * heads + head;
        const auto kind = at((t + head) % 4);
        if (args.mode == InputMode::wide) {
          const double gap = kGaps[kind] * static_cast<double>((part + t) % parts) / static_cast<double>(parts);
          lse.set(row, 3 * lse.at(row) - gap + (head % 2 == 0 ? 1 : -1) * kOffsets[kind]);
        }
        const bool has_none = (t * heads + head) % 8 == 5;
        const bool is_empty =
            args.ignored_every == 1 ||
            (args.ignored_every > 0 && (has_none || args.uniform("empty parts", static_cast<uint64_t>(row)) < 0.2));
        if (!is_empty) continue;
        lse.set(row, -INFINITY);
        plant_payload(args, o, head_dim, row, payload_kind(args, static_cast<uint64_t>(row)));
      }
    }
  }
}

constexpr std::array kPasses{
    Pass{"forward", kForwardIn, kForwardOut, forward, nullptr, work, &kAttentionMergeStateForward},
    Pass{"backward", kBackwardIn, kBackwardOut, backward, nullptr, work, &kAttentionMergeStateBackward}};

}  // namespace
}  // namespace attention_merge_state

extern const Operator kAttentionMergeState;
constexpr Operator kAttentionMergeState{"attention_merge_state",
                                        "reduction",
                                        "o = sum over parts of exp(part_lse - lse) part_o, lse = log sum exp(part_lse)",
                                        "tokens",
                                        {},
                                        attention_merge_state::kPasses,
                                        nullptr,
                                        attention_merge_state::refine,
                                        /*parallel_dim=*/"",
                                        /*left_out=*/"parts without keys"};

}  // namespace checkop
