// SPDX-License-Identifier: Apache-2.0
// tp_linear_logp on GPUs, one per rank: shared by the candidates nccl and nccl-sm90. They differ in the Engine, which
// computes one rank's parts:
//   Engine::Sum                                      the two numbers that represent a sum of exponentials
//   Engine::workspace(linear_logp::Sizes, backward, segments)  bytes; the first kIdCheckBytes are for ids
//   Engine(call, sizes, backward, segments, ignored)           refuses what it does not support
//   Engine::ld(hidden)                                   leading dimension of a rank's contribution to dhidden
//   keep_hidden()                                        replaces ignored rows of hidden by zeros from here on
//   reduce(segment, first, columns, parts)               every row's part, for the rank's `columns` from first on
//   write_rows(grad_logp)                                finish(row, Sum, target's logit) that prepares gradients()
//   gradients(segment, first, columns, grad_logp, share) gradients of these columns; share: [rows, ld()] fp32, their
//                                                        contribution to dhidden
//   words()                                              describes the variant used
//
// While the GPU computes its part of every row, the host checks whether the ranks fit together; only after that does
// anything wait for another rank.
#pragma once

#include "cuda/ranks.cuh"
#include "linear_logp/portable.cuh"
#include "tp_linear_logp/call.hpp"

namespace checkop::kernels::tp_linear_logp {

/// Layout of the workspace after the engine's own part.
struct Places {
  size_t id_sum, parts, all_parts, shares, received, bytes;

  Places(const checkop_call& c, const linear_logp::Sizes& sizes, size_t engine_bytes, int64_t ld, bool backward) {
    const ranks::PartsSize size(c, sizes.rows);
    size_t end = (engine_bytes + 255) / 256 * 256;
    const auto place = [&end](int64_t bytes) {
      const size_t start = end;
      end += static_cast<size_t>(round_up(bytes, 256));
      return start;
    };
    id_sum = place(8);
    parts = place(size.own_bytes());
    all_parts = place(size.all_bytes());
    const int64_t row_bytes = backward ? ld * 4 : 0;
    shares = place(size.own_segments * sizes.rows * row_bytes);
    received = place(size.other_segments * ranks::RowsOfRanks{sizes.rows, c.world_size}.most() * row_bytes);
    bytes = end;
  }
};

template <typename Engine>
size_t workspace_bytes(const checkop_call* call, bool backward) {
  try {
    if (call->world_size < 1) return 0;
    const linear_logp::Sizes sizes = linear_logp::sizes_of(call);
    const int64_t segments = std::ssize(native::own_bounds(*call)) - 1;
    return Places(*call, sizes, Engine::workspace(sizes, backward, segments), Engine::ld(sizes.hidden), backward).bytes;
  } catch (const std::exception&) {
    return 0;  // the launch reports the error
  }
}

template <typename Engine, typename T>
void run(const checkop_call& c, bool backward) {
  native::Ranks ranks(c);
  std::optional<Engine> engine;
  std::optional<ranks::IdLook> ids;
  std::vector<int64_t> bounds;
  linear_logp::Sizes sizes{};
  const auto stream = static_cast<cudaStream_t>(c.stream);
  auto* workspace = static_cast<std::byte*>(c.workspace);
  std::optional<Places> at;
  ranks.agree([&](native::Statement& own) {
    ranks::check_ranks(c);
    const ::tp_linear_logp::Sizes own_sizes = ::tp_linear_logp::check_own(c, backward, own);
    sizes = {own_sizes.rows, own_sizes.hidden, own_sizes.vocab, sizeof(T)};
    bounds = native::own_bounds(c);
    const int64_t segments = std::ssize(bounds) - 1;
    at.emplace(c, sizes, Engine::workspace(sizes, backward, segments), Engine::ld(sizes.hidden), backward);
    ranks::require_workspace(c, at->bytes);
    if (sizes.rows == 0 || sizes.vocab < 1) return;  // all ranks together refuse vocab < 1
    const auto ignored = static_cast<int64_t>(own.ignored);
    engine.emplace(c, sizes, backward, segments, ignored);
    ids.emplace(c, c.inputs[2], "target_ids", sizes.rows, ignored, workspace, workspace + at->id_sum);
    ids->begin();
    if (backward) engine->keep_hidden();
    auto* parts = reinterpret_cast<ranks::Part*>(workspace + at->parts);
    for (int64_t s = 0; s < segments; ++s) {
      const auto at_s = static_cast<size_t>(s);
      engine->reduce(s, bounds[at_s] - c.shard_begin, bounds[at_s + 1] - bounds[at_s], parts + s * sizes.rows);
    }
    own.ids = ids->hash();
  });
  if (sizes.rows == 0) {
    if (linear_logp::clear_weight_gradients(&c) != CHECKOP_OK)
      throw native::Refusal(CHECKOP_FAILED, c.message == nullptr ? "" : c.message);
    return;
  }
  ids->refuse_bad_ids();

  const ranks::PartsOfRanks of(ranks);
  const auto* parts = ranks::gather_parts(c, of, reinterpret_cast<const ranks::Part*>(workspace + at->parts),
                                          reinterpret_cast<ranks::Part*>(workspace + at->all_parts), sizes.rows);
  if (!backward) {
    const WriteLogp finish{static_cast<const int64_t*>(c.inputs[2].data), ranks.ignored(),
                           static_cast<float*>(c.outputs[0].data)};
    ranks::launch_combine<typename Engine::Sum>(parts, of, sizes.rows, finish, stream);
  } else {
    const auto* grad_logp = static_cast<const float*>(c.inputs[4].data);
    ranks::launch_combine<typename Engine::Sum>(parts, of, sizes.rows, engine->write_rows(grad_logp), stream);
    auto* shares = reinterpret_cast<float*>(workspace + at->shares);
    const int64_t ld = Engine::ld(sizes.hidden);
    for (int64_t s = 0; s + 1 < std::ssize(bounds); ++s) {
      const auto at_s = static_cast<size_t>(s);
      engine->gradients(s, bounds[at_s] - c.shard_begin, bounds[at_s + 1] - bounds[at_s], grad_logp,
                        shares + s * sizes.rows * ld);
    }
    ranks::reduce_shares(c, ranks, shares, reinterpret_cast<float*>(workspace + at->received), sizes.rows, sizes.hidden,
                         ld, static_cast<T*>(c.outputs[0].data));
  }
  ranks::require(cudaGetLastError(), backward ? "launch tp_linear_logp backward" : "launch tp_linear_logp forward");
  say(&c, CHECKOP_OK, "%s", engine->words());
}

/// Engine for fp32, fp16 and bf16; sums are in fp32.
template <typename T>
class Portable {
 public:
  using Sum = Partial;

