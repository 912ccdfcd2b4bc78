// SPDX-License-Identifier: Apache-2.0
// Emulates kl_full as kernels compute it.
#include "emulation/entropy.hpp"

namespace checkop {
namespace kl_full {
namespace {

using namespace emulation;

constexpr FaultSpec kReversed{"reversed", "student and teacher change places"};
constexpr FaultSpec kBetaClamped{"beta_clamped", "a beta of 0 or 1 is taken for the limit of those between, 1e-6 away"};
constexpr FaultSpec kWeightsSwapped{"weights_swapped", "the weights of the two divergences are swapped"};
constexpr FaultSpec kMixtureSwapped{"mixture_swapped", "the weights in the mixture are swapped"};
constexpr FaultSpec kDividedByVocab{"divided_by_vocab", "the sum over the vocabulary is divided by its size"};
constexpr FaultSpec kTimesSquare{"times_square", "the loss is multiplied by the square of the temperature"};
constexpr FaultSpec kTeacherAtOne{"teacher_at_one", "the teacher's logits are not divided by the temperature"};
constexpr FaultSpec kLogClamped{"log_clamped", "logarithms of probabilities are at least -100", "accuracy", "", "", "",
                                "extreme"};
constexpr FaultSpec kInLogps{"in_logps", "the gradient is that by log-probabilities, not by logits"};
constexpr FaultSpec kMeanNotSubtracted{"mean_not_subtracted", "the gradient lacks the divergence"};

/// The logarithms of a row's probabilities.
std::vector<float> log_softmax(const Arithmetic& a, const std::vector<float>& z) {
  const SoftmaxRow softmax = softmax_row(a, z.data(), std::ssize(z));
  std::vector<float> logs;
  for (const float each : z) logs.push_back(softmax.logp(each));
  return logs;
}

LogitTransform transform_of(const EmulationArgs& args) { return {static_cast<float>(args.attrs[1]), 0}; }

/// A row of both distributions.
struct Row {
  TransformedRow student;
  std::vector<float> s, t;  ///< logarithms
  float beta;

  Row(const EmulationArgs& args, const float* of_student, const float* of_teacher, int64_t n)
      : student(args.arithmetic, transform_of(args), of_student, n), beta(static_cast<float>(args.attrs[0])) {
    const Arithmetic& a = args.arithmetic;
    s = log_softmax(a, student.z);
    const LogitTransform transform = a.has(kTeacherAtOne.name) ? LogitTransform{} : transform_of(args);
    t = log_softmax(a, TransformedRow(a, transform, of_teacher, n).z);
    for (float& each : s)
      if (a.has(kLogClamped.name)) each = std::max(each, -100.0F);
    if (a.has(kReversed.name)) std::swap(s, t);
    if (a.has(kBetaClamped.name)) beta = std::clamp(beta, 1e-6F, 1 - 1e-6F);
  }

