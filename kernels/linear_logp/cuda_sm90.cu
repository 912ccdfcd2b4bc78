// SPDX-License-Identifier: Apache-2.0
// linear_logp / cuda-sm90: Hopper's wgmma and copy engine for fp16 and bf16, no logits in memory.
//   z = hidden * lm_head_weight^T + bias,  t = target_ids[row],  g = grad_logp[row],  p = softmax(z[row,:])
//   forward   logp[row] = z[row,t] - lse(z[row,:])
//   backward  dz[row,c] = g * ((c == t) - p[c]);  dhidden = dz * lm_head_weight, dlm_head_weight = dz^T * hidden,
//             dbias[c] = sum_row dz[row,c]
//   hidden, dhidden: [rows, hidden]   lm_head_weight, dlm_head_weight: [vocab, hidden]   bias, dbias: [vocab],
//   optional; all of one dtype, f32|f16|bf16, contiguous      target_ids: [rows] i64      logp, grad_logp: [rows] f32
//   where target_ids[row] = ignore_index: logp 0, and the row adds nothing to any gradient, whatever hidden[row] holds
//   No gradients in fp16: dz[row,c] is about g / vocab, where fp16 has few bits left or none.
//   Limits: sm_90 only; |z| < 2^127, vocab < 2^30. Other ids outside [0, vocab) are CHECKOP_FAILED. fp32, and sums of
//   nothing, as in the candidate cuda.
//   Workspace: forward: 8 bytes per row and 256 columns of vocabulary, for as many rows at a time as give 24 MiB.
//   Backward: 2 bytes per row and column for as many columns at a time as give 132 MiB, 4 + 2 bytes per row and hidden.
//   Expected error: a logit is one chain of hidden / 16 additions that truncate (sm90/plan.cuh); exponentials to 2 ulp,
//   chains of 16 + 4 additions in a segment of 256 columns, segments in chains of vocab / 8192. dz is rounded to the
//   dtype of hidden once, except in dbias; then one chain of vocab / 16 or rows / 16.
// The bits of logp and dhidden do not depend on the other rows: sm90/segments.cuh, sm90/gradient.cuh.
#include <type_traits>

#include "linear_logp/portable.cuh"
#include "sm90/gradient.cuh"
#include "sm90/select.cuh"

