// SPDX-License-Identifier: Apache-2.0
// tp_linear_logp on GPUs, one per rank: shared by the candidates nccl and nccl-sm90. They differ in the Engine, which
// computes one rank's parts:
//   Engine::Sum                                          the two numbers that represent a sum of exponentials
//   Engine::workspace(shape, backward, segments)         bytes; the first kIdCheckBytes are for ids
//   Engine(call, shape, backward, segments, ignored)     refuses what it does not support
//   Engine::ld(hidden)                                   leading dimension of a rank's contribution to dhidden
//   keep_hidden()                                        replaces ignored rows of hidden by zeros from here on
//   reduce(segment, first, columns, stats)               every row's statistics over `columns` columns from first
//   write_rows(grad_logp)                                finish(row, Sum, target's logit) that prepares gradients()
//   gradients(segment, first, columns, grad_logp, share) gradients of these columns; share: [rows, ld()] fp32, their
//                                                        contribution to dhidden
//   variant()                                            names the variant used
//
// While the GPU computes its part of every row, the host checks whether the ranks fit together. Nothing waits for
// another rank before that check is done.
#pragma once

#include "cuda/ranks.cuh"
#include "linear_logp/portable.cuh"
#include "tp_linear_logp/call.hpp"

namespace checkop::kernels::tp_linear_logp {

/// Layout of the workspace after the engine's own part.
struct WorkspaceLayout {
  size_t id_sum, stats, all_stats, shares, received, bytes;

  WorkspaceLayout(const checkop_call& c, const linear_logp::LinearLogpShape& shape, size_t engine_bytes, int64_t ld,
                  bool backward) {
    const ranks::StatsSize size(c, shape.rows);
    size_t end = (engine_bytes + 255) / 256 * 256;
    const auto reserve = [&end](int64_t bytes) {
      const size_t start = end;
      end += static_cast<size_t>(round_up(bytes, 256));
      return start;
    };
    id_sum = reserve(8);
    stats = reserve(size.own_bytes());
    all_stats = reserve(size.all_bytes());
    const int64_t row_bytes = backward ? ld * 4 : 0;
    shares = reserve(size.own_segments * shape.rows * row_bytes);
    received = reserve(size.other_segments * ranks::RowsOfRanks{shape.rows, c.world_size}.most() * row_bytes);
    bytes = end;
  }
};

template <typename Engine>
size_t workspace_bytes(const checkop_call* call, bool backward) {
  try {
    if (call->world_size < 1) return 0;
    const linear_logp::LinearLogpShape shape = linear_logp::shape_of(call);
    const int64_t segments = std::ssize(native::own_bounds(*call)) - 1;
    return WorkspaceLayout(*call, shape, Engine::workspace(shape, backward, segments), Engine::ld(shape.hidden),
                           backward)
        .bytes;
  } catch (const std::exception&) {
    return 0;  // the launch reports the error
  }
}

template <typename Engine, typename T>
void run(const checkop_call& c, bool backward) {
  native::Ranks ranks(c);
  std::optional<Engine> engine;
  std::optional<ranks::TargetIdCheck> ids;
  std::vector<int64_t> bounds;
  linear_logp::LinearLogpShape shape{};
  const auto stream = static_cast<cudaStream_t>(c.stream);
  auto* workspace = static_cast<std::byte*>(c.workspace);
  std::optional<WorkspaceLayout> layout;
  ranks.agree([&](native::RankInfo& own) {
    ranks::check_ranks(c);
    const ::tp_linear_logp::TpLinearLogpShape own_shape = ::tp_linear_logp::check_own(c, backward, own);
    shape = {own_shape.rows, own_shape.hidden, own_shape.vocab, sizeof(T)};
    bounds = native::own_bounds(c);
    const int64_t segments = std::ssize(bounds) - 1;
    layout.emplace(c, shape, Engine::workspace(shape, backward, segments), Engine::ld(shape.hidden), backward);
    ranks::require_workspace(c, layout->bytes);
    if (shape.rows == 0 || shape.vocab < 1) return;  // all ranks together refuse vocab < 1
    const auto ignored = static_cast<int64_t>(own.ignored);
    engine.emplace(c, shape, backward, segments, ignored);
    ids.emplace(c, c.inputs[2], "target_ids", shape.rows, ignored, workspace, workspace + layout->id_sum);
    ids->begin();
    if (backward) engine->keep_hidden();
    auto* stats = reinterpret_cast<ranks::SegmentStats*>(workspace + layout->stats);
    for (int64_t s = 0; s < segments; ++s) {
      const auto i = static_cast<size_t>(s);
      engine->reduce(s, bounds[i] - c.shard_begin, bounds[i + 1] - bounds[i], stats + s * shape.rows);
    }
    own.ids = ids->hash();
  });
  if (shape.rows == 0) {
    if (linear_logp::clear_weight_gradients(&c) != CHECKOP_OK)
      throw native::Refusal(CHECKOP_FAILED, c.message == nullptr ? "" : c.message);
    return;
  }
  ids->refuse_bad_ids();

  const ranks::GatheredStats of(ranks);
  const auto* stats =
      ranks::all_gather_stats(c, of, reinterpret_cast<const ranks::SegmentStats*>(workspace + layout->stats),
                              reinterpret_cast<ranks::SegmentStats*>(workspace + layout->all_stats), shape.rows);
  if (!backward) {
    const WriteLogp finish{static_cast<const int64_t*>(c.inputs[2].data), ranks.ignored(),
                           static_cast<float*>(c.outputs[0].data)};
    ranks::launch_combine<typename Engine::Sum>(stats, of, shape.rows, finish, stream);
  } else {
    const auto* grad_logp = static_cast<const float*>(c.inputs[4].data);
    ranks::launch_combine<typename Engine::Sum>(stats, of, shape.rows, engine->write_rows(grad_logp), stream);
    auto* shares = reinterpret_cast<float*>(workspace + layout->shares);
    const int64_t ld = Engine::ld(shape.hidden);
    for (int64_t s = 0; s + 1 < std::ssize(bounds); ++s) {
      const auto i = static_cast<size_t>(s);
      engine->gradients(s, bounds[i] - c.shard_begin, bounds[i + 1] - bounds[i], grad_logp,
                        shares + s * shape.rows * ld);
    }
    ranks::reduce_shares(c, ranks, shares, reinterpret_cast<float*>(workspace + layout->received), shape.rows,
                         shape.hidden, ld, static_cast<T*>(c.outputs[0].data));
  }
  ranks::require(cudaGetLastError(), backward ? "launch tp_linear_logp backward" : "launch tp_linear_logp forward");
  say(&c, CHECKOP_OK, "%s", engine->variant());
}

/// Engine for fp32, fp16 and bf16; sums are in fp32.
template <typename T>
class Portable {
 public:
  using Sum = Partial;

