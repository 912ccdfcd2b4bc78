// SPDX-License-Identifier: Apache-2.0
// embedding / cuda: forward, a token's row is copied. Backward, the tokens are sorted by id and each row of the table
// sums its tokens' gradients.
//   forward   y[t] = weight[token_ids[t]], bit by bit
//   backward  dweight[v] = sum of grad_y[t] over the tokens t with token_ids[t] = v, zero if there are none
//   token_ids: [tokens] i64   weight, dweight: [vocab, hidden]   y, grad_y: [tokens, hidden]
//   the last four f32|f16|bf16, all the same; all contiguous
//   Limits: tokens, vocab < 2^31; backward hidden <= 65535 * 512, and fewer than 2^31 blocks of 8 tokens and 512
//   columns in fp32, 1024 in 16 bits. Ids outside [0, vocab) are CHECKOP_FAILED.
//   Workspace: 256 bytes; backward (16 + hidden / 8) * tokens and the sort's scratch, rounded up.
//   Expected error: forward none; backward chains of 64 + tokens / 64 fp32 additions at most, one output rounding.
//
// Backward. The table is set to zeros, and at the same time the tokens are sorted on cudaStreamPerThread; then the rows
// of ids with tokens are written. To write these rows twice costs less than to leave them out: zeros go out fastest in
// the order of memory, and nothing needs to know the ids before. Sorted tokens are cut into windows of 64. If an id's
// tokens lie in several windows, separate blocks sum each window, so that a very frequent id does not wait for one
// block to read most of grad_y. Tokens are added in ascending order, and the order of all sums follows from the ids
// alone.
#include <algorithm>
#include <cub/block/block_radix_sort.cuh>
#include <cub/device/device_radix_sort.cuh>

#include "cuda/ids.cuh"
#include "cuda/ring.cuh"
#include "cuda/rows.cuh"

