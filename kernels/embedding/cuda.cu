// SPDX-License-Identifier: Apache-2.0
// embedding / cuda: a warp copies a token's row; backward, a block sums the gradients of one row of the table.
//   forward   y[t] = weight[token_ids[t]], bit by bit
//   backward  dweight[v] = sum of grad_y[t] over the tokens t with token_ids[t] = v, zero where there is none
//   token_ids: [tokens] i64   weight, dweight: [vocab, hidden]   y, grad_y: [tokens, hidden]   f32|f16|bf16, all the
//   same Limits: tokens, vocab < 2^31, contiguous. Ids outside [0, vocab) are CHECKOP_FAILED. Workspace: 256 bytes;
//   backward 256 + 12 * vocab, rounded up. Expected error: forward none; backward chains of 64 + tokens / 64 fp32
//   additions at most, one output rounding.
//
// No sort: a first kernel notes for each id its first token, its last and their number. A row whose id occurs more than
// once looks for its tokens between first and last, in ascending order, and adds their gradients in that order. All of
// dweight is written, each row by one block, so that nothing is cleared first.
#include "../rows.cuh"

namespace checkop::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kGroups = 2;        // of 16 bytes, that a thread sums at a time: 4096 columns of 16 bits a block
constexpr int kIdsPerThread = 4;  // looked at between two barriers
constexpr int kRun = 64;          // gradients added before their sum is added to the row's

/// For each id, [vocab] each: the first and the last token that has it, and how many have.
struct Occurrences {
  unsigned *first, *last, *count;
};

// order-free: minimum, maximum and sum of integers, the same in whatever order the threads come.
__global__ __launch_bounds__(kThreads) void note_occurrences(const int64_t* __restrict__ token_ids, int64_t tokens,
                                                             int64_t vocab, Occurrences ids) {
  const int64_t token = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (token >= tokens || token_ids[token] < 0 || token_ids[token] >= vocab) return;
  // order-free: see above
  atomicMin(ids.first + token_ids[token], static_cast<unsigned>(token));
  atomicMax(ids.last + token_ids[token], static_cast<unsigned>(token));
  atomicAdd(ids.count + token_ids[token], 1u);
}

/// The tokens in [begin, begin + blockDim.x * kIdsPerThread), up to `last`, that have id `v`: into `list`, ascending.
/// Returns how many. All threads must call; `list` is complete behind the next barrier.
__device__ unsigned find_tokens(const int64_t* __restrict__ token_ids, int64_t v, int64_t begin, int64_t last,
                                unsigned* __restrict__ list, unsigned* __restrict__ per_warp) {
  const int64_t mine = begin + int64_t{threadIdx.x} * kIdsPerThread;
  bool hit[kIdsPerThread];
  unsigned hits = 0;
#pragma unroll
  for (int j = 0; j < kIdsPerThread; ++j) {
    hit[j] = mine + j <= last && token_ids[mine + j] == v;
    hits += hit[j] ? 1 : 0;
  }
  if (__syncthreads_or(static_cast<int>(hits)) == 0) return 0;
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  unsigned up_to_mine = hits;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const unsigned below = __shfl_up_sync(kAllLanes, up_to_mine, offset);
    if (lane >= static_cast<unsigned>(offset)) up_to_mine += below;
  }
  if (lane == kWarp - 1) per_warp[warp] = up_to_mine;
  __syncthreads();
  unsigned place = up_to_mine - hits, total = 0;
  for (unsigned w = 0; w < blockDim.x / kWarp; ++w) {
    if (w < warp) place += per_warp[w];
    total += per_warp[w];
  }
#pragma unroll
  for (int j = 0; j < kIdsPerThread; ++j) {
    if (hit[j]) list[place++] = static_cast<unsigned>(mine + j);
  }
  return total;
}

