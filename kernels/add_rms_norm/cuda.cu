// SPDX-License-Identifier: Apache-2.0
// add_rms_norm / cuda: a team of threads per row, rows in registers, fp32 throughout, portable CUDA.
//   residual_out = x + residual, rounded to nearest;  s = residual_out, or the sum in fp32 if round_sum is 0
//   forward   y = s i w,  i = (sum_h s^2 / hidden + eps)^-1/2,  w = weight + weight_offset
//   backward  dx = grad_residual_out + i (g w - s i^2 c),  g = grad_y,  c = sum_h(g w s) / hidden
//             dweight[h] = sum over rows of g s i
//   x, residual, y, residual_out, grad_y, grad_residual_out, dx: [rows, hidden]   weight, dweight: [hidden]
//   f32|f16|bf16, all the same
//   Limits: rows < 2^31, contiguous.   Workspace: backward, min(2112, rows) * hidden floats at most.
//   Expected error: residual_out is exact. Chains of about hidden / 2048 + 15 additions (a team has up to 512 threads),
//   for dweight max(64, rows / 264) + 105; rsqrtf within 2 ulp; one output rounding.
//   Rows are read once, those of more than 8192 columns (fp32, backward: 4096) twice. For bits see cuda/norm_rows.cuh.
#include "cuda/norm_rows.cuh"

namespace checkop::kernels {
namespace {

/// in: x, residual; then grad_y, grad_residual_out. out: y, residual_out; backward: dx
template <typename T>
struct AddRmsNorm {
  static constexpr int kForwardInputs = 2, kForwardOutputs = 2, kBackwardInputs = 4, kBackwardOutputs = 1;
  bool rounds;
  float offset;

  __device__ float weight(float w) const { return w + offset; }
  template <int m>
  __device__ float keep(const float (&in)[m]) const {
    const float sum = in[0] + in[1];
    return rounds ? to_float(from_float<T>(sum)) : sum;
  }
  template <int m>
  __device__ float normalised(const float (&)[m], float kept) const {
    return kept;
  }
  __device__ void forward(const float (&)[2], float, float s, float n, float w, float (&out)[2]) const {
    out[0] = n * w, out[1] = s;
  }
  __device__ float gradient(const float (&in)[4], float) const { return in[2]; }
  __device__ void backward(const float (&in)[4], float, float, float, float ds, float (&out)[1]) const {
    out[0] = in[3] + ds;
  }
};

/// What the launch needs of a call's sizes and attributes.
struct AddCall {
  RmsNormParams params;
  NormParts parts;
  bool rounds;
  float offset;
};

AddCall sizes_of(const checkop_call* call) {
  const checkop_tensor& x = call->inputs[0];
  return {{leading_count(x), last_extent(x), 0.0f, false}, {last_extent(x), 1}, false, 0.0f};
}

size_t backward_bytes(const checkop_call* call) {
  if (call->n_inputs < 1 || call->inputs[0].rank < 1) return 0;  // launch reports the error
  const AddCall sizes = sizes_of(call);
  return norm_backward_bytes(call->inputs[0].dtype, sizes.params, sizes.parts);
}

checkop_status check_call(const checkop_call* call, bool backward, AddCall& to) {
  CallCheck check(call);
  if (check.counts(backward ? 5 : 3, 2).failed()) return check.status();
  const checkop_tensor& x = call->inputs[0];
  if (check.rank_at_least(x, "x", 1).float_dtype(x, "x").contiguous(x, "x").failed()) return check.status();
  double eps = 0, round_sum = 0, offset = 0;
  if (auto status = read_attribute(call, "eps", eps)) return status;
  if (auto status = read_attribute(call, "round_sum", round_sum)) return status;
  if (auto status = read_attribute(call, "weight_offset", offset)) return status;
  to = sizes_of(call);
  to.params.eps = static_cast<float>(eps), to.rounds = round_sum != 0, to.offset = static_cast<float>(offset);
  const auto matrix = [&](const checkop_tensor& t, const char* name) {
    check.dtype(t, name, x.dtype).shape(t, name, x, x.rank, {}).contiguous(t, name);
  };
  const auto list = [&](const checkop_tensor& t, const char* name) {
    check.dtype(t, name, x.dtype).shape(t, name, x, 0, {to.params.hidden}).contiguous(t, name);
  };
  matrix(call->inputs[1], "residual"), list(call->inputs[2], "weight");
  if (backward) {
    matrix(call->inputs[3], "grad_y"), matrix(call->inputs[4], "grad_residual_out");
    matrix(call->outputs[0], "dx"), list(call->outputs[1], "dweight");
  } else {
    matrix(call->outputs[0], "y"), matrix(call->outputs[1], "residual_out");
  }
  if (check.failed()) return check.status();
  if (auto status = check_norm_grid(call, to.params.rows, to.parts)) return status;
  return check.workspace(backward ? backward_bytes(call) : 0).status();
}

checkop_status launch_forward(const checkop_call* call) {
  AddCall add;
  if (auto status = check_call(call, false, add)) return status;
  return with_float_type(call->inputs[0].dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    const ForwardTensors<T, AddRmsNorm<T>> t{
        {static_cast<const T*>(call->inputs[0].data), static_cast<const T*>(call->inputs[1].data)},
        static_cast<const T*>(call->inputs[2].data),
        {static_cast<T*>(call->outputs[0].data), static_cast<T*>(call->outputs[1].data)}};
    return launch_norm_forward(call, t, add.params, add.parts, AddRmsNorm<T>{add.rounds, add.offset},
                               "launch add_rms_norm forward");
  });
}

checkop_status launch_backward(const checkop_call* call) {
  AddCall add;
  if (auto status = check_call(call, true, add)) return status;
  return with_float_type(call->inputs[0].dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    const auto input = [&](int i) { return static_cast<const T*>(call->inputs[i].data); };
    const BackwardTensors<T, AddRmsNorm<T>> t{{input(0), input(1), input(3), input(4)},
                                              input(2),
                                              {static_cast<T*>(call->outputs[0].data)},
                                              static_cast<float*>(call->workspace)};
    return launch_norm_backward(call, t, static_cast<T*>(call->outputs[1].data), add.params, add.parts,
                                AddRmsNorm<T>{add.rounds, add.offset}, "launch add_rms_norm backward");
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "add_rms_norm", "forward", CHECKOP_CUDA, 80, 0, nullptr, launch_forward},
    {sizeof(checkop_kernel), "cuda", "add_rms_norm", "backward", CHECKOP_CUDA, 80, 0, backward_bytes, launch_backward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
