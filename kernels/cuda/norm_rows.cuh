// SPDX-License-Identifier: Apache-2.0
// Kernels of operators that normalise rows and do more in the same pass: a team of threads per row, rows in registers.
//   s = what is normalised,  i = (sum_h s^2 / hidden + eps)^-1/2,  n = s i,  w = the weight
//   g = the gradient of n w,  ds = i (g w - s i^2 c),  c = sum_h(g w s) / hidden;   dweight[h] = sum over rows of g n
//
// A row's bits depend only on its own values: its length and the dtype determine the team and which of its threads
// takes a column. dweight is summed in two stages without atomics: see row_team.cuh.
//
// An operator Op is copied to the device, with
//   kForwardInputs, kForwardOutputs, kBackwardInputs, kBackwardOutputs: numbers of tensors with rows
//   keep(in)                               the costly values of an element that both sweeps over a row need
//   weight(w), normalised(in, kept)        w and s
//   forward(in, kept, s, n, w, out)        the outputs of an element
//   gradient(in, kept)                     g
//   backward(in, kept, n, w, ds, out)
// where `in` has an element of each input tensor; all of them are 0 beyond the row's end, and s and g must be 0 there.
#pragma once

#include <algorithm>

#include "cuda/row_team.cuh"

namespace checkop::kernels {

/// Rows of `hidden` elements that are cut into `parts` of equal length, which are normalised separately.
struct NormParts {
  int64_t hidden, count;
};

template <typename T, int n_in, int n_out>
struct NormTensors {
  const T* in[n_in];          ///< [rows, hidden]
  const T* w;                 ///< [hidden]
  T* out[n_out];              ///< [rows, hidden]
  float* partials = nullptr;  ///< [blocks of a part, hidden]; of the backward pass
};
template <typename T, class Op>
using ForwardTensors = NormTensors<T, Op::kForwardInputs, Op::kForwardOutputs>;
template <typename T, class Op>
using BackwardTensors = NormTensors<T, Op::kBackwardInputs, Op::kBackwardOutputs>;

// Slots of the backward pass, which has three or four rows in each.
constexpr int kBackwardSlots = 3;

/// The elements of m tensors in one group of columns.
template <typename T, int m>
struct Elements {
  float at[m][kGroupColumns<T>];

