// SPDX-License-Identifier: Apache-2.0
// rope / cuda: a table of sines and cosines in the workspace, then one pass over x, portable CUDA.
//   forward   y[i] = x[i] cos(a) - x[i+D/2] sin(a),  y[i+D/2] = x[i+D/2] cos(a) + x[i] sin(a)
//   backward  dx from grad_y, the same with -a;  a[s,i] = positions[s] / theta^(2i/D)
//   x, y, grad_y, dx: [batch, heads, seq, D] f32|f16|bf16, contiguous     positions: [seq] i64
//   Limits: D even. A negative position is CHECKOP_FAILED.   Workspace: 256 + seq * D/2 * 8 bytes.
//   Expected error: that of an fp32 angle (powf, reciprocal, product), sincosf within 2 ulp, two products and a sum.
#include "common.cuh"

namespace checkop::kernels {
namespace {

constexpr int kThreads = 256;             // no shared memory and few registers: any size fills the GPU
constexpr int64_t kMaxBlocks = 16 * 132;  // 16 blocks on each multiprocessor of an H200; the kernels stride on

unsigned blocks_for(int64_t items) {
  return static_cast<unsigned>(items < kMaxBlocks * kThreads ? ceil_div(items, kThreads) : kMaxBlocks);
}

/// table[s, i] = (cos a, sign * sin a)
__global__ void rope_table(const int64_t* __restrict__ positions, int64_t seq, int64_t half, float theta, float sign,
                           float2* __restrict__ table) {
  for (int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < seq * half;
       at += int64_t{gridDim.x} * blockDim.x) {
    const int64_t s = at / half, i = at % half;
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(2 * half);
    const float angle = static_cast<float>(positions[s]) * (1.0f / powf(theta, exponent));
    float sine, cosine;
    sincosf(angle, &sine, &cosine);
    table[at] = {cosine, sign * sine};
  }
}

/// One pair. Its operations are named, so that no two instances of the kernel round it in different ways.
__device__ void turn(float low, float high, float2 t, float& out_low, float& out_high) {
  out_low = __fmaf_rn(low, t.x, -__fmul_rn(high, t.y));
  out_high = __fmaf_rn(high, t.x, __fmul_rn(low, t.y));
}

/// `n` pairs a thread, loaded and stored at once where n > 1.
template <typename T, int n>
__global__ void rope_apply(const T* __restrict__ x, const float2* __restrict__ table, int64_t rows, int64_t seq,
                           int64_t half, T* __restrict__ y) {
  const int64_t groups = half / n;
  for (int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; item < rows * groups;
       item += int64_t{gridDim.x} * blockDim.x) {
    const int64_t row = item / groups, first = item % groups * n;
    const T* __restrict__ from = x + row * 2 * half + first;
    T* __restrict__ to = y + row * 2 * half + first;
    const float2* __restrict__ turns = table + row % seq * half + first;
    float low, high;
    if constexpr (n == 1) {
      turn(to_float(from[0]), to_float(from[half]), turns[0], low, high);
      to[0] = from_float<T>(low);
      to[half] = from_float<T>(high);
    } else {
      const auto lows = *reinterpret_cast<const Pack<T, n>*>(from);
      const auto highs = *reinterpret_cast<const Pack<T, n>*>(from + half);
      Pack<T, n> out_lows, out_highs;
#pragma unroll
      for (int i = 0; i < n; ++i) {
        turn(to_float(lows.at[i]), to_float(highs.at[i]), turns[i], low, high);
        out_lows.at[i] = from_float<T>(low);
        out_highs.at[i] = from_float<T>(high);
      }
      *reinterpret_cast<Pack<T, n>*>(to) = out_lows;
      *reinterpret_cast<Pack<T, n>*>(to + half) = out_highs;
    }
  }
}

bool is_aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

size_t table_bytes(const checkop_tensor& x) {
  return static_cast<size_t>(x.shape[2] * (x.shape[3] / 2)) * sizeof(float2);
}

checkop_status launch(const checkop_call* call, bool backward) {
  CallCheck check(call);
  if (check.counts(2, 1).failed()) return check.status();
  const checkop_tensor &x = call->inputs[backward ? 1 : 0], &positions = call->inputs[backward ? 0 : 1];
  const checkop_tensor& y = call->outputs[0];
  const char *x_name = backward ? "grad_y" : "x", *y_name = backward ? "dx" : "y";
  if (check.rank_at_least(x, x_name, 4).failed()) return check.status();
  if (x.rank != 4 || x.shape[3] % 2 != 0) {
    return say(call, CHECKOP_FAILED, "tensor '%s': expected 4 dimensions, the last of them even", x_name);
  }
  if (call->n_attrs != 1) return say(call, CHECKOP_FAILED, "expected one attribute, theta");
  check.float_dtype(x, x_name).contiguous(x, x_name).dtype(positions, "positions", CHECKOP_I64);
  check.shape(positions, "positions", x, 0, {x.shape[2]}).contiguous(positions, "positions");
  check.dtype(y, y_name, x.dtype).shape(y, y_name, x, 4, {}).contiguous(y, y_name);
  if (check.workspace(kIdCheckBytes + table_bytes(x)).failed()) return check.status();

  const int64_t rows = leading_count(x), seq = x.shape[2], half = x.shape[3] / 2;
  if (rows == 0 || half == 0) return CHECKOP_OK;
  auto* stream = static_cast<cudaStream_t>(call->stream);
  const auto* at = static_cast<const int64_t*>(positions.data);
  if (auto s = check_ids(call, at, seq, std::numeric_limits<int64_t>::max(), "positions", call->workspace, stream)) {
    return s;
  }
  auto* table = reinterpret_cast<float2*>(static_cast<char*>(call->workspace) + kIdCheckBytes);
  rope_table<<<blocks_for(seq * half), kThreads, 0, stream>>>(at, seq, half, static_cast<float>(call->attrs[0].value),
                                                              backward ? -1.0f : 1.0f, table);
  if (auto s = launch_status(call, "launch rope table")) return s;
  return with_float_type(x.dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    constexpr int kPairs = 16 / static_cast<int>(sizeof(T));
    const auto* from = static_cast<const T*>(x.data);
    auto* to = static_cast<T*>(y.data);
    if (half % kPairs == 0 && is_aligned(from) && is_aligned(to)) {
      rope_apply<T, kPairs>
          <<<blocks_for(rows * half / kPairs), kThreads, 0, stream>>>(from, table, rows, seq, half, to);
    } else {
      rope_apply<T, 1><<<blocks_for(rows * half), kThreads, 0, stream>>>(from, table, rows, seq, half, to);
    }
    return launch_status(call, "launch rope");
  });
}

/// Asked before the checks of launch().
size_t workspace_bytes(const checkop_tensor& x) { return kIdCheckBytes + (x.rank == 4 ? table_bytes(x) : 0); }
size_t forward_workspace(const checkop_call* call) {
  return call->n_inputs == 2 ? workspace_bytes(call->inputs[0]) : 0;
}
size_t backward_workspace(const checkop_call* call) {
  return call->n_inputs == 2 ? workspace_bytes(call->inputs[1]) : 0;
}

checkop_status launch_forward(const checkop_call* call) { return launch(call, false); }
checkop_status launch_backward(const checkop_call* call) { return launch(call, true); }

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "rope", "forward", CHECKOP_CUDA, 80, 0, forward_workspace, launch_forward},
    {sizeof(checkop_kernel), "cuda", "rope", "backward", CHECKOP_CUDA, 80, 0, backward_workspace, launch_backward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
