// SPDX-License-Identifier: Apache-2.0
// logp: log-probability of one selected token per row.
#include "logp.hpp"

#include <array>
#include <vector>

#include "identity.hpp"
#include "left_out.hpp"
#include "logit_transform.hpp"
#include "operator/operator.hpp"
#include "recipes.hpp"
#include "softmax.hpp"
#include "truncation.hpp"

namespace checkop {

extern const Emulation kLogpForward, kLogpBackward, kTpLogpForward, kTpLogpBackward;  // emulation/logp.cpp

namespace logp {
namespace {

constexpr std::string_view kRow = "batch seq", kRowVocab = "batch seq vocab";
constexpr TensorSpec kLogits{"logits", kRowVocab, Fill::logits, "vocab"};
constexpr TensorSpec kTokenIds{"token_ids", kRow, Fill::ids, "vocab", DType::i64};
constexpr TensorSpec kGradLogp{"grad_logp", kRow, Fill::upstream, "", DType::f32};

constexpr std::array kForwardIn{kLogits, kTokenIds};
constexpr std::array kForwardOut{
    OutputSpec{{"logp", kRow, Fill::normal, "", DType::f32}, Numerics::logprob, "vocab", /*sampled=*/true},
};
constexpr std::array kBackwardIn{kLogits, kTokenIds, kGradLogp};
constexpr std::array kBackwardOut{OutputSpec{{"dlogits", kRowVocab}, Numerics::logprob, "vocab", /*sampled=*/true}};
enum Attr : size_t { kOfIgnoreIndex, kOfTemperature, kOfSoftcap, kOfTopK, kOfTopP, kOfKeepTarget };
constexpr std::array kAttrs{kIgnoreIndex, kTemperature, kSoftcap, kTopK, kTopP, kKeepTarget};

constexpr std::array kForwardRecipes{
    Recipe{recipe::kLogp, "logp", k16Bit, /*exact=*/true, "logp = round(z_t - lse(z))",
           "F.log_softmax of 16-bit logits in PyTorch, and with it F.cross_entropy, TRL and verl without their casts"},
    rounds_transform("logp")};
constexpr std::array kBackwardRecipes{
    Recipe{recipe::kLogp, "dlogits", k16Bit, /*exact=*/true, "dlogits_v = g (1[v = t] - exp(round(z_v - lse(z))))",
           "autograd of F.log_softmax of 16-bit logits: its backward pass reads the saved 16-bit result"},
    Recipe{recipe::kUpstream, "dlogits", k16Bit, /*exact=*/true, "dlogits_v = round(g) (1[v = t] - softmax(z)_v)",
           "autograd of a 16-bit log-probability that is cast to fp32: its gradient is cast to 16 bits"},
    rounds_transform_gradient("dlogits")};

/// What happens to logits before the softmax.
struct Changes {
  LogitTransform transform{1, 0};
  Truncation truncation = {};

  /// Whether transformed logits are rounded, step by step, by the recipe transform_in_16_bit. With top_k or top_p they
  /// are not: rounding makes many logits equal, and kernels that round there differ in which of equal ones they keep.
  bool steps(const GoldArgs& args) const { return !truncation.is_active() && stepped(args).is_active(); }
  SteppedTransform stepped(const GoldArgs& args) const { return {args, transform}; }
};

/// The logits of a row, transformed, and the softmax of those that stay.
/// Only one may live in a thread: the next one has the same memory for its logits. New pages for each row would take
/// most of the time.
struct Row {
  std::vector<TransformedLogit>& logits;
  std::vector<char> stays;  ///< by column; empty: all
  SoftmaxRow softmax;

  Row(const GoldArgs& args, int64_t row, const Changes& changes, int64_t target) : logits(logits_of_thread()) {
    logits.clear();
    RowScratch& s = row_scratch(args.in(0).shape.back());
    decode_row(args.in(0), row, s.z);
    const SteppedTransform stepped = changes.stepped(args);
    const bool steps = changes.steps(args);
    for (const double x : s.z) logits.push_back(steps ? stepped(exact(x)) : changes.transform(x));
    if (!changes.truncation.is_active()) {
      add_logits(softmax, logits);
      return;
    }
    stays = changes.truncation.columns(s.z, logits, args.in(0).dtype == DType::f64 ? 0x1p-53 : 0x1p-24, row, target);
    std::vector<TransformedLogit> those;
    for (size_t v = 0; v < logits.size(); ++v)
      if (stays[v] != 0) those.push_back(logits[v]);
    add_logits(softmax, those);
  }