  static size_t workspace(const linear_logp::Sizes& sizes, bool backward, int64_t) {
    return linear_logp::layout_of(sizes, backward).bytes;
  }
  static int64_t ld(int64_t hidden) { return round_up(hidden, 4); }

  Portable(const checkop_call& c, const linear_logp::Sizes& sizes, bool backward, int64_t, int64_t ignored)
      : call_(c), all_(linear_logp::problem_of<T>(&c, sizes, linear_logp::layout_of(sizes, backward), ignored)) {
    all_.first_id = c.shard_begin;
    if (sizes.hidden > kMaxGemmColumns) {
      throw native::Refusal(CHECKOP_UNSUPPORTED, "hidden: last extent " + std::to_string(sizes.hidden) + ", at most " +
                                                     std::to_string(kMaxGemmColumns) + " is supported");
    }
  }

  void keep_hidden() { linear_logp::keep_hidden(all_); }

  void reduce(int64_t, int64_t first, int64_t columns, ranks::Part* parts) const {
    const int64_t begin = all_.first_id + first;
    const auto* target_logit = all_.template in_workspace<float>(all_.at.target_logit);
    linear_logp::launch_softmax(all_.part(first, columns), [&](int64_t row) {
      return ranks::WritePart{target_logit, all_.target_ids + row, begin, begin + columns, parts + row};
    });
  }

  WriteSums<Partial> write_rows(const float*) const {
    return WriteSums<Partial>{all_.template in_workspace<Partial>(all_.at.totals)};
  }

  void gradients(int64_t, int64_t first, int64_t columns, const float* grad_logp, float* share) const {
    linear_logp::with_weight_gradients<T>(call_, [&](const auto& to) {
      linear_logp::launch_gradients(all_.part(first, columns), grad_logp, share, to.from(first, all_.sizes.hidden));
    });
  }

  const char* words() const { return ""; }

 private:
  const checkop_call& call_;
  linear_logp::Problem<T> all_;  ///< of all this rank's columns
};

}  // namespace checkop::kernels::tp_linear_logp
