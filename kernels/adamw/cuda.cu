// SPDX-License-Identifier: Apache-2.0
// adamw / cuda: four elements a thread, every one by itself in fp32; portable CUDA.
//   g = grad grad_scale;  m' = beta1 m + (1 - beta1) g;  v' = beta2 v + (1 - beta2) g^2
//   master' = master (1 - lr weight_decay) - lr (m' / (1 - beta1^step)) / (sqrt(v' / (1 - beta2^step)) + eps)
//   param = master' rounded.   If found_inf is not 0: nothing changes, and param = master rounded.
//   master, m, v, master_out, m_out, v_out: [numel] f32   grad, param: [numel] f32|bf16|f16
//   grad_scale, found_inf: [1] f32, optional
//   Limits: contiguous.   No workspace.   Expected error: a few roundings of fp32. Every operation of an element is
//   written with its rounding, so that its bits depend on nothing but its own numbers.
#include <array>

#include "cuda/group.cuh"

namespace checkop::kernels {
namespace {

enum Input { kMaster, kM, kV, kGrad, kGradScale, kFoundInf, kInputs };
enum Output { kMasterOut, kMOut, kVOut, kParam, kOutputs };

constexpr int kThreads = 256;
constexpr int64_t kBlockElements = int64_t{kThreads} * kQuadColumns;

/// What all elements of a step have in common; on the host computed in fp64 and rounded once.
struct Step {
  float beta1, new1, beta2, new2;  ///< new: 1 - beta
  float kept;                      ///< 1 - lr weight_decay
  float rate;                      ///< lr / (1 - beta1^step)
  float v_correction;              ///< 1 / (1 - beta2^step)
  float eps;
};

struct State {
  float master, m, v;
};

__device__ State updated(const State& old, float g, const Step& step) {
  const float m = __fmaf_rn(step.beta1, old.m, __fmul_rn(step.new1, g));
  const float v = __fmaf_rn(step.beta2, old.v, __fmul_rn(step.new2, __fmul_rn(g, g)));
  const float root = __fadd_rn(__fsqrt_rn(__fmul_rn(v, step.v_correction)), step.eps);
  return {__fmaf_rn(-step.rate, __fdiv_rn(m, root), __fmul_rn(old.master, step.kept)), m, v};
}

template <typename T>
struct Tensors {
  const float *master, *m, *v;
  const T* grad;
  const float *grad_scale, *found_inf;  ///< null if absent
  float *master_out, *m_out, *v_out;
  T* param;
};

/// `aligned`: every tensor begins at a multiple of the size of its Quad.
template <typename T>
__global__ __launch_bounds__(kThreads) void update(Tensors<T> t, int64_t count, Step step, bool aligned) {
  const float scale = t.grad_scale == nullptr ? 1.0f : *t.grad_scale;
  const bool is_skipped = t.found_inf != nullptr && *t.found_inf != 0.0f;
  for (int64_t block = blockIdx.x; block * kBlockElements < count; block += gridDim.x) {
    const int64_t first = block * kBlockElements + int64_t{threadIdx.x} * kQuadColumns;
    float master[kQuadColumns], m[kQuadColumns], v[kQuadColumns], grad[kQuadColumns];
    load_quad(t.master + first, count - first, aligned, master);
    load_quad(t.m + first, count - first, aligned, m);
    load_quad(t.v + first, count - first, aligned, v);
    load_quad(t.grad + first, count - first, aligned, grad);
#pragma unroll
    for (int i = 0; i < kQuadColumns; ++i) {
      const State next = updated({master[i], m[i], v[i]}, __fmul_rn(grad[i], scale), step);
      master[i] = is_skipped ? master[i] : next.master;
      m[i] = is_skipped ? m[i] : next.m;
      v[i] = is_skipped ? v[i] : next.v;
    }
    store_quad(t.master_out + first, count - first, aligned, master);
    store_quad(t.m_out + first, count - first, aligned, m);
    store_quad(t.v_out + first, count - first, aligned, v);
    store_quad(t.param + first, count - first, aligned, master);
  }
}

checkop_status read_step(const checkop_call* call, Step& step) {
  constexpr std::array kNames{"lr", "beta1", "beta2", "eps", "weight_decay", "step"};
  std::array<double, kNames.size()> values{};
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (auto status = read_attribute(call, kNames[i], values[i])) return status;
  }
  const auto [lr, beta1, beta2, eps, weight_decay, number] = values;
  step = {static_cast<float>(beta1),
          static_cast<float>(1 - beta1),
          static_cast<float>(beta2),
          static_cast<float>(1 - beta2),
          static_cast<float>(1 - lr * weight_decay),
          static_cast<float>(lr / (1 - std::pow(beta1, number))),
          static_cast<float>(1 / (1 - std::pow(beta2, number))),
          static_cast<float>(eps)};
  return CHECKOP_OK;
}

checkop_status forward(const checkop_call* call) {
  CallCheck check(call);
  if (check.counts(kInputs, kOutputs).failed()) return check.status();
  const checkop_tensor *const in = call->inputs, *const out = call->outputs, &master = in[kMaster];
  if (check.rank_at_least(master, "master", 1).failed()) return check.status();
  const auto expect = [&](const checkop_tensor& t, const char* name, int32_t dtype) {
    check.dtype(t, name, dtype).shape(t, name, master, master.rank, {}).contiguous(t, name);
  };
  const auto expect_scalar = [&](const checkop_tensor& t, const char* name) {
    if (t.data != nullptr) check.dtype(t, name, CHECKOP_F32).shape(t, name, t, 0, {1});
  };
  expect(master, "master", CHECKOP_F32);
  expect(in[kM], "m", CHECKOP_F32);
  expect(in[kV], "v", CHECKOP_F32);
  check.float_dtype(in[kGrad], "grad");
  expect(in[kGrad], "grad", in[kGrad].dtype);
  expect_scalar(in[kGradScale], "grad_scale");
  expect_scalar(in[kFoundInf], "found_inf");
  expect(out[kMasterOut], "master_out", CHECKOP_F32);
  expect(out[kMOut], "m_out", CHECKOP_F32);
  expect(out[kVOut], "v_out", CHECKOP_F32);
  expect(out[kParam], "param", in[kGrad].dtype);
  if (check.failed()) return check.status();
  Step step;
  if (auto status = read_step(call, step)) return status;
  const int64_t count = leading_count(master) * last_extent(master);
  if (count == 0) return CHECKOP_OK;
  return with_float_type(in[kGrad].dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    const auto input = [&](Input i) { return static_cast<const float*>(in[i].data); };
    const auto output = [&](Output o) { return static_cast<float*>(out[o].data); };
    const Tensors<T> t{input(kMaster),     input(kM),
                       input(kV),          static_cast<const T*>(in[kGrad].data),
                       input(kGradScale),  input(kFoundInf),
                       output(kMasterOut), output(kMOut),
                       output(kVOut),      static_cast<T*>(out[kParam].data)};
    const bool aligned = is_quad_aligned(t.master) && is_quad_aligned(t.m) && is_quad_aligned(t.v) &&
                         is_quad_aligned(t.grad) && is_quad_aligned(t.master_out) && is_quad_aligned(t.m_out) &&
                         is_quad_aligned(t.v_out) && is_quad_aligned(t.param);
    constexpr int64_t kMaxBlocks = int64_t{1} << 20;  // the kernel strides over the rest
    const int64_t needed = ceil_div(count, kBlockElements);
    update<<<static_cast<unsigned>(needed < kMaxBlocks ? needed : kMaxBlocks), kThreads, 0,
             static_cast<cudaStream_t>(call->stream)>>>(t, count, step, aligned);
    return launch_status(call, "launch adamw");
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "adamw", "forward", CHECKOP_CUDA, 80, 0, nullptr, forward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 1, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