  template <int n>
  __device__ Elements(const Group<T> (&groups)[m][n], int k) {
#pragma unroll
    for (int j = 0; j < m; ++j) groups[j][k].unpack(at[j]);
  }
  __device__ explicit Elements(const Group<T> (&groups)[m]) {
#pragma unroll
    for (int j = 0; j < m; ++j) groups[j].unpack(at[j]);
  }
  __device__ void column(int c, float (&in)[m]) const {
#pragma unroll
    for (int j = 0; j < m; ++j) in[j] = at[j][c];
  }
};

template <typename T, int n>
using Columns = float[n][kGroupColumns<T>];

/// Adds the sum of s^2, and keeps what is needed again.
template <typename T, class Op, int m, int n>
__device__ void sweep_forward(const Op& op, const Group<T> (&xs)[m][n], Columns<T, n>& kept, float& squares) {
#pragma unroll
  for (int k = 0; k < n; ++k) {
    const Elements<T, m> elements(xs, k);
    float sum = 0.0f;
#pragma unroll
    for (int c = 0; c < kGroupColumns<T>; ++c) {
      float in[m];
      elements.column(c, in);
      kept[k][c] = op.keep(in);
      const float s = op.normalised(in, kept[k][c]);
      sum += s * s;
    }
    squares += sum;
  }
}

/// Stores the outputs of a thread's groups, of which the first begins at `first`.
template <int team, typename T, class Op, int m, int n>
__device__ void write_forward(const Op& op, const ForwardTensors<T, Op>& t, const RmsNormParams& params, int64_t offset,
                              int64_t first, const Group<T> (&xs)[m][n], const Columns<T, n>& kept,
                              const Group<T> (&ws)[n], float scale) {
  constexpr int kOut = Op::kForwardOutputs;
#pragma unroll
  for (int k = 0; k < n; ++k) {
    const Elements<T, m> elements(xs, k);
    float w[kGroupColumns<T>], results[kOut][kGroupColumns<T>];
    ws[k].unpack(w);
#pragma unroll
    for (int c = 0; c < kGroupColumns<T>; ++c) {
      float in[m], out[kOut];
      elements.column(c, in);
      const float s = op.normalised(in, kept[k][c]);
      op.forward(in, kept[k][c], s, s * scale, op.weight(w[c]), out);
#pragma unroll
      for (int o = 0; o < kOut; ++o) results[o][c] = out[o];
    }
#pragma unroll
    for (int o = 0; o < kOut; ++o)
      store_group_at_once(t.out[o] + offset, (first + k * team) * kGroupColumns<T>, params.hidden, params.aligned,
                          results[o]);
  }
}

/// The forward pass of rows of at most team * n groups, which teams take in turn. Blocks: (block of a part, part).
template <typename T, class Op, int team, int n>
__global__ __launch_bounds__(team* kTeamsOf<team>, kBlocksOnSM<Mapping<team, n>, Op::kForwardInputs>) void norm_forward(
    ForwardTensors<T, Op> t, RmsNormParams params, NormParts parts, Op op, int slots) {
  constexpr int m = Op::kForwardInputs, kTeams = kTeamsOf<team>;
  __shared__ float2 shared[2][kWarp];
  const int64_t block = blockIdx.x / parts.count, part = blockIdx.x % parts.count, column = part * params.hidden;
  const int thread = static_cast<int>(threadIdx.x % team);
  const int64_t step = gridDim.x / parts.count * kTeams;
  const T* in[m];
#pragma unroll
  for (int j = 0; j < m; ++j) in[j] = t.in[j] + column;
  RowRing<T, team, n, m> ring(params, parts.hidden, slots);
  int64_t row = block * kTeams + threadIdx.x / team, ahead = row;
  for (int i = 0; i < slots; ++i, ahead += step) ring.fetch(in, ahead, ahead < params.rows);
  Group<T> ws[n];
  load_groups<T, team>(t.w + column, thread, params, ws);
  // Threads without a row still take part in the shuffles
  for (int64_t first = block * kTeams, i = 0; first < params.rows; first += step, row += step, ahead += step, ++i) {
    Group<T> xs[m][n];
    ring.wait();
#pragma unroll
    for (int j = 0; j < m; ++j) ring.read(j, xs[j]);
    ring.fetch(in, ahead, ahead < params.rows);
    Columns<T, n> kept;
    float squares = 0.0f;
    sweep_forward<T>(op, xs, kept, squares);
    const float scale = inverse_rms(team_sum<team>(squares, 0.0f, shared[i % 2]).x, params);
    if (row < params.rows)
      write_forward<team, T>(op, t, params, row * parts.hidden + column, thread, xs, kept, ws, scale);
  }
}

/// The same for rows of any length, which are read twice.
template <typename T, class Op, int team, int n>
__global__ __launch_bounds__(team) void norm_forward_long(ForwardTensors<T, Op> t, RmsNormParams params,
                                                          NormParts parts, Op op) {
  static_assert(kTeamsOf<team> == 1);
  constexpr int m = Op::kForwardInputs;
  __shared__ float2 shared[2][kWarp];
  const int64_t step = int64_t{team} * n, n_groups = ceil_div(params.hidden, kGroupColumns<T>);
  const int64_t items = params.rows * parts.count;
  for (int64_t item = blockIdx.x, i = 0; item < items; item += gridDim.x, ++i) {
    const int64_t column = item % parts.count * params.hidden, offset = item / parts.count * parts.hidden + column;
    Group<T> xs[m][n], ws[n];
    Columns<T, n> kept;
    const auto load = [&](int64_t base) {
#pragma unroll
      for (int j = 0; j < m; ++j) load_groups<T, team>(t.in[j] + offset, base + threadIdx.x, params, xs[j]);
    };
    float squares = 0.0f;
    for (int64_t base = 0; base < n_groups; base += step) {
      load(base);
      sweep_forward<T>(op, xs, kept, squares);
    }
    const float scale = inverse_rms(team_sum<team>(squares, 0.0f, shared[i % 2]).x, params);
    for (int64_t base = 0; base < n_groups; base += step) {
      load(base);
      load_groups<T, team>(t.w + column, base + threadIdx.x, params, ws);
      float again = 0.0f;
      sweep_forward<T>(op, xs, kept, again);
      write_forward<team, T>(op, t, params, offset, base + threadIdx.x, xs, kept, ws, scale);
    }
  }
}

/// Adds the sums of s^2 and of g w s, and keeps what is needed again.
template <typename T, class Op, int m, int n>
__device__ void sweep_backward(const Op& op, const Group<T> (&xs)[m][n], const Group<T> (&ws)[n], Columns<T, n>& kept,
                               float& squares, float& products) {
#pragma unroll
  for (int k = 0; k < n; ++k) {
    const Elements<T, m> elements(xs, k);
    float w[kGroupColumns<T>], sum = 0.0f, product = 0.0f;
    ws[k].unpack(w);
#pragma unroll
    for (int c = 0; c < kGroupColumns<T>; ++c) {
      float in[m];
      elements.column(c, in);
      kept[k][c] = op.keep(in);
      const float s = op.normalised(in, kept[k][c]);
      sum += s * s;
      product += op.gradient(in, kept[k][c]) * op.weight(w[c]) * s;
    }
    squares += sum, products += product;
  }
}

/// Stores the gradients of a group, which begins at column `first`, and computes in `term` what the row adds to
/// dweight.
template <typename T, class Op, int m>
__device__ void write_backward(const Op& op, const BackwardTensors<T, Op>& t, const RmsNormParams& params,
                               int64_t offset, int64_t first, const Elements<T, m>& elements,
                               const float (&kept)[kGroupColumns<T>], const Group<T>& ws, float scale, float mean,
                               float (&term)[kGroupColumns<T>]) {
  constexpr int kOut = Op::kBackwardOutputs;
  float w[kGroupColumns<T>], results[kOut][kGroupColumns<T>];
  ws.unpack(w);
  const float pull = mean * scale * scale;
#pragma unroll
  for (int c = 0; c < kGroupColumns<T>; ++c) {
    float in[m], out[kOut];
    elements.column(c, in);
    const float s = op.normalised(in, kept[c]), g = op.gradient(in, kept[c]), weight = op.weight(w[c]);
    op.backward(in, kept[c], s * scale, weight, norm_gradient(s, g, weight, scale, pull), out);
    term[c] = g * s * scale;
#pragma unroll
    for (int o = 0; o < kOut; ++o) results[o][c] = out[o];
  }
#pragma unroll
  for (int o = 0; o < kOut; ++o)
    store_group_at_once(t.out[o] + offset, first, params.hidden, params.aligned, results[o]);
}

/// The gradients of rows of at most team * n groups, and one partial row of dweight per block of a part. Teams take a
/// block's rows in turn.
template <typename T, class Op, int team, int n, int blocks_on_sm>
__global__ __launch_bounds__(team* kTeamsOf<team>,
                             blocks_on_sm) void norm_backward(BackwardTensors<T, Op> t, RmsNormParams params,
                                                              NormParts parts, Split split, Op op, int slots) {
  constexpr int m = Op::kBackwardInputs, kColumns = kGroupColumns<T>, kTeams = kTeamsOf<team>;
  __shared__ float2 shared[2][kWarp];
  const int64_t block = blockIdx.x / parts.count, column = blockIdx.x % parts.count * params.hidden;
  const int thread = static_cast<int>(threadIdx.x % team);
  const int64_t begin = block * kTeams, step = split.blocks * kTeams, end = params.rows;
  const T* in[m];
#pragma unroll
  for (int j = 0; j < m; ++j) in[j] = t.in[j] + column;
  RowRing<T, team, n, m> ring(params, parts.hidden, slots);
  float sums[n][kColumns] = {};
  int64_t row = begin + threadIdx.x / team, ahead = row;
  for (int i = 0; i < slots; ++i, ahead += step) ring.fetch(in, ahead, ahead < end);
  Group<T> ws[n];
  load_groups<T, team>(t.w + column, thread, params, ws);
  // Threads without a row still take part in the shuffles
  for (int64_t first = begin, i = 0; first < end; first += step, row += step, ahead += step, ++i) {
    ring.wait();
    Columns<T, n> kept;
    float squares = 0.0f, products = 0.0f;
    {
      Group<T> xs[m][n];
#pragma unroll
      for (int j = 0; j < m; ++j) ring.read(j, xs[j]);
      sweep_backward<T>(op, xs, ws, kept, squares, products);
    }
    const float2 total = team_sum<team>(squares, products, shared[i % 2]);
    const float scale = inverse_rms(total.x, params), mean = total.y / static_cast<float>(params.hidden);
    if (row < end) {
#pragma unroll
      for (int k = 0; k < n; ++k) {
        Group<T> again[m];
#pragma unroll
        for (int j = 0; j < m; ++j) again[j] = ring.read_again(j, k);
        float term[kColumns];
        write_backward<T>(op, t, params, row * parts.hidden + column, (thread + k * team) * kColumns,
                          Elements<T, m>(again), kept[k], ws[k], scale, mean, term);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) sums[k][c] += term[c];
      }
    }
    ring.fetch(in, ahead, ahead < end);
  }
  start_dependent_kernel();
  float* __restrict__ partial = t.partials + block * parts.hidden + column;
  __shared__ float of_team[kTeams > 1 ? kTeams : 1][kTeams > 1 ? team * n * kColumns : 1];
  if constexpr (kTeams > 1) {
#pragma unroll
    for (int k = 0; k < n; ++k) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) of_team[threadIdx.x / team][(thread + k * team) * kColumns + c] = sums[k][c];
    }
    __syncthreads();
    for (int64_t h = threadIdx.x; h < params.hidden; h += blockDim.x) {
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < kTeams; ++j) sum += of_team[j][h];
      partial[h] = sum;
    }
  } else {
#pragma unroll
    for (int k = 0; k < n; ++k) store_sums(partial, (thread + k * team) * kColumns, params, sums[k]);
  }
}

