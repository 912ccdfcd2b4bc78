// SPDX-License-Identifier: Apache-2.0
// tp_linear_logp / native: CPU, the vocabulary divided among ranks, threads or processes; fp32, by chunks of the
// vocabulary.
//   logp = z[t] - m - log(s),  z = hidden W^T + bias    dz as in cpu/linear_logp.hpp
//   dhidden = sum over all ranks of dz W                 dW = dz^T hidden, dbias = sum_r dz: of the rank's own part
//   hidden: [..., hidden]  W: [part of vocab, hidden]  bias: [part of vocab], fp32|bf16|fp16
//   target_ids: int64, global
//   If target_ids[r] = ignore_index: logp is 0 and the row adds nothing to any gradient, whatever hidden[r] holds.
//   With carries: as linear_logp / native, of the rank's own part.
//   Exchanges: (m, s, z_t) of every part; backward, dhidden of every part in fp32. Both are all-gathered and combined
//   on every rank in the order of the vocabulary.
//   Limits: contiguous.   Expected error: as for linear_logp, plus one rounding per part.
#include "cpu/linear_logp.hpp"
#include "tp_linear_logp/call.hpp"

namespace {

using namespace native::linear;
using native::SumExp;

LinearLogpParams check(const checkop_call& c, native::Ranks& ranks, bool gradient) {
  tp_linear_logp::TpLinearLogpShape shape{};
  ranks.agree([&](native::RankInfo& own) {
    shape = tp_linear_logp::check_own(c, gradient, own);
    own.ids = native::hash_of(static_cast<const int64_t*>(c.inputs[2].data), shape.rows);
  });
  ranks.check_target_ids(c.inputs[2], "target_ids", shape.rows);
  return load_params(c, shape.rows, shape.hidden, shape.vocab, ranks.ignored(), ranks.begin());
}

native::Combined combined(const LinearLogpParams& p, const native::Ranks& ranks, float* z) {
  std::vector<native::SegmentStats> own;
  for (size_t s = ranks.first_segment(); s < ranks.last_segment(); ++s) {
    const RowStates states = row_states(p, ranks.segments()[s] - p.begin, ranks.segments()[s + 1] - p.begin, z);
    for (size_t r = 0; r < states.sums.size(); ++r)
      own.push_back({states.sums[r].max, states.sums[r].sum, states.target_logits[r]});
  }
  return native::combine_stats(ranks, own, p.targets, p.rows);
}

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::Ranks ranks(c);
    const LinearLogpParams p = check(c, ranks, /*gradient=*/false);
    std::vector<float> z(size(p.rows * p.stride()));
    const native::Combined all = combined(p, ranks, z.data());
    auto* logp = static_cast<float*>(c.outputs[0].data);
    for (int64_t r = 0; r < p.rows; ++r) {
      const SumExp& s = all.sums[size(r)];
      logp[r] = p.left_out(r) ? 0.0f : (all.targets[size(r)] - s.shift()) - std::log(s.sum);
    }
  });
}

/// dhidden = the sum of all segments' contributions, in order; `own` is this rank's [segment][rows * hidden].
void reduce_dhidden(const LinearLogpParams& p, const native::Ranks& ranks, const std::vector<std::vector<float>>& own,
                    const checkop_tensor& dhidden) {
  constexpr int64_t kExchanged = int64_t{1} << 18;  // elements of a segment exchanged at a time
  const int64_t count = p.rows * p.hidden;
  for (int64_t first = 0; first < count; first += kExchanged) {
    const int64_t n = std::min(kExchanged, count - first);
    std::vector<float> send, sum(size(n));
    for (const std::vector<float>& share : own)
      send.insert(send.end(), share.begin() + first, share.begin() + first + n);
    ranks.for_each_segment(send, size(n), [&](size_t s, const float* share) {
      for (size_t i = 0; i < sum.size(); ++i) sum[i] = s == 0 ? share[i] : sum[i] + share[i];
    });
    native::store(dhidden, first, n, sum.data());
  }
}

checkop_status backward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::Ranks ranks(c);
    const LinearLogpParams p = check(c, ranks, /*gradient=*/true);
    std::vector<float> z(size(p.rows * p.stride()));
    const native::Combined all = combined(p, ranks, z.data());
    const auto* g = static_cast<const float*>(c.inputs[4].data);
    std::vector<std::vector<float>> shares;
    for (size_t s = ranks.first_segment(); s < ranks.last_segment(); ++s) {
      const int64_t end = ranks.segments()[s + 1] - p.begin;
      native::VectorTree dhidden;
      for (int64_t first = ranks.segments()[s] - p.begin; first < end; first += kChunk) {
        const int64_t columns = std::min(kChunk, end - first);
        chunk_logits(p, first, columns, z.data());
        chunk_gradient(p, all.sums, g, first, columns, z.data());
        dhidden.add(chunk_dhidden(p, first, columns, z.data()));
        store_chunk_weight_gradient(p, first, columns, z.data(), c);
      }
      shares.push_back(native::finish(dhidden, p.rows * p.hidden));
    }
    reduce_dhidden(p, ranks, shares, c.outputs[0]);
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "tp_linear_logp", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
    {sizeof(checkop_kernel), "native", "tp_linear_logp", "backward", CHECKOP_CPU, 0, 0, nullptr, backward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