  /// The logarithm of what a distribution is compared with; `other`: that of the other one.
  float log_q(const Arithmetic& a, size_t v, float other) const {
    if (beta == 0 || beta == 1) return other;
    const float weight = a.has(kMixtureSwapped.name) ? 1 - beta : beta;
    return std::log(weight * a.exponential(t[v]) + (1 - weight) * a.exponential(s[v]));
  }
  /// KL(p|q)
  float divergence(const Arithmetic& a, const std::vector<float>& p, const std::vector<float>& other) const {
    return a.sum(std::ssize(p), [&](int64_t i) {
      const auto v = static_cast<size_t>(i);
      const float probability = a.exponential(p[v]);
      return probability == 0 ? 0.0F : probability * (p[v] - log_q(a, v, other[v]));
    });
  }
};

/// body(row, its distributions, scale) for every row that is not left out.
template <class Body>
void for_each_row(const EmulationArgs& args, const Body& body) {
  const Matrix student = matrix(args, 0), teacher = matrix(args, 1);
  const MaskedRows rows(args, 2);
  args.parallel_for(student.rows(), [&](int64_t r) {
    if (!rows.skips(r)) body(r, Row(args, student.row(r), teacher.row(r), student.columns), rows.scale(r));
  });
}

/// What every result is multiplied by.
float factor_of(const EmulationArgs& args) {
  const auto temperature = static_cast<float>(args.attrs[1]);
  const float by_vocab =
      args.arithmetic.has(kDividedByVocab.name) ? 1 / static_cast<float>(args.in(0).shape.back()) : 1;
  return by_vocab * (args.arithmetic.has(kTimesSquare.name) ? temperature * temperature : 1);
}

void forward(const EmulationArgs& args) {
  const Arithmetic& a = args.arithmetic;
  for_each_row(args, [&](int64_t r, const Row& row, float scale) {
    float of_t = row.beta, of_s = 1 - row.beta;
    if (row.beta == 0 || row.beta == 1) std::swap(of_t, of_s);
    if (a.has(kWeightsSwapped.name) && row.beta != 0 && row.beta != 1) std::swap(of_t, of_s);
    float loss = 0;
    if (of_t != 0) loss += of_t * row.divergence(a, row.t, row.s);
    if (of_s != 0) loss += of_s * row.divergence(a, row.s, row.t);
    args.out(0)[static_cast<size_t>(r)] = scale * factor_of(args) * loss;
  });
}

void backward(const EmulationArgs& args) {
  const Arithmetic& a = args.arithmetic;
  const std::vector<float> g = args.floats(3);
  for_each_row(args, [&](int64_t r, const Row& row, float scale) {
    const float upstream = scale * factor_of(args) * g[static_cast<size_t>(r)];
    const bool swaps = a.has(kWeightsSwapped.name);
    const float weight = row.beta == 0 || row.beta == 1 ? 1 : swaps ? row.beta : 1 - row.beta;
    const float mean = row.beta == 0 || a.has(kMeanNotSubtracted.name) ? 0 : row.divergence(a, row.s, row.t);
    double* const to = &args.out(0)[static_cast<size_t>(r) * row.s.size()];
    for (size_t v = 0; v < row.s.size(); ++v) {
      const float s = a.exponential(row.s[v]);
      if (row.beta == 0) {
        const float t = a.exponential(row.t[v]);
        to[v] = upstream * (a.has(kInLogps.name) ? -t : s - t);
      } else {
        to[v] = s == 0 ? 0 : upstream * weight * s * (row.s[v] - row.log_q(a, v, row.t[v]) - mean);
      }
      to[v] = row.student.by_logit(a, static_cast<float>(to[v]), v);
    }
  });
}

constexpr std::array kShared{faults::kLastTileSkipped,
                             faults::kBf16Accumulator,
                             faults::kBf16Partials,
                             faults::kPartialLost,
                             faults::kBf16Exponential,
                             kPaddedColumnCounted,
                             kSumNotRescaled,
                             kRowMaskIgnored,
                             kMaskedRowMultiplied,
                             kReversed,
                             kBetaClamped,
                             kWeightsSwapped,
                             kMixtureSwapped,
                             kDividedByVocab,
                             kTimesSquare,
                             kTeacherAtOne,
                             kTemperatureLeftOut,
                             kTemperatureTwice,
                             kTemperatureMultiplied};
constexpr auto kForwardFaults = joined(kShared, std::array{kLogClamped});
constexpr auto kBackwardFaults = joined(kShared, std::array{kSlopeOfTemperature, kInLogps, kMeanNotSubtracted});

}  // namespace
}  // namespace kl_full

extern const Emulation kKlFullForward, kKlFullBackward;
const Emulation kKlFullForward{kl_full::forward, kl_full::kForwardFaults};
const Emulation kKlFullBackward{kl_full::backward, kl_full::kBackwardFaults};

}  // namespace checkop