/// Like norm_backward, for rows of any length: a row is read twice, and the partial row of dweight is summed in the
/// workspace, where each element belongs to one thread.
template <typename T, class Op, int team, int n>
__global__ __launch_bounds__(team) void norm_backward_long(BackwardTensors<T, Op> t, RmsNormParams params,
                                                           NormParts parts, Split split, Op op) {
  static_assert(kTeamsOf<team> == 1);
  constexpr int m = Op::kBackwardInputs, kColumns = kGroupColumns<T>;
  __shared__ float2 shared[2][kWarp];
  const int64_t block = blockIdx.x / parts.count, column = blockIdx.x % parts.count * params.hidden;
  const int64_t step = int64_t{team} * n, n_groups = ceil_div(params.hidden, kColumns);
  float* __restrict__ partial = t.partials + block * parts.hidden + column;
  for (int64_t row = block, i = 0; row < params.rows; row += split.blocks, ++i) {
    const int64_t offset = row * parts.hidden + column;
    Group<T> xs[m][n], ws[n];
    Columns<T, n> kept;
    float squares = 0.0f, products = 0.0f;
    const auto sweep = [&](int64_t base) {
#pragma unroll
      for (int j = 0; j < m; ++j) load_groups<T, team>(t.in[j] + offset, base + threadIdx.x, params, xs[j]);
      load_groups<T, team>(t.w + column, base + threadIdx.x, params, ws);
      sweep_backward<T>(op, xs, ws, kept, squares, products);
    };
    for (int64_t base = 0; base < n_groups; base += step) sweep(base);
    const float2 total = team_sum<team>(squares, products, shared[i % 2]);
    const float scale = inverse_rms(total.x, params), mean = total.y / static_cast<float>(params.hidden);
    for (int64_t base = 0; base < n_groups; base += step) {
      sweep(base);
#pragma unroll
      for (int k = 0; k < n; ++k) {
        float term[kColumns];
        const int64_t first = (base + threadIdx.x + k * team) * kColumns;
        write_backward<T>(op, t, params, offset, first, Elements<T, m>(xs, k), kept[k], ws[k], scale, mean, term);
#pragma unroll
        for (int c = 0; c < kColumns; ++c)
          if (first + c < params.hidden) partial[first + c] = i == 0 ? term[c] : partial[first + c] + term[c];
      }
    }
  }
}