namespace checkop::kernels {
namespace {

using linear_logp::check_call;
using linear_logp::Sizes;
using linear_logp::sizes_of;

constexpr auto kEngine = sm90::Loads::copy_engine;
constexpr auto kDirect = sm90::Stores::direct;
struct ManyRows : sm90::Plan<2, 256, 64, 4, 2, 1, kEngine, kDirect> {
  static constexpr const char* kWords = "wgmma 128x256, pairs";
};
// At most 128 rows, then at most 64: reading the weights takes the time.
struct Rows128 : sm90::Plan<2, 256, 64, 4, 1, 1, kEngine, kDirect> {
  static constexpr const char* kWords = "wgmma 128x256";
};
struct Rows64 : sm90::Plan<1, 256, 64, 0, 1, 1, kEngine, kDirect> {
  static constexpr const char* kWords = "wgmma 64x256";
};
// Matrices that the copy engine can't reach.
struct Unaligned : sm90::Plan<1, 256, 64, 4, 1, 1, sm90::Loads::plain, kDirect> {
  static constexpr const char* kWords = "wgmma 64x256, element loads";
};

struct Workspace {
  int64_t rows;     ///< at a time in a pass over the logits
  int64_t columns;  ///< of the vocabulary at a time, when gradients are computed; 0 in the forward pass
  int64_t n_segments;
  size_t target_logit, row_gradients, kept_hidden, hidden_sums, block_sums, bias_sums;
  size_t sums, dz;  ///< the same place: the ones are done with before the others begin
  size_t bytes;
};

Workspace workspace_of(const Sizes& sizes, bool backward) {
  constexpr int64_t kSumBytes = int64_t{24} << 20, kRowUnit = 256;  // rows of a pair of blocks
  // 64 tiles of columns at 4096 rows: of two waves of blocks each on 132 multiprocessors, with little left over.
  constexpr int64_t kGradientBytes = int64_t{132} << 20, kColumnUnit = 256;
  Workspace at{};
  at.n_segments = ceil_div(sizes.vocab, sm90::kSegmentColumns);
  const int64_t of_row = at.n_segments * static_cast<int64_t>(sizeof(sm90::PowerSum));
  const auto fitting = [](int64_t bytes, int64_t each, int64_t unit, int64_t all) {
    const int64_t fit = each == 0 ? all : bytes / each / unit * unit;
    return all < fit ? all : fit < unit ? unit : fit;
  };
  at.rows = fitting(kSumBytes, of_row, kRowUnit, sizes.rows);
  size_t end = kIdCheckBytes;
  const auto place = [&end](int64_t bytes) {
    const size_t start = end;
    end += static_cast<size_t>(round_up(bytes, 256));
    return start;
  };
  at.target_logit = place(at.rows * 4);
  if (backward) {
    at.columns = fitting(kGradientBytes, sizes.rows * 2, kColumnUnit, round_up(sizes.vocab, 8));
    at.row_gradients = place(sizes.rows * static_cast<int64_t>(sizeof(sm90::RowGradient)));
    at.kept_hidden = place(sizes.rows * sizes.hidden * 2);
    at.hidden_sums = place(at.columns < sizes.vocab ? sizes.rows * sizes.hidden * 4 : 0);
    at.block_sums = place(ceil_div(sizes.rows, sm90::kBlockRows) * at.columns * 4);
    at.bias_sums = place(at.columns * 4);
  }
  const int64_t sum_bytes = at.rows * of_row, dz_bytes = sizes.rows * at.columns * 2;
  at.sums = at.dz = place(sum_bytes > dz_bytes ? sum_bytes : dz_bytes);
  at.bytes = end;
  return at;
}

bool is_16_bit(const checkop_call* call) { return call->n_inputs > 0 && call->inputs[0].dtype != CHECKOP_F32; }
/// fp32 and sums of nothing.
bool is_portable(const checkop_call* call) {
  const Sizes sizes = sizes_of(call);
  return !is_16_bit(call) || sizes.rows == 0 || sizes.hidden == 0;
}

size_t forward_workspace(const checkop_call* call) {
  return is_portable(call) ? linear_logp::forward_workspace(call) : workspace_of(sizes_of(call), false).bytes;
}
size_t backward_workspace(const checkop_call* call) {
  return is_portable(call) ? linear_logp::backward_workspace(call) : workspace_of(sizes_of(call), true).bytes;
}

/// What both passes work on.
template <typename T>
struct Problem {
  const checkop_call* call;
  Sizes sizes;
  Workspace at;
  const T *hidden, *weight, *bias;  ///< bias is null when absent
  const int64_t* target_ids;
  int64_t ignored;
  cudaStream_t stream;

