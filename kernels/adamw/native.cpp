// SPDX-License-Identifier: Apache-2.0
// adamw / native: CPU, element by element in fp32.
//   g = grad grad_scale;  m' = beta1 m + (1 - beta1) g;  v' = beta2 v + (1 - beta2) g^2
//   master' = master (1 - lr weight_decay) - lr (m' / (1 - beta1^step)) / (sqrt(v' / (1 - beta2^step)) + eps)
//   param = master' rounded.   If found_inf is not 0: nothing changes, and param = master rounded.
//   master, m, v, master_out, m_out, v_out: [numel] fp32   grad, param: [numel] fp32|bf16|fp16
//   grad_scale, found_inf: [1] fp32, optional
//   Limits: contiguous.   Expected error: a few roundings of fp32; bias corrections are computed in fp64.
#include "cpu/native.hpp"

namespace {

using native::Extent;

constexpr int64_t kBlock = 1024;  // elements converted at a time: buffers stay in the L1 cache

struct Step {
  float lr, beta1, beta2, eps, kept, correction1, correction2, scale;
  bool is_skipped;
};

/// An optional input of one element; `absent` if it is not there.
float optional_scalar(const checkop_call& c, int input, const char* name, float absent) {
  const checkop_tensor& t = c.inputs[input];
  if (t.data == nullptr) return absent;
  Extent size{"size", 1};
  native::check_list(t, name, CHECKOP_F32, size);
  return *static_cast<const float*>(t.data);
}

Step read_step(const checkop_call& c) {
  const double step = native::exact_attribute(c, "step"), beta1 = native::exact_attribute(c, "beta1"),
               beta2 = native::exact_attribute(c, "beta2");
  const float lr = native::attribute(c, "lr");
  return {lr,
          native::attribute(c, "beta1"),
          native::attribute(c, "beta2"),
          native::attribute(c, "eps"),
          1 - lr * native::attribute(c, "weight_decay"),
          static_cast<float>(1 - std::pow(beta1, step)),
          static_cast<float>(1 - std::pow(beta2, step)),
          optional_scalar(c, 4, "grad_scale", 1),
          optional_scalar(c, 5, "found_inf", 0) != 0};
}

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 6, 4);
    Extent numel{"numel"};
    const checkop_tensor &grad = c.inputs[3], &param = c.outputs[3];
    for (const auto& [tensor, name] :
         {std::pair{&c.inputs[0], "master"}, std::pair{&c.inputs[1], "m"}, std::pair{&c.inputs[2], "v"},
          std::pair{&c.outputs[0], "master_out"}, std::pair{&c.outputs[1], "m_out"}, std::pair{&c.outputs[2], "v_out"}})
      native::check_list(*tensor, name, CHECKOP_F32, numel);
    native::check_computed_dtype(grad.dtype);
    native::check_list(grad, "grad", grad.dtype, numel);
    native::check_list(param, "param", grad.dtype, numel);
    const Step s = read_step(c);
    const auto input = [&](int i) { return static_cast<const float*>(c.inputs[i].data); };
    const auto output = [&](int i) { return static_cast<float*>(c.outputs[i].data); };
    const float *master = input(0), *m = input(1), *v = input(2);
    float *master_out = output(0), *m_out = output(1), *v_out = output(2);
    const int64_t blocks = (numel.value + kBlock - 1) / kBlock;
    native::parallel_for(blocks, 16 * numel.value, [&](int64_t begin, int64_t end) {
      std::array<float, kBlock> grads;
      for (int64_t first = begin * kBlock; first < std::min(end * kBlock, numel.value); first += kBlock) {
        const int64_t n = std::min(kBlock, numel.value - first);
        native::load(grad, first, n, grads.data());
        for (int64_t i = first; i < first + n; ++i) {
          const float g = grads[static_cast<size_t>(i - first)] * s.scale;
          const float of_m = s.beta1 * m[i] + (1 - s.beta1) * g, of_v = s.beta2 * v[i] + (1 - s.beta2) * (g * g);
          const float update = of_m / s.correction1 / (std::sqrt(of_v / s.correction2) + s.eps);
          m_out[i] = s.is_skipped ? m[i] : of_m;
          v_out[i] = s.is_skipped ? v[i] : of_v;
          master_out[i] = s.is_skipped ? master[i] : master[i] * s.kept - s.lr * update;
        }
        native::store(param, first, n, master_out + first);
      }
    });
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "adamw", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