/// The mapping of the backward pass, which keeps three values of each column in registers: long rows of fp32 are read
/// from memory twice.
template <typename T, typename F>
auto with_backward_mapping(int64_t hidden, F&& f) {
  return with_mapping<T>(hidden, [&]<typename Map>(Map map) {
    if constexpr (Map::n * Map::team > 1024)
      return f(Mapping<512, 2, true>{});
    else
      return f(map);
  });
}

template <typename T>
Split norm_split(const RmsNormParams& params, const NormParts& parts) {
  return with_backward_mapping<T>(params.hidden,
                                  [&]<typename Map>(Map) { return split_rows<Map>(params.rows, parts.count); });
}

/// Workspace of the backward pass.
inline size_t norm_backward_bytes(int32_t dtype, const RmsNormParams& params, const NormParts& parts) {
  if (params.hidden == 0) return 0;
  const Split split = dtype == CHECKOP_F32 ? norm_split<float>(params, parts) : norm_split<__half>(params, parts);
  return static_cast<size_t>(split.blocks * parts.hidden) * sizeof(float);
}

/// CHECKOP_UNSUPPORTED if the grids would have too many blocks.
inline checkop_status check_norm_grid(const checkop_call* call, int64_t rows, const NormParts& parts) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (rows <= kMost && parts.count <= kMost / (4 * kMultiprocessors * 8)) return CHECKOP_OK;
  return say(call, CHECKOP_UNSUPPORTED, "%lld rows of %lld parts; at most 2147483647 of 508400 are supported",
             static_cast<long long>(rows), static_cast<long long>(parts.count));
}

