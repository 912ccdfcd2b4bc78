// SPDX-License-Identifier: Apache-2.0
// kl_full / native: CPU, one row at a time in fp32.
//   a = ln S, b = ln T: log-softmax of student / temperature and teacher / temperature,  m = ln(beta T + (1-beta) S)
//   beta 0      loss[r] = sum_v T (b - a)     dstudent = g (S - T) / temperature
//   beta 1      loss[r] = sum_v S (a - b)     dstudent = g S (a - b - loss) / temperature
//   between     loss[r] = beta sum_v T (b - m) + (1-beta) K,  K = sum_v S (a - m)
//               dstudent = g (1-beta) S (a - m - K) / temperature
//   student, teacher, dstudent: [..., vocab] fp32|bf16|fp16    mask: [...] uint8 or none    loss, grad_loss: [...] fp32
//   Where the mask is 0: loss and gradient are 0, and no logit is read. A probability of 0 adds nothing.
//   Limits: contiguous.   Expected error: sums are chains of 68 + log2(vocab / 1024) additions.
#include "cpu/logit_transform.hpp"

namespace {

using native::Extent;

/// The logarithms of the probabilities of the logits z, in place.
void log_softmax(std::vector<float>& z) {
  const native::SumExp s = native::sum_exp(z.data(), static_cast<int64_t>(z.size()));
  const float log_sum = std::log(s.sum);
  for (float& each : z) each = (each - s.shift()) - log_sum;
}

struct Call {
  const checkop_tensor &student, &teacher;
  float beta, temperature;
  Extent rows{"rows"}, vocab{"vocab"};
  const uint8_t* mask;

  explicit Call(const checkop_call& c)
      : student(c.inputs[0]),
        teacher(c.inputs[1]),
        beta(static_cast<float>(native::attribute(c, "beta"))),
        temperature(static_cast<float>(native::attribute(c, "temperature"))),
        mask(static_cast<const uint8_t*>(c.inputs[2].data)) {
    native::check_computed_dtype(student.dtype);
    native::check_matrix(student, "student", student.dtype, rows, vocab);
    native::check_matrix(teacher, "teacher", student.dtype, rows, vocab);
    if (mask != nullptr) native::check_list(c.inputs[2], "mask", CHECKOP_U8, rows);
  }
  bool masked(int64_t r) const { return mask != nullptr && mask[r] == 0; }
};

/// A row: logarithms of both distributions, and of the distribution that they are compared with.
class Row {
 public:
  explicit Row(const Call& call) : call_(call), a_(static_cast<size_t>(call.vocab.value)), b_(a_), q_(a_) {}

  void load(int64_t r) {
    load(call_.student, r, a_), load(call_.teacher, r, b_);
    q_ = b_;
    if (call_.beta == 0 || call_.beta == 1) return;
    for (size_t v = 0; v < q_.size(); ++v)
      q_[v] = std::log(call_.beta * std::exp(b_[v]) + (1.0f - call_.beta) * std::exp(a_[v]));
  }

  float loss() const {
    if (call_.beta == 0) return divergence(b_, a_);
    if (call_.beta == 1) return divergence(a_, b_);
    return call_.beta * divergence(b_, q_) + (1.0f - call_.beta) * divergence(a_, q_);
  }

  /// g times the gradient by the student's logits.
  void gradient(float g, std::vector<float>& to) const {
    const float of_row = g / call_.temperature, k = call_.beta == 0 ? 0.0f : divergence(a_, q_);
    const float weight = call_.beta == 0 || call_.beta == 1 ? 1.0f : 1.0f - call_.beta;
    for (size_t v = 0; v < to.size(); ++v) {
      const float s = std::exp(a_[v]);
      if (call_.beta == 0)
        to[v] = of_row * (s - std::exp(b_[v]));
      else
        to[v] = s == 0 ? 0.0f : of_row * weight * s * ((a_[v] - q_[v]) - k);
    }
  }

 private:
  void load(const checkop_tensor& t, int64_t r, std::vector<float>& z) const {
    native::load(t, r * call_.vocab.value, call_.vocab.value, z.data());
    for (float& each : z) each /= call_.temperature;
    log_softmax(z);
  }
  static float divergence(const std::vector<float>& p, const std::vector<float>& q) {
    return native::blocked_sum(static_cast<int64_t>(p.size()), [&](int64_t i) {
      const auto v = static_cast<size_t>(i);
      const float probability = std::exp(p[v]);
      return probability == 0 ? 0.0f : probability * (p[v] - q[v]);
    });
  }

  const Call& call_;
  std::vector<float> a_, b_, q_;
};

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 3, 1);
    Call in(c);
    native::check_list(c.outputs[0], "loss", CHECKOP_F32, in.rows);
    auto* loss = static_cast<float*>(c.outputs[0].data);
    native::parallel_for(in.rows.value, 64 * in.rows.value * in.vocab.value, [&](int64_t begin, int64_t end) {
      Row row(in);
      for (int64_t r = begin; r < end; ++r) {
        loss[r] = 0.0f;
        if (in.masked(r)) continue;
        row.load(r);
        loss[r] = row.loss();
      }
    });
  });
}

checkop_status backward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 4, 1);
    Call in(c);
    native::check_list(c.inputs[3], "grad_loss", CHECKOP_F32, in.rows);
    native::check_matrix(c.outputs[0], "dstudent", in.student.dtype, in.rows, in.vocab);
    const auto* g = static_cast<const float*>(c.inputs[3].data);
    native::parallel_for(in.rows.value, 96 * in.rows.value * in.vocab.value, [&](int64_t begin, int64_t end) {
      Row row(in);
      std::vector<float> gradient(static_cast<size_t>(in.vocab.value));
      for (int64_t r = begin; r < end; ++r) {
        std::fill(gradient.begin(), gradient.end(), 0.0f);
        if (!in.masked(r)) row.load(r), row.gradient(g[r], gradient);
        native::store(c.outputs[0], r * in.vocab.value, in.vocab.value, gradient.data());
      }
    });
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "kl_full", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
    {sizeof(checkop_kernel), "native", "kl_full", "backward", CHECKOP_CPU, 0, 0, nullptr, backward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
