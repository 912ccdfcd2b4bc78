// SPDX-License-Identifier: Apache-2.0
// entropy: that of the softmax of each row of logits.
#include <array>
#include <cmath>
#include <vector>

#include "entropy_row.hpp"
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

EntropyRow reduced(const std::vector<TransformedLogit>& logits) {
  SoftmaxRow softmax;
  add_logits(softmax, logits);
  EntropyRow row(softmax);
  row.add(logits);
  return row;
}

/// Gold of entropy.
///   in:  logits[batch, seq, vocab], mask[batch, seq] optional     out: entropy[batch, seq]
///   entropy = log sum_v exp(z_v - m) + sum_v p_v (m - z_v),  m = max_v z_v,  p = softmax(z),  in nats
///   z = t/temperature,  t = softcap tanh(x/softcap), or the logit x if softcap is 0
/// A logit of -inf adds nothing. Where the mask is 0: 0, and the row of logits is not read.
void forward(const GoldArgs& args) {
  for_each_row(args, [&](int64_t row, const std::vector<TransformedLogit>& logits) {
    const GoldElement e = logits.empty() ? GoldElement{0, 0, 0} : reduced(logits).entropy();
    args.sink({0, row, 1, 1, &e.value, &e.magnitude, &e.rounding});
  });
}

/// Gold of entropy's gradient.
///   in:  as forward, then grad_entropy[batch, seq]     out: dlogits[batch, seq, vocab]
///   dlogits_v = g p_v (sum_w p_w z_w - z_v) dz_v/dx_v;  0 where the mask is 0
/// Source: differentiated by hand; checked by gradient_test.
void backward(const GoldArgs& args) {
  const int64_t vocab = args.in(0).shape.back();
  for_each_row(args, [&](int64_t row, const std::vector<TransformedLogit>& logits) {
    RowScratch& s = row_scratch(vocab);
    if (logits.empty()) {
      s.clear_results();
    } else {
      const EntropyRow r = reduced(logits);
      for (size_t v = 0; v < logits.size(); ++v) {
        const GoldElement e = by_logit(scaled(args.in(2).at(row), r.gradient(logits[v])), logits[v]);
        s.value[v] = e.value, s.magnitude[v] = e.magnitude, s.rounding[v] = e.rounding;
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
void plant(const FillArgs& args) { plant_masked_rows(args, "mask", "logits"); }

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