  Row(const Row&) = delete;
  Row& operator=(const Row&) = delete;

  bool has(int64_t column) const { return stays.empty() || stays[static_cast<size_t>(column)] != 0; }

 private:
  static std::vector<TransformedLogit>& logits_of_thread() {
    static thread_local std::vector<TransformedLogit> logits;
    return logits;
  }
};

/// Gold of logp.
///   in:  logits[batch, seq, vocab], token_ids[batch, seq]     out: logp[batch, seq]
///   logp = z_t - lse(z),  lse(z) = m + log sum_v exp(z_v - m),  m = max_v z_v, over the columns v that stay
///   z = c/temperature,  c = softcap tanh(x/softcap), or the logit x if softcap is 0
///   Columns are ranked by x, those with equal x by their index. top_k leaves the first k of them, then top_p the
///   fewest first ones whose probabilities among these add up to top_p, at least one. With keep_target t stays, too;
///   else logp is -inf where t does not stay.
/// If the id is ignore_index: 0, and the row's logits are not read.
/// Throws InputError for any other id outside [0, vocab), and where rounding decides which columns stay.
/// Source of the order of top_k and top_p, and of probabilities that add up to 1 after top_k: vLLM, Hugging Face.
void select(const GoldArgs& args, const Changes& changes) {
  const int64_t vocab = args.in(0).shape.back(), rows = args.in(1).count();
  const std::vector<int64_t> ids = read_ids_to_use(args, args.in(1), vocab);
  const bool rounds = args.recipes.has(recipe::kLogp);
  args.for_rows(0, rows, [&](int64_t r) {
    const int64_t id = ids[static_cast<size_t>(r)];
    GoldElement e{0, 0, 0};
    if (id != kLeftOut) {
      const Row row(args, r, changes, id);
      const TransformedLogit& target = row.logits[static_cast<size_t>(id)];
      if (row.has(id)) {
        e = selected_logp(row.softmax, target.z);
        e.rounding += args.recipes.in_units(target.slack + lse_slack(args.recipes, 0, row.softmax));
        e = rounded_if(rounds, args, 0, e);
      } else {
        e.value = -INFINITY;
      }
    }
    args.sink({0, r, 1, 1, &e.value, &e.magnitude, &e.rounding});
  });
}

/// Gold of logp's gradient.
///   in:  logits[batch, seq, vocab], token_ids[batch, seq], grad_logp[batch, seq]     out: dlogits[batch, seq, vocab]
///   dlogits_v = g*(1[v = t] - softmax(z)_v) dz_v/dx_v of columns that stay, 0 of others;  0 where the id is
///   ignore_index, or does not stay
/// Source: differentiated by hand; checked by gradient_test.
void differentiate(const GoldArgs& args, const Changes& changes) {
  const int64_t vocab = args.in(0).shape.back(), rows = args.in(1).count();
  const std::vector<int64_t> ids = read_ids_to_use(args, args.in(1), vocab);
  const bool rounds = args.recipes.has(recipe::kLogp), rounds_upstream = args.recipes.has(recipe::kUpstream);
  const SteppedTransform stepped = changes.stepped(args);
  const bool steps = changes.steps(args);
  args.for_rows(0, rows, [&](int64_t r) {
    RowScratch& s = row_scratch(vocab);
    const int64_t id = ids[static_cast<size_t>(r)];
    s.clear_results();
    if (id != kLeftOut) {
      const Row row(args, r, changes, id);
      const double upstream = args.in(2).at(r), g = rounds_upstream ? args.recipes.round(upstream) : upstream;
      const LogitGradient gradient(row.softmax, g);
      const RoundedLogitGradient rounded(args, 0, row.softmax, g, rounds);
      for (size_t v = 0; v < row.logits.size() && row.has(id); ++v) {
        if (!row.has(static_cast<int64_t>(v))) continue;
        const bool selected = v == static_cast<size_t>(id);
        const TransformedLogit& logit = row.logits[v];
        const GoldElement dz = rounds || steps ? rounded(logit.z, logit.slack, selected) : gradient(logit.z, selected);
        const GoldElement e = steps ? stepped.by_logit(dz, logit) : by_logit(dz, logit);
        s.value[v] = e.value, s.magnitude[v] = e.magnitude, s.rounding[v] = e.rounding;
      }
    }
    args.sink({0, r, 1, vocab, s.value.data(), s.magnitude.data(), s.rounding.data()});
  });
}

LogitTransform transform_of(std::span<const double> attrs) { return {attrs[kOfTemperature], attrs[kOfSoftcap]}; }
Truncation truncation_of(std::span<const double> attrs) {
  return {attrs[kOfTopK], attrs[kOfTopP], attrs[kOfKeepTarget] != 0};
}
Changes changes_of(std::span<const double> attrs) { return {transform_of(attrs), truncation_of(attrs)}; }

void forward(const GoldArgs& args) { select(args, changes_of(args.attrs)); }
void backward(const GoldArgs& args) { differentiate(args, changes_of(args.attrs)); }
void tp_forward(const GoldArgs& args) { select(args, {}); }
void tp_backward(const GoldArgs& args) { differentiate(args, {}); }

/// Ignored rows must be 0.
void check_logp(const IdentityArgs& args) { check_zero_rows(args, 0, rows_to_use(args.in(1), args.attrs)); }

/// The gradients of a row must sum to 0, unless each has another derivative of a soft cap; ignored rows must be 0.
void check_differentiated(const IdentityArgs& args, const Changes& changes) {
  const std::vector<char> used = rows_to_use(args.in(1), args.attrs);
  const double unit = args.recipes.case_unit();
  const bool steps =
      args.recipes.has(recipe::kTransform) && changes.transform.has_steps() && !changes.truncation.is_active();
  if (changes.transform.is_linear())
    check_row_sums(args, 0, 0, 2, used, changes.transform, args.recipes.has(recipe::kLogp) ? unit : 0,
                   steps ? unit : 0);
  check_zero_rows(args, 0, used);
}
void check_gradient(const IdentityArgs& args) { check_differentiated(args, changes_of(args.attrs)); }
void check_tp_gradient(const IdentityArgs& args) { check_differentiated(args, {}); }

Work work(const GoldArgs& args) { return {0, bytes_left_out(args.in(0), rows_to_use(args.in(1), args.attrs))}; }

constexpr std::array kPasses{
    Pass{"forward", kForwardIn, kForwardOut, forward, check_logp, work, &kLogpForward, nullptr, kForwardRecipes},
    Pass{"backward", kBackwardIn, kBackwardOut, backward, check_gradient, work, &kLogpBackward, nullptr,
         kBackwardRecipes}};

void validate(const CaseSizes& sizes) {
  validate_ignore_index(sizes);
  validate_logit_transform(sizes, kOfTemperature, kOfSoftcap);
  validate_truncation(sizes, kOfTopK, kOfTopP, kOfKeepTarget);
}

void refine(const FillArgs& args) {
  plant_in_logp(args);
  plant_truncation(args, transform_of(args.attrs), truncation_of(args.attrs));
}
}  // namespace
}  // namespace logp

void plant_in_logp(const FillArgs& args) { plant_ignored_rows(args, "token_ids", "logits"); }

constexpr std::array<Pass, 2> kTpLogpPasses{Pass{"forward", logp::kForwardIn, logp::kForwardOut, logp::tp_forward,
                                                 logp::check_logp, logp::work, &kTpLogpForward},
                                            Pass{"backward", logp::kBackwardIn, logp::kBackwardOut, logp::tp_backward,
                                                 logp::check_tp_gradient, logp::work, &kTpLogpBackward}};

extern const Operator kLogp;
constexpr Operator kLogp{
    "logp",
    "logprob",
    "logp = z[t] - log(sum_v exp(z[v])), z = softcap tanh(logits/softcap)/temperature; 0 where t = ignore_index",
    logp::kRow,
    logp::kAttrs,
    logp::kPasses,
    logp::validate,
    logp::refine,
    /*parallel_dim=*/"",
    /*left_out=*/"ignored rows"};

}  // namespace checkop
