// SPDX-License-Identifier: Apache-2.0
// Emulates attention_merge_state as kernels compute it.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "emulation/common.hpp"

namespace checkop {
namespace attention_merge_state {
namespace {

using namespace emulation;

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kLn2 = 0x1.62e43p-1F;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

constexpr FaultSpec kBase2{"base_2", "lse is read and written as a logarithm of base 2"};
constexpr FaultSpec kUnshifted{kMaximumNotSubtracted.name, "exponentials are taken of lse itself", "nonfinite"};
constexpr FaultSpec kEmptyNan{"empty_head_nan", "a head whose parts have no keys is exp(-inf - -inf)", "nonfinite"};
constexpr FaultSpec kEmptyMultiplied{"empty_part_multiplied",
                                     "what a part without keys holds is multiplied by a weight of 0", "nonfinite"};
constexpr FaultSpec kLseOfNoKeys{"lse_of_no_keys", "lse of a head whose parts have no keys is 0", "nonfinite", "",
                                 "lse"};
constexpr FaultSpec kLseOfLargest{"lse_of_largest", "lse is that of the largest part", "accuracy", "", "lse"};
constexpr FaultSpec kLastPartDropped{"last_part_dropped", "of several parts with keys the last is not read"};
constexpr FaultSpec kPartsAlike{"parts_alike", "all parts with keys weigh the same"};
constexpr FaultSpec kNextPartRead{"next_part_read", "a weight multiplies the output of the next part"};
constexpr FaultSpec kWeightsOfFirstHead{"weights_of_first_head", "every head has the weights of the first"};
constexpr FaultSpec kNotNormalised{"not_normalised", "weights are not divided by their sum"};
constexpr FaultSpec kMeanDropped{"mean_dropped", "dpart_lse lacks the product with o"};
constexpr FaultSpec kLseGradientUnweighted{"lse_gradient_unweighted", "dpart_lse is not multiplied by the weight"};
constexpr FaultSpec kGradLseLeftOut{"grad_lse_left_out", "the gradient of lse is not heeded", "accuracy", "",
                                    "grad_lse"};
constexpr FaultSpec kGradLseSubtracted{"grad_lse_subtracted", "the gradient of lse has the wrong sign", "accuracy", "",
                                       "grad_lse"};

/// One head of a token.
struct Head {
  std::vector<int64_t> rows;  ///< of the parts that are read, in arrays [tokens * parts * heads, ...]
  std::vector<float> w;       ///< the weight of each
  float lse = -kInfinity;