namespace checkop::kernels {
namespace {

constexpr size_t kAlign = 256;
constexpr int kThreads = 256;
constexpr int kSumThreads = 128;  // 1024 columns of 16 bits: a row of 4096 columns is the work of four blocks
constexpr int kWindow = 64;       // gradients that a thread adds in sequence
constexpr int kChunk = 8;         // tokens of a block, whose gradients are all in flight before the first addition
static_assert(kWindow % kChunk == 0);
constexpr unsigned kNoId = std::numeric_limits<unsigned>::max();  // more than any id
// A grid has at most 65535 blocks of columns, of 512 columns each in fp32
constexpr int64_t kMostHidden = int64_t{65535} * kSumThreads * kGroupColumns<float>;

/// The tokens sorted by id; tokens of the same id in ascending order. An id outside [0, vocab) counts as `vocab`.
struct Sorted {
  unsigned *ids, *tokens;  ///< [tokens] each
};

__device__ inline unsigned key_of(int64_t id, int64_t vocab) {
  return static_cast<unsigned>(id < 0 || id >= vocab ? vocab : id);  // IdCheck refuses ids outside
}

// --- sort ------------------------------------------------------------------------------------------------------------

// One block sorts up to kSortedByBlock tokens in shared memory: several kernels would wait for each other, and for the
// memory that is being cleared. It needs half of an SM's registers, so that it finds room beside that work.
constexpr int kSortThreads = 512, kSortItems = 16, kSortBits = 5;
constexpr int64_t kSortedByBlock = kSortThreads * kSortItems;
using BlockSort = cub::BlockRadixSort<unsigned, kSortThreads, kSortItems, uint16_t, kSortBits>;

/// Sorts by the lowest `bits` bits, which hold `vocab`.
__global__ __launch_bounds__(kSortThreads, 2) void sort_tokens(const int64_t* __restrict__ token_ids, int tokens,
                                                               int64_t vocab, int bits, Sorted to) {
  extern __shared__ char sort_memory[];
  unsigned ids[kSortItems];
  uint16_t numbers[kSortItems];
  const int first = static_cast<int>(threadIdx.x) * kSortItems;
#pragma unroll
  for (int i = 0; i < kSortItems; ++i) {  // what is added at the end stays there: the sort is stable
    ids[i] = first + i < tokens ? key_of(token_ids[first + i], vocab) : (1u << bits) - 1;
    numbers[i] = static_cast<uint16_t>(first + i);
  }
  BlockSort(*reinterpret_cast<BlockSort::TempStorage*>(sort_memory)).SortBlockedToStriped(ids, numbers, 0, bits);
#pragma unroll
  for (int i = 0; i < kSortItems; ++i) {
    const int at = i * kSortThreads + static_cast<int>(threadIdx.x);
    if (at < tokens) to.ids[at] = ids[i], to.tokens[at] = numbers[i];
  }
}

/// Fills in the unsorted ids and token numbers.
__global__ __launch_bounds__(kThreads) void number_tokens(const int64_t* __restrict__ token_ids, int64_t tokens,
                                                          int64_t vocab, Sorted to) {
  const int64_t token = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (token >= tokens) return;
  to.ids[token] = key_of(token_ids[token], vocab);
  to.tokens[token] = static_cast<unsigned>(token);
}

// --- sums ------------------------------------------------------------------------------------------------------------

/// Entries [first, first + kChunk) of a list of `count`, with kNoId beyond its end.
__device__ inline void load_chunk(const unsigned* __restrict__ list, int64_t first, int64_t count,
                                  unsigned (&to)[kChunk]) {
  if (first + kChunk <= count) {
    const auto* words = reinterpret_cast<const uint4*>(list + first);
#pragma unroll
    for (int i = 0; i < kChunk; i += 4) {
      const uint4 word = words[i / 4];
      to[i] = word.x, to[i + 1] = word.y, to[i + 2] = word.z, to[i + 3] = word.w;
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kChunk; ++i) to[i] = first + i < count ? list[first + i] : kNoId;
}

/// Sums the gradients of segments of sorted tokens. A segment is what an id has in one window of kWindow tokens, and
/// the block in whose chunk of kChunk tokens it begins sums it. An id's only segment is a row of dweight. Otherwise
/// the id's first segment goes to partials[2 * window + 1] and a later one to partials[2 * window]: a window has at
/// most one of each. Blocks: (chunk, columns).
template <typename T>
__global__ __launch_bounds__(kSumThreads) void sum_segments(Sorted sorted, const T* __restrict__ grad, int64_t tokens,
                                                            int64_t vocab, int64_t hidden, unsigned column_blocks,
                                                            bool aligned, float* __restrict__ partials,
                                                            T* __restrict__ dweight) {
  constexpr int kColumns = kGroupColumns<T>;
  __shared__ uint4 loaded[kChunk][kSumThreads];  // a thread reads only what it has copied itself
  const int64_t chunk = blockIdx.x / column_blocks;
  const int64_t column = (int64_t{blockIdx.x % column_blocks} * kSumThreads + threadIdx.x) * kColumns;
  if (column >= hidden) return;
  float sum[kColumns] = {};
  bool goes_on = false;   // the segment at the end of the chunk before, which this block sums
  bool is_later = false;  // of the segment: its id has one in an earlier window
  for (int64_t first = chunk * kChunk; first == chunk * kChunk || goes_on; first += kChunk) {
    unsigned ids[kChunk], rows[kChunk];
    load_chunk(sorted.ids, first, tokens, ids);
    load_chunk(sorted.tokens, first, tokens, rows);
    const unsigned before = first > 0 ? sorted.ids[first - 1] : kNoId;
    const unsigned after = first + kChunk < tokens ? sorted.ids[first + kChunk] : kNoId;
    const bool begins_window = first % kWindow == 0, ends_window = (first + kChunk) % kWindow == 0;
    unsigned adds = 0, begins = 0, ends = 0;  // bit j: what to do at token first + j
    bool is_mine = goes_on;
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      const bool is_same = j == 0 ? ids[0] == before && !begins_window : ids[j] == ids[j - 1];
      const bool is_last = j == kChunk - 1 ? ids[j] != after || ends_window : ids[j] != ids[j + 1];
      is_mine = goes_on ? is_mine && is_same : is_mine || !is_same;
      if (!is_mine || ids[j] >= vocab) continue;
      adds |= 1u << j, begins |= unsigned{!is_same} << j, ends |= unsigned{is_last} << j;
      const T* __restrict__ row = grad + int64_t{rows[j]} * hidden;
      if (aligned) {
        cp_async(&loaded[j][threadIdx.x], row + column, sizeof(uint4));
      } else {
        loaded[j][threadIdx.x] = load_group(row, column, hidden, false).bits;
      }
    }
    cp_async_commit_group();
    cp_async_wait_group<0>();
#pragma unroll 1
    for (int j = 0; j < kChunk; ++j) {
      if ((adds >> j & 1) == 0) continue;
      if ((begins >> j & 1) != 0) {
        is_later = j == 0 && begins_window && ids[0] == before;
#pragma unroll
        for (int c = 0; c < kColumns; ++c) sum[c] = 0.0f;
      }
      float x[kColumns];
      Group<T>{loaded[j][threadIdx.x]}.unpack(x);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) sum[c] += x[c];
      if ((ends >> j & 1) == 0) continue;
      const bool has_later = j == kChunk - 1 && ends_window && ids[kChunk - 1] == after;
      if (!is_later && !has_later) {
        store_group_at_once(dweight + int64_t{sorted.ids[first + j]} * hidden, column, hidden, aligned, sum);
        continue;
      }
      float* __restrict__ to = partials + (first / kWindow * 2 + (is_later ? 0 : 1)) * hidden + column;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        if (column + c < hidden) to[c] = sum[c];
      }
    }
    goes_on = (adds & ~ends) >> (kChunk - 1) != 0;
  }
}

