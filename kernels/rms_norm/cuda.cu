// SPDX-License-Identifier: Apache-2.0
// rms_norm / cuda: a team of threads per row, rows in registers, fp32 throughout, portable CUDA.
//   forward   y = x s w,  s = (sum_h x^2 / hidden + eps)^-1/2
//   backward  dx = s (g w - x s^2 c),  c = sum_h(g w x) / hidden;   dweight[h] = sum of g x s over rows with mask != 0
//   x, y, grad_y, dx: [rows, hidden]   weight, dweight: [hidden]   f32|f16|bf16, all the same   mask: [rows] u8 or none
//   Limits: rows < 2^31, contiguous.   Workspace: backward, min(2112, rows) * hidden floats at most.
//   Expected error: chains of about hidden / 2048 + 15 additions (a team has up to 512 threads), for dweight
//   max(64, rows / 264) + 105; rsqrtf within 2 ulp; one output rounding.
//
// A row's bits depend only on its own values: `hidden` and the dtype determine the team and which of its threads takes
// a column. dweight is summed in two stages without atomics: each block adds its rows in ascending order and writes one
// partial row; a second kernel adds the partial rows. The shape determines which rows a block has: teams take rows in
// turn, so that what all of them read and write at a time lies together.
#include <algorithm>

#include "cuda/row_team.cuh"