/// One row of dweight per block.
template <typename T>
__global__ __launch_bounds__(kThreads) void sum_gradients(const int64_t* __restrict__ token_ids,
                                                          const T* __restrict__ grad, Occurrences ids, int64_t hidden,
                                                          bool aligned, T* __restrict__ dweight) {
  constexpr int kColumns = kGroupColumns<T>;
  __shared__ unsigned list[kThreads * kIdsPerThread], per_warp[kThreads / kWarp];
  const int64_t v = blockIdx.x, n_groups = ceil_div(hidden, kColumns);
  const unsigned count = ids.count[v];
  const int64_t first = ids.first[v], last = ids.last[v];
  for (int64_t base = 0; base < n_groups; base += int64_t{blockDim.x} * kGroups) {
    float total[kGroups][kColumns] = {};
    const auto column = [&](int g) { return (base + threadIdx.x + int64_t{g} * blockDim.x) * kColumns; };
    const auto add_row = [&](int64_t token, float(&to)[kGroups][kColumns]) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        float x[kColumns];
        load_group(grad + token * hidden, column(g), hidden, aligned).unpack(x);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) to[g][c] += x[c];
      }
    };
    if (count == 1) add_row(first, total);
    if (count > 1) {
      const int64_t step = int64_t{blockDim.x} * kIdsPerThread;
      for (int64_t begin = first; begin <= last; begin += step) {
        const unsigned found = find_tokens(token_ids, v, begin, last, list, per_warp);
        if (found == 0) continue;
        __syncthreads();
        for (unsigned run = 0; run < found; run += kRun) {
          float sum[kGroups][kColumns] = {};
          const unsigned end = min(run + kRun, found);
#pragma unroll 2
          for (unsigned i = run; i < end; ++i) add_row(list[i], sum);
#pragma unroll
          for (int g = 0; g < kGroups; ++g) {
#pragma unroll
            for (int c = 0; c < kColumns; ++c) total[g][c] += sum[g][c];
          }
        }
        __syncthreads();  // the list is read before it is written anew
      }
    }
#pragma unroll
    for (int g = 0; g < kGroups; ++g) store_group(dweight + v * hidden, column(g), hidden, aligned, total[g]);
  }
}

struct Sizes {
  int64_t tokens, vocab, hidden;
};

/// `table` is the weight or its gradient, `rows` y or its gradient.
checkop_status check_call(const checkop_call* call, const checkop_tensor& table, const char* table_name,
                          const checkop_tensor& rows, const char* rows_name, size_t workspace_bytes, Sizes& sizes) {
  CallCheck check(call);
  const checkop_tensor& ids = call->inputs[0];
  check.rank_at_least(rows, rows_name, 1).float_dtype(rows, rows_name).contiguous(rows, rows_name);
  check.rank_at_least(table, table_name, 2).dtype(table, table_name, rows.dtype).contiguous(table, table_name);
  if (check.failed()) return check.status();
  sizes = {leading_count(rows), table.shape[0], last_extent(rows)};
  check.shape(table, table_name, table, 1, {sizes.hidden});
  check.dtype(ids, "token_ids", CHECKOP_I64).shape(ids, "token_ids", rows, rows.rank - 1, {});
  check.contiguous(ids, "token_ids").workspace(workspace_bytes);
  if (check.failed()) return check.status();
  if (sizes.tokens > std::numeric_limits<int32_t>::max() || sizes.vocab > std::numeric_limits<int32_t>::max()) {
    return say(call, CHECKOP_UNSUPPORTED, "%lld tokens and %lld ids, at most 2147483647 of each are supported",
               static_cast<long long>(sizes.tokens), static_cast<long long>(sizes.vocab));
  }
  return CHECKOP_OK;
}

size_t forward_bytes(const checkop_call*) { return kIdCheckBytes; }

size_t backward_bytes(const checkop_call* call) {
  if (call->n_outputs < 1 || call->outputs[0].rank < 1) return kIdCheckBytes;  // launch says what is wrong
  return kIdCheckBytes + 3 * sizeof(unsigned) * static_cast<size_t>(call->outputs[0].shape[0]);
}

