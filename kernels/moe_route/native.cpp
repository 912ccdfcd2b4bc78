// SPDX-License-Identifier: Apache-2.0
// moe_route / native: CPU; scores in fp32, one maximum after the other; among equal scores the lowest index comes
// first, NaN last.
//   s = softmax(logits), sigmoid(logits) or logits;  b = s + bias;  of the n_group groups, the topk_group stay whose
//   group_top largest b have the largest sums;  ids[t] = the topk largest b in these groups;  counts[e] = slots of
//   expert e
//   weights = route_scale * s / (sum of the chosen s + norm_eps), route_scale * s without renorm, or
//   route_scale * softmax(chosen logits);  dlogits: the gradient by logits, with ids as they are
//   logits, dlogits: [..., experts] fp32|bf16|fp16   bias: [experts] fp32, optional   counts: [experts] int32
//   ids: [..., topk] int32   weights, grad_weights: [..., topk] fp32   Limits: contiguous.
//   Expected error: sums are chains of 68 + log2(terms / 1024) additions; exponentials of glibc.
#include "cpu/native.hpp"
#include "cpu/rows.hpp"

namespace {

using native::Extent;
using native::Refusal;

enum Score { kSoftmax, kSigmoid, kLogit };

/// The tensors and attributes that both passes have.
struct Router {
  Router(const checkop_call& c, const checkop_tensor& ids, const checkop_tensor& weights)
      : logits(c.inputs[0]),
        score(static_cast<int>(native::attribute(c, "score"))),
        groups(static_cast<int64_t>(native::attribute(c, "n_group"))),
        groups_kept(static_cast<int64_t>(native::attribute(c, "topk_group"))),
        group_top(static_cast<int64_t>(native::attribute(c, "group_top"))),
        renorm(native::attribute(c, "renorm") != 0 && score != kLogit),
        norm_eps(native::attribute(c, "norm_eps")),
        scale(native::attribute(c, "route_scale")) {
    native::check_computed_dtype(logits.dtype);
    native::check_matrix(logits, "logits", logits.dtype, tokens, experts);
    native::check_matrix(ids, "ids", CHECKOP_I32, tokens, topk);
    native::check_matrix(weights, "weights", CHECKOP_F32, tokens, topk);
    if (const checkop_tensor& bias = c.inputs[1]; bias.data != nullptr) {
      native::check_vector(bias, "bias", CHECKOP_F32, experts);
      biases = native::load_all(bias, experts.value);
    }
    if (groups < 1 || experts.value % groups != 0 || groups_kept < 1 || groups_kept > groups ||
        topk.value > experts.value / groups * groups_kept || (groups > 1 && group_top > experts.value / groups))
      throw Refusal(CHECKOP_FAILED, "n_group, topk_group, group_top and topk do not fit the number of experts");
  }

