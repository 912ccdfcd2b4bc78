// SPDX-License-Identifier: Apache-2.0
// embedding / cuda: forward, a token's row is copied. Backward, the tokens are sorted by id and each row of the table
// sums its tokens' gradients.
//   forward   y[t] = weight[token_ids[t]], bit by bit
//   backward  dweight[v] = sum of grad_y[t] over the tokens t with token_ids[t] = v, zero if there are none
//   token_ids: [tokens] i64   weight, dweight: [vocab, hidden]   y, grad_y: [tokens, hidden]
//   the last four f32|f16|bf16, all the same; all contiguous
//   Limits: tokens, vocab < 2^31; backward hidden < 2^25. Ids outside [0, vocab) are CHECKOP_FAILED.
//   Workspace: 256 bytes; backward 12 * vocab + (16 + hidden / 8) * tokens and the sort's scratch, rounded up.
//   Expected error: forward none; backward chains of 64 + tokens / 64 fp32 additions at most, one output rounding.
//
// Backward. Sorted tokens are cut into windows of 64. If an id's tokens lie in several windows, separate blocks sum
// each window, so that a very frequent id does not wait for one block to read most of grad_y. Tokens are added in
// ascending order, and the order of all sums follows from the ids alone. The rows of ids without tokens are set to 0 at
// the same time: on the call's own stream, while sort and sums run on cudaStreamPerThread.
#include <algorithm>
#include <cub/device/device_radix_sort.cuh>

#include "cuda/ids.cuh"
#include "cuda/rows.cuh"
#include "cuda/slots.cuh"

namespace checkop::kernels {
namespace {

constexpr size_t kAlign = 256;
constexpr int kThreads = 256;
constexpr int kSumThreads = 128;  // 1024 columns of 16 bits: a row of 4096 columns is the work of four blocks
constexpr int kWindow = 64;       // gradients that a thread adds in sequence
// A grid has at most 65535 blocks of columns, of 512 columns each in fp32
constexpr int64_t kHiddenLimit = int64_t{1} << 25;

/// The tokens sorted by id; tokens of the same id in ascending order. An id outside [0, vocab) counts as `vocab`.
struct Sorted {
  unsigned *ids, *tokens;  ///< [tokens] each
};

/// Fills in the unsorted ids and token numbers, and 0 for each id that a token has.
__global__ __launch_bounds__(kThreads) void number_tokens(const int64_t* __restrict__ token_ids, int64_t tokens,
                                                          int64_t vocab, Sorted to, int32_t* __restrict__ used_by) {
  const int64_t token = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (token >= tokens) return;
  const int64_t id = token_ids[token];
  to.ids[token] = static_cast<unsigned>(id < 0 || id >= vocab ? vocab : id);  // IdCheck refuses ids outside
  to.tokens[token] = static_cast<unsigned>(token);
  if (id >= 0 && id < vocab) used_by[id] = 0;
}

/// ranges[v] = begin and end of id v's tokens in `sorted`; untouched for an id without tokens.
__global__ __launch_bounds__(kThreads) void find_ranges(const unsigned* __restrict__ ids, int64_t tokens, int64_t vocab,
                                                        uint2* __restrict__ ranges) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= tokens || ids[i] >= vocab) return;
  if (i == 0 || ids[i - 1] != ids[i]) ranges[ids[i]].x = static_cast<unsigned>(i);
  if (i + 1 == tokens || ids[i + 1] != ids[i]) ranges[ids[i]].y = static_cast<unsigned>(i + 1);
}

/// Adds the gradients of sorted tokens [begin, end), in that order, to `sum`: the thread's group of columns, which
/// begins at `column`.
template <typename T>
__device__ void add_gradients(const T* __restrict__ grad, const unsigned* __restrict__ tokens, int64_t begin,
                              int64_t end, int64_t column, int64_t hidden, bool aligned,
                              float (&sum)[kGroupColumns<T>]) {
  constexpr int kAhead = 8;  // loads in flight before the first addition
  for (int64_t i = begin; i < end; i += kAhead) {
    Group<T> groups[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (i + j < end) groups[j] = load_group(grad + int64_t{tokens[i + j]} * hidden, column, hidden, aligned);
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (i + j >= end) break;
      float x[kGroupColumns<T>];
      groups[j].unpack(x);
#pragma unroll
      for (int c = 0; c < kGroupColumns<T>; ++c) sum[c] += x[c];
    }
  }
}