/// Adds the partial sums of ids that have several segments. Blocks: (windows, columns); those of the window where such
/// an id begins add. Starts while sum_segments ends.
template <typename T>
__global__ __launch_bounds__(kSumThreads) void add_windows(Sorted sorted, const float* __restrict__ partials,
                                                           int64_t tokens, int64_t vocab, int64_t hidden, bool aligned,
                                                           T* __restrict__ dweight) {
  constexpr int kColumns = kGroupColumns<T>, kAhead = 8;  // rows in flight before the first addition
  wait_for_kernel_before();  // in every block: what follows this kernel must find that one done
  const int64_t begin = int64_t{blockIdx.x} * kWindow, end = begin + kWindow;
  const int64_t column = (int64_t{blockIdx.y} * kSumThreads + threadIdx.x) * kColumns;
  if (end >= tokens || column >= hidden) return;
  const unsigned id = sorted.ids[end];
  if (id >= vocab || sorted.ids[end - 1] != id || (begin > 0 && sorted.ids[begin - 1] == id)) return;
  float sum[kColumns] = {};
  const auto load = [&](int64_t row, Pack<float, kColumns>& to) {
    const float* __restrict__ from = partials + row * hidden + column;
    if (aligned) {  // then rows of floats are aligned too
      to = *reinterpret_cast<const Pack<float, kColumns>*>(from);
    } else {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) to.at[c] = column + c < hidden ? from[c] : 0.0f;
    }
  };
  const auto add = [&](const Pack<float, kColumns>& row) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) sum[c] += row.at[c];
  };
  Pack<float, kColumns> rows[kAhead];
  load(2 * int64_t{blockIdx.x} + 1, rows[0]);
  add(rows[0]);
  bool goes_on = true;
  for (int64_t window = int64_t{blockIdx.x} + 1; goes_on; window += kAhead) {
    bool is_id[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      is_id[j] = (window + j) * kWindow < tokens && sorted.ids[(window + j) * kWindow] == id;
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j)
      if (is_id[j]) load(2 * (window + j), rows[j]);
#pragma unroll
    for (int j = 0; j < kAhead; ++j)
      if (is_id[j]) add(rows[j]);
    goes_on = is_id[kAhead - 1];
  }
  store_group_at_once(dweight + int64_t{id} * hidden, column, hidden, aligned, sum);
}

// --- calls -----------------------------------------------------------------------------------------------------------

struct EmbeddingShape {
  int64_t tokens, vocab, hidden;
};