  const checkop_tensor& logits;
  int score;
  int64_t groups, groups_kept, group_top;
  bool renorm;
  float norm_eps, scale;
  Extent tokens{"tokens"}, experts{"experts"}, topk{"topk"};
  std::vector<float> biases;
};

void softmax(std::vector<float>& z) {
  const native::SumExp s = native::sum_exp(z.data(), static_cast<int64_t>(z.size()));
  for (float& x : z) x = std::exp(x - s.shift()) / s.sum;
}

/// The logits of a token, then its scores.
std::vector<float> scores_of(const Router& router, int64_t token) {
  const int64_t experts = router.experts.value;
  std::vector<float> z(static_cast<size_t>(experts));
  native::load(router.logits, token * experts, experts, z.data());
  if (router.score == kSoftmax) softmax(z);
  for (size_t e = 0; e < z.size() && router.score == kSigmoid; ++e) z[e] = 1 / (1 + std::exp(-z[e]));
  return z;
}

/// Places of the `n` largest of values[begin, end) that are open, the largest first; closes them.
std::vector<int64_t> take_largest(const std::vector<float>& values, std::vector<char>& is_open, int64_t begin,
                                  int64_t end, int64_t n) {
  std::vector<int64_t> taken;
  for (int64_t i = 0; i < n; ++i) {
    int64_t best = -1;
    for (int64_t j = begin; j < end; ++j) {
      const float value = values[static_cast<size_t>(j)];
      if (is_open[static_cast<size_t>(j)] == 0) continue;
      const bool better = best < 0 || value > values[static_cast<size_t>(best)] ||
                          (std::isnan(values[static_cast<size_t>(best)]) && !std::isnan(value));
      if (better) best = j;
    }
    is_open[static_cast<size_t>(best)] = 0;
    taken.push_back(best);
  }
  return taken;
}

std::vector<int64_t> choose(const Router& router, std::vector<float> scores) {
  const int64_t experts = router.experts.value, of_group = experts / router.groups;
  for (size_t e = 0; e < router.biases.size(); ++e) scores[e] += router.biases[e];
  std::vector<char> is_open(scores.size(), router.groups > 1 ? 0 : 1);
  if (router.groups > 1) {
    std::vector<float> sums;
    for (int64_t g = 0; g < router.groups; ++g) {
      std::vector<char> all(scores.size(), 1);
      float sum = 0;
      for (const int64_t e : take_largest(scores, all, g * of_group, (g + 1) * of_group, router.group_top))
        sum += scores[static_cast<size_t>(e)];
      sums.push_back(sum);
    }
    std::vector<char> all(sums.size(), 1);
    for (const int64_t g : take_largest(sums, all, 0, router.groups, router.groups_kept))
      std::fill_n(is_open.begin() + g * of_group, of_group, 1);
  }
  return take_largest(scores, is_open, 0, experts, router.topk.value);
}

/// Scores of the chosen experts, or for kLogit their softmax.
std::vector<float> scores_of_chosen(const Router& router, const std::vector<float>& scores, const auto& ids) {
  std::vector<float> chosen;
  for (const int64_t id : ids) chosen.push_back(scores[static_cast<size_t>(id)]);
  if (router.score == kLogit) softmax(chosen);
  return chosen;
}

float divisor_of(const Router& router, const std::vector<float>& chosen) {
  if (!router.renorm) return 1;
  return native::blocked_sum(router.topk.value, [&](int64_t i) { return chosen[static_cast<size_t>(i)]; }) +
         router.norm_eps;
}

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 2, 3);
    Router router(c, c.outputs[0], c.outputs[1]);
    native::check_vector(c.outputs[2], "counts", CHECKOP_I32, router.experts);
    auto* const ids = static_cast<int32_t*>(c.outputs[0].data);
    auto* const weights = static_cast<float*>(c.outputs[1].data);
    auto* const counts = static_cast<int32_t*>(c.outputs[2].data);
    const int64_t topk = router.topk.value, tokens = router.tokens.value;
    native::parallel_for(tokens, tokens * router.experts.value * (topk + 4), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const std::vector<float> scores = scores_of(router, t);
        const std::vector<int64_t> own = choose(router, scores);
        const std::vector<float> chosen = scores_of_chosen(router, scores, own);
        const float divisor = divisor_of(router, chosen);
        for (size_t i = 0; i < own.size(); ++i) {
          ids[t * topk + static_cast<int64_t>(i)] = static_cast<int32_t>(own[i]);
          weights[t * topk + static_cast<int64_t>(i)] = router.scale * chosen[i] / divisor;
        }
      }
    });
    std::fill_n(counts, router.experts.value, 0);
    for (int64_t i = 0; i < tokens * topk; ++i) ++counts[ids[i]];
  });
}

checkop_status backward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 4, 1);
    Router router(c, c.inputs[2], c.inputs[3]);
    native::check_matrix(c.outputs[0], "dlogits", router.logits.dtype, router.tokens, router.experts);
    const int64_t topk = router.topk.value, experts = router.experts.value, tokens = router.tokens.value;
    const auto* const all_ids = static_cast<const int32_t*>(c.inputs[2].data);
    const auto* const upstream = static_cast<const float*>(c.inputs[3].data);
    for (int64_t i = 0; i < tokens * topk; ++i)
      if (all_ids[i] < 0 || all_ids[i] >= experts) throw Refusal(CHECKOP_FAILED, "ids: an element is no expert");
    native::parallel_for(tokens, tokens * experts * 8, [&](int64_t begin, int64_t end) {
      std::vector<float> dz(static_cast<size_t>(experts)), ds(static_cast<size_t>(topk));
      for (int64_t t = begin; t < end; ++t) {
        const std::vector<int64_t> ids(all_ids + t * topk, all_ids + (t + 1) * topk);
        const float* const g = upstream + t * topk;
        const std::vector<float> scores = scores_of(router, t), chosen = scores_of_chosen(router, scores, ids);
        const float divisor = divisor_of(router, chosen);
        // With kLogit, `chosen` is the softmax of the chosen logits, and `mean` belongs to it.
        const float of_norm = router.renorm ? router.scale * native::dot(g, chosen.data(), topk) / divisor : 0.0f;
        for (size_t i = 0; i < ds.size(); ++i) ds[i] = (router.scale * g[i] - of_norm) / divisor;
        const float mean = router.score == kSigmoid ? 0.0f : native::dot(ds.data(), chosen.data(), topk);
        for (size_t e = 0; e < dz.size(); ++e) dz[e] = router.score == kSoftmax ? -mean * scores[e] : 0.0f;
        for (size_t i = 0; i < ds.size(); ++i) {
          const float slope = router.score == kSigmoid ? chosen[i] * (1 - chosen[i]) : chosen[i];
          dz[static_cast<size_t>(ids[i])] = slope * (ds[i] - mean);
        }
        native::store(c.outputs[0], t * experts, experts, dz.data());
      }
    });
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "moe_route", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
    {sizeof(checkop_kernel), "native", "moe_route", "backward", CHECKOP_CPU, 0, 0, nullptr, backward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
