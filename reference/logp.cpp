// SPDX-License-Identifier: Apache-2.0
// logp: log-probability of one selected token per row.
#include "logp.hpp"

#include <array>
#include <vector>

#include "identity.hpp"
#include "left_out.hpp"
#include "operator/operator.hpp"
#include "recipes.hpp"
#include "softmax.hpp"

namespace checkop {

extern const Emulation kLogpForward, kLogpBackward, kTpLogpForward, kTpLogpBackward;  // emulation/logp.cpp

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
constexpr std::array kAttrs{kIgnoreIndex};

constexpr std::array kForwardRecipes{
    Recipe{recipe::kLogp, "logp", k16Bit, /*exact=*/true, "logp = round(z_t - lse(z))",
           "F.log_softmax of 16-bit logits in PyTorch, and with it F.cross_entropy, TRL and verl without their casts"}};
constexpr std::array kBackwardRecipes{
    Recipe{recipe::kLogp, "dlogits", k16Bit, /*exact=*/true, "dlogits_v = g (1[v = t] - exp(round(z_v - lse(z))))",
           "autograd of F.log_softmax of 16-bit logits: its backward pass reads the saved 16-bit result"},
    Recipe{recipe::kUpstream, "dlogits", k16Bit, /*exact=*/true, "dlogits_v = round(g) (1[v = t] - softmax(z)_v)",
           "autograd of a 16-bit log-probability that is cast to fp32: its gradient is cast to 16 bits"}};

/// Gold of logp.
///   in:  logits[batch, seq, vocab], token_ids[batch, seq]     out: logp[batch, seq]
///   logp = z_t - lse(z),  lse(z) = m + log sum_v exp(z_v - m),  m = max_v z_v
/// If the id is ignore_index: 0, and the row's logits are not read.
/// Throws InputError for any other id outside [0, vocab).
void forward(const GoldArgs& args) {
  const int64_t vocab = args.in(0).shape.back(), rows = args.in(1).count();
  const std::vector<int64_t> ids = read_ids_to_use(args, args.in(1), vocab);
  const bool rounds = args.recipes.has(recipe::kLogp);
  args.for_rows(0, rows, [&](int64_t row) {
    const int64_t id = ids[static_cast<size_t>(row)];
    GoldElement e{0, 0, 0};
    if (id != kLeftOut) {
      RowScratch& s = row_scratch(vocab);
      const SoftmaxRow softmax = read_row(args.in(0), row, s.z);
      e = rounded_if(rounds, args, 0, selected_logp(softmax, s.z[static_cast<size_t>(id)], 0));
    }
    args.sink({0, row, 1, 1, &e.value, &e.magnitude, &e.rounding});
  });
}

/// Gold of logp's gradient.
///   in:  logits[batch, seq, vocab], token_ids[batch, seq], grad_logp[batch, seq]     out: dlogits[batch, seq, vocab]
///   dz_v = g*(1[v = t] - softmax(z)_v);  0 where the id is ignore_index
/// Source: differentiated by hand; checked by gradient_test.
void backward(const GoldArgs& args) {
  const int64_t vocab = args.in(0).shape.back(), rows = args.in(1).count();
  const std::vector<int64_t> ids = read_ids_to_use(args, args.in(1), vocab);
  const bool rounds = args.recipes.has(recipe::kLogp), rounds_upstream = args.recipes.has(recipe::kUpstream);
  args.for_rows(0, rows, [&](int64_t row) {
    RowScratch& s = row_scratch(vocab);
    const int64_t id = ids[static_cast<size_t>(row)];
    if (id == kLeftOut) {
      s.clear_results();
    } else {
      const SoftmaxRow softmax = read_row(args.in(0), row, s.z);
      const double upstream = args.in(2).at(row), g = rounds_upstream ? args.recipes.round(upstream) : upstream;
      const LogitGradient gradient(softmax, g);
      const RoundedLogitGradient rounded(args, 0, softmax, g, rounds);
      for (size_t v = 0; v < s.z.size(); ++v) {
        const bool selected = v == static_cast<size_t>(id);
        const GoldElement e = rounds ? rounded(s.z[v], 0, 0, selected) : gradient(s.z[v], 0, selected);
        s.value[v] = e.value, s.magnitude[v] = e.magnitude, s.rounding[v] = e.rounding;
      }
    }
    args.sink({0, row, 1, vocab, s.value.data(), s.magnitude.data(), s.rounding.data()});
  });
}

/// Ignored rows must be 0.
void check_logp(const IdentityArgs& args) { check_zero_rows(args, 0, rows_to_use(args.in(1), args.attrs)); }

/// The gradients of a row must sum to 0; ignored rows must be 0.
void check_gradient(const IdentityArgs& args) {
  const std::vector<char> used = rows_to_use(args.in(1), args.attrs);
  check_row_sums(args, 0, 0, 2, used, args.recipes.has(recipe::kLogp) ? args.recipes.case_unit() : 0);
  check_zero_rows(args, 0, used);
}

Work work(const GoldArgs& args) { return {0, bytes_left_out(args.in(0), rows_to_use(args.in(1), args.attrs))}; }

constexpr std::array kPasses{
    Pass{"forward", kForwardIn, kForwardOut, forward, check_logp, work, &kLogpForward, nullptr, kForwardRecipes},
    Pass{"backward", kBackwardIn, kBackwardOut, backward, check_gradient, work, &kLogpBackward, nullptr,
         kBackwardRecipes}};
}  // namespace

void plant_in_logp(const FillArgs& args) { plant_ignored_rows(args, "token_ids", "logits"); }

constexpr std::array<Pass, 2> kTpLogpPasses{
    Pass{"forward", kForwardIn, kForwardOut, forward, check_logp, work, &kTpLogpForward},
    Pass{"backward", kBackwardIn, kBackwardOut, backward, check_gradient, work, &kTpLogpBackward}};

extern const Operator kLogp;
constexpr Operator kLogp{"logp",
                         "logprob",
                         "logp = logits[t] - log(sum_v exp(logits[v])); 0 where t = ignore_index",
                         kRow,
                         kAttrs,
                         kPasses,
                         validate_ignore_index,
                         plant_in_logp,
                         /*parallel_dim=*/"",
                         /*left_out=*/"ignored rows"};

}  // namespace checkop