/// `table` is the weight or its gradient, `rows` is y or its gradient.
checkop_status check_call(const checkop_call* call, const checkop_tensor& table, const char* table_name,
                          const checkop_tensor& rows, const char* rows_name, size_t workspace_bytes,
                          EmbeddingShape& shape) {
  CallCheck check(call);
  const checkop_tensor& ids = call->inputs[0];
  check.rank_at_least(rows, rows_name, 1).float_dtype(rows, rows_name).contiguous(rows, rows_name);
  check.rank_at_least(table, table_name, 2).dtype(table, table_name, rows.dtype).contiguous(table, table_name);
  if (check.failed()) return check.status();
  shape = {leading_count(rows), table.shape[0], last_extent(rows)};
  check.shape(table, table_name, table, 1, {shape.hidden});
  check.dtype(ids, "token_ids", CHECKOP_I64).shape(ids, "token_ids", rows, rows.rank - 1, {});
  check.contiguous(ids, "token_ids").workspace(workspace_bytes);
  if (check.failed()) return check.status();
  if (shape.tokens > std::numeric_limits<int32_t>::max() || shape.vocab > std::numeric_limits<int32_t>::max()) {
    return say(call, CHECKOP_UNSUPPORTED, "%lld tokens and %lld ids, at most 2147483647 of each are supported",
               static_cast<long long>(shape.tokens), static_cast<long long>(shape.vocab));
  }
  return CHECKOP_OK;
}

size_t forward_bytes(const checkop_call*) { return kIdCheckBytes; }

/// Layout of the backward pass's workspace, in bytes from its start; IdCheck uses the first bytes.
struct WorkspaceLayout {
  size_t sorted, partials, unsorted, scratch, scratch_bytes, bytes;

  explicit WorkspaceLayout(const EmbeddingShape& shape) {
    const auto tokens = static_cast<size_t>(shape.tokens), list = padded(tokens * sizeof(unsigned));
    const auto windows = static_cast<size_t>(ceil_div(shape.tokens, kWindow));
    scratch_bytes = 0;
    sorted = kIdCheckBytes;
    partials = sorted + 2 * list;
    unsorted = partials + padded(windows * 2 * static_cast<size_t>(shape.hidden) * sizeof(float));
    bytes = scratch = unsorted;
    if (shape.tokens <= kSortedByBlock) return;
    (void)sort(nullptr, scratch_bytes, {}, {}, shape, nullptr);
    scratch = unsorted + 2 * list;
    bytes = scratch + padded(scratch_bytes);
  }

  /// Bits of the largest key, vocab.
  static int key_bits(const EmbeddingShape& shape) {
    int bits = 1;
    while (shape.vocab >> bits != 0) ++bits;
    return bits;
  }
  /// Stable radix sort. If `scratch` is null, only returns the bytes of scratch that it needs.
  static cudaError_t sort(void* scratch, size_t& scratch_bytes, Sorted from, Sorted to, const EmbeddingShape& shape,
                          cudaStream_t stream) {
    return cub::DeviceRadixSort::SortPairs(scratch, scratch_bytes, from.ids, to.ids, from.tokens, to.tokens,
                                           static_cast<int>(shape.tokens), 0, key_bits(shape), stream);
  }

  static size_t padded(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }
  static Sorted lists(char* at, const EmbeddingShape& shape) {
    const size_t list = padded(static_cast<size_t>(shape.tokens) * sizeof(unsigned));
    return {reinterpret_cast<unsigned*>(at), reinterpret_cast<unsigned*>(at + list)};
  }
};

size_t backward_bytes(const checkop_call* call) {
  if (call->n_inputs < 2 || call->n_outputs < 1 || call->outputs[0].rank < 2)
    return kIdCheckBytes;  // launch refuses it
  const checkop_tensor &grad_y = call->inputs[1], &dweight = call->outputs[0];
  return WorkspaceLayout({leading_count(grad_y), dweight.shape[0], last_extent(dweight)}).bytes;
}

