// SPDX-License-Identifier: Apache-2.0
// Emulates linear_policy_loss as kernels compute it.
#include "emulation/entropy.hpp"
#include "emulation/linear_logits.hpp"
#include "emulation/policy_loss.hpp"

namespace checkop {
namespace linear_policy_loss {
namespace {

using namespace emulation;

constexpr int kIds = 2, kOld = 3, kAdvantages = 4, kMask = 5, kBias = 6, kRef = 7, kRollout = 8, kDenom = 9, kGrad = 10;

/// The logits of a batch, and its tokens.
struct Batch {
  LinearProblem linear;
  std::vector<TransformedRow> rows;  ///< empty where a token is skipped
  std::vector<int64_t> ids;
  std::vector<float> logps, entropy;
  emulation::PolicyTokens tokens;

  explicit Batch(const EmulationArgs& args)
      : linear(load_linear(args, kBias, [&, mask = args.integers(kMask)](int64_t r) { return skips(args, mask, r); })),
        ids(args.integers(kIds)),
        tokens(args.arithmetic, args.attrs, batch(args)) {}

 private:
  static bool skips(const EmulationArgs& args, const std::vector<int64_t>& mask, int64_t r) {
    const Arithmetic& a = args.arithmetic;
    return mask[static_cast<size_t>(r)] == 0 && !a.has(kMaskedCounted.name) && !a.has(kMaskedTokenMultiplied.name);
  }

  PolicyBatch batch(const EmulationArgs& args) {
    const Arithmetic& a = args.arithmetic;
    const std::vector<int64_t> mask = args.integers(kMask);
    const int64_t vocab = linear.logits.columns;
    const LogitTransform transform{static_cast<float>(args.attrs[kPolicyAttrs.size()]),
                                   static_cast<float>(args.attrs[kPolicyAttrs.size() + 1])};
    logps.resize(mask.size()), entropy.resize(mask.size());
    for (size_t r = 0; r < mask.size(); ++r) {
      const auto row = static_cast<int64_t>(r);
      const bool skipped = skips(args, mask, row);
      rows.emplace_back(a, transform, linear.logits.row(row), skipped ? 0 : vocab);
      if (skipped) continue;
      if (mask[r] == 0) ids[r] = std::clamp<int64_t>(ids[r], 0, vocab - 1);
      ids[r] = label(a, ids[r], vocab);
      const std::vector<float>& z = rows[r].z;
      logps[r] = softmax_row(a, z.data(), vocab).logp(z[static_cast<size_t>(ids[r])]);
      entropy[r] = entropy_of(a, rows[r]);
    }
    const auto read = [&](int index) { return args.has(index) ? args.floats(index) : std::vector<float>(); };
    return {logps,   read(kOld),   read(kAdvantages),          mask, read(kRef), read(kRollout),
            entropy, read(kDenom), args.in(kMask).shape.back()};
  }
};

void forward(const EmulationArgs& args) {
  const Batch batch(args);
  args.out(0)[0] =
      batch.tokens.mean_of(batch.tokens.all(), [&](const LossToken& t, int64_t i) { return batch.tokens.loss(t, i); });
  for (int64_t i = 0; i < batch.tokens.count(); ++i) {
    if (!batch.tokens.takes(i)) continue;
    const auto at = static_cast<size_t>(i);
    args.out(1)[at] = batch.tokens.scale(i) * batch.logps[at];
    args.out(2)[at] = batch.tokens.scale(i) * batch.entropy[at];
  }
}

void backward(const EmulationArgs& args) {
  const Arithmetic& a = args.arithmetic;
  const Batch batch(args);
  const float g = args.floats(kGrad)[0];
  const int64_t vocab = batch.linear.logits.columns;
  Matrix dx = Matrix::zeros(batch.tokens.count(), vocab);
  args.parallel_for(dx.rows(), [&](int64_t r) {
    if (!batch.tokens.takes(r)) return;
    const TransformedRow& row = batch.rows[static_cast<size_t>(r)];
    std::vector<double> of_logp(row.z.size());
    logp_gradient_row(a, row.z.data(), vocab, batch.ids[static_cast<size_t>(r)], batch.tokens.by_logp(r, g),
                      of_logp.data());
    const std::vector<float> of_entropy = entropy_gradient(a, row, batch.tokens.by_entropy(r, g));
    for (size_t v = 0; v < row.z.size(); ++v)
      dx.row(r)[v] = as_factor(a, row.by_logit(a, static_cast<float>(of_logp[v]) + of_entropy[v], v));
  });
  store_linear_gradients(args, batch.linear, dx, dx, args.has(kBias),
                         recipe::rows_of_chunk(args.in(kMask).shape.back()));
}

/// The faults of policy_loss, where the entropy is no input.
template <size_t n>
constexpr std::array<FaultSpec, n> with_own_entropy(std::array<FaultSpec, n> all) {
  for (FaultSpec& fault : all)
    if (fault.needs == "entropy") fault.needs = "";
  return all;
}

constexpr auto kOfRows = joined(kSoftmaxFaults, std::array{kWrongLabel, kMeanLeftOut, kMeanOfLogits});
constexpr auto kForwardFaults = joined(joined(kOfRows, joined(kLinearFaults, kTransformFaults)),
                                       joined(with_own_entropy(kPolicyFaults), std::array{kInBits, kEntropyRounded}));
constexpr auto kBackwardFaults =
    joined(joined(kOfRows, joined(kLinearGradientFaults, kTransformGradientFaults)),
           joined(with_own_entropy(kPolicyGradientFaults),
                  std::array{kSoftmaxTermDropped, kSoftmaxSignFlipped, kLogSumForMean, kWeightChunksRounded}));

}  // namespace
}  // namespace linear_policy_loss

extern const Emulation kLinearPolicyLossForward, kLinearPolicyLossBackward;
const Emulation kLinearPolicyLossForward{linear_policy_loss::forward, linear_policy_loss::kForwardFaults};
const Emulation kLinearPolicyLossBackward{linear_policy_loss::backward, linear_policy_loss::kBackwardFaults};

}  // namespace checkop
