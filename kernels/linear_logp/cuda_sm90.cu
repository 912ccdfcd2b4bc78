// SPDX-License-Identifier: Apache-2.0
// linear_logp / cuda-sm90: Hopper's wgmma and copy engine for fp16 and bf16, logits in registers only. Forward:
//   z = hidden * lm_head_weight^T + bias,  t = target_ids[row];  logp[row] = z[row,t] - lse(z[row,:])
//   hidden: [rows, hidden]   lm_head_weight: [vocab, hidden]   bias: [vocab], optional; all of one dtype, f32|f16|bf16
//   target_ids: [rows] i64   logp: [rows] f32; 0 where target_ids[row] = ignore_index
//   Limits: sm_90 only; |z| < 2^127. Other ids outside [0, vocab) are CHECKOP_FAILED. fp32, and sums of nothing, as in
//   the candidate cuda.
//   Workspace: 8 bytes per row and 256 columns of vocabulary, for as many rows at a time as give 24 MiB.
//   Expected error: a logit is one chain of hidden / 16 additions that truncate (sm90/plan.cuh); exponentials to 2 ulp,
//   chains of 16 + 4 additions in a segment of 256 columns, segments in chains of vocab / 8192.
// The bits of a row do not depend on the other rows: see sm90/segments.cuh.
#include "linear_logp/portable.cuh"
#include "sm90/launch.cuh"
#include "sm90/segments.cuh"

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

/// Byte offsets into the workspace, each a multiple of 256.
struct Layout {
  int64_t rows;  ///< at a time
  int64_t n_segments;
  size_t target_logit, sums, bytes;
};

Layout layout_of(const Sizes& sizes) {
  constexpr int64_t kSumBytes = int64_t{24} << 20, kRowUnit = 256;  // rows of a pair of blocks
  Layout at{};
  at.n_segments = ceil_div(sizes.vocab, sm90::kSegmentColumns);
  const int64_t of_row = at.n_segments * static_cast<int64_t>(sizeof(sm90::PowerSum));
  const int64_t fit = of_row == 0 ? sizes.rows : kSumBytes / of_row / kRowUnit * kRowUnit;
  at.rows = sizes.rows < fit ? sizes.rows : fit < kRowUnit ? kRowUnit : fit;
  at.target_logit = kIdCheckBytes;
  at.sums = at.target_logit + static_cast<size_t>(round_up(at.rows * static_cast<int64_t>(sizeof(float)), 256));
  at.bytes = at.sums + static_cast<size_t>(at.rows * of_row);
  return at;
}

bool is_16_bit(const checkop_call* call) { return call->n_inputs > 0 && call->inputs[0].dtype != CHECKOP_F32; }

size_t forward_workspace(const checkop_call* call) {
  return is_16_bit(call) ? layout_of(sizes_of(call)).bytes : linear_logp::forward_workspace(call);
}

template <typename T>
cudaError_t launch_rows(const checkop_call* call, const Sizes& sizes, const Layout& at, int64_t ignored, int64_t first,
                        const char*& words) {
  auto* workspace = static_cast<std::byte*>(call->workspace);
  const auto stream = static_cast<cudaStream_t>(call->stream);
  const int64_t rows = sizes.rows - first < at.rows ? sizes.rows - first : at.rows;
  const auto hidden =
      make_factor<true>(static_cast<const T*>(call->inputs[0].data) + first * sizes.hidden, sizes.hidden, rows);
  const auto weight = make_factor<true>(static_cast<const T*>(call->inputs[1].data), sizes.hidden, sizes.vocab);
  const int64_t* target_ids = static_cast<const int64_t*>(call->inputs[2].data) + first;
  const sm90::SumSegments<T> segments{static_cast<const T*>(call->inputs[3].data), target_ids,
                                      reinterpret_cast<sm90::PowerSum*>(workspace + at.sums),
                                      reinterpret_cast<float*>(workspace + at.target_logit)};
  const auto run = [&]<typename P>(P) {
    words = P::kWords;
    return sm90::launch_into<P>(segments, hidden, weight, sizes.hidden, stream);
  };
  const bool reachable = sm90::has_tensor_map<T>(sm90::matrix_of(hidden, sizes.hidden)) &&
                         sm90::has_tensor_map<T>(sm90::matrix_of(weight, sizes.hidden));
  const auto error = !reachable    ? run(Unaligned{})
                     : rows <= 64  ? run(Rows64{})
                     : rows <= 128 ? run(Rows128{})
                                   : run(ManyRows{});
  if (error != cudaSuccess) return error;
  sm90::merge_power_sums<<<static_cast<unsigned>(ceil_div(rows, sm90::kMergeRows)),
                           sm90::kMergeRows * sm90::kMergeParts, 0, stream>>>(
      segments.sums, segments.target_logit, target_ids, ignored, rows, at.n_segments,
      static_cast<float*>(call->outputs[0].data) + first);
  return cudaGetLastError();
}

checkop_status launch_forward(const checkop_call* call) {
  const Sizes sizes = sizes_of(call);
  if (!is_16_bit(call) || sizes.hidden == 0) return linear_logp::launch_forward(call);
  const Layout at = layout_of(sizes);
  if (auto status = check_call(call, false, at.bytes)) return status;
  int64_t ignored = 0;
  if (auto status = read_ignore_index(call, ignored)) return status;
  if (sizes.rows == 0) return CHECKOP_OK;
  if (auto status = check_ids(call, static_cast<const int64_t*>(call->inputs[2].data), sizes.rows, sizes.vocab,
                              "target_ids", call->workspace, static_cast<cudaStream_t>(call->stream), ignored)) {
    return status;
  }
  const char* words = "";
  for (int64_t first = 0; first < sizes.rows; first += at.rows) {
    const auto error = call->inputs[0].dtype == CHECKOP_F16
                           ? launch_rows<__half>(call, sizes, at, ignored, first, words)
                           : launch_rows<__nv_bfloat16>(call, sizes, at, ignored, first, words);
    if (auto status = cuda_status(call, error, "launch linear_logp forward")) return status;
  }
  return say(call, CHECKOP_OK, "%s", words);
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda-sm90", "linear_logp", "forward", CHECKOP_CUDA, 90, 90, forward_workspace,
     launch_forward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 1, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