/// Work on cudaStreamPerThread that runs at the same time as work on the call's stream.
class SideStream {
 public:
  SideStream() = default;
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;
  ~SideStream() {
    if (is_open_) (void)cudaStreamSynchronize(cudaStreamPerThread);  // its memory is the call's
    for (const cudaEvent_t event : {begun_, done_})
      if (event != nullptr) (void)cudaEventDestroy(event);
  }
  /// Work enqueued to cudaStreamPerThread from now on waits for the work that `stream` has by now.
  cudaError_t begin(cudaStream_t stream) {
    for (cudaEvent_t* event : {&begun_, &done_})
      if (auto error = cudaEventCreateWithFlags(event, cudaEventDisableTiming)) return error;
    if (auto error = cudaEventRecord(begun_, stream)) return error;
    is_open_ = true;
    return cudaStreamWaitEvent(cudaStreamPerThread, begun_);
  }
  /// Work enqueued to `stream` from now on waits for the work that cudaStreamPerThread has by now.
  cudaError_t join(cudaStream_t stream) {
    if (auto error = cudaEventRecord(done_, cudaStreamPerThread)) return error;
    if (auto error = cudaStreamWaitEvent(stream, done_)) return error;
    is_open_ = false;
    return cudaSuccess;
  }

 private:
  cudaEvent_t begun_ = nullptr, done_ = nullptr;
  bool is_open_ = false;  ///< has work that no stream waits for
};

/// In the order of memory; one store at a time, since several, far from each other, take 4 % longer on an H200.
__global__ __launch_bounds__(kThreads) void clear_words(uint4* __restrict__ to, int64_t words) {
#pragma unroll 1
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < words; i += int64_t{gridDim.x} * kThreads) {
    to[i] = uint4{};
  }
}

/// Sets the table to zeros. Half of an SM's threads write at full rate, and leave room for the sort.
cudaError_t launch_clear(void* table, size_t bytes, cudaStream_t stream) {
  constexpr int64_t kBlocksOfSM = 4;
  if (!is_aligned(table) || bytes % sizeof(uint4) != 0) return cudaMemsetAsync(table, 0, bytes, stream);
  int device = 0, n_sms = 0;
  if (auto error = cudaGetDevice(&device)) return error;
  if (auto error = cudaDeviceGetAttribute(&n_sms, cudaDevAttrMultiProcessorCount, device)) return error;
  const auto words = static_cast<int64_t>(bytes / sizeof(uint4));
  const int64_t blocks = std::min(kBlocksOfSM * n_sms, ceil_div(words, kThreads));
  return launch_kernel(clear_words, Launch{dim3(static_cast<unsigned>(blocks)), dim3(kThreads), stream},
                       static_cast<uint4*>(table), words);
}

/// Enqueues the sort of the tokens, after the search of IdCheck.
cudaError_t launch_sort(const int64_t* ids, const EmbeddingShape& shape, const WorkspaceLayout& layout, char* workspace,
                        cudaStream_t stream) {
  const Sorted sorted = WorkspaceLayout::lists(workspace + layout.sorted, shape);
  if (shape.tokens <= kSortedByBlock) {
    constexpr int kBytes = static_cast<int>(sizeof(BlockSort::TempStorage));
    if (auto error = cudaFuncSetAttribute(sort_tokens, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes))
      return error;
    return launch_kernel(sort_tokens, Launch{dim3(1), dim3(kSortThreads), stream, kBytes, 1, true}, ids, shape.tokens,
                         shape.vocab, WorkspaceLayout::key_bits(shape), sorted);
  }
  const Sorted unsorted = WorkspaceLayout::lists(workspace + layout.unsorted, shape);
  const auto blocks = static_cast<unsigned>(ceil_div(shape.tokens, kThreads));
  if (auto error = launch_kernel(number_tokens, Launch{dim3(blocks), dim3(kThreads), stream, 0, 1, true}, ids,
                                 shape.tokens, shape.vocab, unsorted))
    return error;
  size_t scratch_bytes = layout.scratch_bytes;
  return WorkspaceLayout::sort(workspace + layout.scratch, scratch_bytes, unsorted, sorted, shape, stream);
}

checkop_status launch_forward(const checkop_call* call) {
  if (auto status = CallCheck(call).counts(2, 1).status()) return status;
  const checkop_tensor &weight = call->inputs[1], &y = call->outputs[0];
  EmbeddingShape shape;
  if (auto status = check_call(call, weight, "weight", y, "y", forward_bytes(call), shape)) return status;
  if (shape.tokens == 0 || shape.hidden == 0) return CHECKOP_OK;
  auto* stream = static_cast<cudaStream_t>(call->stream);
  const auto* ids = static_cast<const int64_t*>(call->inputs[0].data);
  IdCheck id_check(call, ids, shape.tokens, shape.vocab, "token_ids", call->workspace, stream);
  if (auto status = id_check.begin()) return status;
  const auto error =
      launch_copy_rows(y.dtype, weight.data, shape.vocab, ids, shape.tokens, shape.hidden, y.data, stream,
                       /*starts_early=*/true);
  if (auto status = cuda_status(call, error, "launch embedding forward")) return status;
  return id_check.finish();
}

