// SPDX-License-Identifier: Apache-2.0
// gated_rms_norm / cuda: a team of threads per row or group of columns, rows in registers, fp32, portable CUDA.
//   a = gate sigma,  sigma = 1 / (1 + exp(-gate)),  a' = sigma (1 + gate (1 - sigma))
//   forward   y = x i w a,  i = (mean x^2 + eps)^-1/2, the mean over groups of group_size columns; 0: over all
//   backward  dx = i (g w - x i^2 c),  g = grad_y a,  c = mean(g w x);   dgate = grad_y x i w a'
//             dweight[h] = sum over rows of g x i
//   If norm_before_gate is 0, with s = x a in place of x:
//   forward   y = s i w
//   backward  ds = i (grad_y w - s i^2 c);   dx = ds a;   dgate = ds x a';   dweight[h] = sum over rows of grad_y s i
//   x, gate, y, grad_y, dx, dgate: [rows, hidden]   weight, dweight: [hidden]   f32|f16|bf16, all the same
//   Limits: rows < 2^31, at most 508400 groups in a row, contiguous.
//   Workspace: backward, min(2112, rows) * hidden floats at most.
//   Expected error: chains of about group_size / 2048 + 15 additions (a team has up to 512 threads), for dweight
//   max(64, rows / 264) + 105; expf and rsqrtf within 2 ulp, the division of sigma too; one output rounding.
//   Rows are read once, groups of more than 8192 columns (fp32, backward: 4096) twice. For bits see cuda/norm_rows.cuh.
#include "cuda/norm_rows.cuh"
#include "cuda/pointwise.cuh"

namespace checkop::kernels {
namespace {

/// in: x, gate; then grad_y. out: y; backward: dx, dgate. An element keeps its sigma.
template <bool gates_later>
struct GatedRmsNorm {
  static constexpr int kForwardInputs = 2, kForwardOutputs = 1, kBackwardInputs = 3, kBackwardOutputs = 2;

  __device__ float weight(float w) const { return w; }
  template <int m>
  __device__ float keep(const float (&in)[m]) const {
    return sigmoid(in[1]);
  }
  template <int m>
  __device__ float normalised(const float (&in)[m], float sigma) const {
    return gates_later ? in[0] : in[0] * (in[1] * sigma);
  }
  __device__ void forward(const float (&in)[2], float sigma, float, float n, float w, float (&out)[1]) const {
    out[0] = gates_later ? n * w * (in[1] * sigma) : n * w;
  }
  __device__ float gradient(const float (&in)[3], float sigma) const {
    return gates_later ? in[2] * (in[1] * sigma) : in[2];
  }
  __device__ void backward(const float (&in)[3], float sigma, float n, float w, float ds, float (&out)[2]) const {
    const float slope = sigma * (1.0f + in[1] * (1.0f - sigma));
    out[0] = gates_later ? ds : ds * (in[1] * sigma);
    out[1] = gates_later ? in[2] * (n * w) * slope : ds * in[0] * slope;
  }
};

/// What the launch needs of a call's sizes and attributes.
struct GatedCall {
  RmsNormParams params;
  NormParts parts;
  bool gates_later;
};

checkop_status read_sizes(const checkop_call* call, GatedCall& to) {
  double eps = 0, before = 0, size = 0;
  if (auto status = read_attribute(call, "eps", eps)) return status;
  if (auto status = read_attribute(call, "norm_before_gate", before)) return status;
  if (auto status = read_attribute(call, "group_size", size)) return status;
  const checkop_tensor& x = call->inputs[0];
  const int64_t hidden = last_extent(x), group = size == 0 ? hidden : static_cast<int64_t>(size);
  if (group < 0 || (group == 0 ? hidden != 0 : hidden % group != 0))
    return say(call, CHECKOP_FAILED, "group_size %g does not divide hidden %lld", size, static_cast<long long>(hidden));
  to = {{leading_count(x), group, static_cast<float>(eps), false},
        {hidden, group == 0 ? 1 : hidden / group},
        before != 0};
  return CHECKOP_OK;
}

size_t backward_bytes(const checkop_call* call) {
  GatedCall sizes;
  if (call->n_inputs < 1 || call->inputs[0].rank < 1 || read_sizes(call, sizes) != CHECKOP_OK)
    return 0;  // launch reports the error
  return norm_backward_bytes(call->inputs[0].dtype, sizes.params, sizes.parts);
}

checkop_status check_call(const checkop_call* call, bool backward, GatedCall& to) {
  CallCheck check(call);
  if (check.counts(backward ? 4 : 3, backward ? 3 : 1).failed()) return check.status();
  const checkop_tensor& x = call->inputs[0];
  if (check.rank_at_least(x, "x", 1).float_dtype(x, "x").contiguous(x, "x").failed()) return check.status();
  if (auto status = read_sizes(call, to)) return status;
  const auto matrix = [&](const checkop_tensor& t, const char* name) {
    check.dtype(t, name, x.dtype).shape(t, name, x, x.rank, {}).contiguous(t, name);
  };
  const auto list = [&](const checkop_tensor& t, const char* name) {
    check.dtype(t, name, x.dtype).shape(t, name, x, 0, {to.parts.hidden}).contiguous(t, name);
  };
  matrix(call->inputs[1], "gate"), list(call->inputs[2], "weight");
  if (backward) {
    matrix(call->inputs[3], "grad_y"), matrix(call->outputs[0], "dx"), matrix(call->outputs[1], "dgate");
    list(call->outputs[2], "dweight");
  } else {
    matrix(call->outputs[0], "y");
  }
  if (check.failed()) return check.status();
  if (auto status = check_norm_grid(call, to.params.rows, to.parts)) return status;
  return check.workspace(backward ? backward_bytes(call) : 0).status();
}

template <typename T, bool gates_later>
checkop_status launch(const checkop_call* call, const GatedCall& gated, bool backward) {
  using Op = GatedRmsNorm<gates_later>;
  const auto input = [&](int i) { return static_cast<const T*>(call->inputs[i].data); };
  const auto output = [&](int i) { return static_cast<T*>(call->outputs[i].data); };
  if (!backward) {
    const ForwardTensors<T, Op> t{{input(0), input(1)}, input(2), {output(0)}};
    return launch_norm_forward(call, t, gated.params, gated.parts, Op{}, "launch gated_rms_norm forward");
  }
  const BackwardTensors<T, Op> t{
      {input(0), input(1), input(3)}, input(2), {output(0), output(1)}, static_cast<float*>(call->workspace)};
  return launch_norm_backward(call, t, output(2), gated.params, gated.parts, Op{}, "launch gated_rms_norm backward");
}

checkop_status launch(const checkop_call* call, bool backward) {
  GatedCall gated;
  if (auto status = check_call(call, backward, gated)) return status;
  return with_float_type(call->inputs[0].dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    return gated.gates_later ? launch<T, true>(call, gated, backward) : launch<T, false>(call, gated, backward);
  });
}

checkop_status launch_forward(const checkop_call* call) { return launch(call, false); }
checkop_status launch_backward(const checkop_call* call) { return launch(call, true); }

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "gated_rms_norm", "forward", CHECKOP_CUDA, 80, 0, nullptr, launch_forward},
    {sizeof(checkop_kernel), "cuda", "gated_rms_norm", "backward", CHECKOP_CUDA, 80, 0, backward_bytes,
     launch_backward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