/// Launches the forward pass, if there is anything to compute. Fills in params.aligned.
template <typename T, class Op>
checkop_status launch_norm_forward(const checkop_call* call, const ForwardTensors<T, Op>& t, RmsNormParams params,
                                   const NormParts& parts, const Op& op, const char* doing) {
  if (params.rows == 0 || params.hidden == 0) return CHECKOP_OK;
  auto* stream = static_cast<cudaStream_t>(call->stream);
  params.aligned = rows_are_aligned<T>({t.w}, params.hidden);
  for (const T* p : t.in) params.aligned = params.aligned && is_aligned(p);
  for (const T* p : t.out) params.aligned = params.aligned && is_aligned(p);
  const auto error = with_mapping<T>(params.hidden, [&]<typename Map>(Map) {
    constexpr int64_t kTeams = kTeamsOf<Map::team>, kFull = kMultiprocessors * kBlocksOnSM<Map, Op::kForwardInputs>;
    if constexpr (Map::is_long) {
      const int64_t blocks = std::min<int64_t>(params.rows * parts.count, std::numeric_limits<int32_t>::max());
      norm_forward_long<T, Op, Map::team, Map::n>
          <<<static_cast<unsigned>(blocks), Map::team, 0, stream>>>(t, params, parts, op);
      return cudaGetLastError();
    } else {
      const int64_t blocks = std::min(ceil_div(params.rows, kTeams), ceil_div(kFull, parts.count)) * parts.count;
      return launch_with_ring<Op::kForwardInputs * Map::n>(norm_forward<T, Op, Map::team, Map::n>, blocks,
                                                           Map::team * static_cast<int>(kTeams), kRowSlots, stream, t,
                                                           params, parts, op);
    }
  });
  return cuda_status(call, error, doing);
}

/// Launches the backward pass and the sum of dweight, if there is anything to compute. Fills in params.aligned.
template <typename T, class Op>
checkop_status launch_norm_backward(const checkop_call* call, const BackwardTensors<T, Op>& t, T* dweight,
                                    RmsNormParams params, const NormParts& parts, const Op& op, const char* doing) {
  if (params.hidden == 0) return CHECKOP_OK;
  auto* stream = static_cast<cudaStream_t>(call->stream);
  params.aligned = rows_are_aligned<T>({t.w}, params.hidden);
  for (const T* p : t.in) params.aligned = params.aligned && is_aligned(p);
  for (const T* p : t.out) params.aligned = params.aligned && is_aligned(p);
  const Split split = norm_split<T>(params, parts);
  if (params.rows > 0) {
    const auto error = with_backward_mapping<T>(params.hidden, [&]<typename Map>(Map) {
      const int64_t blocks = split.blocks * parts.count;
      if constexpr (Map::is_long) {
        norm_backward_long<T, Op, Map::team, Map::n>
            <<<static_cast<unsigned>(blocks), Map::team, 0, stream>>>(t, params, parts, split, op);
        return cudaGetLastError();
      } else {
        return launch_with_ring<Op::kBackwardInputs * Map::n>(
            norm_backward<T, Op, Map::team, Map::n, kBlocksOnSM<Map, 2>>, blocks, Map::team * kTeamsOf<Map::team>,
            kBackwardSlots, stream, t, params, parts, split, op);
      }
    });
    if (auto status = cuda_status(call, error, doing)) return status;
  }
  return cuda_status(call, launch_fold(t.partials, split.blocks, parts.hidden, dweight, stream), doing);
}

}  // namespace checkop::kernels
