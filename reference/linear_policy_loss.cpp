// SPDX-License-Identifier: Apache-2.0
// linear_policy_loss: policy_loss of the log-probabilities of target ids under softmax(hidden * lm_head_weight^T +
// bias); the logits are never stored.
#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <vector>

#include "entropy_row.hpp"
#include "identity.hpp"
#include "left_out.hpp"
#include "linear_logits.hpp"
#include "logit_transform.hpp"
#include "operator/operator.hpp"
#include "policy.hpp"
#include "policy_tokens.hpp"
#include "rearranged.hpp"
#include "recipes.hpp"

namespace checkop {

extern const Emulation kLinearPolicyLossForward, kLinearPolicyLossBackward;  // emulation/linear_policy_loss.cpp

namespace linear_policy_loss {
namespace {

constexpr std::string_view kToken = "batch seq", kTokenHidden = "batch seq hidden", kVocabHidden = "vocab hidden",
                           kSums = "hidden vocab batch*seq";

constexpr TensorSpec of_tokens(std::string_view name, bool optional) {
  return {name, kToken, Fill::normal, "", DType::f32, optional, /*constant=*/true};
}
constexpr TensorSpec kHidden{"hidden", kTokenHidden, Fill::query};
constexpr TensorSpec kWeight{"lm_head_weight", kVocabHidden, Fill::weight, "hidden"};
constexpr TensorSpec kTargetIds{"target_ids", kToken, Fill::ids, "vocab", DType::i64};
constexpr TensorSpec kMask{"mask", kToken, Fill::mask, "", DType::u8};
constexpr TensorSpec kBias{"bias", "vocab", Fill::normal, "", {}, /*optional=*/true};
constexpr TensorSpec kOldLogps = of_tokens("old_logps", false), kAdvantages = of_tokens("advantages", false),
                     kRefLogps = of_tokens("ref_logps", true), kRolloutLogps = of_tokens("rollout_logps", true);
constexpr TensorSpec kDenom{"denom", "", Fill::normal, "", DType::f32, /*optional=*/true, /*constant=*/true};
constexpr TensorSpec kGradLoss{"grad_loss", "", Fill::upstream, "", DType::f32};

enum Input : int {
  kOfHidden,
  kOfWeight,
  kOfIds,
  kOfOld,
  kOfAdvantages,
  kOfMask,
  kOfBias,
  kOfRef,
  kOfRollout,
  kOfDenom,
  kOfGrad
};
constexpr std::array kForwardIn{kHidden, kWeight, kTargetIds, kOldLogps,     kAdvantages,
                                kMask,   kBias,   kRefLogps,  kRolloutLogps, kDenom};
constexpr std::array kBackwardIn{kHidden, kWeight,   kTargetIds,    kOldLogps, kAdvantages, kMask,
                                 kBias,   kRefLogps, kRolloutLogps, kDenom,    kGradLoss};
constexpr std::array kForwardOut{
    OutputSpec{{"loss", "", Fill::normal, "", DType::f32}, Numerics::composite, kSums},
    OutputSpec{{"logps", kToken, Fill::normal, "", DType::f32}, Numerics::logprob, "hidden vocab"},
    OutputSpec{{"entropy", kToken, Fill::normal, "", DType::f32}, Numerics::logprob, "hidden vocab"}};
constexpr std::array kBackwardOut{
    OutputSpec{{"dhidden", kTokenHidden}, Numerics::contraction, "hidden vocab", /*sampled=*/true},
    OutputSpec{{"dlm_head_weight", kVocabHidden}, Numerics::contraction, kSums, /*sampled=*/true},
    OutputSpec{{"dbias", "vocab", Fill::normal, "", {}, /*optional=*/true},
               Numerics::reduction,
               kSums,
               /*sampled=*/true}};

constexpr size_t kOfTemperature = kPolicyAttrs.size(), kOfSoftcap = kOfTemperature + 1;
constexpr auto kAttrs = [] {
  std::array<AttrSpec, kPolicyAttrs.size() + 2> all{};
  std::copy(kPolicyAttrs.begin(), kPolicyAttrs.end(), all.begin());
  all[kOfTemperature] = kTemperature, all[kOfSoftcap] = kSoftcap;
  return all;
}();

LogitTransform transform_of(std::span<const double> attrs) { return {attrs[kOfTemperature], attrs[kOfSoftcap]}; }

/// The softmax, the target's logit and the entropy of a row.
struct Row {
  SoftmaxRow softmax;
  TransformedLogit target;
  EntropyRow entropy;
};

/// The rows of hidden; only active ones have content. `with_entropy`: reads the logits a second time.
std::vector<Row> rows_of(const GoldArgs& args, const LinearInputs& in, const std::vector<int64_t>& ids,
                         bool with_entropy) {
  static const RowSet kAll;
  LinearLogits logits(args, in, kAll);
  return logits.of_rows<Row>([&] {
    std::vector<Row> rows(ids.size());
    logits.for_each_part([&](int64_t r, int64_t first, std::span<const TransformedLogit> part) {
      Row& row = rows[static_cast<size_t>(r)];
      add_logits(row.softmax, part);
      const int64_t column = ids[static_cast<size_t>(r)] - first;
      if (column >= 0 && column < std::ssize(part)) row.target = part[static_cast<size_t>(column)];
    });
    for (Row& row : rows) row.entropy = EntropyRow(row.softmax);
    if (with_entropy)
      logits.for_each_part([&](int64_t r, int64_t, std::span<const TransformedLogit> part) {
        rows[static_cast<size_t>(r)].entropy.add(part);
      });
    return rows;
  });
}

/// A batch, its rows and its tokens.
struct Batch {
  LinearInputs in;
  std::vector<int64_t> ids;
  bool has_entropy;
  std::vector<Row> rows;
  PolicyTokens tokens;

