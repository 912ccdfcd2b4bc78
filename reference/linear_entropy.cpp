// SPDX-License-Identifier: Apache-2.0
// linear_entropy: the entropy of softmax(hidden * lm_head_weight^T + bias); the logits are never stored.
#include <array>
#include <span>
#include <vector>

#include "entropy_row.hpp"
#include "identity.hpp"
#include "left_out.hpp"
#include "linear_logits.hpp"
#include "logit_transform.hpp"
#include "operator/operator.hpp"
#include "policy.hpp"
#include "recipes.hpp"

namespace checkop {

extern const Emulation kLinearEntropyForward, kLinearEntropyBackward;  // emulation/linear_entropy.cpp

namespace linear_entropy {
namespace {

constexpr std::string_view kRow = "batch seq", kRowHidden = "batch seq hidden", kVocabHidden = "vocab hidden";
constexpr TensorSpec kHidden{"hidden", kRowHidden, Fill::query};
constexpr TensorSpec kWeight{"lm_head_weight", kVocabHidden, Fill::weight, "hidden"};
constexpr TensorSpec kBias{"bias", "vocab", Fill::normal, "", {}, /*optional=*/true};
constexpr TensorSpec kMask{"mask", kRow, Fill::mask, "", DType::u8, /*optional=*/true};
constexpr TensorSpec kGradEntropy{"grad_entropy", kRow, Fill::upstream, "", DType::f32};
enum Input : int { kOfHidden, kOfWeight, kOfBias, kOfMask, kOfGrad };

constexpr std::array kForwardIn{kHidden, kWeight, kBias, kMask};
constexpr std::array kForwardOut{
    OutputSpec{{"entropy", kRow, Fill::normal, "", DType::f32}, Numerics::logprob, "hidden vocab", /*sampled=*/true}};
constexpr std::array kBackwardIn{kHidden, kWeight, kBias, kMask, kGradEntropy};
constexpr std::array kBackwardOut{
    OutputSpec{{"dhidden", kRowHidden}, Numerics::contraction, "hidden vocab", /*sampled=*/true},
    OutputSpec{{"dlm_head_weight", kVocabHidden}, Numerics::contraction, "hidden vocab batch*seq", /*sampled=*/true},
    OutputSpec{{"dbias", "vocab", Fill::normal, "", {}, /*optional=*/true},
               Numerics::reduction,
               "hidden vocab batch*seq",
               /*sampled=*/true}};

enum Attr : size_t { kOfTemperature, kOfSoftcap };
constexpr std::array kAttrs{kTemperature, kSoftcap};

std::vector<char> used_rows(const Tensor& hidden, const Tensor* mask) {
  if (mask != nullptr) return read_mask(*mask);
  return std::vector<char>(static_cast<size_t>(hidden.count() / hidden.shape.back()), 1);
}

LinearInputs inputs_of(const GoldArgs& args) {
  return {args.in(kOfHidden),
          args.in(kOfWeight),
          args.inputs[kOfBias],
          used_rows(args.in(kOfHidden), args.inputs[kOfMask]),
          LogitTransform(args.attrs[kOfTemperature], args.attrs[kOfSoftcap]),
          /*folds_slack=*/true};
}

/// Gold of linear_entropy.
///   in:  hidden[batch, seq, hidden], lm_head_weight[vocab, hidden], bias[vocab] and mask[batch, seq] optional
///   out: entropy[batch, seq]
///   x = hidden W^T + bias,  z = c/temperature,  c = softcap tanh(x/softcap), or x if softcap is 0
///   entropy = log sum_v exp(z_v - m) + sum_v p_v (m - z_v),  m = max_v z_v,  p = softmax(z),  in nats
/// Where the mask is 0: 0, and the row of hidden is not read.
void forward(const GoldArgs& args) {
  LinearInputs in = inputs_of(args);
  in.lost = lost_by_tensor_cores(in.hidden);
  LinearLogits logits(args, in, args.rows(0));
  const std::vector<EntropyRow> entropies = logits.entropies();
  for (int64_t r = 0; r < logits.rows(); ++r) {
    const GoldElement e = logits.left_out(r) ? GoldElement{0, 0, 0} : entropies[static_cast<size_t>(r)].entropy();
    args.sink({0, logits.row(r), 1, 1, &e.value, &e.magnitude, &e.rounding});
  }
}

/// Gold of linear_entropy's gradients.
///   in:  as forward, then grad_entropy[batch, seq]
///   out: dhidden[batch, seq, hidden] = dx W,  dlm_head_weight[vocab, hidden] = dx^T hidden,
///        dbias[vocab] = sum of dx over rows
///   dx_v = g p_v (sum_w p_w z_w - z_v) dz_v/dx_v;  rows where the mask is 0 are left out of all three outputs
/// Source: differentiated by hand; checked by gradient_test.
void backward(const GoldArgs& args) {
  const LinearInputs in = inputs_of(args);
  const ActiveTransform transform(args, in.transform);
  emit_linear_gradients(args, in, {0, 1, 2}, [&](LinearLogits& logits) {
    return [&, entropies = logits.entropies()](int64_t r) {
      const double g = args.in(kOfGrad).at(logits.row(r));
      return [&transform, &entropy = entropies[static_cast<size_t>(r)], g](int64_t, const TransformedLogit& logit) {
        return transform.by_logit(scaled(g, entropy.gradient(logit)), logit);
      };
    };
  });
}

/// Masked rows must be 0, in entropy and in dhidden.
void check_masked(const IdentityArgs& args) {
  if (args.inputs[kOfMask] != nullptr) check_zero_rows(args, 0, read_mask(args.in(kOfMask)));
}

/// The backward pass must recompute the logits.
template <int products>
Work work(const GoldArgs& args) {
  const Tensor& hidden = args.in(kOfHidden);
  return linear_work(hidden, args.in(kOfWeight), used_rows(hidden, args.inputs[kOfMask]), products);
}

constexpr std::string_view kGradients = "dhidden dlm_head_weight dbias",
                           kLmHead = "a 16-bit lm_head (F.linear) before the entropy, as in TRL and verl";
constexpr std::array kForwardRecipes{rounds_logits("entropy", kLmHead), rounds_product_of_logits("entropy"),
                                     rounds_transform("entropy")};
constexpr std::array kBackwardRecipes{rounds_dz(kGradients, "autograd of a 16-bit lm_head"),
                                      rounds_logits(kGradients, kLmHead), rounds_product_of_logits(kGradients),
                                      rounds_transform_gradient(kGradients)};

constexpr std::array kPasses{Pass{"forward", kForwardIn, kForwardOut, forward, check_masked, work<1>,
                                  &kLinearEntropyForward, nullptr, kForwardRecipes},
                             Pass{"backward", kBackwardIn, kBackwardOut, backward, check_masked, work<3>,
                                  &kLinearEntropyBackward, nullptr, kBackwardRecipes}};

void validate(const CaseSizes& sizes) { validate_logit_transform(sizes, kOfTemperature, kOfSoftcap); }

/// Rows that the mask leaves out hold payloads.
void plant(const FillArgs& args) { plant_masked_rows(args, "mask", "hidden"); }

}  // namespace
}  // namespace linear_entropy

extern const Operator kLinearEntropy;
constexpr Operator kLinearEntropy{
    "linear_entropy",
    "logprob",
    "entropy = log(sum_v exp(z[v] - m)) + sum_v p[v] (m - z[v]), m = max z, p = softmax(z), z = "
    "softcap tanh(x/softcap)/temperature, x = hidden W^T + bias; masked: 0",
    linear_entropy::kRow,
    linear_entropy::kAttrs,
    linear_entropy::kPasses,
    linear_entropy::validate,
    linear_entropy::plant,
    /*parallel_dim=*/"",
    /*left_out=*/"masked rows"};

}  // namespace checkop
