// SPDX-License-Identifier: Apache-2.0
// moe_permute / cuda: a stable counting sort of the slots by expert; then a thread copies a piece of a token's row to
// all its rows of x_perm. Backward, a thread adds the rows of a token, slot after slot.
//   x_perm[r] = x[src[r] / topk], rows in the order (expert, token, slot); zero where src is -1
//   offsets[e] = where the rows of expert e begin, a multiple of align     positions[src[r]] = r, -1 where ids is -1
//   dx[t] = sum of grad_x_perm[positions[t, slot]] over the slots whose position is not -1
//   x, dx: [..., hidden]   x_perm, grad_x_perm: [rows, hidden]   f32|f16|bf16, all the same
//   ids, positions: [..., topk] i32   src: [rows] i32   offsets: [experts + 1] i32   all contiguous
//   Limits: slots, rows < 2^31. Ids and positions below -1 or beyond the end are CHECKOP_FAILED, as are too few rows.
//   Workspace: 256 bytes; forward 8 bytes for a slot and 8 for an expert more at most, rounded up.
//   Expected error: forward none; backward chains of topk fp32 additions, one output rounding, no atomics.
//
// Counting. A block has successive slots; it counts those of each expert, and the rank of each slot among them. Prefix
// sums over the blocks, then over the experts, make the rank of a slot its row. All are integers, so the number of
// blocks changes nothing. A block has at least as many slots as there are experts, so all blocks together have at most
// as many counts as there are slots.
#include "cuda/scan.cuh"
#include "cuda/slots.cuh"

namespace checkop::kernels {
namespace {

constexpr int kCountThreads = 256, kCountWarps = kCountThreads / kWarp;
constexpr int kExpertsAtOnce = 4096;  // counts in 16 KiB of shared memory

struct PermuteShape {
  int64_t tokens = 0, topk = 0, hidden = 0, rows = 0, experts = 0;

  int64_t slots() const { return tokens * topk; }
  int64_t slots_of_block() const { return round_up(experts < kCountThreads ? kCountThreads : experts, kCountThreads); }
  int64_t blocks() const { return ceil_div(slots(), slots_of_block()); }
};

enum Finding : int { kFirstBadId, kRowsNeeded, kFindings };

/// Byte offsets into the workspace, each a multiple of 256.
struct Layout {
  size_t ranks, counts, totals, bytes;

