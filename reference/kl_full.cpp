// SPDX-License-Identifier: Apache-2.0
// kl_full: the divergence of the softmax of student logits from that of teacher logits, over the whole vocabulary.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/error.hpp"
#include "gold_element.hpp"
#include "identity.hpp"
#include "left_out.hpp"
#include "logit_transform.hpp"
#include "operator/operator.hpp"
#include "policy.hpp"
#include "recipes.hpp"
#include "softmax.hpp"

namespace checkop {

extern const Emulation kKlFullForward, kKlFullBackward;  // emulation/kl_full.cpp

namespace kl_full {
namespace {

constexpr std::string_view kRow = "batch seq", kRowVocab = "batch seq vocab";
constexpr TensorSpec kStudent{"student", kRowVocab, Fill::logits, "vocab"};
constexpr TensorSpec kTeacher{"teacher", kRowVocab, Fill::logits, "vocab", {}, /*optional=*/false, /*constant=*/true};
constexpr TensorSpec kMask{"mask", kRow, Fill::mask, "", DType::u8, /*optional=*/true};
constexpr TensorSpec kGradLoss{"grad_loss", kRow, Fill::upstream, "", DType::f32};
constexpr int kOfMask = 2, kOfGrad = 3;

constexpr std::array kForwardIn{kStudent, kTeacher, kMask};
constexpr std::array kForwardOut{
    OutputSpec{{"loss", kRow, Fill::normal, "", DType::f32}, Numerics::logprob, "vocab", /*sampled=*/true}};
constexpr std::array kBackwardIn{kStudent, kTeacher, kMask, kGradLoss};
constexpr std::array kBackwardOut{OutputSpec{{"dstudent", kRowVocab}, Numerics::composite, "vocab", /*sampled=*/true}};

enum Attr : size_t { kBeta, kOfTemperature };
constexpr std::array kAttrs{
    AttrSpec{"beta", 0,
             "0: KL(T|S), 1: KL(S|T), between: beta KL(T|M) + (1-beta) KL(S|M), M = beta T + (1-beta) S, of teacher T "
             "and student S"},
    AttrSpec{kTemperature.name, kTemperature.fallback, "logits of both are divided by it"}};

ActiveTransform transform_of(const GoldArgs& args) { return {args, LogitTransform(args.attrs[kOfTemperature], 0)}; }

/// The softmax of a row of logits: the logarithm of each probability, with its errors, and the probability, whose
/// relative error is that of its logarithm and that of an exponential.
struct Distribution {
  std::vector<GoldElement> log;
  std::vector<double> p;

  Distribution(const Tensor& tensor, int64_t row, const ActiveTransform& transform) {
    std::vector<double> x(static_cast<size_t>(tensor.shape.back()));
    decode_row(tensor, row, x);
    std::vector<TransformedLogit> logits;
    for (const double each : x) logits.push_back(transform(each));
    SoftmaxRow softmax;
    add_logits(softmax, logits);
    for (const TransformedLogit& logit : logits) {
      log.push_back(selected_logp(softmax, logit.z));
      p.push_back(std::exp(log.back().value));
    }
  }
  size_t size() const { return p.size(); }
  /// Coefficients of the relative error of p[v]: its exponential rounds, and a division or a product.
  GoldElement relative(size_t v) const { return {1, log[v].magnitude, log[v].rounding + kExpUnits + 2}; }
  /// p[v]. The logarithm of a probability of 0 has no finite error.
  GoldElement probability(size_t v) const {
    if (p[v] == 0) return {0, 0, kFlushUnits};
    const GoldElement of_p = relative(v);
    return {p[v], p[v] * of_p.magnitude, p[v] * of_p.rounding + kFlushUnits};
  }
};

/// The logarithm of M = beta T + (1-beta) S. M has two positive terms, so its relative error is at most the larger of
/// theirs plus three roundings. A kernel may add logarithms instead; then the rounding of a term's logarithm counts by
/// the term's share of M.
GoldElement log_mixture(const Distribution& s, const Distribution& t, size_t v, double beta) {
  const double of_t = beta * t.p[v], of_s = (1 - beta) * s.p[v], m = of_t + of_s;
  if (m == 0) return {-INFINITY, 0, 0};
  GoldElement log{std::log(m), 0, 3 * std::abs(std::log(m)) + kExpUnits + 3};
  const auto add = [&](const Distribution& d, double part, double weight) {
    if (part == 0) return;
    const GoldElement relative = d.relative(v);
    log.magnitude = std::max(log.magnitude, relative.magnitude);
    log.rounding += part / m * (relative.rounding + std::abs(d.log[v].value) + std::abs(std::log(weight)));
  };
  add(t, of_t, beta), add(s, of_s, 1 - beta);
  return log;
}

/// KL(P|Q) = sum P (ln P - ln Q), where 0 ln 0 is 0. A kernel may subtract the two sums: their parts make the
/// magnitude.
struct Divergence {
  GoldElement sum{0, 0, 0};

