// SPDX-License-Identifier: Apache-2.0
// tp_logp / native: CPU, the vocabulary divided among ranks, threads or processes; fp32, one row at a time.
//   logp[r] = (z[r,t] - m) - log(s),  m = max_v z[r,v],  s = sum_v exp(z[r,v] - m)
//   dlogits[r,v] = g[r] * ([v = t] - exp(z[r,v] - m) / s)
//   logits, dlogits: [..., part of vocab] fp32|bf16|fp16    token_ids: [...] int64, global    logp, grad_logp: fp32
//   If token_ids[r] = ignore_index: logp and gradient are 0, and the row of logits is not read.
//   One exchange: (m, s, z_t) of every part, all-gathered, then combined on every rank in the order of the vocabulary.
//   Limits: contiguous.   Expected error: as for logp, plus one rounding per part.
#include "tp_logp/call.hpp"

namespace {

struct TpLogpParams {
  const checkop_tensor& logits;
  const int64_t* ids;
  int64_t rows, columns;
};

TpLogpParams check(const checkop_call& c, native::Ranks& ranks, bool gradient) {
  tp_logp::TpLogpShape shape{};
  const auto* ids = static_cast<const int64_t*>(c.inputs[1].data);
  ranks.agree([&](native::RankInfo& own) {
    shape = tp_logp::check_own(c, gradient, own);
    own.ids = native::hash_of(ids, shape.rows);
  });
  ranks.check_target_ids(c.inputs[1], "token_ids", shape.rows);
  return {c.inputs[0], ids, shape.rows, shape.columns};
}

native::Combined combined(const TpLogpParams& p, const native::Ranks& ranks) {
  const size_t first = ranks.first_segment(), rows = static_cast<size_t>(p.rows);
  const std::vector<int64_t>& bounds = ranks.segments();
  std::vector<native::SegmentStats> own((ranks.last_segment() - first) * rows);
  native::parallel_for(p.rows, 16 * p.rows * p.columns, [&](int64_t from, int64_t to) {
    std::vector<float> z(static_cast<size_t>(p.columns));
    for (int64_t r = from; r < to; ++r) {
      if (p.ids[r] == ranks.ignored()) continue;
      native::load(p.logits, r * p.columns, p.columns, z.data());
      for (size_t s = first; s < ranks.last_segment(); ++s) {
        const native::SumExp part =
            native::sum_exp(&z[static_cast<size_t>(bounds[s] - ranks.begin())], bounds[s + 1] - bounds[s]);
        const bool owns = p.ids[r] >= bounds[s] && p.ids[r] < bounds[s + 1];
        own[(s - first) * rows + static_cast<size_t>(r)] = {
            part.max, part.sum, owns ? z[static_cast<size_t>(p.ids[r] - ranks.begin())] : 0.0f};
      }
    }
  });
  return native::combine_stats(ranks, own, p.ids, p.rows);
}

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::Ranks ranks(c);
    const TpLogpParams p = check(c, ranks, /*gradient=*/false);
    const native::Combined all = combined(p, ranks);
    auto* logp = static_cast<float*>(c.outputs[0].data);
    for (int64_t r = 0; r < p.rows; ++r) {
      const auto at = static_cast<size_t>(r);
      const native::SumExp& s = all.sums[at];
      logp[r] = p.ids[r] == ranks.ignored() ? 0.0f : (all.targets[at] - s.shift()) - std::log(s.sum);
    }
  });
}

checkop_status backward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::Ranks ranks(c);
    const TpLogpParams p = check(c, ranks, /*gradient=*/true);
    const native::Combined all = combined(p, ranks);
    const auto* g = static_cast<const float*>(c.inputs[2].data);
    native::parallel_for(p.rows, 32 * p.rows * p.columns, [&](int64_t from, int64_t to) {
      std::vector<float> z(static_cast<size_t>(p.columns));
      for (int64_t r = from; r < to; ++r) {
        const native::SumExp& s = all.sums[static_cast<size_t>(r)];
        const bool left_out = p.ids[r] == ranks.ignored();
        if (!left_out) native::load(p.logits, r * p.columns, p.columns, z.data());
        for (int64_t v = 0; v < p.columns; ++v) {
          float& element = z[static_cast<size_t>(v)];
          const float probability = left_out ? 0.0f : std::exp(element - s.shift()) / s.sum;
          element = left_out ? 0.0f : ranks.begin() + v == p.ids[r] ? g[r] * (1.0f - probability) : -g[r] * probability;
        }
        native::store(c.outputs[0], r * p.columns, p.columns, z.data());
      }
    });
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "tp_logp", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
    {sizeof(checkop_kernel), "native", "tp_logp", "backward", CHECKOP_CPU, 0, 0, nullptr, backward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
