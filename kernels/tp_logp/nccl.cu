// SPDX-License-Identifier: Apache-2.0
// tp_logp / nccl: the vocabulary divided among ranks with a GPU each; one block per row, portable CUDA, sums in fp32.
//   forward   logp[row] = z[row,t] - lse(z[row,:]),  t = token_ids[row]
//   backward  dlogits[row,c] = g[row] * ((c == t) - softmax(z[row,:])[c]),  g = grad_logp
//   logits z, dlogits: [rows, part of vocab] f32|f16|bf16, contiguous   token_ids: [rows] i64, global
//   logp, grad_logp: [rows] f32
//   If token_ids[row] = ignore_index: logp and gradient are 0, and the row of logits is not read.
//   One exchange: 16 bytes per row and rank (or canonical segment), gathered on every rank and combined in the order of
//   the vocabulary. With canonical segments bits do not depend on the number of ranks.
//   Limits: rows < 2^31, 2^30 columns of a rank; 64 ranks, 64 canonical segments.
//   Workspace: 512 bytes, 8 per row, and 16 * (ranks + 1) per row; with n canonical segments the last n - ranks + 1
//   times.
//   Expected error: as for logp / cuda, plus one addition per part.
#include "cuda/ranks.cuh"
#include "cuda/softmax.cuh"
#include "tp_logp/call.hpp"

namespace checkop::kernels {
namespace {

/// Computes one row's parts per block, one for each of the rank's segments.
template <typename T>
__global__ __launch_bounds__(kMaxThreads, kBlocksPerSM) void reduce_rows(
    const T* __restrict__ logits, const int64_t* __restrict__ token_ids, int64_t ignored, int64_t ld, int64_t first,
    int64_t columns, int64_t first_id, ranks::SegmentStats* __restrict__ stats, int slots) {
  const int64_t row = blockIdx.x, target = token_ids[row] - first_id;
  if (token_ids[row] == ignored) {  // the same for the whole block
    if (threadIdx.x == 0) stats[row] = {-INFINITY, 0.0f, 0.0f, 0};
    return;
  }
  const T* __restrict__ z = logits + row * ld + first;
  StepRing ring(slots);
  const auto reduce = [&](const auto& steps) { return reduce_row(ring, steps); };
  const Partial total = with_steps(columns, reduce, z);
  if (threadIdx.x != 0) return;
  const bool holds = target >= 0 && target < columns;
  stats[row] = {total.max, total.sum, holds ? to_float(z[target]) : 0.0f, holds ? 1u : 0u};
}

/// dlogits of the rank's columns of one row per block.
template <typename T>
__global__ __launch_bounds__(kMaxBackwardThreads) void gradient_rows(const T* __restrict__ logits,
                                                                     const int64_t* __restrict__ token_ids,
                                                                     const float* __restrict__ grad_logp,
                                                                     const Partial* __restrict__ totals,
                                                                     int64_t ignored, int64_t columns, int64_t first_id,
                                                                     T* __restrict__ dlogits, int slots) {
  const int64_t row = blockIdx.x;
  if (token_ids[row] == ignored) return write_zeros(dlogits + row * columns, columns);  // the whole block
  StepRing ring(slots);
  const auto write = [&](const auto& x) {
    fetch_last_steps(ring, x);
    write_gradient(ring, x, totals[row], grad_logp[row], token_ids[row] - first_id, dlogits + row * columns);
  };
  with_steps(columns, write, logits + row * columns);
}

/// Layout of the workspace after the kIdCheckBytes for ids.
struct WorkspaceLayout {
  size_t id_sum, stats, all_stats, totals, bytes;