  Head(const Arithmetic& a, const std::vector<float>& part_lse, const Shape& shape, int64_t token, int64_t head) {
    const int64_t parts = shape[1], heads = shape[2];
    std::vector<float> z, of_weights;
    for (int64_t p = 0; p < parts; ++p) {
      const int64_t row = (token * parts + p) * heads;
      const float own = part_lse[static_cast<size_t>(row + head)], first = part_lse[static_cast<size_t>(row)];
      if (own == -kInfinity && !a.has(kEmptyMultiplied.name)) continue;
      rows.push_back(row + head), z.push_back(own);
      of_weights.push_back(a.has(kWeightsOfFirstHead.name) && first != -kInfinity ? first : own);
    }
    if (a.has(kLastPartDropped.name) && rows.size() > 1) rows.pop_back(), z.pop_back(), of_weights.pop_back();
    const bool is_empty = std::all_of(z.begin(), z.end(), [](float x) { return x == -kInfinity; });
    w.assign(rows.size(), 0);
    if (is_empty) {
      if (a.has(kLseOfNoKeys.name)) lse = 0;
      return;
    }
    const float base = a.has(kBase2.name) ? kLn2 : 1;
    for (std::vector<float>* each : {&z, &of_weights})
      for (float& x : *each) x *= base;
    const auto n = static_cast<int64_t>(z.size());
    const SoftmaxRow of_lse = softmax_row(a, z.data(), n), softmax = softmax_row(a, of_weights.data(), n);
    for (size_t i = 0; i < w.size(); ++i) {
      const float sum = a.has(kNotNormalised.name) ? 1 : softmax.sum;
      w[i] = a.has(kPartsAlike.name) ? 1 / static_cast<float>(n) : a.exponential(of_weights[i] - softmax.max) / sum;
    }
    lse = a.has(kLseOfLargest.name) ? of_lse.max : of_lse.max + std::log(of_lse.sum);
    lse /= base;
  }
  /// The row whose output the weight of part i multiplies.
  int64_t read(const Arithmetic& a, int64_t i) const {
    const auto n = std::ssize(rows);
    return rows[static_cast<size_t>(a.has(kNextPartRead.name) ? (i + 1) % n : i)];
  }
  /// The merged output.
  std::vector<float> output(const Arithmetic& a, const Matrix& part_o) const {
    std::vector<float> o(static_cast<size_t>(part_o.columns));
    for (size_t d = 0; d < o.size(); ++d)
      o[d] = a.sum(std::ssize(rows), [&](int64_t i) { return w[static_cast<size_t>(i)] * part_o.row(read(a, i))[d]; });
    if (rows.empty() && a.has(kEmptyNan.name)) std::fill(o.begin(), o.end(), kNan);
    return o;
  }
};

/// body(row of outputs, head) for every head of every token.
template <class Body>
void for_each_head(const EmulationArgs& args, const Body& body) {
  const Shape& shape = args.in(0).shape;
  const std::vector<float> part_lse = args.floats(1);
  args.parallel_for(shape[0], [&](int64_t token) {
    for (int64_t head = 0; head < shape[2]; ++head)
      body(token * shape[2] + head, Head(args.arithmetic, part_lse, shape, token, head));
  });
}

void forward(const EmulationArgs& args) {
  const Matrix part_o = matrix(args, 0);
  for_each_head(args, [&](int64_t row, const Head& head) {
    const std::vector<float> o = head.output(args.arithmetic, part_o);
    std::copy(o.begin(), o.end(), args.out(0).begin() + row * part_o.columns);
    if (!args.out(1).empty()) args.out(1)[static_cast<size_t>(row)] = head.lse;
  });
}

void backward(const EmulationArgs& args) {
  const Arithmetic& a = args.arithmetic;
  const Matrix part_o = matrix(args, 0), grad_o = matrix(args, 2);
  const std::vector<float> grad_lse = args.has(3) ? args.floats(3) : std::vector<float>();
  const int64_t n = part_o.columns;
  for_each_head(args, [&](int64_t row, const Head& head) {
    const float* const g = grad_o.row(row);
    const std::vector<float> o = head.output(a, part_o);
    const float mean = a.has(kMeanDropped.name) ? 0 : a.dot(n, g, 1, o.data(), 1);
    float of_lse = grad_lse.empty() || a.has(kGradLseLeftOut.name) ? 0 : grad_lse[static_cast<size_t>(row)];
    if (a.has(kGradLseSubtracted.name)) of_lse = -of_lse;
    for (int64_t i = 0; i < std::ssize(head.rows); ++i) {
      const int64_t part = head.rows[static_cast<size_t>(i)];
      const float w = head.w[static_cast<size_t>(i)];
      for (int64_t d = 0; d < n; ++d) args.out(0)[static_cast<size_t>(part * n + d)] = w * g[d];
      const float off = a.dot(n, g, 1, part_o.row(head.read(a, i)), 1) - mean + of_lse;
      args.out(1)[static_cast<size_t>(part)] = a.has(kLseGradientUnweighted.name) ? off : w * off;
    }
  });
}

constexpr std::array kShared{faults::kLastTileSkipped,
                             faults::kBf16Accumulator,
                             faults::kBf16Exponential,
                             kSumNotRescaled,
                             kBase2,
                             kUnshifted,
                             kEmptyMultiplied,
                             kLastPartDropped,
                             kPartsAlike,
                             kNextPartRead,
                             kWeightsOfFirstHead,
                             kNotNormalised};
constexpr std::array kForwardFaults = joined(kShared, std::array{kEmptyNan, kLseOfNoKeys, kLseOfLargest});
constexpr std::array kBackwardFaults =
    joined(kShared, std::array{faults::kLastKDropped, faults::kLastKTileDropped, kMeanDropped, kLseGradientUnweighted,
                               kGradLseLeftOut, kGradLseSubtracted});

}  // namespace
}  // namespace attention_merge_state

extern const Emulation kAttentionMergeStateForward, kAttentionMergeStateBackward;
const Emulation kAttentionMergeStateForward{attention_merge_state::forward, attention_merge_state::kForwardFaults};
const Emulation kAttentionMergeStateBackward{attention_merge_state::backward, attention_merge_state::kBackwardFaults};

}  // namespace checkop