checkop_status launch_backward(const checkop_call* call) {
  if (auto status = CallCheck(call).counts(2, 1).status()) return status;
  const checkop_tensor &grad_y = call->inputs[1], &dweight = call->outputs[0];
  EmbeddingShape shape;
  if (auto status = check_call(call, dweight, "dweight", grad_y, "grad_y", backward_bytes(call), shape)) return status;
  if (shape.vocab == 0 || shape.hidden == 0) return CHECKOP_OK;
  if (shape.hidden > kMostHidden) {
    return say(call, CHECKOP_UNSUPPORTED, "tensor 'grad_y': %lld columns, at most %lld are supported",
               static_cast<long long>(shape.hidden), static_cast<long long>(kMostHidden));
  }
  const int64_t group_columns = dweight.dtype == CHECKOP_F32 ? kGroupColumns<float> : kGroupColumns<__half>;
  const int64_t columns = ceil_div(ceil_div(shape.hidden, group_columns), kSumThreads);
  const int64_t chunks = ceil_div(shape.tokens, kChunk);
  if (chunks * columns > std::numeric_limits<int32_t>::max()) {
    return say(call, CHECKOP_UNSUPPORTED, "%lld tokens of %lld columns need more blocks than a grid has",
               static_cast<long long>(shape.tokens), static_cast<long long>(shape.hidden));
  }
  auto* stream = static_cast<cudaStream_t>(call->stream);
  const auto table_bytes = static_cast<size_t>(shape.vocab * shape.hidden) * (dweight.dtype == CHECKOP_F32 ? 4 : 2);
  if (shape.tokens == 0)
    return cuda_status(call, cudaMemsetAsync(dweight.data, 0, table_bytes, stream), "clear the gradient");
  const auto* ids = static_cast<const int64_t*>(call->inputs[0].data);
  const WorkspaceLayout layout(shape);
  auto* workspace = static_cast<char*>(call->workspace);
  const Sorted sorted = WorkspaceLayout::lists(workspace + layout.sorted, shape);
  auto* partials = reinterpret_cast<float*>(workspace + layout.partials);
  const cudaStream_t sort_stream = cudaStreamPerThread;
  SideStream side;
  if (auto status = cuda_status(call, side.begin(stream), "sort the tokens")) return status;
  IdCheck id_check(call, ids, shape.tokens, shape.vocab, "token_ids", call->workspace, sort_stream);
  if (auto status = id_check.begin()) return status;
  auto error = launch_sort(ids, shape, layout, workspace, sort_stream);
  if (auto status = cuda_status(call, error, "sort the tokens")) return status;
  if (auto status = cuda_status(call, launch_clear(dweight.data, table_bytes, stream), "clear the gradient"))
    return status;
  if (auto status = cuda_status(call, side.join(stream), "launch embedding backward")) return status;
  return with_float_type(grad_y.dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    const auto* grad = static_cast<const T*>(grad_y.data);
    auto* out = static_cast<T*>(dweight.data);
    const bool aligned = rows_are_aligned<T>({grad, out}, shape.hidden);
    sum_segments<T><<<static_cast<unsigned>(chunks * columns), kSumThreads, 0, stream>>>(
        sorted, grad, shape.tokens, shape.vocab, shape.hidden, static_cast<unsigned>(columns), aligned, partials, out);
    if (auto status = launch_status(call, "sum the gradients")) return status;
    const dim3 windows(static_cast<unsigned>(ceil_div(shape.tokens, kWindow)), static_cast<unsigned>(columns));
    const auto error = launch_dependent(add_windows<T>, windows, kSumThreads, stream, sorted, partials, shape.tokens,
                                        shape.vocab, shape.hidden, aligned, out);
    if (auto status = cuda_status(call, error, "launch embedding backward")) return status;
    return id_check.finish();
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