  WorkspaceLayout(const checkop_call& c, int64_t rows) {
    const ranks::StatsSize size(c, rows);
    size_t end = kIdCheckBytes;
    const auto reserve = [&end](int64_t bytes) {
      const size_t start = end;
      end += static_cast<size_t>(round_up(bytes, 256));
      return start;
    };
    id_sum = reserve(8);
    stats = reserve(size.own_bytes());
    all_stats = reserve(size.all_bytes());
    totals = reserve(rows * static_cast<int64_t>(sizeof(Partial)));
    bytes = end;
  }
};

size_t workspace_bytes(const checkop_call* call) {
  try {
    return call->n_inputs < 1 || call->world_size < 1 ? 0
                                                      : WorkspaceLayout(*call, leading_count(call->inputs[0])).bytes;
  } catch (const std::exception&) {
    return 0;  // the launch reports the error
  }
}

template <typename T>
void run(const checkop_call& c, bool backward) {
  native::Ranks ranks(c);
  tp_logp::TpLogpShape shape{};
  std::optional<WorkspaceLayout> reserved;
  std::optional<ranks::TargetIdCheck> id_check;
  const auto stream = static_cast<cudaStream_t>(c.stream);
  auto* workspace = static_cast<std::byte*>(c.workspace);
  ranks.agree([&](native::RankInfo& own) {
    ranks::check_ranks(c);
    shape = tp_logp::check_own(c, backward, own);
    // A row is a block, and a grid has at most that many blocks
    if (shape.rows > std::numeric_limits<int32_t>::max()) {
      throw native::Refusal(CHECKOP_UNSUPPORTED,
                            "logits: " + std::to_string(shape.rows) + " rows, at most 2147483647 are supported");
    }
    if (shape.columns > kMostVocab) {
      throw native::Refusal(CHECKOP_UNSUPPORTED, "logits: " + std::to_string(shape.columns) + " columns, at most " +
                                                     std::to_string(kMostVocab) + " are supported");
    }
    const WorkspaceLayout& layout = reserved.emplace(c, shape.rows);
    ranks::require_workspace(c, layout.bytes);
    if (shape.rows == 0 || shape.columns < 1) return;  // all ranks together refuse columns < 1
    id_check.emplace(c, c.inputs[1], "token_ids", shape.rows, own.ignored, workspace, workspace + layout.id_sum);
    id_check->begin();
    auto* stats = reinterpret_cast<ranks::SegmentStats*>(workspace + layout.stats);
    const std::vector<int64_t> bounds = native::own_bounds(c);
    for (size_t s = 0; s + 1 < bounds.size(); ++s) {
      const int64_t columns = bounds[s + 1] - bounds[s];
      const auto error = launch_rows<T>(
          reduce_rows<T>, shape.rows, threads_for(columns), columns, stream, static_cast<const T*>(c.inputs[0].data),
          static_cast<const int64_t*>(c.inputs[1].data), own.ignored, shape.columns, bounds[s] - c.shard_begin, columns,
          bounds[s], stats + static_cast<int64_t>(s) * shape.rows);
      ranks::require(error, "launch tp_logp");
    }
    own.ids = id_check->hash();
  });
  if (shape.rows == 0) return;
  id_check->refuse_bad_ids();

  const WorkspaceLayout& layout = *reserved;
  const auto* ids = static_cast<const int64_t*>(c.inputs[1].data);
  const ranks::GatheredStats of(ranks);
  const auto* stats =
      ranks::all_gather_stats(c, of, reinterpret_cast<const ranks::SegmentStats*>(workspace + layout.stats),
                              reinterpret_cast<ranks::SegmentStats*>(workspace + layout.all_stats), shape.rows);
  if (backward) {
    auto* totals = reinterpret_cast<Partial*>(workspace + layout.totals);
    ranks::launch_combine<Partial>(stats, of, shape.rows, WriteSums<Partial>{totals}, stream);
    const auto error =
        launch_rows<T>(gradient_rows<T>, shape.rows, backward_threads_for(shape.columns), shape.columns, stream,
                       static_cast<const T*>(c.inputs[0].data), ids, static_cast<const float*>(c.inputs[2].data),
                       totals, ranks.ignored(), shape.columns, c.shard_begin, static_cast<T*>(c.outputs[0].data));
    ranks::require(error, "launch tp_logp backward");
  } else {
    ranks::launch_combine<Partial>(stats, of, shape.rows,
                                   WriteLogp{ids, ranks.ignored(), static_cast<float*>(c.outputs[0].data)}, stream);
  }
  ranks::require(cudaGetLastError(), backward ? "launch tp_logp backward" : "launch tp_logp forward");
}

template <bool backward>
checkop_status launch(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    with_float_type(c.n_inputs > 0 ? c.inputs[0].dtype : CHECKOP_F32, [&]<typename Tag>(Tag) {
      run<typename Tag::type>(c, backward);
      return CHECKOP_OK;
    });
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "nccl", "tp_logp", "forward", CHECKOP_CUDA, 80, 0, workspace_bytes, launch<false>},
    {sizeof(checkop_kernel), "nccl", "tp_logp", "backward", CHECKOP_CUDA, 80, 0, workspace_bytes, launch<true>},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
