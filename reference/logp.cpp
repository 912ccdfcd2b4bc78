// SPDX-License-Identifier: Apache-2.0
// logp: log-probability of one selected token per row.
#include <array>
#include <vector>

#include "identity.hpp"
#include "operator.hpp"
#include "softmax.hpp"

namespace checkop {
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

/// Gold of logp.
///   in:  logits[batch, seq, vocab], token_ids[batch, seq]     out: logp[batch, seq]
///   logp = z_t - lse(z),  lse(z) = m + log sum_v exp(z_v - m),  m = max_v z_v
/// Throws InputError for an id outside [0, vocab).
void forward(const GoldArgs& args) {
  const int64_t vocab = args.in(0).shape.back(), rows = args.in(1).count();
  const std::vector<int64_t> ids = read_ids(args.in(1), vocab);
  args.for_rows(0, rows, [&](int64_t row) {
    RowScratch& s = row_scratch(vocab);
    const SoftmaxRow softmax = read_row(args.in(0), row, s.z);
    const GoldElement e = selected_logp(softmax, s.z[static_cast<size_t>(ids[static_cast<size_t>(row)])], 0);
    args.sink({0, row, 1, 1, &e.value, &e.magnitude, &e.rounding});
  });
}

/// Gold of logp's gradient.
///   in:  logits[batch, seq, vocab], token_ids[batch, seq], grad_logp[batch, seq]     out: dlogits[batch, seq, vocab]
///   dz_v = g*(1[v = t] - softmax(z)_v)
/// Source: differentiated by hand; checked by gradient_test.
void backward(const GoldArgs& args) {
  const int64_t vocab = args.in(0).shape.back(), rows = args.in(1).count();
  const std::vector<int64_t> ids = read_ids(args.in(1), vocab);
  args.for_rows(0, rows, [&](int64_t row) {
    RowScratch& s = row_scratch(vocab);
    const SoftmaxRow softmax = read_row(args.in(0), row, s.z);
    const double g = args.in(2).at(row);
    const auto target = static_cast<size_t>(ids[static_cast<size_t>(row)]);
    const LogitGradient gradient(softmax, g);
    for (size_t v = 0; v < s.z.size(); ++v) {
      const GoldElement e = gradient(s.z[v], 0, v == target);
      s.value[v] = e.value, s.magnitude[v] = e.magnitude, s.rounding[v] = e.rounding;
    }
    args.sink({0, row, 1, vocab, s.value.data(), s.magnitude.data(), s.rounding.data()});
  });
}

/// A row's gradients sum to 0.
void check_gradient(const IdentityArgs& args) {
  check_row_sums(args, 0, 0, 2, std::vector<char>(static_cast<size_t>(args.in(1).count()), 1));
}

constexpr std::array kPasses{Pass{"forward", kForwardIn, kForwardOut, forward},
                             Pass{"backward", kBackwardIn, kBackwardOut, backward, check_gradient}};

}  // namespace

extern const Operator kLogp;
constexpr Operator kLogp{"logp", "logprob", "logp = logits[t] - log(sum_v exp(logits[v]))", kRow, {}, kPasses};

}  // namespace checkop
