// SPDX-License-Identifier: Apache-2.0
// pack / cuda: one block counts the kept rows and notes where each goes, then a warp copies each row.
//   packed[i] = the i-th row of x with mask != 0, then zeros     cu_seqlens[b] = rows kept of the first b sequences
//   dx[r] = the row of grad_packed where row r went, zero where mask is 0
//   x, dx: [batch, seq, hidden]     packed, grad_packed: [batch * seq, hidden]     f32|f16|bf16, all the same
//   mask: [batch, seq] u8     cu_seqlens: [batch + 1] i64     Limits: contiguous.   Workspace: 8 * batch * seq bytes.
//   Expected error: none.
//
// Counting reads one byte per row, copying moves the whole row. So one block is fast enough for counting: it takes one
// pass, and its prefix sum needs neither atomics nor other blocks.
#include "cuda/rows.cuh"

namespace checkop::kernels {
namespace {

constexpr int kThreads = 1024;  // a full-size block: its steps run one after another
constexpr int kWarps = kThreads / kWarp;
constexpr int kRowsPerThread = 8;  // that many loads are in flight
constexpr int64_t kStep = int64_t{kThreads} * kRowsPerThread;
static_assert(kWarps == kWarp, "a warp scans the counts of all warps");

constexpr int64_t kNone = -1;

/// Counts the kept rows before each row. One block.
///   from        to_packed: from[i] is the i-th kept row, kNone after the last
///               else: from[r] is the number of rows kept before row r, kNone if row r is not kept
///   cu_seqlens  [rows / seq + 1] or nullptr: how many rows are kept of the first b sequences
__global__ __launch_bounds__(kThreads) void index_rows(const uint8_t* __restrict__ mask, int64_t rows, int64_t seq,
                                                       bool to_packed, int64_t* __restrict__ from,
                                                       int64_t* __restrict__ cu_seqlens) {
  __shared__ int per_warp[kWarps];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const unsigned lanes_below = (1u << lane) - 1;
  int64_t before = 0;  // rows kept in earlier steps; the same in all threads
  for (int64_t base = 0; base < rows; base += kStep) {
    // A warp has kWarp * kRowsPerThread consecutive rows and takes kWarp of them at a time.
    const int64_t first = base + int64_t{warp} * kWarp * kRowsPerThread + lane;
    bool keep[kRowsPerThread];
#pragma unroll
    for (int k = 0; k < kRowsPerThread; ++k) {
      const int64_t row = first + k * kWarp;
      keep[k] = row < rows && mask[row] != 0;
    }
    unsigned kept[kRowsPerThread];  // a bit per lane
    int count = 0;
#pragma unroll
    for (int k = 0; k < kRowsPerThread; ++k) {
      kept[k] = __ballot_sync(kAllLanes, keep[k]);
      count += __popc(kept[k]);
    }
    if (lane == 0) per_warp[warp] = count;
    __syncthreads();
    int up_to = per_warp[lane];
#pragma unroll
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const int below = __shfl_up_sync(kAllLanes, up_to, offset);
      if (lane >= offset) up_to += below;
    }
    const int total = __shfl_sync(kAllLanes, up_to, kWarp - 1);
    const int up_to_own = __shfl_sync(kAllLanes, up_to, warp);
    __syncthreads();  // all warps have read the counts before the next step overwrites them
    int64_t kept_before = before + up_to_own - count;
#pragma unroll
    for (int k = 0; k < kRowsPerThread; ++k) {
      const int64_t row = first + k * kWarp, own = kept_before + __popc(kept[k] & lanes_below);
      if (row < rows) {
        if (cu_seqlens != nullptr && row % seq == 0) cu_seqlens[row / seq] = own;
        if (!to_packed) from[row] = keep[k] ? own : kNone;
        if (to_packed && keep[k]) from[own] = row;
      }
      kept_before += __popc(kept[k]);
    }
    before += total;
  }
  if (cu_seqlens != nullptr && threadIdx.x == 0) cu_seqlens[rows / seq] = before;
  for (int64_t i = before + threadIdx.x; to_packed && i < rows; i += kThreads) from[i] = kNone;
}

/// Bytes of the index for `mask`, which may be invalid: launch reports that.
size_t index_bytes(const checkop_tensor& mask) {
  size_t bytes = sizeof(int64_t);
  for (int32_t i = 0; i < mask.rank; ++i) bytes *= static_cast<size_t>(mask.shape[i]);
  return bytes;
}

struct PackShape {
  int64_t batch, seq, hidden;
  int64_t rows() const { return batch * seq; }
};

/// `x` and `packed` may be the gradients of these tensors.
checkop_status check_call(const checkop_call* call, const checkop_tensor& x, const char* x_name,
                          const checkop_tensor& packed, const char* packed_name, const checkop_tensor& mask,
                          PackShape& shape) {
  CallCheck check(call);
  check.rank_at_least(x, x_name, 3).float_dtype(x, x_name).contiguous(x, x_name);
  if (check.failed()) return check.status();
  shape = {x.shape[0], x.shape[1], x.shape[2]};
  check.shape(x, x_name, x, 3, {});
  check.dtype(packed, packed_name, x.dtype).shape(packed, packed_name, x, 0, {shape.rows(), shape.hidden});
  check.contiguous(packed, packed_name);
  check.dtype(mask, "mask", CHECKOP_U8).shape(mask, "mask", x, 2, {}).contiguous(mask, "mask");
  check.workspace(index_bytes(mask));
  if (check.failed()) return check.status();
  if (shape.rows() == 0 || shape.hidden == 0)
    return say(call, CHECKOP_UNSUPPORTED, "empty tensors are not supported: a dimension is 0");
  return CHECKOP_OK;
}

checkop_status launch_forward(const checkop_call* call) {
  if (auto status = CallCheck(call).counts(2, 2).status()) return status;
  const checkop_tensor &x = call->inputs[0], &mask = call->inputs[1];
  const checkop_tensor &packed = call->outputs[0], &cu_seqlens = call->outputs[1];
  PackShape shape;
  if (auto status = check_call(call, x, "x", packed, "packed", mask, shape)) return status;
  CallCheck check(call);
  check.dtype(cu_seqlens, "cu_seqlens", CHECKOP_I64).shape(cu_seqlens, "cu_seqlens", x, 0, {shape.batch + 1});
  if (check.contiguous(cu_seqlens, "cu_seqlens").failed()) return check.status();
  auto* stream = static_cast<cudaStream_t>(call->stream);
  auto* from = static_cast<int64_t*>(call->workspace);
  index_rows<<<1, kThreads, 0, stream>>>(static_cast<const uint8_t*>(mask.data), shape.rows(), shape.seq,
                                         /*to_packed=*/true, from, static_cast<int64_t*>(cu_seqlens.data));
  if (auto status = launch_status(call, "launch the index of pack")) return status;
  const auto error =
      launch_copy_rows(x.dtype, x.data, shape.rows(), from, shape.rows(), shape.hidden, packed.data, stream);
  return cuda_status(call, error, "launch pack forward");
}

checkop_status launch_backward(const checkop_call* call) {
  if (auto status = CallCheck(call).counts(2, 1).status()) return status;
  const checkop_tensor &mask = call->inputs[0], &grad = call->inputs[1], &dx = call->outputs[0];
  PackShape shape;
  if (auto status = check_call(call, dx, "dx", grad, "grad_packed", mask, shape)) return status;
  auto* stream = static_cast<cudaStream_t>(call->stream);
  auto* from = static_cast<int64_t*>(call->workspace);
  index_rows<<<1, kThreads, 0, stream>>>(static_cast<const uint8_t*>(mask.data), shape.rows(), shape.seq,
                                         /*to_packed=*/false, from, nullptr);
  if (auto status = launch_status(call, "launch the index of pack")) return status;
  const auto error =
      launch_copy_rows(dx.dtype, grad.data, shape.rows(), from, shape.rows(), shape.hidden, dx.data, stream);
  return cuda_status(call, error, "launch pack backward");
}

size_t forward_bytes(const checkop_call* call) { return call->n_inputs == 2 ? index_bytes(call->inputs[1]) : 0; }
size_t backward_bytes(const checkop_call* call) { return call->n_inputs == 2 ? index_bytes(call->inputs[0]) : 0; }

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "pack", "forward", CHECKOP_CUDA, 80, 0, forward_bytes, launch_forward},
    {sizeof(checkop_kernel), "cuda", "pack", "backward", CHECKOP_CUDA, 80, 0, backward_bytes, launch_backward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