namespace checkop::kernels {
namespace {

/// Computes y of one group.
template <typename T>
__device__ void write_normalized(const Group<T>& xs, const Group<T>& ws, float scale, const RmsNormParams& params,
                                 int64_t first, T* __restrict__ y) {
  float value[kGroupColumns<T>], weight[kGroupColumns<T>];
  xs.unpack(value), ws.unpack(weight);
#pragma unroll
  for (int i = 0; i < kGroupColumns<T>; ++i) value[i] = value[i] * scale * weight[i];
  store_group_at_once(y, first, params.hidden, params.aligned, value);
}

/// Computes y, one row per team. A row longer than team * n groups is read twice, the second time from its end.
template <typename T, int team, int n>
__global__ __launch_bounds__(team* kTeamsOf<team>) void rms_forward(const T* __restrict__ x, const T* __restrict__ w,
                                                                    RmsNormParams params, T* __restrict__ y) {
  __shared__ float2 shared[kWarp];
  constexpr int kColumns = kGroupColumns<T>;
  const int64_t row = int64_t{blockIdx.x} * kTeamsOf<team> + threadIdx.x / team;
  const bool exists = row < params.rows;  // threads without a row still take part in the shuffles
  const int64_t offset = (exists ? row : 0) * params.hidden, step = int64_t{team} * n;
  const int64_t n_groups = ceil_div(params.hidden, kColumns), last = (n_groups - 1) / step * step;
  const int64_t thread = threadIdx.x % team;
  Group<T> xs[n], ws[n];
  float squares = 0.0f;
  for (int64_t base = 0; base <= last; base += step) {
    load_groups<T, team>(x + offset, base + thread, params, xs);
    load_groups<T, team>(w, base + thread, params, ws);
    add_squares<T>(xs, squares);
  }
  const float scale = inverse_rms(team_sum<team>(squares, 0.0f, shared).x, params);
  if (!exists) return;
  for (int64_t base = last; base >= 0; base -= step) {
    if (base != last) {
      load_groups<T, team>(x + offset, base + thread, params, xs);
      load_groups<T, team>(w, base + thread, params, ws);
    }
#pragma unroll
    for (int k = 0; k < n; ++k) {
      write_normalized(xs[k], ws[k], scale, params, (base + thread + k * team) * kColumns, y + offset);
    }
  }
}

/// The same for rows of at most team * n groups, which teams take in turn: few threads load, so rows are fetched ahead.
template <typename T, int team, int n>
__global__ __launch_bounds__(team* kTeamsOf<team>, kBlocksOnSM<Mapping<team, n>, 1>) void rms_forward_ahead(
    const T* __restrict__ x, const T* __restrict__ w, RmsNormParams params, T* __restrict__ y, int slots) {
  __shared__ float2 shared[2][kWarp];
  constexpr int kTeams = kTeamsOf<team>;
  const int thread = static_cast<int>(threadIdx.x % team);
  const int64_t step = int64_t{gridDim.x} * kTeams;
  RowRing<T, team, n, 1> ring(params, slots);
  Group<T> ws[n], xs[n];
  int64_t row = int64_t{blockIdx.x} * kTeams + threadIdx.x / team, ahead = row;
  for (int i = 0; i < slots; ++i, ahead += step) ring.fetch({x}, ahead, ahead < params.rows);
  load_groups<T, team>(w, thread, params, ws);
  // Threads without a row still take part in the shuffles
  for (int64_t first = int64_t{blockIdx.x} * kTeams, i = 0; first < params.rows; first += step, ++i) {
    ring.wait();
    ring.read(0, xs);
    ring.fetch({x}, ahead, ahead < params.rows);
    float squares = 0.0f;
    add_squares<T>(xs, squares);
    const float scale = inverse_rms(team_sum<team>(squares, 0.0f, shared[i % 2]).x, params);
    if (row < params.rows) {
#pragma unroll
      for (int k = 0; k < n; ++k) {
        write_normalized(xs[k], ws[k], scale, params, (thread + k * team) * kGroupColumns<T>, y + row * params.hidden);
      }
    }
    row += step, ahead += step;
  }
}

// Rows of x and of the gradient in each slot; 3 slots took 7 % longer on an H200.
constexpr int kBackwardSlots = 2;

template <typename T>
struct BackwardTensors {
  const T* __restrict__ x;
  const T* __restrict__ w;
  const T* __restrict__ g;
  const uint8_t* __restrict__ mask;  ///< null when absent
  T* __restrict__ dx;
  float* __restrict__ partials;  ///< [blocks, hidden]
};

/// Computes dx of one group and, in `term`, the row's contribution to dweight.
template <typename T>
__device__ void gradient(const Group<T>& xs, const Group<T>& gs, const Group<T>& ws, float scale, float mean,
                         float (&dx)[kGroupColumns<T>], float (&term)[kGroupColumns<T>]) {
  float x[kGroupColumns<T>], g[kGroupColumns<T>], w[kGroupColumns<T>];
  xs.unpack(x), gs.unpack(g), ws.unpack(w);
  const float pull = mean * scale * scale;
#pragma unroll
  for (int i = 0; i < kGroupColumns<T>; ++i) {
    dx[i] = norm_gradient(x[i], g[i], w[i], scale, pull);
    term[i] = g[i] * x[i] * scale;
  }
}

/// Computes dx and one partial row of dweight per block, for rows of at most team * n groups. Teams take a block's rows
/// in turn.
template <typename T, int team, int n, int blocks_on_sm>
__global__ __launch_bounds__(team* kTeamsOf<team>, blocks_on_sm) void rms_backward(BackwardTensors<T> t,
                                                                                   RmsNormParams params, int slots) {
  constexpr int kColumns = kGroupColumns<T>, kTeams = kTeamsOf<team>;
  __shared__ float2 shared[2][kWarp];
  const int thread = static_cast<int>(threadIdx.x % team), columns = static_cast<int>(params.hidden);
  const int64_t hidden = params.hidden, begin = int64_t{blockIdx.x} * kTeams, step = int64_t{gridDim.x} * kTeams,
                end = params.rows;
  RowRing<T, team, n, 2> ring(params, slots);
  Group<T> ws[n];
  float sums[n][kColumns] = {};
  int64_t row = begin + threadIdx.x / team, ahead = row;
  for (int i = 0; i < slots; ++i, ahead += step) ring.fetch({t.x, t.g}, ahead, ahead < end);
  load_groups<T, team>(t.w, thread, params, ws);
  // Threads without a row still take part in the shuffles
  for (int64_t first = begin, i = 0; first < end; first += step, row += step, ahead += step, ++i) {
    ring.wait();
    float squares = 0.0f, products = 0.0f;
    {
      Group<T> xs[n], gs[n];
      ring.read(0, xs), ring.read(1, gs);
      add_squares<T>(xs, squares);
      add_products<T>(xs, gs, ws, products);
    }
    const float2 total = team_sum<team>(squares, products, shared[i % 2]);
    const float scale = inverse_rms(total.x, params), mean = total.y / static_cast<float>(hidden);
    if (row < end) {
      const bool counts = t.mask == nullptr || t.mask[row] != 0;
#pragma unroll
      for (int k = 0; k < n; ++k) {
        float dx[kColumns], term[kColumns];
        gradient<T>(ring.read_again(0, k), ring.read_again(1, k), ws[k], scale, mean, dx, term);
        store_group_at_once(t.dx + row * hidden, (thread + k * team) * kColumns, columns, params.aligned, dx);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) sums[k][c] += counts ? term[c] : 0.0f;  // a masked NaN adds nothing
      }
    }
    ring.fetch({t.x, t.g}, ahead, ahead < end);
  }
  start_dependent_kernel();
  __shared__ float of_team[kTeams > 1 ? kTeams : 1][kTeams > 1 ? team * n * kColumns : 1];
  if constexpr (kTeams > 1) {
#pragma unroll
    for (int k = 0; k < n; ++k) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) of_team[threadIdx.x / team][(thread + k * team) * kColumns + c] = sums[k][c];
    }
    __syncthreads();
    for (int64_t h = threadIdx.x; h < hidden; h += blockDim.x) {
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < kTeams; ++j) sum += of_team[j][h];
      t.partials[int64_t{blockIdx.x} * hidden + h] = sum;
    }
  } else {
#pragma unroll
    for (int k = 0; k < n; ++k)
      store_sums(t.partials + int64_t{blockIdx.x} * hidden, (thread + k * team) * kColumns, params, sums[k]);
  }
}