checkop_status launch_forward(const checkop_call* call) {
  if (auto status = CallCheck(call).counts(2, 1).status()) return status;
  const checkop_tensor &weight = call->inputs[1], &y = call->outputs[0];
  Sizes sizes;
  if (auto status = check_call(call, weight, "weight", y, "y", forward_bytes(call), sizes)) return status;
  if (sizes.tokens == 0 || sizes.hidden == 0) return CHECKOP_OK;
  auto* stream = static_cast<cudaStream_t>(call->stream);
  const auto* ids = static_cast<const int64_t*>(call->inputs[0].data);
  if (auto status = check_ids(call, ids, sizes.tokens, sizes.vocab, "token_ids", call->workspace, stream)) {
    return status;
  }
  launch_copy_rows(y.dtype, weight.data, sizes.vocab, ids, sizes.tokens, sizes.hidden, y.data, stream);
  return launch_status(call, "launch embedding forward");
}

/// Threads of a block that sums rows of `n_groups` groups.
unsigned threads_for(int64_t n_groups) {
  const int64_t needed = round_up(ceil_div(n_groups, kGroups), kWarp);
  return static_cast<unsigned>(needed < kThreads ? needed : kThreads);
}

checkop_status launch_backward(const checkop_call* call) {
  if (auto status = CallCheck(call).counts(2, 1).status()) return status;
  const checkop_tensor &grad_y = call->inputs[1], &dweight = call->outputs[0];
  Sizes sizes;
  if (auto status = check_call(call, dweight, "dweight", grad_y, "grad_y", backward_bytes(call), sizes)) return status;
  if (sizes.vocab == 0 || sizes.hidden == 0) return CHECKOP_OK;
  auto* stream = static_cast<cudaStream_t>(call->stream);
  const auto* ids = static_cast<const int64_t*>(call->inputs[0].data);
  auto* lists = reinterpret_cast<unsigned*>(static_cast<char*>(call->workspace) + kIdCheckBytes);
  const Occurrences found{lists, lists + sizes.vocab, lists + 2 * sizes.vocab};
  const auto list_bytes = static_cast<size_t>(sizes.vocab) * sizeof(unsigned);
  const auto doing = "clear embedding's lists";
  if (auto s = cuda_status(call, cudaMemsetAsync(found.first, 0xff, list_bytes, stream), doing)) return s;
  if (auto s = cuda_status(call, cudaMemsetAsync(found.last, 0, 2 * list_bytes, stream), doing)) return s;
  if (sizes.tokens > 0) {
    if (auto status = check_ids(call, ids, sizes.tokens, sizes.vocab, "token_ids", call->workspace, stream)) {
      return status;
    }
    note_occurrences<<<static_cast<unsigned>(ceil_div(sizes.tokens, kThreads)), kThreads, 0, stream>>>(
        ids, sizes.tokens, sizes.vocab, found);
    if (auto status = launch_status(call, "launch embedding's lists")) return status;
  }
  return with_float_type(grad_y.dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    const auto* grad = static_cast<const T*>(grad_y.data);
    auto* out = static_cast<T*>(dweight.data);
    const bool aligned = rows_are_aligned<T>({grad, out}, sizes.hidden);
    sum_gradients<T>
        <<<static_cast<unsigned>(sizes.vocab), threads_for(ceil_div(sizes.hidden, kGroupColumns<T>)), 0, stream>>>(
            ids, grad, found, sizes.hidden, aligned, out);
    return launch_status(call, "launch embedding backward");
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "embedding", "forward", CHECKOP_CUDA, 80, 0, forward_bytes, launch_forward},
    {sizeof(checkop_kernel), "cuda", "embedding", "backward", CHECKOP_CUDA, 80, 0, backward_bytes, launch_backward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
