// SPDX-License-Identifier: Apache-2.0
// rope / cuda: one pass over x; a block computes the sines and cosines of its positions once, portable CUDA.
//   forward   y[i] = x[i] cos(a) - x[i+D/2] sin(a),  y[i+D/2] = x[i+D/2] cos(a) + x[i] sin(a)
//   backward  dx from grad_y, the same with -a;  a[s,i] = positions[s] / theta^(2i/D)
//   x, y, grad_y, dx: [batch, heads, seq, D] f32|f16|bf16, contiguous     positions: [seq] i64
//   Limits: D even; all columns are rotated, as two halves, by frequencies that are not scaled; one list of positions
//   for all sequences. Anything else is CHECKOP_UNSUPPORTED. A negative position is CHECKOP_FAILED.
//   Workspace: 256 bytes.
//   Expected error: that of an fp32 angle (powf, reciprocal, product), sincosf within 2 ulp, two products and a sum.
#include <algorithm>
#include <cmath>
#include <string_view>

#include "cuda/group.cuh"
#include "cuda/ids.cuh"
#include "cuda/ring.cuh"

namespace checkop::kernels {
namespace {

// Every head of every batch entry is rotated by the same angles. So a block has kItems groups of pairs in kLanes *
// kRows rows that share their positions, and a thread one of the groups in kRows rows. Its loads to shared memory are
// in flight while it computes the angles of some of its pairs.
constexpr int kItems = 128, kLanes = 2, kRows = 4;
constexpr int64_t kMaxGridY = 65535;

/// (cos a, sign * sin a) of pair i of `half` at a position.
__device__ float2 rotation(int64_t position, int64_t i, int64_t half, float theta, float sign) {
  const float exponent = static_cast<float>(2 * i) / static_cast<float>(2 * half);
  const float angle = static_cast<float>(position) * (1.0f / powf(theta, exponent));
  float sine, cosine;
  sincosf(angle, &sine, &cosine);
  return {cosine, sign * sine};
}

/// Rotates one pair. Its operations are explicit intrinsics, so that whole and partial groups round alike.
__device__ void rotate(float low, float high, float2 t, float& out_low, float& out_high) {
  out_low = __fmaf_rn(low, t.x, -__fmul_rn(high, t.y));
  out_high = __fmaf_rn(high, t.x, __fmul_rn(low, t.y));
}

/// Blocks: (groups of all positions, rows of one position).
template <typename T, bool aligned>
__global__ __launch_bounds__(kItems* kLanes, 4) void rope_apply(const T* __restrict__ x,
                                                                const int64_t* __restrict__ positions,
                                                                int64_t rows_of_position, int64_t seq, int64_t half,
                                                                float theta, float sign, T* __restrict__ y) {
  constexpr int kPairs = kGroupColumns<T>;
  __shared__ float2 rotations[kPairs][kItems];
  __shared__ uint4 loaded[kRows][2][kItems * kLanes];  // a thread reads only what it has copied itself
  const int64_t groups = ceil_div(half, kPairs), item = int64_t{blockIdx.x} * kItems + threadIdx.x;
  const bool exists = item < seq * groups;  // threads without a group still take part in the barrier
  const int64_t s = exists ? item / groups : 0, first = exists ? (item - s * groups) * kPairs : half;
  const int thread = static_cast<int>(threadIdx.y * kItems + threadIdx.x);
  const int64_t step = int64_t{gridDim.y} * kLanes * kRows;
  const auto offset = [&](int64_t row) { return (row * seq + s) * 2 * half; };
  const auto load = [&](int64_t row) {
    if constexpr (aligned) {
      if (first >= half) return;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (row + r >= rows_of_position) break;
        const T* __restrict__ from = x + offset(row + r) + first;
        cp_async(&loaded[r][0][thread], from, sizeof(uint4));
        cp_async(&loaded[r][1][thread], from + half, sizeof(uint4));
      }
      cp_async_commit_group();
    }
  };
  int64_t row = (int64_t{blockIdx.y} * kLanes + threadIdx.y) * kRows;
  load(row);
  for (int i = static_cast<int>(threadIdx.y); i < kPairs; i += kLanes) {
    if (first + i < half) rotations[i][threadIdx.x] = rotation(positions[s], first + i, half, theta, sign);
  }
  __syncthreads();
  for (; row < rows_of_position; row += step, load(row)) {
    cp_async_wait_group<0>();
#pragma unroll 1
    for (int r = 0; r < kRows; ++r) {
      if (row + r >= rows_of_position) break;
      const T* __restrict__ from = x + offset(row + r);
      const Group<T> lows = aligned ? Group<T>{loaded[r][0][thread]} : load_group(from, first, half, false);
      const Group<T> highs = aligned ? Group<T>{loaded[r][1][thread]} : load_group(from + half, first, half, false);
      float low[kPairs], high[kPairs];
      lows.unpack(low), highs.unpack(high);
#pragma unroll
      for (int i = 0; i < kPairs; ++i) rotate(low[i], high[i], rotations[i][threadIdx.x], low[i], high[i]);
      T* __restrict__ to = y + offset(row + r);
      store_group_at_once(to, first, half, aligned, low);
      store_group_at_once(to + half, first, half, aligned, high);
    }
  }
}

/// An attribute and the only value that this kernel supports; NaN: any value, since another attribute decides.
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
  if (check.workspace(kIdCheckBytes).failed()) return check.status();

  const int64_t rows = leading_count(x), seq = x.shape[2], half = x.shape[3] / 2;
  if (rows == 0 || half == 0) return CHECKOP_OK;
  auto* stream = static_cast<cudaStream_t>(call->stream);
  const auto* at = static_cast<const int64_t*>(positions.data);
  IdCheck id_check(call, at, seq, std::numeric_limits<int64_t>::max(), "positions", call->workspace, stream);
  if (auto status = id_check.begin()) return status;
  return with_float_type(x.dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    const auto* from = static_cast<const T*>(x.data);
    auto* to = static_cast<T*>(y.data);
    const int64_t blocks = ceil_div(seq * ceil_div(half, kGroupColumns<T>), kItems);
    if (blocks > std::numeric_limits<int32_t>::max()) {
      return say(call, CHECKOP_UNSUPPORTED,
                 "tensor '%s': %lld positions of %lld pairs need more blocks than a grid has", x_name,
                 static_cast<long long>(seq), static_cast<long long>(half));
    }
    const int64_t rows_of_position = rows / seq, row_blocks = ceil_div(rows_of_position, kLanes * kRows);
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(std::min(row_blocks, kMaxGridY)));
    const auto kernel = rows_are_aligned<T>({from, to}, half) ? rope_apply<T, true> : rope_apply<T, false>;
    const Launch shape{grid, dim3(kItems, kLanes), stream, 0, 1, true};
    const auto error = launch_kernel(kernel, shape, from, at, rows_of_position, seq, half,
                                     static_cast<float>(call->attrs[0].value), backward ? -1.0f : 1.0f, to);
    if (auto status = cuda_status(call, error, "launch rope")) return status;
    return id_check.finish();
  });
}

size_t workspace_bytes(const checkop_call*) { return kIdCheckBytes; }

checkop_status launch_forward(const checkop_call* call) { return launch(call, false); }
checkop_status launch_backward(const checkop_call* call) { return launch(call, true); }

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "rope", "forward", CHECKOP_CUDA, 80, 0, workspace_bytes, launch_forward},
    {sizeof(checkop_kernel), "cuda", "rope", "backward", CHECKOP_CUDA, 80, 0, workspace_bytes, launch_backward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