/// Sums the gradients of ids whose tokens lie in several windows of kWindow sorted tokens, each window by separate
/// blocks. The sum of the window where an id begins goes to partials[2 * window + 1]; the sum of an id that began in an
/// earlier window goes to partials[2 * window]. A window has at most one of each. Blocks: (windows, columns, 2).
template <typename T>
__global__ __launch_bounds__(kSumThreads) void sum_windows(Sorted sorted, const uint2* __restrict__ ranges,
                                                           const T* __restrict__ grad, int64_t tokens, int64_t vocab,
                                                           int64_t hidden, bool aligned, float* __restrict__ partials) {
  constexpr int kColumns = kGroupColumns<T>;
  const int64_t window = blockIdx.x, begin = window * kWindow, end = min(begin + kWindow, tokens);
  const bool begins_here = blockIdx.z == 1;
  const unsigned id = sorted.ids[begins_here ? end - 1 : begin];
  if (id >= vocab) return;
  const int64_t first = ranges[id].x, last = ranges[id].y;
  if (begins_here ? first < begin || last <= end : first >= begin) return;
  const int64_t column = (int64_t{blockIdx.y} * kSumThreads + threadIdx.x) * kColumns;
  if (column >= hidden) return;
  float sum[kColumns] = {};
  add_gradients(grad, sorted.tokens, max(begin, first), min(end, last), column, hidden, aligned, sum);
  float* __restrict__ to = partials + (2 * window + blockIdx.z) * hidden + column;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    if (column + c < hidden) to[c] = sum[c];
  }
}