/// Like rms_backward, for rows of any length: a row is read twice, and the partial row of dweight is summed in the
/// workspace, where each element belongs to one thread.
template <typename T, int team, int n>
__global__ __launch_bounds__(team) void rms_backward_long(BackwardTensors<T> t, RmsNormParams params) {
  static_assert(kTeamsOf<team> == 1);
  constexpr int kColumns = kGroupColumns<T>;
  __shared__ float2 shared[2][kWarp];
  const int64_t hidden = params.hidden, step = int64_t{team} * n, n_groups = ceil_div(hidden, kColumns);
  float* __restrict__ partial = t.partials + int64_t{blockIdx.x} * hidden;
  Group<T> ws[n], xs[n], gs[n];
  for (int64_t row = blockIdx.x, i = 0; row < params.rows; row += gridDim.x, ++i) {
    const int64_t offset = row * hidden;
    const bool counts = t.mask == nullptr || t.mask[row] != 0;
    const auto load = [&](int64_t base) {
      load_groups<T, team>(t.x + offset, base + threadIdx.x, params, xs);
      load_groups<T, team>(t.g + offset, base + threadIdx.x, params, gs);
      load_groups<T, team>(t.w, base + threadIdx.x, params, ws);
    };
    float squares = 0.0f, products = 0.0f;
    for (int64_t base = 0; base < n_groups; base += step) {
      load(base);
      add_squares<T>(xs, squares);
      add_products<T>(xs, gs, ws, products);
    }
    const float2 total = team_sum<team>(squares, products, shared[i % 2]);
    const float scale = inverse_rms(total.x, params), mean = total.y / static_cast<float>(hidden);
    for (int64_t base = 0; base < n_groups; base += step) {
      load(base);
#pragma unroll
      for (int k = 0; k < n; ++k) {
        float dx[kColumns], term[kColumns];
        gradient<T>(xs[k], gs[k], ws[k], scale, mean, dx, term);
        const int64_t first = (base + threadIdx.x + k * team) * kColumns;
        store_group_at_once(t.dx + offset, first, hidden, params.aligned, dx);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          const float added = counts ? term[c] : 0.0f;
          if (first + c < hidden) partial[first + c] = i == 0 ? added : partial[first + c] + added;
        }
      }
    }
  }
}

template <typename T>
Split split_of(const RmsNormParams& params) {
  return with_mapping<T>(params.hidden, [&]<typename Map>(Map) { return split_rows<Map>(params.rows); });
}

size_t backward_bytes(const checkop_call* call) {
  if (call->n_inputs < 1 || call->inputs[0].rank < 1) return 0;  // launch reports the error
  const checkop_tensor& x = call->inputs[0];
  const RmsNormParams params{leading_count(x), last_extent(x), 0.0f, false};
  const Split split = x.dtype == CHECKOP_F32 ? split_of<float>(params) : split_of<__half>(params);
  return static_cast<size_t>(split.blocks * params.hidden) * sizeof(float);
}

checkop_status check_call(const checkop_call* call, bool backward, RmsNormParams& params) {
  CallCheck check(call);
  if (check.counts(backward ? 4 : 2, backward ? 2 : 1).failed()) return check.status();
  const checkop_tensor &x = call->inputs[0], &weight = call->inputs[1];
  if (check.rank_at_least(x, "x", 1).float_dtype(x, "x").contiguous(x, "x").failed()) return check.status();
  if (call->n_attrs != 1) return say(call, CHECKOP_FAILED, "got %d attributes, expected 1: eps", call->n_attrs);
  params = {leading_count(x), last_extent(x), static_cast<float>(call->attrs[0].value), false};
  const auto matrix = [&](const checkop_tensor& t, const char* name) {
    check.dtype(t, name, x.dtype).shape(t, name, x, x.rank, {}).contiguous(t, name);
  };
  const auto list = [&](const checkop_tensor& t, const char* name) {
    check.dtype(t, name, x.dtype).shape(t, name, x, 0, {params.hidden}).contiguous(t, name);
  };
  list(weight, "weight");
  if (backward) {
    matrix(call->inputs[2], "grad_y"), matrix(call->outputs[0], "dx"), list(call->outputs[1], "dweight");
    if (const checkop_tensor& mask = call->inputs[3]; mask.data != nullptr) {
      check.dtype(mask, "mask", CHECKOP_U8).shape(mask, "mask", x, x.rank - 1, {}).contiguous(mask, "mask");
    }
  } else {
    matrix(call->outputs[0], "y");
  }
  // A grid can't have more blocks, and a row may be a block
  if (!check.failed() && params.rows > std::numeric_limits<int32_t>::max()) {
    return say(call, CHECKOP_UNSUPPORTED, "tensor 'x': %lld rows, at most 2147483647 are supported",
               static_cast<long long>(params.rows));
  }
  return check.workspace(backward && !check.failed() ? backward_bytes(call) : 0).status();
}