  template <typename U>
  U* in_workspace(size_t offset) const {
    return reinterpret_cast<U*>(static_cast<std::byte*>(call->workspace) + offset);
  }
};

/// Whether the copy engine reaches both factors.
template <typename T, bool a_along_k, bool b_along_k>
bool are_reachable(const Factor<T, a_along_k>& a, const Factor<T, b_along_k>& b, int64_t inner) {
  return sm90::has_tensor_map<T>(sm90::matrix_of(a, inner)) && sm90::has_tensor_map<T>(sm90::matrix_of(b, inner));
}

/// finish_at(first row) is called with every row's sum of exponentials, as merge_power_sums() does. `words`: the plan.
template <typename T, typename FinishAt>
cudaError_t reduce_logits(const Problem<T>& p, FinishAt&& finish_at, const char*& words) {
  for (int64_t first = 0; first < p.sizes.rows; first += p.at.rows) {
    const int64_t rows = p.sizes.rows - first < p.at.rows ? p.sizes.rows - first : p.at.rows;
    const auto hidden = make_factor<true>(p.hidden + first * p.sizes.hidden, p.sizes.hidden, rows);
    const auto weight = make_factor<true>(p.weight, p.sizes.hidden, p.sizes.vocab);
    const sm90::SumSegments<T> segments{p.bias, p.target_ids + first,
                                        p.template in_workspace<sm90::PowerSum>(p.at.sums),
                                        p.template in_workspace<float>(p.at.target_logit)};
    const auto run = [&]<typename P>(P) {
      words = P::kWords;
      return sm90::launch_into<P>(segments, hidden, weight, p.sizes.hidden, p.stream);
    };
    const auto error = !are_reachable(hidden, weight, p.sizes.hidden) ? run(Unaligned{})
                       : rows <= 64                                   ? run(Rows64{})
                       : rows <= 128                                  ? run(Rows128{})
                                                                      : run(ManyRows{});
    if (error != cudaSuccess) return error;
    sm90::launch_merge(segments.sums, rows, p.at.n_segments, finish_at(first), p.stream);
  }
  return cudaGetLastError();
}

/// The tiles of a * b into `out`, which may be of any epilogue that has the same bits with every plan.
template <typename T, typename Epilogue, bool a_along_k, bool b_along_k, typename Stage>
cudaError_t multiply(Epilogue& out, const Factor<T, a_along_k>& a, const Factor<T, b_along_k>& b, int64_t inner,
                     cudaStream_t stream, Stage&& stage) {
  const auto run = [&]<typename P>(P) {
    if (!stage(P{}, out)) return cudaErrorInvalidValue;
    return sm90::launch_into<P>(out, a, b, inner, stream);
  };
  if (!are_reachable(a, b, inner)) return run(sm90::Unaligned{});
  return sm90::with_fastest(a.extent, b.extent, run, sm90::Large{}, sm90::Square{}, sm90::Low{}, sm90::Small{});
}

/// By blocks of columns of the vocabulary: dz of the block, then its part of every gradient. The logits are computed a
/// second time; stored, they would be [rows, vocab].
template <typename T>
cudaError_t launch_gradients(Problem<T> p, const float* grad_logp, T* dhidden, T* dweight, T* dbias,
                             const char*& words) {
  const int64_t rows = p.sizes.rows, hidden = p.sizes.hidden, vocab = p.sizes.vocab, ld = p.at.columns;
  auto* kept = p.template in_workspace<T>(p.at.kept_hidden);
  linear_logp::launch_keep_rows(p.hidden, p.target_ids, p.ignored, rows, hidden, kept, p.stream);
  p.hidden = kept;
  auto* row_of = p.template in_workspace<sm90::RowGradient>(p.at.row_gradients);
  const auto finish_at = [&](int64_t first) {
    return sm90::WriteRowGradients{grad_logp + first, p.target_ids + first, p.ignored, row_of + first};
  };
  if (const auto error = reduce_logits(p, finish_at, words)) return error;

  auto* dz = p.template in_workspace<T>(p.at.dz);
  auto* block_sums = p.template in_workspace<float>(p.at.block_sums);
  auto* bias_sums = p.template in_workspace<float>(p.at.bias_sums);
  const auto never_staged = [](auto, auto&) { return true; };
  for (int64_t column = 0; column < vocab; column += ld) {
    const int64_t columns = vocab - column < ld ? vocab - column : ld;
    sm90::StoreGradient<T> gradient{};
    gradient.bias = p.bias == nullptr ? nullptr : p.bias + column;
    gradient.row_of = row_of, gradient.dz = dz, gradient.ld = ld, gradient.first_column = column;
    gradient.block_sums = dbias == nullptr ? nullptr : block_sums;
    const auto stage = [&]<typename P>(P, sm90::StoreGradient<T>& out) {
      return sm90::stage_tiles<P>(out, dz, columns, rows, ld);
    };
    if (const auto error =
            multiply(gradient, make_factor<true>(p.hidden, hidden, rows),
                     make_factor<true>(p.weight + column * hidden, hidden, columns), hidden, p.stream, stage))
      return error;

    sm90::StoreTiles<T, T> weight_part{};
    weight_part.c = dweight + column * hidden;
    const auto stage_weight = [&]<typename P>(P, sm90::StoreTiles<T, T>& out) {
      return sm90::stage_tiles<P>(out, weight_part.c, hidden, columns, hidden);
    };
    if (const auto error = multiply(weight_part, make_factor<false>(dz, ld, columns),
                                    make_factor<false>(p.hidden, hidden, hidden), rows, p.stream, stage_weight))
      return error;

    sm90::ContinueSums<T> hidden_part{p.template in_workspace<float>(p.at.hidden_sums), dhidden, column == 0,
                                      column + columns == vocab};
    if (const auto error =
            multiply(hidden_part, make_factor<true>(dz, ld, rows),
                     make_factor<false>(p.weight + column * hidden, hidden, hidden), columns, p.stream, never_staged))
      return error;

    if (dbias == nullptr) continue;
    linear_logp::launch_sum_columns(block_sums, ld, ceil_div(rows, sm90::kBlockRows), columns, bias_sums, false,
                                    p.stream);
    linear_logp::launch_round_to<T>(bias_sums, columns, 1, columns, dbias + column, p.stream);
  }
  return cudaGetLastError();
}

template <typename T>
checkop_status run(const checkop_call* call, bool backward, const Workspace& at, int64_t ignored) {
  const Problem<T> p{call,
                     sizes_of(call),
                     at,
                     static_cast<const T*>(call->inputs[0].data),
                     static_cast<const T*>(call->inputs[1].data),
                     static_cast<const T*>(call->inputs[3].data),
                     static_cast<const int64_t*>(call->inputs[2].data),
                     ignored,
                     static_cast<cudaStream_t>(call->stream)};
  if (auto status = check_ids(call, p.target_ids, p.sizes.rows, p.sizes.vocab, "target_ids", call->workspace, p.stream,
                              ignored)) {
    return status;
  }
  const char* words = "";
  cudaError_t error = cudaSuccess;
  if (backward) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      error = launch_gradients<T>(p, static_cast<const float*>(call->inputs[4].data),
                                  static_cast<T*>(call->outputs[0].data), static_cast<T*>(call->outputs[1].data),
                                  static_cast<T*>(call->outputs[2].data), words);
    }
  } else {
    auto* logp = static_cast<float*>(call->outputs[0].data);
    const auto finish_at = [&](int64_t first) {
      return sm90::WriteLogp{p.template in_workspace<float>(at.target_logit), p.target_ids + first, ignored,
                             logp + first};
    };
    error = reduce_logits(p, finish_at, words);
  }
  if (auto status = cuda_status(call, error, "launch linear_logp")) return status;
  return say(call, CHECKOP_OK, "%s", words);
}

checkop_status launch(const checkop_call* call, bool backward) {
  const Sizes sizes = sizes_of(call);
  if (is_portable(call)) return linear_logp::launch(call, backward);
  if (backward && call->inputs[0].dtype == CHECKOP_F16) {
    return say(call, CHECKOP_UNSUPPORTED, "no gradients in fp16: those of the logits are too small for it");
  }
  const Workspace at = workspace_of(sizes, backward);
  if (auto status = check_call(call, backward, at.bytes)) return status;
  int64_t ignored = 0;
  if (auto status = read_ignore_index(call, ignored)) return status;
  return call->inputs[0].dtype == CHECKOP_F16 ? run<__half>(call, backward, at, ignored)
                                              : run<__nv_bfloat16>(call, backward, at, ignored);
}

checkop_status launch_forward(const checkop_call* call) { return launch(call, false); }
checkop_status launch_backward(const checkop_call* call) { return launch(call, true); }

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda-sm90", "linear_logp", "forward", CHECKOP_CUDA, 90, 90, forward_workspace,
     launch_forward},
    {sizeof(checkop_kernel), "cuda-sm90", "linear_logp", "backward", CHECKOP_CUDA, 90, 90, backward_workspace,
     launch_backward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