  void add(const Distribution& p, size_t v, const GoldElement& log_q) {
    if (p.p[v] == 0) return;
    const GoldElement &log_p = p.log[v], relative = p.relative(v);
    const double d = log_p.value - log_q.value, size = std::abs(log_p.value) + std::abs(log_q.value);
    sum.value += p.p[v] * d;
    sum.magnitude += p.p[v] * (size + log_p.magnitude + log_q.magnitude + std::abs(d) * relative.magnitude);
    sum.rounding += p.p[v] * (log_p.rounding + log_q.rounding + std::abs(d) * relative.rounding + 2 * size);
  }
};

/// The distributions of student and teacher in a row, and the row's loss.
struct Row {
  Distribution s, t;
  double beta;
  std::vector<GoldElement> log_q;   ///< of what the student is compared with: T or M
  GoldElement of_student{0, 0, 0};  ///< KL(S|Q)
  GoldElement loss{0, 0, 0};

  Row(const GoldArgs& args, int64_t row)
      : s(args.in(0), row, transform_of(args)), t(args.in(1), row, transform_of(args)), beta(args.attrs[kBeta]) {
    Divergence of_s, of_t;
    for (size_t v = 0; v < s.size(); ++v) {
      log_q.push_back(beta == 0 || beta == 1 ? t.log[v] : log_mixture(s, t, v, beta));
      if (beta != 0) of_s.add(s, v, log_q[v]);
      if (beta != 1) of_t.add(t, v, beta == 0 ? s.log[v] : log_q[v]);
    }
    of_student = of_s.sum;
    loss = beta == 0 ? of_t.sum : beta == 1 ? of_s.sum : rounded(beta) * of_t.sum + rounded(1 - beta) * of_s.sum;
    loss.rounding += std::abs(loss.value);
  }