checkop_status launch_forward(const checkop_call* call) {
  RmsNormParams params;
  if (auto status = check_call(call, false, params)) return status;
  if (params.rows == 0 || params.hidden == 0) return CHECKOP_OK;
  return with_float_type(call->inputs[0].dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    const auto *x = static_cast<const T*>(call->inputs[0].data), *w = static_cast<const T*>(call->inputs[1].data);
    auto* y = static_cast<T*>(call->outputs[0].data);
    params.aligned = rows_are_aligned<T>({x, w, y}, params.hidden);
    auto* stream = static_cast<cudaStream_t>(call->stream);
    return with_mapping<T>(params.hidden, [&]<typename Map>(Map) {
      constexpr int kTeams = kTeamsOf<Map::team>;
      // Blocks whose threads nearly all have columns already have enough loads in flight on an SM
      const bool few_load =
          Map::team == 16 || Map::team > 256 ||
          (Map::team > kWarp && ceil_div(params.hidden, kGroupColumns<T>) * 8 < Map::team * Map::n * 7);
      if constexpr (!Map::is_long) {
        if (few_load) {
          const int64_t blocks =
              std::min<int64_t>(ceil_div(params.rows, kTeams), kMultiprocessors * kBlocksOnSM<Map, 1>);
          const auto error = launch_with_ring<Map::n>(rms_forward_ahead<T, Map::team, Map::n>, blocks,
                                                      Map::team * kTeams, kRowSlots, stream, x, w, params, y);
          return cuda_status(call, error, "launch rms_norm forward");
        }
      }
      rms_forward<T, Map::team, Map::n>
          <<<static_cast<unsigned>(ceil_div(params.rows, kTeams)), Map::team * kTeams, 0, stream>>>(x, w, params, y);
      return launch_status(call, "launch rms_norm forward");
    });
  });
}

checkop_status launch_backward(const checkop_call* call) {
  RmsNormParams params;
  if (auto status = check_call(call, true, params)) return status;
  if (params.hidden == 0) return CHECKOP_OK;
  auto* stream = static_cast<cudaStream_t>(call->stream);
  return with_float_type(call->inputs[0].dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    const BackwardTensors<T> t{
        static_cast<const T*>(call->inputs[0].data), static_cast<const T*>(call->inputs[1].data),
        static_cast<const T*>(call->inputs[2].data), static_cast<const uint8_t*>(call->inputs[3].data),
        static_cast<T*>(call->outputs[0].data),      static_cast<float*>(call->workspace)};
    params.aligned = rows_are_aligned<T>({t.x, t.w, t.g, t.dx}, params.hidden);
    const Split split = split_of<T>(params);
    if (params.rows > 0) {
      const auto error = with_mapping<T>(params.hidden, [&]<typename Map>(Map) {
        if constexpr (Map::is_long) {
          rms_backward_long<T, Map::team, Map::n>
              <<<static_cast<unsigned>(split.blocks), Map::team, 0, stream>>>(t, params);
          return cudaGetLastError();
        } else {
          return launch_with_ring<2 * Map::n>(rms_backward<T, Map::team, Map::n, kBlocksOnSM<Map, 2>>, split.blocks,
                                              Map::team * kTeamsOf<Map::team>, kBackwardSlots, stream, t, params);
        }
      });
      if (auto status = cuda_status(call, error, "launch rms_norm backward")) return status;
    }
    return cuda_status(
        call, launch_fold(t.partials, split.blocks, params.hidden, static_cast<T*>(call->outputs[1].data), stream),
        "launch rms_norm sum of dweight");
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "rms_norm", "forward", CHECKOP_CUDA, 80, 0, nullptr, launch_forward},
    {sizeof(checkop_kernel), "cuda", "rms_norm", "backward", CHECKOP_CUDA, 80, 0, backward_bytes, launch_backward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
