// SPDX-License-Identifier: Apache-2.0
// entropy: the entropy of the softmax of each row of logits.
#include <array>
#include <cmath>
#include <span>
#include <string_view>
#include <vector>

#include "entropy_row.hpp"
#include "gold_element.hpp"
#include "identity.hpp"
#include "left_out.hpp"
#include "logit_transform.hpp"
#include "operator/operator.hpp"
#include "policy.hpp"
#include "recipes.hpp"
#include "softmax.hpp"

namespace checkop {

extern const Emulation kEntropyForward, kEntropyBackward;  // emulation/entropy.cpp

namespace entropy {
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

ActiveTransform transform_of(const GoldArgs& args) {
  return {args, LogitTransform(args.attrs[kOfTemperature], args.attrs[kOfSoftcap])};
}

/// The rows to compute of `output`: body(row, transformed logits). Masked rows are not read.
template <class Body>
void for_each_row(const GoldArgs& args, const Body& body) {
  const int64_t vocab = args.in(0).shape.back(), rows = args.in(0).count() / vocab;
  const ActiveTransform transform = transform_of(args);
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

bool rounds_terms(const ActiveRecipes& recipes) { return recipes.has(recipe::kLogp) || recipes.has(recipe::kTerms); }

/// The entropy and its gradient, times g, in a kernel that computes both from log-probabilities l. By recipe it rounds
///   logp_in_16_bit    l
///   terms_in_16_bit   e = exp(l) and the products e l; every step of autograd
/// Where a rounding may go to either side, its whole step is an error of what follows.
class RoundedEntropyRow {
 public:
  RoundedEntropyRow() = default;
  RoundedEntropyRow(const GoldArgs& args, const SoftmaxRow& softmax, double g)
      : args_(&args), softmax_(softmax), g_(g) {}

  /// Must get the whole row.
  void add(std::span<const TransformedLogit> logits) {
    for (const TransformedLogit& each : logits) {
      const Parts parts(*this, each);
      add(sum_, parts.term), add(sum_of_gradients_, parts.gradient);
    }
  }

  GoldElement entropy() const { return {-sum_.value, sum_.magnitude, sum_.rounding + std::abs(sum_.value)}; }
  GoldElement gradient(const TransformedLogit& logit) const {
    const Parts parts(*this, logit);
    return parts.gradient - parts.p * sum_of_gradients_;
  }

 private:
  struct Parts {
    GoldElement p, term{0, 0, 0}, gradient{0, 0, 0};  ///< exp(l), e l and d

    Parts(const RoundedEntropyRow& row, const TransformedLogit& logit) : p{0, 0, kFlushUnits} {
      const auto rounded = [&](const GoldElement& e) {
        return rounded_if(row.args_->recipes.has(recipe::kTerms), *row.args_, 0, e);
      };
      GoldElement l = selected_logp(row.softmax_, logit.z);
      if (l.value == -INFINITY) return;
      l = rounded_if(row.args_->recipes.has(recipe::kLogp), *row.args_, 0, l);
      const double of_slack = std::expm1(l.rounding / row.args_->recipes.in_units(1));
      const double size = std::exp(l.value);
      if (size == 0) return;  // l may be too large for fp16, and times 0 that is NaN
      p = {size, size * l.magnitude,
           size * (row.args_->recipes.in_units(of_slack) + kExpUnits + kArgumentUnits * std::abs(l.value)) +
               kFlushUnits};
      const GoldElement e = rounded(p), g = exact(-row.g_);
      term = rounded(product_of_16_bit(e, l));
      gradient = rounded(sum_of_16_bit(rounded(product_of_16_bit(g, e)),
                                       rounded(product_of_16_bit(rounded(product_of_16_bit(g, l)), e))));
    }
  };
  static void add(GoldElement& sum, const GoldElement& term) {
    sum.value += term.value, sum.magnitude += term.magnitude + std::abs(term.value), sum.rounding += term.rounding;
  }

  const GoldArgs* args_ = nullptr;
  SoftmaxRow softmax_;
  double g_ = 0;
  GoldElement sum_{0, 0, 0}, sum_of_gradients_{0, 0, 0};
};

SoftmaxRow softmax_of(const std::vector<TransformedLogit>& logits) {
  SoftmaxRow softmax;
  add_logits(softmax, logits);
  return softmax;
}
template <class Row>
Row reduced(Row row, const std::vector<TransformedLogit>& logits) {
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
    GoldElement e{0, 0, 0};
    if (!logits.empty()) {
      const SoftmaxRow softmax = softmax_of(logits);
      e = rounds_terms(args.recipes) ? reduced(RoundedEntropyRow(args, softmax, 0), logits).entropy()
                                     : reduced(EntropyRow(softmax), logits).entropy();
      e = rounded_if(args.recipes.has(recipe::kEntropy), args, 0, e);
    }
    args.sink({0, row, 1, 1, &e.value, &e.magnitude, &e.rounding});
  });
}

/// Gold of entropy's gradient.
///   in:  as forward, then grad_entropy[batch, seq]     out: dlogits[batch, seq, vocab]
///   dlogits_v = g p_v (sum_w p_w z_w - z_v) dz_v/dx_v;  0 where the mask is 0
/// Source: differentiated by hand; checked by gradient_test.
void backward(const GoldArgs& args) {
  const int64_t vocab = args.in(0).shape.back();
  const ActiveTransform transform = transform_of(args);
  for_each_row(args, [&](int64_t row, const std::vector<TransformedLogit>& logits) {
    RowScratch& s = row_scratch(vocab);
    if (logits.empty()) {
      s.clear_results();
    } else {
      const double upstream = args.in(2).at(row);
      const double g = args.recipes.has(recipe::kUpstream) ? args.recipes.round(upstream) : upstream;
      const SoftmaxRow softmax = softmax_of(logits);
      const auto put = [&](const auto& dz) {
        for (size_t v = 0; v < logits.size(); ++v) {
          const GoldElement e = transform.by_logit(dz(logits[v]), logits[v]);
          s.value[v] = e.value, s.magnitude[v] = e.magnitude, s.rounding[v] = e.rounding;
        }
      };
      if (rounds_terms(args.recipes)) {
        put([r = reduced(RoundedEntropyRow(args, softmax, g), logits)](const auto& logit) {
          return r.gradient(logit);
        });
      } else {
        put([g, r = reduced(EntropyRow(softmax), logits)](const auto& logit) { return scaled(g, r.gradient(logit)); });
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

constexpr std::string_view kEntropyFromLogits =
    "entropy_from_logits of TRL: -(exp(logps) * logps).sum(-1), logps = F.log_softmax(logits)";
constexpr std::array kForwardRecipes{
    Recipe{recipe::kLogp, "entropy", k16Bit, /*exact=*/true, "entropy = -sum_v exp(l_v) l_v, l_v = round(z_v - lse(z))",
           kEntropyFromLogits},
    Recipe{recipe::kTerms, "entropy", k16Bit, /*exact=*/true,
           "entropy = -sum_v round(round(exp(l_v)) l_v), l_v = z_v - lse(z)", kEntropyFromLogits},
    Recipe{recipe::kEntropy, "entropy", k16Bit, /*exact=*/true, "entropy = round(-sum_v p_v log p_v)",
           "TRL, and verl's compiled entropy_from_logits: the result has the dtype of the logits"},
    rounds_transform("entropy")};
constexpr std::array kBackwardRecipes{
    Recipe{recipe::kLogp, "dlogits", k16Bit, /*exact=*/true,
           "dz_v = d_v - exp(l_v) sum_w d_w, d = -g exp(l)(1 + l), l_v = round(z_v - lse(z))", kEntropyFromLogits},
    Recipe{recipe::kTerms, "dlogits", "bf16", /*exact=*/true,
           "d = round(round(-g e) + round(round(-g l) e)), e = round(exp(l))", kEntropyFromLogits},
    Recipe{recipe::kUpstream, "dlogits", k16Bit, /*exact=*/true, "dz = round(g) dentropy/dz",
           "autograd of a 16-bit entropy: its gradient is a 16-bit tensor"},
    rounds_transform_gradient("dlogits")};
constexpr std::array kPasses{
    Pass{"forward", kForwardIn, kForwardOut, forward, check_masked, work, &kEntropyForward, nullptr, kForwardRecipes},
    Pass{"backward", kBackwardIn, kBackwardOut, backward, check_masked, work, &kEntropyBackward, nullptr,
         kBackwardRecipes}};

void validate(const CaseSizes& sizes) { validate_logit_transform(sizes, kOfTemperature, kOfSoftcap); }

/// Rows that the mask leaves out hold payloads.
void plant(const FillArgs& args) { plant_masked_rows(args, "mask", "logits"); }

}  // namespace
}  // namespace entropy

extern const Operator kEntropy;
constexpr Operator kEntropy{
    "entropy",
    "logprob",
    "entropy = log(sum_v exp(z[v] - m)) + sum_v p[v] (m - z[v]), m = max z, p = softmax(z), z = "
    "softcap tanh(logits/softcap)/temperature; masked: 0",
    entropy::kRow,
    entropy::kAttrs,
    entropy::kPasses,
    entropy::validate,
    entropy::plant,
    /*parallel_dim=*/"",
    /*left_out=*/"masked rows"};

}  // namespace checkop
