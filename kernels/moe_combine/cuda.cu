// SPDX-License-Identifier: Apache-2.0
// moe_combine / cuda: a thread adds the weighted rows of a token, slot after slot. Backward, a warp for each slot.
//   y[t] = sum of weights[t, slot] * x_perm[positions[t, slot]] over the slots whose position is not -1
//   dx_perm[positions[t, slot]] = weights[t, slot] * grad_y[t], zero in rows that are no slot's position
//   dweights[t, slot] = sum over hidden of grad_y[t] * x_perm[positions[t, slot]], zero where the position is -1
//   x_perm, dx_perm: [rows, hidden]   y, grad_y: [..., hidden]   f32|f16|bf16, all the same
//   positions: [..., topk] i32   weights, dweights: [..., topk] f32   all contiguous
//   Limits: rows < 2^31; no two slots have the same position. Positions below -1 or beyond the rows are CHECKOP_FAILED.
//   Workspace: 256 bytes; backward 4 * rows more.
//   Expected error: y a chain of topk fp32 multiply-adds; dweights chains of 8 + hidden / 256 additions (fp32: 4 +
//   hidden / 128), then a tree over 32 lanes; one output rounding. A token's bits depend only on its own slots and
//   rows.
#include "cuda/slots.cuh"

namespace checkop::kernels {
namespace {

struct CombineShape {
  int64_t tokens = 0, topk = 0, hidden = 0, rows = 0;
  __host__ __device__ int64_t slots() const { return tokens * topk; }
};

/// Notes the slot of each row. An IndexCheck refuses positions out of range.
__global__ __launch_bounds__(kSlotThreads) void find_slots(const int32_t* __restrict__ positions, int64_t slots,
                                                           int64_t rows, int32_t* __restrict__ slot_of_row) {
  for (int64_t slot = int64_t{blockIdx.x} * kSlotThreads + threadIdx.x; slot < slots;
       slot += int64_t{gridDim.x} * kSlotThreads) {
    if (is_row(positions[slot], rows)) slot_of_row[positions[slot]] = static_cast<int32_t>(slot);
  }
}

/// The row of dx_perm and the element of dweights of each slot. A warp per slot; the warps of a block share grad_y's
/// row. Lane l has the groups of columns l, l + 32, ...
template <typename T>
__global__ __launch_bounds__(kSlotThreads) void combine_backward(const T* __restrict__ x_perm,
                                                                 const int32_t* __restrict__ positions,
                                                                 const float* __restrict__ weights,
                                                                 const T* __restrict__ grad_y, CombineShape shape,
                                                                 bool aligned, T* __restrict__ dx_perm,
                                                                 float* __restrict__ dweights) {
  constexpr int kColumns = kGroupColumns<T>, kStep = kWarp * kColumns, kSlots = kSlotThreads / kWarp;
  constexpr int kAhead = 4;  // loads of each row in flight before the first product
  const int lane = threadIdx.x % kWarp;
  for (int64_t slot = int64_t{blockIdx.x} * kSlots + threadIdx.x / kWarp; slot < shape.slots();
       slot += int64_t{gridDim.x} * kSlots) {
    const int64_t position = positions[slot];
    if (!is_row(position, shape.rows)) {  // the whole warp
      if (lane == 0) dweights[slot] = 0.0f;
      continue;
    }
    const float weight = weights[slot];
    const T* __restrict__ grad = grad_y + slot / shape.topk * shape.hidden;
    const T* __restrict__ row = x_perm + position * shape.hidden;
    T* __restrict__ dx = dx_perm + position * shape.hidden;
    float sum = 0.0f;
    for (int64_t first = lane * kColumns; first < shape.hidden; first += kStep * kAhead) {
      Group<T> of_grad[kAhead], of_row[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        of_grad[i] = load_group(grad, first + i * kStep, shape.hidden, aligned);
        of_row[i] = load_group(row, first + i * kStep, shape.hidden, aligned);
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        float g[kColumns], x[kColumns], of_group = 0.0f;  // two levels: the chain is a group, then the number of groups
        of_grad[i].unpack(g);
        of_row[i].unpack(x);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          of_group = fmaf(g[c], x[c], of_group);
          g[c] *= weight;
        }
        sum += of_group;  // + 0 beyond the row's end
        store_group_at_once(dx, first + i * kStep, shape.hidden, aligned, g);
      }
    }
    sum = warp_sum(sum);
    if (lane == 0) dweights[slot] = sum;
  }
}

/// Checks the tensors of both passes; `of_tokens` is y or its gradient.
checkop_status check_call(const checkop_call* call, const checkop_tensor& of_tokens, const char* name,
                          size_t workspace_bytes, CombineShape& shape) {
  CallCheck check(call);
  const checkop_tensor &x = call->inputs[0], &positions = call->inputs[1], &weights = call->inputs[2];
  check.rank_at_least(x, "x_perm", 1).rank_at_least(positions, "positions", 1).rank_at_least(of_tokens, name, 1);
  if (check.failed()) return check.status();
  shape = {leading_count(of_tokens), last_extent(positions), last_extent(of_tokens), x.shape[0]};
  const int32_t n_leading = of_tokens.rank - 1;
  check.float_dtype(x, "x_perm").shape(x, "x_perm", x, 1, {shape.hidden}).contiguous(x, "x_perm");
  check.dtype(of_tokens, name, x.dtype).contiguous(of_tokens, name);
  check.dtype(positions, "positions", CHECKOP_I32).shape(positions, "positions", of_tokens, n_leading, {shape.topk});
  check.contiguous(positions, "positions");
  check.dtype(weights, "weights", CHECKOP_F32).shape(weights, "weights", of_tokens, n_leading, {shape.topk});
  check.contiguous(weights, "weights").workspace(workspace_bytes);
  if (check.failed()) return check.status();
  if (shape.rows > std::numeric_limits<int32_t>::max() || shape.slots() > std::numeric_limits<int32_t>::max()) {
    return say(call, CHECKOP_UNSUPPORTED, "%lld rows and %lld slots, at most 2147483647 of each are supported",
               static_cast<long long>(shape.rows), static_cast<long long>(shape.slots()));
  }
  return CHECKOP_OK;
}

size_t forward_bytes(const checkop_call*) { return kFindingsBytes; }
size_t backward_bytes(const checkop_call* call) {
  if (call->n_inputs < 1 || call->inputs[0].rank < 1) return kFindingsBytes;  // launch refuses it
  return kFindingsBytes + static_cast<size_t>(call->inputs[0].shape[0]) * sizeof(int32_t);
}

checkop_status launch_forward(const checkop_call* call) {
  if (auto status = CallCheck(call).counts(3, 1).status()) return status;
  const checkop_tensor &x = call->inputs[0], &y = call->outputs[0];
  CombineShape shape;
  if (auto status = check_call(call, y, "y", forward_bytes(call), shape)) return status;
  auto* stream = static_cast<cudaStream_t>(call->stream);
  const auto* positions = static_cast<const int32_t*>(call->inputs[1].data);
  IndexCheck index_check(call, positions, shape.slots(), -1, shape.rows, "positions", call->workspace, stream);
  if (auto status = index_check.begin()) return status;
  return with_float_type(x.dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    launch_sum_slot_rows(static_cast<const T*>(x.data), shape.rows, positions,
                         static_cast<const float*>(call->inputs[2].data), shape.tokens, shape.topk, shape.hidden,
                         static_cast<T*>(y.data), stream);
    if (auto status = launch_status(call, "launch moe_combine forward")) return status;
    return index_check.finish();
  });
}

