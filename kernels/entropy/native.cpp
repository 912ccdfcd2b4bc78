// SPDX-License-Identifier: Apache-2.0
// entropy / native: CPU, one row at a time in fp32.
//   z = softcap tanh(logits / softcap) / temperature, or logits / temperature if softcap is 0
//   entropy[r] = log(s) + M,  s = sum_v exp(-b_v),  M = sum_v exp(-b_v) b_v / s,  b_v = max_w z[r,w] - z[r,v]
//   dlogits[r,v] = g[r] exp(-b_v) / s (b_v - M) (1 - tanh^2) / temperature
//   logits, dlogits: [..., vocab] fp32|bf16|fp16    mask: [...] uint8 or none    entropy, grad_entropy: [...] fp32
//   Where the mask is 0: entropy and gradient are 0, and the row of logits is not read. A logit of -inf adds nothing.
//   Limits: contiguous.   Expected error: sums are chains of 68 + log2(vocab / 1024) additions.
#include "cpu/entropy.hpp"
#include "cpu/logit_transform.hpp"

namespace {

using native::Extent;

struct Rows {
  const checkop_tensor& logits;
  native::LogitTransform transform;
  Extent rows{"rows"}, vocab{"vocab"};
  const uint8_t* mask;

  explicit Rows(const checkop_call& c)
      : logits(c.inputs[0]), transform(c), mask(static_cast<const uint8_t*>(c.inputs[1].data)) {
    native::check_computed_dtype(logits.dtype);
    native::check_matrix(logits, "logits", logits.dtype, rows, vocab);
    if (mask != nullptr) native::check_list(c.inputs[1], "mask", CHECKOP_U8, rows);
  }
  bool masked(int64_t r) const { return mask != nullptr && mask[r] == 0; }
  /// The transformed logits of row r.
  void load(int64_t r, std::vector<float>& z) const {
    native::load(logits, r * vocab.value, vocab.value, z.data());
    transform(z.data(), vocab.value);
  }
};

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 2, 1);
    Rows in(c);
    native::check_list(c.outputs[0], "entropy", CHECKOP_F32, in.rows);
    auto* out = static_cast<float*>(c.outputs[0].data);
    native::parallel_for(in.rows.value, 32 * in.rows.value * in.vocab.value, [&](int64_t begin, int64_t end) {
      std::vector<float> z(static_cast<size_t>(in.vocab.value));
      for (int64_t r = begin; r < end; ++r) {
        out[r] = 0.0f;
        if (in.masked(r)) continue;
        in.load(r, z);
        out[r] = native::entropy_sums(z.data(), in.vocab.value).entropy();
      }
    });
  });
}

checkop_status backward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 3, 1);
    Rows in(c);
    const checkop_tensor &grad = c.inputs[2], &dlogits = c.outputs[0];
    native::check_list(grad, "grad_entropy", CHECKOP_F32, in.rows);
    native::check_matrix(dlogits, "dlogits", in.logits.dtype, in.rows, in.vocab);
    const auto* g = static_cast<const float*>(grad.data);
    native::parallel_for(in.rows.value, 48 * in.rows.value * in.vocab.value, [&](int64_t begin, int64_t end) {
      std::vector<float> x(static_cast<size_t>(in.vocab.value)), z(x.size());
      for (int64_t r = begin; r < end; ++r) {
        if (in.masked(r)) {
          std::fill(z.begin(), z.end(), 0.0f);
        } else {
          in.load(r, z);
          const native::EntropySums s = native::entropy_sums(z.data(), in.vocab.value);
          native::load(in.logits, r * in.vocab.value, in.vocab.value, x.data());
          for (size_t v = 0; v < z.size(); ++v) z[v] = g[r] * s.gradient(z[v]) * in.transform.slope(x[v]);
        }
        native::store(dlogits, r * in.vocab.value, in.vocab.value, z.data());
      }
    });
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "entropy", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
    {sizeof(checkop_kernel), "native", "entropy", "backward", CHECKOP_CPU, 0, 0, nullptr, backward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
