// SPDX-License-Identifier: Apache-2.0
// entropy: that of the softmax of each row of logits.
#include <array>
#include <cmath>
#include <vector>

#include "identity.hpp"
#include "left_out.hpp"
#include "logit_transform.hpp"
#include "operator/operator.hpp"
#include "policy.hpp"
#include "softmax.hpp"

namespace checkop {

extern const Emulation kEntropyForward, kEntropyBackward;  // emulation/entropy.cpp

namespace {

constexpr std::string_view kRow = "batch seq", kRowVocab = "batch seq vocab";
constexpr TensorSpec kLogits{"logits", kRowVocab, Fill::logits, "vocab"};
constexpr TensorSpec kMask{"mask", kRow, Fill::mask, "", DType::u8, /*optional=*/true};
constexpr TensorSpec kGradEntropy{"grad_entropy", kRow, Fill::upstream, "", DType::f32};
constexpr int kMaskIndex = 1;

constexpr std::array kForwardIn{kLogits, kMask};
constexpr std::array kForwardOut{
    OutputSpec{{"entropy", kRow, Fill::normal, "", DType::f32}, Numerics::logprob, "vocab", /*sampled=*/true}};
constexpr std::array kBackwardIn{kLogits, kMask, kGradEntropy};
constexpr std::array kBackwardOut{OutputSpec{{"dlogits", kRowVocab}, Numerics::composite, "vocab", /*sampled=*/true}};

enum Attr : size_t { kOfTemperature, kOfSoftcap };
constexpr std::array kAttrs{kTemperature, kSoftcap};

/// The softmax of a row of transformed logits z, and what its entropy errs by. With b = max - z >= 0, p = exp(-b)/sum:
///   entropy = L + M,  L = log sum exp(-b),  M = sum p b
/// Both sums have positive terms. A term exp(-b) errs by e_b = 2.25 b + kExpUnits, relative and in units of u. Relative
/// errors e of the terms move L by sum p e and M by sum p (b - M) e; b itself errs as z does.
struct EntropyRow {
  SoftmaxRow softmax;
  double mean = 0;          ///< M
  double term_errors = 0;   ///< sum p e_b
  double mean_errors = 0;   ///< sum p |b - M| e_b, and the roundings of b and of the product p b
  double logit_errors = 0;  ///< sum p times the error of z
  double off_mean = 0;      ///< sum p |b - M| times the error of z

  static double of_exponential(double b) { return kArgumentUnits * b + kExpUnits; }

  explicit EntropyRow(const std::vector<TransformedLogit>& row) {
    static thread_local std::vector<double> z;
    z.resize(row.size());
    for (size_t v = 0; v < row.size(); ++v) z[v] = row[v].z;
    softmax.add(z.data(), nullptr, std::ssize(z));
    mean = softmax.mean_spread();
    for (const TransformedLogit& each : row) {
      const double b = softmax.max - each.z, p = probability(b);
      if (p == 0) continue;  // also keeps inf*0 out of the sums
      term_errors += p * of_exponential(b);
      mean_errors += p * (std::abs(b - mean) * of_exponential(b) + 2 * b);
      logit_errors += p * each.error;
      off_mean += p * std::abs(b - mean) * each.error;
    }
  }