  explicit Layout(const PermuteShape& shape) {
    const auto after = [](size_t start, int64_t count) {
      return start + static_cast<size_t>(round_up(count * static_cast<int64_t>(sizeof(int32_t)), 256));
    };
    ranks = kFindingsBytes;
    counts = after(ranks, shape.slots());
    totals = after(counts, shape.experts * shape.blocks());
    bytes = after(totals, shape.experts);
  }
};

/// Counts each expert's slots in a block, and ranks each slot among the block's slots of the same expert.
///   ranks: [slots]   counts: [experts, blocks]
__global__ __launch_bounds__(kCountThreads) void count_slots(const int32_t* __restrict__ ids, int64_t slots,
                                                             int64_t slots_of_block, int64_t experts,
                                                             int32_t* __restrict__ ranks, int32_t* __restrict__ counts,
                                                             unsigned long long* __restrict__ first_bad) {
  __shared__ int32_t seen[kExpertsAtOnce];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const unsigned lanes_below = (1u << lane) - 1;
  const int64_t begin = int64_t{blockIdx.x} * slots_of_block, end = min(begin + slots_of_block, slots);
  // At least once, so that ids are checked even if there are no experts.
  for (int64_t first_expert = 0; first_expert == 0 || first_expert < experts; first_expert += kExpertsAtOnce) {
    const auto n_experts = static_cast<int>(min(int64_t{kExpertsAtOnce}, experts - first_expert));
    for (int e = threadIdx.x; e < n_experts; e += kCountThreads) seen[e] = 0;
    __syncthreads();
    for (int64_t base = begin; base < end; base += kCountThreads) {
      const int64_t slot = base + threadIdx.x;
      const int64_t expert = slot < end ? int64_t{ids[slot]} : -1;
      // order-free: the smallest bad slot is an integer minimum, independent of the order of the threads.
      if (expert < -1 || expert >= experts) atomicMin(first_bad, static_cast<unsigned long long>(slot));
      const int64_t at = expert - first_expert;
      const bool counts_here = at >= 0 && at < n_experts;
      const unsigned same = __match_any_sync(kAllLanes, counts_here ? static_cast<int>(at) : -1);
      for (int turn = 0; turn < kCountWarps; ++turn) {  // earlier slots are counted first
        if (turn == warp && counts_here) {
          const int32_t before = seen[at];
          ranks[slot] = before + __popc(same & lanes_below);
          __syncwarp(same);  // all lanes of the expert have read its count
          if ((same & lanes_below) == 0) seen[at] = before + __popc(same);
        }
        __syncthreads();
      }
    }
    for (int e = threadIdx.x; e < n_experts; e += kCountThreads)
      counts[(first_expert + e) * gridDim.x + blockIdx.x] = seen[e];
    __syncthreads();  // before the counts are cleared again
  }
}

/// Replaces the counts of each expert by the sums over earlier blocks. A warp per expert.
///   counts: [experts, blocks]   totals: [experts]
__global__ __launch_bounds__(kCountThreads) void add_up_blocks(int64_t experts, int64_t blocks,
                                                               int32_t* __restrict__ counts,
                                                               int32_t* __restrict__ totals) {
  const int lane = threadIdx.x % kWarp;
  const int64_t expert = int64_t{blockIdx.x} * kCountWarps + threadIdx.x / kWarp;
  if (expert >= experts) return;  // the whole warp
  int32_t* __restrict__ own = counts + expert * blocks;
  int32_t before = 0;
#pragma unroll 4
  for (int64_t first = 0; first < blocks; first += kWarp) {
    const int64_t i = first + lane;
    const int32_t count = i < blocks ? own[i] : 0, up_to = warp_sum_up_to(count);
    if (i < blocks) own[i] = before + up_to - count;
    before += __shfl_sync(kAllLanes, up_to, kWarp - 1);
  }
  if (lane == 0) totals[expert] = before;
}

/// offsets[e] = sum of the totals of earlier experts, each rounded up to a multiple of `align`. One block.
__global__ __launch_bounds__(kScanThreads) void order_experts(const int32_t* __restrict__ totals, int64_t experts,
                                                              int64_t align, int32_t* __restrict__ offsets,
                                                              unsigned long long* __restrict__ needed) {
  __shared__ int64_t of_warp[kWarp];
  int64_t before = 0;
  for (int64_t first = 0; first < experts; first += kScanThreads) {
    const int64_t expert = first + threadIdx.x;
    int64_t of_step = 0;
    const int64_t own = expert < experts ? round_up(totals[expert], align) : 0;
    const int64_t earlier = block_sum_before(own, of_warp, of_step);
    if (expert < experts) offsets[expert] = static_cast<int32_t>(before + earlier);
    before += of_step;
    __syncthreads();  // before the sums are written again
  }
  if (threadIdx.x != 0) return;
  offsets[experts] = static_cast<int32_t>(before);
  *needed = static_cast<unsigned long long>(before);
}

/// positions[slot] and src of its row, for slots with an expert; rows beyond the end are left out.
__global__ __launch_bounds__(kSlotThreads) void place_slots(
    const int32_t* __restrict__ ids, int64_t slots, int64_t slots_of_block, int64_t experts, int64_t blocks,
    int64_t rows, const int32_t* __restrict__ ranks, const int32_t* __restrict__ counts,
    const int32_t* __restrict__ offsets, int32_t* __restrict__ src, int32_t* __restrict__ positions) {
  for (int64_t slot = int64_t{blockIdx.x} * kSlotThreads + threadIdx.x; slot < slots;
       slot += int64_t{gridDim.x} * kSlotThreads) {
    const int64_t expert = ids[slot];
    int64_t row = -1;
    if (expert >= 0 && expert < experts) {
      row = int64_t{offsets[expert]} + counts[expert * blocks + slot / slots_of_block] + ranks[slot];
    }
    const bool placed = is_row(row, rows);
    positions[slot] = placed ? static_cast<int32_t>(row) : -1;
    if (placed) src[row] = static_cast<int32_t>(slot);
  }
}

/// Copies the row of each token to its positions: a thread reads a word once and writes it for every slot.
template <typename Word>
__global__ __launch_bounds__(kSlotThreads) void copy_to_slots(const Word* __restrict__ x,
                                                              const int32_t* __restrict__ positions, int64_t tokens,
                                                              int64_t topk, int64_t words, Word* __restrict__ x_perm) {
  const int64_t count = tokens * words;
  for (int64_t i = int64_t{blockIdx.x} * kSlotThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kSlotThreads) {
    const int64_t token = i / words, at = i % words;
    const Word word = x[i];
#pragma unroll 8
    for (int64_t slot = token * topk; slot < (token + 1) * topk; ++slot) {
      const int64_t position = positions[slot];
      if (position >= 0) x_perm[position * words + at] = word;
    }
  }
}

/// The shape as far as the tensors give it; zeros for tensors that launch_forward() will refuse.
PermuteShape forward_shape(const checkop_call* call) {
  if (call->n_inputs != 2 || call->n_outputs != 4) return {};
  const checkop_tensor &x = call->inputs[0], &ids = call->inputs[1], &x_perm = call->outputs[0];
  const checkop_tensor& offsets = call->outputs[3];
  if (x.rank < 1 || ids.rank < 1 || x_perm.rank != 2 || offsets.rank != 1 || offsets.shape[0] < 1) return {};
  return {leading_count(x), last_extent(ids), last_extent(x), x_perm.shape[0], offsets.shape[0] - 1};
}

size_t forward_bytes(const checkop_call* call) { return Layout(forward_shape(call)).bytes; }
size_t backward_bytes(const checkop_call*) { return kFindingsBytes; }

checkop_status check_limits(const checkop_call* call, const PermuteShape& shape) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();  // of what int32 numbers
  if (shape.slots() <= kMost && shape.rows <= kMost && shape.experts <= kMost) return CHECKOP_OK;
  return say(call, CHECKOP_UNSUPPORTED, "%lld slots, %lld rows and %lld experts, at most %lld of each are supported",
             static_cast<long long>(shape.slots()), static_cast<long long>(shape.rows),
             static_cast<long long>(shape.experts), static_cast<long long>(kMost));
}

checkop_status check_forward(const checkop_call* call, int64_t& align) {
  CallCheck check(call);
  if (check.counts(2, 4).failed()) return check.status();
  const checkop_tensor &x = call->inputs[0], &ids = call->inputs[1], &x_perm = call->outputs[0];
  const checkop_tensor &src = call->outputs[1], &positions = call->outputs[2], &offsets = call->outputs[3];
  check.rank_at_least(x, "x", 1).rank_at_least(ids, "ids", 1).rank_at_least(x_perm, "x_perm", 1);
  check.rank_at_least(offsets, "offsets", 1);
  if (check.failed()) return check.status();
  const int64_t topk = last_extent(ids), rows = x_perm.shape[0];
  check.float_dtype(x, "x").contiguous(x, "x");
  check.dtype(ids, "ids", CHECKOP_I32).shape(ids, "ids", x, x.rank - 1, {topk}).contiguous(ids, "ids");
  check.dtype(x_perm, "x_perm", x.dtype).shape(x_perm, "x_perm", x, 0, {rows, last_extent(x)});
  check.contiguous(x_perm, "x_perm");
  check.dtype(src, "src", CHECKOP_I32).shape(src, "src", x, 0, {rows}).contiguous(src, "src");
  check.dtype(positions, "positions", CHECKOP_I32).shape(positions, "positions", x, x.rank - 1, {topk});
  check.contiguous(positions, "positions");
  check.dtype(offsets, "offsets", CHECKOP_I32).shape(offsets, "offsets", offsets, 1, {}).contiguous(offsets, "offsets");
  if (check.failed()) return check.status();
  if (offsets.shape[0] < 1) return say(call, CHECKOP_FAILED, "tensor 'offsets': no element, expected experts + 1");
  double given = 0;
  if (auto status = read_attribute(call, "align", given)) return status;
  align = static_cast<int64_t>(given);
  if (align < 1) return say(call, CHECKOP_FAILED, "align is %g, expected at least 1", given);
  if (auto status = check_limits(call, forward_shape(call))) return status;
  return check.workspace(forward_bytes(call)).status();
}

checkop_status launch_forward(const checkop_call* call) {
  int64_t align = 1;
  if (auto status = check_forward(call, align)) return status;
  const PermuteShape shape = forward_shape(call);
  const Layout layout(shape);
  auto* stream = static_cast<cudaStream_t>(call->stream);
  const checkop_tensor &x = call->inputs[0], &x_perm = call->outputs[0];
  const auto* ids = static_cast<const int32_t*>(call->inputs[1].data);
  auto *src = static_cast<int32_t*>(call->outputs[1].data), *positions = static_cast<int32_t*>(call->outputs[2].data),
       *offsets = static_cast<int32_t*>(call->outputs[3].data);
  const auto in_workspace = [&](size_t offset) {
    return reinterpret_cast<int32_t*>(static_cast<std::byte*>(call->workspace) + offset);
  };
  auto *ranks = in_workspace(layout.ranks), *counts = in_workspace(layout.counts),
       *totals = in_workspace(layout.totals);
  const int64_t blocks = shape.blocks();

  Findings<kFindings> findings(call, call->workspace, stream);
  if (auto status = findings.begin()) return status;
  if (blocks > 0) {
    count_slots<<<static_cast<unsigned>(blocks), kCountThreads, 0, stream>>>(
        ids, shape.slots(), shape.slots_of_block(), shape.experts, ranks, counts, findings.on_device() + kFirstBadId);
  }
  if (shape.experts > 0) {
    add_up_blocks<<<static_cast<unsigned>(ceil_div(shape.experts, kCountWarps)), kCountThreads, 0, stream>>>(
        shape.experts, blocks, counts, totals);
  }
  order_experts<<<1, kScanThreads, 0, stream>>>(totals, shape.experts, align, offsets,
                                                findings.on_device() + kRowsNeeded);
  if (auto status = findings.found()) return status;

  const auto src_bytes = static_cast<size_t>(shape.rows) * sizeof(int32_t);
  if (auto status = cuda_status(call, cudaMemsetAsync(src, 0xff, src_bytes, stream), "clear src")) return status;
  place_slots<<<slot_blocks(shape.slots()), kSlotThreads, 0, stream>>>(ids, shape.slots(), shape.slots_of_block(),
                                                                       shape.experts, blocks, shape.rows, ranks, counts,
                                                                       offsets, src, positions);
  if (shape.tokens > 0 && shape.hidden > 0) {
    with_row_words(x.dtype, {x.data, x_perm.data}, shape.hidden, [&]<typename Word>(TypeTag<Word>, int64_t words) {
      copy_to_slots<Word><<<slot_blocks(shape.tokens * words), kSlotThreads, 0, stream>>>(
          static_cast<const Word*>(x.data), positions, shape.tokens, shape.topk, words,
          static_cast<Word*>(x_perm.data));
    });
  }
  launch_clear_unused_rows(x.dtype, src, shape.rows, shape.hidden, x_perm.data, stream);
  if (auto status = launch_status(call, "launch moe_permute forward")) return status;

  if (auto status = findings.wait()) return status;
  if (auto status = refuse_bad_index(call, findings, ids, -1, shape.experts, "ids")) return status;
  const unsigned long long needed = findings[kRowsNeeded];
  if (needed <= static_cast<unsigned long long>(shape.rows)) return CHECKOP_OK;
  return say(call, CHECKOP_FAILED, "output 'x_perm': %lld rows, %llu are needed", static_cast<long long>(shape.rows),
             needed);
}

checkop_status launch_backward(const checkop_call* call) {
  CallCheck check(call);
  if (check.counts(2, 1).failed()) return check.status();
  const checkop_tensor &positions = call->inputs[0], &grad = call->inputs[1], &dx = call->outputs[0];
  check.rank_at_least(positions, "positions", 1).rank_at_least(grad, "grad_x_perm", 1).rank_at_least(dx, "dx", 1);
  if (check.failed()) return check.status();
  PermuteShape shape;
  shape.tokens = leading_count(dx), shape.topk = last_extent(positions), shape.hidden = last_extent(dx);
  shape.rows = grad.shape[0];
  check.float_dtype(grad, "grad_x_perm").shape(grad, "grad_x_perm", grad, 1, {shape.hidden});
  check.contiguous(grad, "grad_x_perm").dtype(dx, "dx", grad.dtype).contiguous(dx, "dx");
  check.dtype(positions, "positions", CHECKOP_I32).shape(positions, "positions", dx, dx.rank - 1, {shape.topk});
  check.contiguous(positions, "positions").workspace(backward_bytes(call));
  if (check.failed()) return check.status();
  double align = 1;  // positions already follow it
  if (auto status = read_attribute(call, "align", align)) return status;
  if (auto status = check_limits(call, shape)) return status;
  auto* stream = static_cast<cudaStream_t>(call->stream);
  const auto* row_of_slot = static_cast<const int32_t*>(positions.data);
  IndexCheck index_check(call, row_of_slot, shape.slots(), -1, shape.rows, "positions", call->workspace, stream);
  if (auto status = index_check.begin()) return status;
  return with_float_type(grad.dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    launch_sum_slot_rows(static_cast<const T*>(grad.data), shape.rows, row_of_slot, nullptr, shape.tokens, shape.topk,
                         shape.hidden, static_cast<T*>(dx.data), stream);
    if (auto status = launch_status(call, "launch moe_permute backward")) return status;
    return index_check.finish();
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "moe_permute", "forward", CHECKOP_CUDA, 80, 0, forward_bytes, launch_forward},
    {sizeof(checkop_kernel), "cuda", "moe_permute", "backward", CHECKOP_CUDA, 80, 0, backward_bytes, launch_backward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