  /// The derivative by the transformed logit v of the student.
  GoldElement gradient(size_t v) const {
    const GoldElement p = s.probability(v);
    if (beta == 0) return p + -t.probability(v);
    if (s.p[v] == 0) return p;
    const GoldElement away = s.log[v] + -log_q[v] + -of_student;
    return beta == 1 ? p * away : rounded(1 - beta) * (p * away);
  }
};

/// The rows to compute: body(row, whether the mask leaves it out).
template <class Body>
void for_each_row(const GoldArgs& args, const Body& body) {
  const std::vector<char> active = args.has(kOfMask) ? read_mask(args.in(kOfMask)) : std::vector<char>();
  const int64_t rows = args.in(0).count() / args.in(0).shape.back();
  args.for_rows(0, rows, [&](int64_t row) { body(row, !active.empty() && active[static_cast<size_t>(row)] == 0); });
}

/// Gold of kl_full.
///   in:  student[batch, seq, vocab], teacher[batch, seq, vocab], mask[batch, seq] optional     out: loss[batch, seq]
///   S = softmax(student/temperature),  T = softmax(teacher/temperature),  KL(P|Q) = sum_v P_v (ln P_v - ln Q_v)
///   loss = KL(T|S) if beta is 0, KL(S|T) if it is 1, else beta KL(T|M) + (1-beta) KL(S|M),  M = beta T + (1-beta) S
/// A probability of 0 adds nothing. Where the mask is 0: 0, and neither row of logits is read.
/// Source: generalized Jensen-Shannon divergence of GKD, Agarwal et al., arXiv 2306.13649.
void forward(const GoldArgs& args) {
  for_each_row(args, [&](int64_t row, bool masked) {
    const GoldElement e = masked ? exact(0) : Row(args, row).loss;
    args.sink({0, row, 1, 1, &e.value, &e.magnitude, &e.rounding});
  });
}

/// Gold of kl_full's gradient.
///   in:  as forward, then grad_loss[batch, seq]     out: dstudent[batch, seq, vocab]
///   dstudent = g/temperature times S - T if beta is 0, S (ln S - ln T - KL(S|T)) if it is 1,
///              else (1-beta) S (ln S - ln M - KL(S|M));  0 where the mask is 0
/// Source: differentiated by hand; checked by gradient_test.
void backward(const GoldArgs& args) {
  const int64_t vocab = args.in(0).shape.back();
  const ActiveTransform transform = transform_of(args);
  const TransformedLogit slope = transform(0);
  for_each_row(args, [&](int64_t r, bool masked) {
    RowScratch& s = row_scratch(vocab);
    if (masked) {
      s.clear_results();
    } else {
      const Row row(args, r);
      const GoldElement g = exact(args.in(kOfGrad).at(r));
      for (size_t v = 0; v < row.s.size(); ++v) {
        const GoldElement e = transform.by_logit(g * row.gradient(v), slope);
        s.value[v] = e.value, s.magnitude[v] = e.magnitude, s.rounding[v] = e.rounding;
      }
    }
    args.sink({0, r, 1, vocab, s.value.data(), s.magnitude.data(), s.rounding.data()});
  });
}

/// Masked rows must be 0.
void check_masked(const IdentityArgs& args) {
  if (args.inputs[kOfMask] != nullptr) check_zero_rows(args, 0, read_mask(args.in(kOfMask)));
}

Work work(const GoldArgs& args) {
  if (!args.has(kOfMask)) return {};
  const std::vector<char> used = read_mask(args.in(kOfMask));
  return {0, bytes_left_out(args.in(0), used) + bytes_left_out(args.in(1), used)};
}

constexpr std::array kForwardRecipes{Recipe{recipe::kTransform, "loss", k16Bit, /*exact=*/true,
                                            "z = round(x/temperature), of student and teacher",
                                            "GKDTrainer of TRL divides the 16-bit logits of both by the temperature"}};
constexpr std::array kBackwardRecipes{
    Recipe{recipe::kTransform, "dstudent", k16Bit, /*exact=*/true,
           "dstudent = round(dz)/temperature, z = round(x/temperature)",
           "autograd of 16-bit logits that are divided by the temperature: both are tensors"}};
constexpr std::array kPasses{
    Pass{"forward", kForwardIn, kForwardOut, forward, check_masked, work, &kKlFullForward, nullptr, kForwardRecipes},
    Pass{"backward", kBackwardIn, kBackwardOut, backward, check_masked, work, &kKlFullBackward, nullptr,
         kBackwardRecipes}};

void validate(const CaseSizes& sizes) {
  const double beta = sizes.attrs[kBeta], temperature = sizes.attrs[kOfTemperature];
  if (!(beta >= 0 && beta <= 1))
    throw InputError("--beta", fmt::format("expected a number from 0 to 1, got {}", beta), "0 is KL(teacher|student)");
  validate_temperature(temperature);
}

/// In mode extreme, in every third row, the student gives one word a probability that fp32 can't hold, and the teacher
/// does not. Rows that the mask leaves out hold payloads.
void plant(const FillArgs& args) {
  constexpr double kFar = 120;
  Tensor& student = *args.find("student");
  const int64_t vocab = student.shape.back();
  for (int64_t row = 1; row * vocab < student.count() && args.mode == InputMode::extreme; row += 3) {
    const int64_t at = row * vocab + row % vocab;
    student.set(at, student.at(at) - kFar);
  }
  plant_masked_rows(args, "mask", "student");
  plant_masked_rows(args, "mask", "teacher");
}

}  // namespace
}  // namespace kl_full

extern const Operator kKlFull;
constexpr Operator kKlFull{"kl_full",
                           "logprob",
                           "loss = sum_v T[v] (ln T[v] - ln S[v]), S, T = softmax of student and teacher / "
                           "temperature; beta: other divergences; "
                           "masked: 0",
                           kl_full::kRow,
                           kl_full::kAttrs,
                           kl_full::kPasses,
                           kl_full::validate,
                           kl_full::plant,
                           /*parallel_dim=*/"",
                           /*left_out=*/"masked rows"};

}  // namespace checkop