  double probability(double b) const { return std::exp(-b) / softmax.sum; }
  /// Roundings of a kernel that takes the mean of z and log-sum-exp, both as large as the logits are, for L and M.
  double of_large_logits() const { return 3 * std::abs(softmax.max) + std::abs(softmax.lse()) + 2 * mean; }
};

/// The rows to compute of `output`: body(row, transformed logits). Masked rows are not read.
template <class Body>
void for_each_row(const GoldArgs& args, const Body& body) {
  const int64_t vocab = args.in(0).shape.back(), rows = args.in(0).count() / vocab;
  const LogitTransform transform(args.attrs[kOfTemperature], args.attrs[kOfSoftcap]);
  const std::vector<char> active = args.has(kMaskIndex) ? read_mask(args.in(kMaskIndex)) : std::vector<char>();
  args.for_rows(0, rows, [&](int64_t row) {
    static thread_local std::vector<TransformedLogit> logits;
    logits.clear();
    if (active.empty() || active[static_cast<size_t>(row)] != 0) {
      RowScratch& s = row_scratch(vocab);
      decode_row(args.in(0), row, s.z);
      for (const double x : s.z) logits.push_back(transform(x));
    }
    body(row, logits);
  });
}

/// Gold of entropy.
///   in:  logits[batch, seq, vocab], mask[batch, seq] optional     out: entropy[batch, seq]
///   entropy = log sum_v exp(z_v - m) + sum_v p_v (m - z_v),  m = max_v z_v,  p = softmax(z),  in nats
///   z = t/temperature,  t = softcap tanh(x/softcap), or the logit x if softcap is 0
/// A logit of -inf adds nothing. Where the mask is 0: 0, and the row of logits is not read.
void forward(const GoldArgs& args) {
  for_each_row(args, [&](int64_t row, const std::vector<TransformedLogit>& logits) {
    GoldElement e{0, 0, 0};
    if (!logits.empty()) {
      const EntropyRow r(logits);
      const double log_sum = r.softmax.log_sum();
      // One chain in L; two in M, of the sum of p b and of the sum that p is divided by. Then the logarithm, the
      // division and the addition.
      e = {log_sum + r.mean, 1 + 2 * r.mean, 0};
      e.rounding = r.term_errors + r.mean_errors + r.off_mean + r.of_large_logits() + 2 * std::abs(log_sum) + r.mean +
                   std::abs(e.value);
    }
    args.sink({0, row, 1, 1, &e.value, &e.magnitude, &e.rounding});
  });
}

/// Gold of entropy's gradient.
///   in:  as forward, then grad_entropy[batch, seq]     out: dlogits[batch, seq, vocab]
///   dlogits_v = g p_v (sum_w p_w z_w - z_v) dz_v/dx_v;  0 where the mask is 0
/// The error of p is that of LogitGradient. The mean M errs by its two chains and as EntropyRow says; b - M by that, by
/// the rounding of both, and by the errors of z.
/// Source: differentiated by hand; checked by gradient_test.
void backward(const GoldArgs& args) {
  const int64_t vocab = args.in(0).shape.back();
  for_each_row(args, [&](int64_t row, const std::vector<TransformedLogit>& logits) {
    RowScratch& s = row_scratch(vocab);
    if (logits.empty()) {
      s.clear_results();
    } else {
      const EntropyRow r(logits);
      const double g = args.in(2).at(row), size = std::abs(g);
      const double fixed = r.softmax.lse_rounding() + kExpUnits + 2;
      const double of_mean = r.mean_errors + r.off_mean + r.mean + r.of_large_logits();
      for (size_t v = 0; v < logits.size(); ++v) {
        const TransformedLogit& z = logits[v];
        const double b = r.softmax.max - z.z, p = r.probability(b);
        s.value[v] = s.magnitude[v] = s.rounding[v] = 0;
        if (!std::isfinite(b)) continue;  // a logit of -inf
        const double away = b - r.mean, share = size * p, exponent = b + r.softmax.log_sum();
        const double of_p = fixed + kArgumentUnits * b + std::abs(exponent) + z.error + r.logit_errors;
        s.value[v] = g * p * away * z.slope;
        s.magnitude[v] = share * z.slope * (std::abs(away) + 2 * r.mean);
        s.rounding[v] = share * z.slope * (std::abs(away) * of_p + of_mean + z.error + 2 * (b + r.mean)) +
                        share * std::abs(away) * z.slope_error + 3 * std::abs(s.value[v]) +
                        kFlushUnits * size * z.slope * std::abs(away);
      }
    }
    args.sink({0, row, 1, vocab, s.value.data(), s.magnitude.data(), s.rounding.data()});
  });
}

/// Masked rows must be 0.
void check_masked(const IdentityArgs& args) {
  if (args.inputs[kMaskIndex] != nullptr) check_zero_rows(args, 0, read_mask(args.in(kMaskIndex)));
}

Work work(const GoldArgs& args) {
  return {0, args.has(kMaskIndex) ? bytes_left_out(args.in(0), read_mask(args.in(kMaskIndex))) : 0};
}

constexpr std::array kPasses{
    Pass{"forward", kForwardIn, kForwardOut, forward, check_masked, work, &kEntropyForward},
    Pass{"backward", kBackwardIn, kBackwardOut, backward, check_masked, work, &kEntropyBackward}};

void validate(const CaseSizes& sizes) { validate_logit_transform(sizes, kOfTemperature, kOfSoftcap); }

/// Rows that the mask leaves out hold payloads.
void plant(const FillArgs& args) {
  const Tensor* const mask = args.find("mask");
  if (mask == nullptr) return;
  Tensor& logits = *args.find("logits");
  const std::vector<char> active = read_mask(*mask);
  for (int64_t row = 0; row < mask->count(); ++row) {
    if (active[static_cast<size_t>(row)] != 0) continue;
    plant_payload(args, logits, logits.shape.back(), row, payload_kind(args, static_cast<uint64_t>(row)));
  }
}

}  // namespace

extern const Operator kEntropy;
constexpr Operator kEntropy{
    "entropy",
    "logprob",
    "entropy = log(sum_v exp(z[v] - m)) + sum_v p[v] (m - z[v]), m = max z, p = softmax(z), z = "
    "softcap tanh(logits/softcap)/temperature; masked: 0",
    kRow,
    kAttrs,
    kPasses,
    validate,
    plant,
    /*parallel_dim=*/"",
    /*left_out=*/"masked rows"};

}  // namespace checkop