checkop_status launch_backward(const checkop_call* call) {
  CallCheck check(call);
  if (check.counts(4, 2).failed()) return check.status();
  const checkop_tensor &x = call->inputs[0], &grad = call->inputs[3];
  const checkop_tensor &dx = call->outputs[0], &dweights = call->outputs[1];
  CombineShape shape;
  if (auto status = check_call(call, grad, "grad_y", backward_bytes(call), shape)) return status;
  check.dtype(dx, "dx_perm", x.dtype).shape(dx, "dx_perm", x, 2, {}).contiguous(dx, "dx_perm");
  check.dtype(dweights, "dweights", CHECKOP_F32).shape(dweights, "dweights", grad, grad.rank - 1, {shape.topk});
  if (check.contiguous(dweights, "dweights").failed()) return check.status();
  auto* stream = static_cast<cudaStream_t>(call->stream);
  const auto* positions = static_cast<const int32_t*>(call->inputs[1].data);
  auto* slot_of_row = reinterpret_cast<int32_t*>(static_cast<std::byte*>(call->workspace) + kFindingsBytes);
  IndexCheck index_check(call, positions, shape.slots(), -1, shape.rows, "positions", call->workspace, stream);
  if (auto status = index_check.begin()) return status;
  const auto map_bytes = static_cast<size_t>(shape.rows) * sizeof(int32_t);
  const auto error = cudaMemsetAsync(slot_of_row, 0xff, map_bytes, stream);
  if (auto status = cuda_status(call, error, "clear the slots of rows")) return status;
  find_slots<<<slot_blocks(shape.slots()), kSlotThreads, 0, stream>>>(positions, shape.slots(), shape.rows,
                                                                      slot_of_row);
  launch_clear_unused_rows(dx.dtype, slot_of_row, shape.rows, shape.hidden, dx.data, stream);
  return with_float_type(x.dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    const auto *x_perm = static_cast<const T*>(x.data), *grad_y = static_cast<const T*>(grad.data);
    auto* dx_perm = static_cast<T*>(dx.data);
    combine_backward<T><<<slot_blocks(shape.slots() * kWarp), kSlotThreads, 0, stream>>>(
        x_perm, positions, static_cast<const float*>(call->inputs[2].data), grad_y, shape,
        rows_are_aligned<T>({x_perm, grad_y, dx_perm}, shape.hidden), dx_perm, static_cast<float*>(dweights.data));
    if (auto status = launch_status(call, "launch moe_combine backward")) return status;
    return index_check.finish();
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "moe_combine", "forward", CHECKOP_CUDA, 80, 0, forward_bytes, launch_forward},
    {sizeof(checkop_kernel), "cuda", "moe_combine", "backward", CHECKOP_CUDA, 80, 0, backward_bytes, launch_backward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
