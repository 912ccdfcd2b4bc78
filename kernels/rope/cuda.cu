// SPDX-License-Identifier: Apache-2.0
// rope / cuda: a table of sines and cosines in the workspace, then one pass over x, portable CUDA.
//   forward   y[i] = x[i] cos(a) - x[i+D/2] sin(a),  y[i+D/2] = x[i+D/2] cos(a) + x[i] sin(a)
//   backward  dx from grad_y, the same with -a;  a[s,i] = positions[s] / theta^(2i/D)
//   x, y, grad_y, dx: [batch, heads, seq, D] f32|f16|bf16, contiguous     positions: [seq] i64
//   Limits: D even; all columns turn, in halves, by frequencies that are not scaled; one list of positions for all
//   sequences. Anything else is CHECKOP_UNSUPPORTED. A negative position is CHECKOP_FAILED.
//   Workspace: 256 + seq * D/2 * 8 bytes.
//   Expected error: that of an fp32 angle (powf, reciprocal, product), sincosf within 2 ulp, two products and a sum.
#include <algorithm>
#include <cmath>
#include <string_view>

#include "cuda/dependent.cuh"
#include "cuda/group.cuh"

namespace checkop::kernels {
namespace {

constexpr int kThreads = 256;             // any size fills the GPU: no shared memory, few registers
constexpr int64_t kMaxBlocks = 16 * 132;  // of the table: 16 on each SM of an H200; the kernel strides over the rest
constexpr int64_t kMaxGridY = 65535;

unsigned blocks_for(int64_t items) {
  return static_cast<unsigned>(items < kMaxBlocks * kThreads ? ceil_div(items, kThreads) : kMaxBlocks);
}

/// table[s, i] = (cos a, sign * sin a)
__global__ void rope_table(const int64_t* __restrict__ positions, int64_t seq, int64_t half, float theta, float sign,
                           float2* __restrict__ table) {
  start_dependent_kernel();  // which waits for the table
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

/// Rotates one pair. Its operations are explicit intrinsics, so that whole and partial groups round alike.
__device__ void rotate(float low, float high, float2 t, float& out_low, float& out_high) {
  out_low = __fmaf_rn(low, t.x, -__fmul_rn(high, t.y));
  out_high = __fmaf_rn(high, t.x, __fmul_rn(low, t.y));
}

/// Loads entries [first, first + n) of a position's row of the table; reads nothing from `half` on.
template <int n>
__device__ void load_rotations(const float2* __restrict__ from, int64_t first, int64_t half, bool aligned,
                               float2 (&rotations)[n]) {
  if (aligned) {
    const auto pack = *reinterpret_cast<const Pack<float2, n>*>(from + first);
#pragma unroll
    for (int i = 0; i < n; ++i) rotations[i] = pack.at[i];
    return;
  }
#pragma unroll
  for (int i = 0; i < n; ++i) rotations[i] = first + i < half ? from[first + i] : float2{0.0f, 0.0f};
}

// Every head of every batch entry rotates by the same angles. So a thread computes the same pairs of kRows rows, and
// has all their elements in flight before the first result.
constexpr int kRows = 4;

/// A group of pairs of kRows rows that share a position. Blocks: (groups of all positions, rows of one position).
template <typename T>
__global__ __launch_bounds__(kThreads) void rope_apply(const T* __restrict__ x, const float2* __restrict__ table,
                                                       int64_t rows_of_position, int64_t seq, int64_t half,
                                                       bool aligned, T* __restrict__ y) {
  constexpr int kPairs = kGroupColumns<T>;
  const int64_t groups = ceil_div(half, kPairs), item = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (item >= seq * groups) return;
  const int64_t s = item / groups, first = (item - s * groups) * kPairs;
  const auto offset = [&](int64_t row) { return (row * seq + s) * 2 * half; };
  for (int64_t row = int64_t{blockIdx.y} * kRows; row < rows_of_position; row += int64_t{gridDim.y} * kRows) {
    Group<T> lows[kRows], highs[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {  // beyond the last row, the last one again: read, not written
      const T* __restrict__ from = x + offset(min(row + r, rows_of_position - 1));
      lows[r] = load_group(from, first, half, aligned);
      highs[r] = load_group(from + half, first, half, aligned);
    }
    wait_for_kernel_before();
    float2 rotations[kPairs];
    load_rotations<kPairs>(table + s * half, first, half, aligned, rotations);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (row + r >= rows_of_position) break;
      float low[kPairs], high[kPairs];
      lows[r].unpack(low), highs[r].unpack(high);
#pragma unroll
      for (int i = 0; i < kPairs; ++i) rotate(low[i], high[i], rotations[i], low[i], high[i]);
      T* __restrict__ to = y + offset(row + r);
      store_group_at_once(to, first, half, aligned, low);
      store_group_at_once(to + half, first, half, aligned, high);
    }
  }
}

size_t table_bytes(const checkop_tensor& x) {
  return static_cast<size_t>(x.shape[2] * (x.shape[3] / 2)) * sizeof(float2);
}

/// An attribute and the value that this file computes with; NaN: any, since another attribute decides.
struct Attribute {
  std::string_view name;
  double only;
};
constexpr Attribute kAttributes[] = {
    {"theta", NAN},           {"rotary_dim", -1},        {"interleaved", 0},
    {"scaling", 0},           {"factor", NAN},           {"original_length", NAN},
    {"low_freq_factor", NAN}, {"high_freq_factor", NAN}, {"beta_fast", NAN},
    {"beta_slow", NAN},       {"truncate", NAN},         {"attention_factor", -1},
    {"section_h", NAN},       {"section_w", NAN},        {"sections_interleaved", NAN}};

checkop_status check_attributes(const checkop_call* call) {
  for (int32_t i = 0; i < call->n_attrs; ++i) {
    const checkop_attr& given = call->attrs[i];
    const auto* known = std::find_if(std::begin(kAttributes), std::end(kAttributes),
                                     [&](const Attribute& each) { return each.name == given.name; });
    if (known == std::end(kAttributes))
      return say(call, CHECKOP_UNSUPPORTED, "attribute '%s' is unknown to this kernel", given.name);
    if (!std::isnan(known->only) && given.value != known->only)
      return say(call, CHECKOP_UNSUPPORTED, "attribute '%s' is %g; this kernel computes with %g alone", given.name,
                 given.value, known->only);
  }
  if (call->n_attrs < 1 || std::string_view(call->attrs[0].name) != "theta")
    return say(call, CHECKOP_FAILED, "expected theta as the first attribute");
  for (const int32_t optional : {2, 3}) {
    if (call->inputs[optional].data != nullptr)
      return say(call, CHECKOP_UNSUPPORTED, "this kernel takes one list of positions for all sequences");
  }
  return CHECKOP_OK;
}

checkop_status launch(const checkop_call* call, bool backward) {
  CallCheck check(call);
  if (check.counts(4, 1).failed()) return check.status();
  if (const auto status = check_attributes(call)) return status;
  const checkop_tensor &x = call->inputs[backward ? 1 : 0], &positions = call->inputs[backward ? 0 : 1];
  const checkop_tensor& y = call->outputs[0];
  const char *x_name = backward ? "grad_y" : "x", *y_name = backward ? "dx" : "y";
  if (check.rank_at_least(x, x_name, 4).failed()) return check.status();
  if (x.rank != 4 || x.shape[3] % 2 != 0) {
    return say(call, CHECKOP_FAILED, "tensor '%s': expected rank 4 and an even last extent", x_name);
  }
  check.float_dtype(x, x_name).contiguous(x, x_name).dtype(positions, "positions", CHECKOP_I64);
  check.shape(positions, "positions", x, 0, {x.shape[2]}).contiguous(positions, "positions");
  check.dtype(y, y_name, x.dtype).shape(y, y_name, x, 4, {}).contiguous(y, y_name);
  if (check.workspace(kIdCheckBytes + table_bytes(x)).failed()) return check.status();

  const int64_t rows = leading_count(x), seq = x.shape[2], half = x.shape[3] / 2;
  if (rows == 0 || half == 0) return CHECKOP_OK;
  auto* stream = static_cast<cudaStream_t>(call->stream);
  const auto* at = static_cast<const int64_t*>(positions.data);
  IdCheck id_check(call, at, seq, std::numeric_limits<int64_t>::max(), "positions", call->workspace, stream);
  if (auto status = id_check.begin()) return status;
  auto* table = reinterpret_cast<float2*>(static_cast<char*>(call->workspace) + kIdCheckBytes);
  rope_table<<<blocks_for(seq * half), kThreads, 0, stream>>>(at, seq, half, static_cast<float>(call->attrs[0].value),
                                                              backward ? -1.0f : 1.0f, table);
  if (auto s = launch_status(call, "launch rope table")) return s;
  return with_float_type(x.dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    const auto* from = static_cast<const T*>(x.data);
    auto* to = static_cast<T*>(y.data);
    const int64_t blocks = ceil_div(seq * ceil_div(half, kGroupColumns<T>), kThreads);
    if (blocks > std::numeric_limits<int32_t>::max()) {
      return say(call, CHECKOP_UNSUPPORTED,
                 "tensor '%s': %lld positions of %lld pairs need more blocks than a grid has", x_name,
                 static_cast<long long>(seq), static_cast<long long>(half));
    }
    const int64_t rows_of_position = rows / seq, row_blocks = ceil_div(rows_of_position, kRows);
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(std::min(row_blocks, kMaxGridY)));
    const auto error = launch_dependent(rope_apply<T>, grid, kThreads, stream, from, table, rows_of_position, seq, half,
                                        rows_are_aligned<T>({from, to}, half), to);
    if (auto status = cuda_status(call, error, "launch rope")) return status;
    return id_check.finish();
  });
}

/// Called before the checks of launch().
size_t workspace_bytes(const checkop_tensor& x) { return kIdCheckBytes + (x.rank == 4 ? table_bytes(x) : 0); }
size_t forward_workspace(const checkop_call* call) {
  return call->n_inputs == 4 ? workspace_bytes(call->inputs[0]) : 0;
}
size_t backward_workspace(const checkop_call* call) {
  return call->n_inputs == 4 ? workspace_bytes(call->inputs[1]) : 0;
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