  static size_t workspace(const linear_logp::LinearLogpShape& shape, bool backward, int64_t) {
    return linear_logp::workspace_layout(shape, backward).bytes;
  }
  static int64_t ld(int64_t hidden) { return round_up(hidden, 4); }

  Portable(const checkop_call& c, const linear_logp::LinearLogpShape& shape, bool backward, int64_t, int64_t ignored)
      : call_(c), all_(linear_logp::params_of<T>(&c, shape, linear_logp::workspace_layout(shape, backward), ignored)) {
    all_.first_id = c.shard_begin;
    if (shape.hidden > kMaxGemmColumns) {
      throw native::Refusal(CHECKOP_UNSUPPORTED, "hidden: last extent " + std::to_string(shape.hidden) + ", at most " +
                                                     std::to_string(kMaxGemmColumns) + " is supported");
    }
  }

  void keep_hidden() { linear_logp::keep_hidden(all_); }

  void reduce(int64_t, int64_t first, int64_t columns, ranks::SegmentStats* stats) const {
    const int64_t begin = all_.first_id + first;
    const auto* target_logit = all_.template in_workspace<float>(all_.layout.target_logit);
    linear_logp::launch_softmax(all_.part(first, columns), [&](int64_t row) {
      return ranks::WriteSegmentStats{target_logit, all_.target_ids + row, begin, begin + columns, stats + row};
    });
  }

  WriteSums<Partial> write_rows(const float*) const {
    return WriteSums<Partial>{all_.template in_workspace<Partial>(all_.layout.totals)};
  }

  void gradients(int64_t, int64_t first, int64_t columns, const float* grad_logp, float* share) const {
    linear_logp::with_weight_gradients<T>(call_, [&](const auto& to) {
      const linear_logp::LogpGradient gradient{grad_logp, all_.template in_workspace<Partial>(all_.layout.totals)};
      linear_logp::launch_gradients(all_.part(first, columns), gradient, share, to.from(first, all_.shape.hidden));
    });
  }

  const char* variant() const { return ""; }

 private:
  const checkop_call& call_;
  linear_logp::LinearLogpParams<T> all_;  ///< of all this rank's columns
};

}  // namespace checkop::kernels::tp_linear_logp