  /// Of the forward pass, it has the entropy also where the loss has no part of it.
  Batch(const GoldArgs& args, bool is_forward)
      : in{args.in(kOfHidden),       args.in(kOfWeight),
           args.inputs[kOfBias],     read_mask(args.in(kOfMask)),
           transform_of(args.attrs),
           /*folds_slack=*/true,     is_forward ? lost_by_tensor_cores(args.in(kOfHidden)) : 0},
        ids(read_active_ids(args.in(kOfIds), in.used, in.weight.shape[0])),
        has_entropy(is_forward || args.attrs[kEntropyCoef] != 0),
        rows(rows_of(args, in, ids, has_entropy)),
        tokens(policy_inputs(args), args.attrs) {}

  GoldElement logp(size_t row) const {
    return in.used[row] == 0 ? exact(0) : selected_logp(rows[row].softmax, rows[row].target.z);
  }
  GoldElement entropy(size_t row) const { return in.used[row] == 0 ? exact(0) : rows[row].entropy.entropy(); }

 private:
  PolicyInputs policy_inputs(const GoldArgs& args) const {
    std::vector<GoldElement> logps, entropies;
    std::vector<double> logps_lean, entropies_lean;  // what tensor cores lose is always toward zero
    for (size_t row = 0; row < ids.size(); ++row) {
      logps.push_back(logp(row));
      if (has_entropy) entropies.push_back(entropy(row));
      if (in.lost == 0) continue;
      const bool used = in.used[row] != 0;
      logps_lean.push_back(used ? in.lost * (rows[row].target.z.magnitude + rows[row].softmax.mean_magnitude()) : 0);
      entropies_lean.push_back(used ? in.lost * rows[row].entropy.magnitude_of_logits() : 0);
    }
    const auto longest = static_cast<double>(std::max({in.weight.shape[0], in.weight.shape[1], std::ssize(ids)}));
    return {std::move(logps),
            std::move(entropies),
            args.in(kOfMask).shape.back(),
            args.in(kOfOld),
            args.in(kOfAdvantages),
            args.in(kOfMask),
            args.inputs[kOfRef],
            args.inputs[kOfRollout],
            args.inputs[kOfDenom],
            kLeastGrowth * std::sqrt(longest),
            std::move(logps_lean),
            std::move(entropies_lean)};
  }
};

/// Gold of linear_policy_loss.
///   in:  hidden[batch, seq, hidden], lm_head_weight[vocab, hidden];
///        target_ids, old_logps, advantages, mask[batch, seq];
///        optional bias[vocab], ref_logps, rollout_logps[batch, seq], denom
///   out: loss, a scalar; logps, entropy[batch, seq]
///   x = hidden W^T + bias,  z = c/temperature,  c = softcap tanh(x/softcap), or x if softcap is 0,  p = softmax(z)
///   logps = z_t - log sum_v exp(z_v),  entropy = -sum_v p_v log p_v,  loss = that of policy_loss with these two
/// Where the mask is 0: 0, and nothing is read.
void forward(const GoldArgs& args) {
  const Batch batch(args, /*is_forward=*/true);
  const GoldElement loss = batch.tokens.losses().loss;
  args.sink({0, 0, 1, 1, &loss.value, &loss.magnitude, &loss.rounding});
  const int64_t seq = args.in(kOfMask).shape.back();
  for (int64_t first = 0; first < batch.tokens.count(); first += seq) {
    for (const int output : {1, 2}) {
      std::vector<double> value, magnitude, rounding;
      for (auto row = static_cast<size_t>(first); row < static_cast<size_t>(first + seq); ++row) {
        const GoldElement e = output == 1 ? batch.logp(row) : batch.entropy(row);
        value.push_back(e.value), magnitude.push_back(e.magnitude), rounding.push_back(e.rounding);
      }
      args.sink({output, first / seq, 1, seq, value.data(), magnitude.data(), rounding.data()});
    }
  }
}

/// Gold of linear_policy_loss's gradients; logps and entropy have no upstream gradient.
///   in:  as forward, then grad_loss, a scalar
///   out: dhidden[batch, seq, hidden] = dx W,  dlm_head_weight[vocab, hidden] = dx^T hidden,
///        dbias[vocab] = sum of dx over tokens
///   dx_v = (c (1[v = t] - p_v) + e p_v (sum_w p_w z_w - z_v)) dz_v/dx_v,  c = g dloss/dlogps,  e = g dloss/dentropy
///   Tokens where the mask is 0 are left out of all three outputs.
/// Source: differentiated by hand; checked by gradient_test.
void backward(const GoldArgs& args) {
  const Batch batch(args, /*is_forward=*/false);
  const double g = args.in(kOfGrad).at(0);
  const ActiveTransform transform(args, batch.in.transform);
  const LinearOutputs outputs{0, 1, 2, nullptr, nullptr, recipe::rows_of_chunk(args.in(kOfMask).shape.back())};
  emit_linear_gradients(args, batch.in, outputs, [&](const LinearLogits& logits) {
    return [&](int64_t r) {
      const int64_t token = logits.row(r);
      const auto row = static_cast<size_t>(token);
      return [&batch, &transform, row, c = batch.tokens.by_logp(token, g), e = batch.tokens.by_entropy(token, g),
              gradient = LogitGradient(batch.rows[row].softmax, 1)](int64_t v, const TransformedLogit& logit) {
        GoldElement dz = c * gradient(logit.z, v == batch.ids[row]);
        if (batch.has_entropy) dz = dz + e * batch.rows[row].entropy.gradient(logit);
        return transform.by_logit(dz, logit);
      };
    };
  });
}

/// Masked tokens must be 0.
void check_tokens(const IdentityArgs& args) {
  for (const int output : {1, 2}) check_zero_rows(args, output, read_mask(args.in(kOfMask)));
}
void check_gradient(const IdentityArgs& args) { check_zero_rows(args, 0, read_mask(args.in(kOfMask))); }

/// The backward pass must recompute the logits.
template <int products>
Work work(const GoldArgs& args) {
  return linear_work(args.in(kOfHidden), args.in(kOfWeight), read_mask(args.in(kOfMask)), products);
}

constexpr std::string_view kResults = "loss logps entropy", kGradients = "dhidden dlm_head_weight dbias",
                           kLmHead = "a 16-bit lm_head (F.linear) before the loss, as in TRL and verl";
constexpr std::array kForwardRecipes{rounds_logits(kResults, kLmHead), rounds_product_of_logits(kResults),
                                     rounds_transform(kResults)};
constexpr std::array kBackwardRecipes{
    rounds_dz(kGradients, "autograd of a 16-bit lm_head, Liger's fused linear GRPO loss"),
    rounds_logits(kGradients, kLmHead), rounds_product_of_logits(kGradients), rounds_transform_gradient(kGradients),
    rounds_sums_by_chunk("Liger's fused linear GRPO loss, a sequence of up to 512 tokens at a time; verl's "
                         "FusedLinearForPPO, 512 tokens")};

constexpr std::array kPasses{Pass{"forward", kForwardIn, kForwardOut, forward, check_tokens, work<1>,
                                  &kLinearPolicyLossForward, nullptr, kForwardRecipes},
                             Pass{"backward", kBackwardIn, kBackwardOut, backward, check_gradient, work<3>,
                                  &kLinearPolicyLossBackward, nullptr, kBackwardRecipes}};

void validate(const CaseSizes& sizes) {
  validate_policy_attrs(sizes);
  validate_logit_transform(sizes, kOfTemperature, kOfSoftcap);
}

/// Moves old log-probabilities away from the edges of the branches of PPO: a kernel may take either branch of a token
/// whose ratio is within its error of an edge, and the gradient of such a token is not judged.
void leave_edges(const FillArgs& args, const std::vector<double>& logps) {
  constexpr double kMargin = 4e-3;  // several times what a log-probability may be off by
  std::vector<double> edges{std::log1p(-std::min(args.attrs[kClipLow], 0.999)), std::log1p(args.attrs[kClipHigh])};
  for (const PolicyAttr attr : {kDualClip, kDelta})
    if (args.attrs[attr] > 0) edges.push_back(std::log(args.attrs[attr]));
  for (const double sign : {-1, 1}) edges.push_back(sign * args.attrs[kRatioClamp]);
  Tensor& old = *args.find("old_logps");
  for (size_t i = 0; i < logps.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    for (const double edge : edges)
      if (std::abs(logps[i] - old.at(at) - edge) < kMargin) old.set(at, old.at(at) - 3 * kMargin);
  }
}

/// The other tensors of policy_loss, made from the log-probabilities of the targets. The log-probabilities are computed
/// in FP64 from the stored inputs and rounded to multiples of 2^-12, because their last bits depend on the machine.
/// Masked tokens hold payloads.
void refine(const FillArgs& args) {
  const Tensor *const hidden = args.find("hidden"), *const weight = args.find("lm_head_weight");
  Tensor& of_ids = *args.find("target_ids");
  const std::vector<int64_t> ids = read_ids(of_ids, weight->shape[0]);
  GoldArgs parallel;
  parallel.threads = args.threads;
  const LinearInputs in{*hidden, *weight, args.find("bias"), std::vector<char>(ids.size(), 1),
                        transform_of(args.attrs)};
  const std::vector<Row> rows = rows_of(parallel, in, ids, /*with_entropy=*/false);
  std::vector<double> logps;
  for (size_t i = 0; i < ids.size(); ++i)
    logps.push_back(
        std::ldexp(std::round(std::ldexp(selected_logp(rows[i].softmax, rows[i].target.z).value, 12)), -12));
  fill_policy_batch(args, logps);
  leave_edges(args, logps);
  plant_masked_policy_tokens(args);
  plant_masked_rows(args, "mask", "hidden");
  const Tensor& mask = *args.find("mask");
  for (int64_t i = 0; i < mask.count() && args.left_out == LeftOut::nonfinite; ++i) {
    const uint64_t kind = payload_kind(args, static_cast<uint64_t>(i));
    if (mask.at(i) == 0 && kind % 2 == 0) of_ids.set(i, kind == 0 ? -100 : static_cast<double>(weight->shape[0]));
  }
}

}  // namespace
}  // namespace linear_policy_loss

extern const Operator kLinearPolicyLoss;
constexpr Operator kLinearPolicyLoss{
    "linear_policy_loss",
    "logprob",
    "policy_loss with logps = z[t] - log(sum_v exp(z[v])) and the entropy of softmax(z), z = "
    "softcap tanh(x/softcap)/temperature, x = hidden W^T + bias; masked tokens are left out",
    "",
    linear_policy_loss::kAttrs,
    linear_policy_loss::kPasses,
    linear_policy_loss::validate,
    linear_policy_loss::refine,
    /*parallel_dim=*/"",
    /*left_out=*/"masked tokens",
    kMicroBatches};

}  // namespace checkop