/// dweight of the ids that tokens have: the sum of an id's gradients, or of its windows' partial sums if it has several
/// windows. Other rows are left as they are. Blocks: (columns of) the tokens in sorted order; only the blocks of an
/// id's first token add.
template <typename T>
__global__ __launch_bounds__(kSumThreads) void sum_gradients(Sorted sorted, const uint2* __restrict__ ranges,
                                                             const T* __restrict__ grad,
                                                             const float* __restrict__ partials, int64_t tokens,
                                                             int64_t vocab, int64_t hidden, int64_t column_blocks,
                                                             bool aligned, T* __restrict__ dweight) {
  constexpr int kColumns = kGroupColumns<T>;
  for (int64_t block = blockIdx.x; block < tokens * column_blocks; block += gridDim.x) {
    const int64_t token = block / column_blocks;
    const int64_t column = (block % column_blocks * kSumThreads + threadIdx.x) * kColumns;
    const unsigned id = sorted.ids[token];
    if (column >= hidden || id >= vocab || (token > 0 && sorted.ids[token - 1] == id)) continue;
    const int64_t begin = token, end = ranges[id].y;
    float sum[kColumns] = {};
    const int64_t first_window = begin / kWindow, last_window = (end - 1) / kWindow;
    if (first_window == last_window) {
      add_gradients(grad, sorted.tokens, begin, end, column, hidden, aligned, sum);
    } else {
      const auto add_partial = [&](int64_t row) {
        const float* __restrict__ from = partials + row * hidden + column;
        if (aligned) {  // then rows of floats are aligned too
          const auto pack = *reinterpret_cast<const Pack<float, kColumns>*>(from);
#pragma unroll
          for (int c = 0; c < kColumns; ++c) sum[c] += pack.at[c];
          return;
        }
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          if (column + c < hidden) sum[c] += from[c];
        }
      };
      add_partial(2 * first_window + 1);
#pragma unroll 4
      for (int64_t window = first_window + 1; window <= last_window; ++window) add_partial(2 * window);
    }
    store_group_at_once(dweight + int64_t{id} * hidden, column, hidden, aligned, sum);
  }
}

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
  size_t ranges, used_by, unsorted, sorted, partials, scratch, scratch_bytes, bytes;

  explicit WorkspaceLayout(const EmbeddingShape& shape) {
    const auto tokens = static_cast<size_t>(shape.tokens), list = padded(tokens * sizeof(unsigned));
    const auto windows = static_cast<size_t>(ceil_div(shape.tokens, kWindow));
    scratch_bytes = 0;
    if (tokens > 0) (void)sort(nullptr, scratch_bytes, {}, {}, shape, nullptr);
    ranges = kIdCheckBytes;
    used_by = ranges + padded(static_cast<size_t>(shape.vocab) * sizeof(uint2));
    unsorted = used_by + padded(static_cast<size_t>(shape.vocab) * sizeof(int32_t));
    sorted = unsorted + 2 * list;
    partials = sorted + 2 * list;
    scratch = partials + padded(windows * 2 * static_cast<size_t>(shape.hidden) * sizeof(float));
    bytes = scratch + padded(scratch_bytes);
  }

  /// Stable radix sort by the bits of the largest key, vocab. If `scratch` is null, only returns the bytes of scratch
  /// that it needs.
  static cudaError_t sort(void* scratch, size_t& scratch_bytes, Sorted from, Sorted to, const EmbeddingShape& shape,
                          cudaStream_t stream) {
    int bits = 1;
    while (shape.vocab >> bits != 0) ++bits;
    return cub::DeviceRadixSort::SortPairs(scratch, scratch_bytes, from.ids, to.ids, from.tokens, to.tokens,
                                           static_cast<int>(shape.tokens), 0, bits, stream);
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

/// Rows of ids without tokens become zeros. used_by[id]: negative for these.
cudaError_t launch_zeros(const int32_t* used_by, const EmbeddingShape& shape, const checkop_tensor& dweight,
                         cudaStream_t stream) {
  constexpr int kBlocksOfSM = 4;  // half of its threads: enough to write at full rate, and the sort finds room
  int device = 0, n_sms = 0;
  if (auto error = cudaGetDevice(&device)) return error;
  if (auto error = cudaDeviceGetAttribute(&n_sms, cudaDevAttrMultiProcessorCount, device)) return error;
  launch_clear_unused_rows(dweight.dtype, used_by, shape.vocab, shape.hidden, dweight.data, stream,
                           static_cast<unsigned>(kBlocksOfSM * n_sms));
  return cudaGetLastError();
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
  if (shape.hidden >= kHiddenLimit) {
    return say(call, CHECKOP_UNSUPPORTED, "tensor 'grad_y': %lld columns, fewer than %lld are supported",
               static_cast<long long>(shape.hidden), static_cast<long long>(kHiddenLimit));
  }
  auto* stream = static_cast<cudaStream_t>(call->stream);
  const auto* ids = static_cast<const int64_t*>(call->inputs[0].data);
  const WorkspaceLayout layout(shape);
  auto* workspace = static_cast<char*>(call->workspace);
  auto* ranges = reinterpret_cast<uint2*>(workspace + layout.ranges);
  auto* partials = reinterpret_cast<float*>(workspace + layout.partials);
  const Sorted unsorted = WorkspaceLayout::lists(workspace + layout.unsorted, shape);
  const Sorted sorted = WorkspaceLayout::lists(workspace + layout.sorted, shape);
  IdCheck id_check(call, ids, shape.tokens, shape.vocab, "token_ids", call->workspace, stream);
  if (shape.tokens == 0) {
    const auto bytes = static_cast<size_t>(shape.vocab * shape.hidden) * (dweight.dtype == CHECKOP_F32 ? 4 : 2);
    return cuda_status(call, cudaMemsetAsync(dweight.data, 0, bytes, stream), "clear the gradient");
  }
  if (auto status = id_check.begin()) return status;
  auto* used_by = reinterpret_cast<int32_t*>(workspace + layout.used_by);
  const auto flag_bytes = static_cast<size_t>(shape.vocab) * sizeof(*used_by);
  auto error = cudaMemsetAsync(used_by, 0xff, flag_bytes, stream);
  if (auto status = cuda_status(call, error, "number the tokens")) return status;
  const auto blocks = static_cast<unsigned>(ceil_div(shape.tokens, kThreads));
  number_tokens<<<blocks, kThreads, 0, stream>>>(ids, shape.tokens, shape.vocab, unsorted, used_by);
  if (auto status = launch_status(call, "number the tokens")) return status;
  SideStream side;
  if (auto status = cuda_status(call, side.begin(stream), "sort the tokens")) return status;
  if (auto status = cuda_status(call, launch_zeros(used_by, shape, dweight, stream), "clear the gradient"))
    return status;
  size_t scratch_bytes = layout.scratch_bytes;
  const cudaStream_t sums_stream = cudaStreamPerThread;
  error = WorkspaceLayout::sort(workspace + layout.scratch, scratch_bytes, unsorted, sorted, shape, sums_stream);
  if (auto status = cuda_status(call, error, "sort the tokens")) return status;
  find_ranges<<<blocks, kThreads, 0, sums_stream>>>(sorted.ids, shape.tokens, shape.vocab, ranges);
  return with_float_type(grad_y.dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    const auto* grad = static_cast<const T*>(grad_y.data);
    auto* out = static_cast<T*>(dweight.data);
    const bool aligned = rows_are_aligned<T>({grad, out}, shape.hidden);
    const int64_t columns = ceil_div(ceil_div(shape.hidden, kGroupColumns<T>), kSumThreads);
    const dim3 windows(static_cast<unsigned>(ceil_div(shape.tokens, kWindow)), static_cast<unsigned>(columns), 2);
    sum_windows<T><<<windows, kSumThreads, 0, sums_stream>>>(sorted, ranges, grad, shape.tokens, shape.vocab,
                                                             shape.hidden, aligned, partials);
    if (auto status = launch_status(call, "sum windows of tokens")) return status;
    constexpr int64_t kMaxBlocks = int64_t{1} << 30;  // the kernel strides over the rest
    const auto sums = static_cast<unsigned>(std::min(shape.tokens * columns, kMaxBlocks));
    sum_gradients<T><<<sums, kSumThreads, 0, sums_stream>>>(sorted, ranges, grad, partials, shape.tokens, shape.vocab,
                                                            shape.hidden, columns, aligned, out);
    if (auto status = launch_status(call, "launch embedding backward")) return status;
    if (auto status = cuda_status(call, side.join(stream), "launch embedding backward")) return status;
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
