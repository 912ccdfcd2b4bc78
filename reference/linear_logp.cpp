// SPDX-License-Identifier: Apache-2.0
// linear_logp: log-probability of the target under softmax(hidden * lm_head_weight^T + bias); the logits are never
// stored.
#include "linear_logp.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "base/error.hpp"
#include "identity.hpp"
#include "left_out.hpp"
#include "linear_logits.hpp"
#include "logit_transform.hpp"
#include "operator/operator.hpp"
#include "recipes.hpp"
#include "softmax.hpp"

namespace checkop {

// emulation/linear_logp.cpp
extern const Emulation kLinearLogpForward, kLinearLogpBackward, kTpLinearLogpForward, kTpLinearLogpBackward;

namespace linear_logp {
namespace {

constexpr std::string_view kRow = "batch seq", kRowHidden = "batch seq hidden", kVocabHidden = "vocab hidden";
constexpr TensorSpec kHidden{"hidden", kRowHidden, Fill::query};
constexpr TensorSpec kWeight{"lm_head_weight", kVocabHidden, Fill::weight, "hidden"};
constexpr TensorSpec kTargetIds{"target_ids", kRow, Fill::ids, "vocab", DType::i64};
constexpr TensorSpec kBias{"bias", "vocab", Fill::normal, "", {}, /*optional=*/true};
constexpr TensorSpec kGradLogp{"grad_logp", kRow, Fill::upstream, "", DType::f32};
// Sums of earlier calls: a batch may be split into calls at multiples of kCarryRows tokens. They have the size of
// gradients.
constexpr TensorSpec kWeightCarry{"dlm_head_weight_carry", kVocabHidden,     Fill::weight, "vocab", DType::f32,
                                  /*optional=*/true,       /*constant=*/true};
constexpr TensorSpec kBiasCarry{"dbias_carry",    "vocab", Fill::weight, "vocab", DType::f32, /*optional=*/true,
                                /*constant=*/true};

constexpr std::array kForwardIn{kHidden, kWeight, kTargetIds, kBias};
constexpr std::array kForwardOut{
    OutputSpec{{"logp", kRow, Fill::normal, "", DType::f32}, Numerics::logprob, "hidden vocab", /*sampled=*/true},
};
constexpr std::array kBackwardIn{kHidden, kWeight, kTargetIds, kBias, kGradLogp, kWeightCarry, kBiasCarry};
constexpr std::array kBackwardOut{
    OutputSpec{{"dhidden", kRowHidden}, Numerics::contraction, "hidden vocab", /*sampled=*/true},
    OutputSpec{{"dlm_head_weight", kVocabHidden, Fill::normal, "", {}, /*optional=*/false, false, kWeightCarry.name},
               Numerics::contraction,
               "hidden vocab batch*seq",
               /*sampled=*/true},
    OutputSpec{{"dbias", "vocab", Fill::normal, "", {}, /*optional=*/true, false, kBiasCarry.name},
               Numerics::reduction,
               "hidden vocab batch*seq",
               /*sampled=*/true},
};

enum Attr : size_t { kOfIgnoreIndex, kOfTemperature, kOfSoftcap };
constexpr std::array kAttrs{kIgnoreIndex, kTemperature, kSoftcap};

constexpr std::string_view kGradients = "dhidden dlm_head_weight dbias";
/// `recipes` and one more: tensor-parallel operators transform no logits, so they have fewer.
template <size_t n>
constexpr std::array<Recipe, n + 1> with(const std::array<Recipe, n>& recipes, const Recipe& one) {
  std::array<Recipe, n + 1> all{};
  std::copy(recipes.begin(), recipes.end(), all.begin());
  all[n] = one;
  return all;
}

constexpr std::array kTpForwardRecipes{
    rounds_logits("logp",
                  "a 16-bit lm_head (F.linear) before the log-probability, as in Hugging Face models, TRL and verl"),
    Recipe{recipe::kLogp, "logp", k16Bit, /*exact=*/true, "logp = round(z_t - lse(z))",
           "F.log_softmax of 16-bit logits in PyTorch"},
    rounds_product_of_logits("logp")};
constexpr std::array kTpBackwardRecipes{
    rounds_dz(kGradients,
              "autograd of a 16-bit lm_head, Liger's fused linear cross entropy, Apple's cut cross entropy"),
    rounds_logits(kGradients,
                  "a 16-bit lm_head (F.linear) before the log-probability, Liger's fused linear cross entropy"),
    Recipe{recipe::kLogp, kGradients, k16Bit, /*exact=*/true, "dz_v = g (1[v = t] - exp(round(z_v - lse(z))))",
           "autograd of F.log_softmax of 16-bit logits: its backward pass reads the saved 16-bit result"},
    Recipe{recipe::kUpstream, kGradients, k16Bit, /*exact=*/true, "dz_v = round(g) (1[v = t] - softmax(z)_v)",
           "autograd of a 16-bit log-probability that is cast to fp32: its gradient is cast to 16 bits"},
    rounds_product_of_logits(kGradients)};
constexpr auto kForwardRecipes = with(kTpForwardRecipes, rounds_transform("logp"));
constexpr auto kBackwardRecipes =
    with(with(kTpBackwardRecipes, rounds_transform_gradient(kGradients)),
         rounds_sums_by_chunk(
             "Liger's fused linear cross entropy without accum_dtype, in chunks of as many rows as the next "
             "power of two from rows*hidden/vocab on"));

LinearInputs inputs_of(const GoldArgs& args, const LogitTransform& transform) {
  read_ids_to_use(args, args.in(2), args.in(1).shape[0]);  // throws for an id out of range
  return {args.in(0), args.in(1), args.inputs[3], rows_to_use(args.in(2), args.attrs), transform};
}

/// The softmax of a row, and the target's logit. Where logits are rounded, both have their slack.
struct Reduced {
  SoftmaxRow softmax;
  TransformedLogit target;
};

std::vector<Reduced> reduced_rows(LinearLogits& logits, const Tensor& ids) {
  return logits.of_rows<Reduced>([&] {
    std::vector<Reduced> rows(static_cast<size_t>(logits.rows()));
    logits.for_each_part([&](int64_t r, int64_t first, std::span<const TransformedLogit> part) {
      Reduced& row = rows[static_cast<size_t>(r)];
      add_logits(row.softmax, part);
      const int64_t column = static_cast<int64_t>(ids.at(logits.row(r))) - first;
      if (column >= 0 && column < std::ssize(part)) row.target = part[static_cast<size_t>(column)];
    });
    return rows;
  });
}

/// Gold of linear_logp.
///   in:  hidden[batch, seq, hidden], lm_head_weight[vocab, hidden], target_ids[batch, seq], bias[vocab] optional
///   out: logp[batch, seq]
///   x = hidden W^T + bias,  z = c/temperature,  c = softcap tanh(x/softcap), or x if softcap is 0
///   logp = z_t - log sum_v exp(z_v)
/// If the id is ignore_index: 0, and the row of hidden is not read.
/// Throws InputError for any other id outside [0, vocab).
void select(const GoldArgs& args, const LogitTransform& transform) {
  LinearInputs in = inputs_of(args, transform);
  in.lost = lost_by_tensor_cores(in.hidden);
  LinearLogits logits(args, in, args.rows(0));
  const std::vector<Reduced> reduced = reduced_rows(logits, args.in(2));
  const bool rounds = args.recipes.has(recipe::kLogp);
  for (int64_t r = 0; r < logits.rows(); ++r) {
    const auto& [softmax, target] = reduced[static_cast<size_t>(r)];
    GoldElement e{0, 0, 0};
    if (!logits.left_out(r)) {
      e = selected_logp(softmax, target.z);
      e.rounding += args.recipes.in_units(target.slack + lse_slack(args.recipes, 0, softmax));
      e = rounded_if(rounds, args, 0, e);
    }
    args.sink({0, logits.row(r), 1, 1, &e.value, &e.magnitude, &e.rounding});
  }
}

/// Gold of linear_logp's gradients.
///   in:  as forward, then grad_logp[batch, seq], dlm_head_weight_carry[vocab, hidden] and dbias_carry[vocab], optional
///   out: dhidden[batch, seq, hidden] = dx W,  dlm_head_weight[vocab, hidden] = dx^T hidden,
///        dbias[vocab] = sum of dx over rows
///   dx_v = g*(1[v = t] - softmax(z)_v) dz_v/dx_v;  rows whose id is ignore_index are left out of all three outputs
///   With carries, dlm_head_weight and dbias are f32: these sums plus the carry.
/// Source: differentiated by hand; checked by gradient_test.
void differentiate(const GoldArgs& args, const LogitTransform& transform) {
  const LinearInputs in = inputs_of(args, transform);
  const bool rounds_logp = args.recipes.has(recipe::kLogp), rounds_upstream = args.recipes.has(recipe::kUpstream);
  const SteppedTransform stepped(args, transform);
  const bool steps = stepped.is_active();
  const bool rounds = rounds_logp || steps || args.recipes.has(recipe::kLogits) || args.recipes.has(recipe::kProduct);
  const int64_t chunk_rows = recipe::rows_of_chunk(args.in(2).count(), in.weight.shape[1], in.weight.shape[0]);
  emit_linear_gradients(args, in, {0, 1, 2, args.inputs[5], args.inputs[6], chunk_rows}, [&](LinearLogits& logits) {
    return [&, reduced = reduced_rows(logits, args.in(2))](int64_t r) {
      const int64_t row = logits.row(r), target = static_cast<int64_t>(args.in(2).at(row));
      const double upstream = args.in(4).at(row), g = rounds_upstream ? args.recipes.round(upstream) : upstream;
      const SoftmaxRow& softmax = reduced[static_cast<size_t>(r)].softmax;
      return
          [=, &stepped, gradient = LogitGradient(softmax, g),
           rounded = RoundedLogitGradient(args, 0, softmax, g, rounds_logp)](int64_t v, const TransformedLogit& logit) {
            const bool selected = v == target;
            const GoldElement dz = rounds ? rounded(logit.z, logit.slack, selected) : gradient(logit.z, selected);
            return steps ? stepped.by_logit(dz, logit) : by_logit(dz, logit);
          };
    };
  });
}

LogitTransform transform_of(const GoldArgs& args) { return {args.attrs[kOfTemperature], args.attrs[kOfSoftcap]}; }

void forward(const GoldArgs& args) { select(args, transform_of(args)); }
void backward(const GoldArgs& args) { differentiate(args, transform_of(args)); }
void tp_forward(const GoldArgs& args) { select(args, {1, 0}); }
void tp_backward(const GoldArgs& args) { differentiate(args, {1, 0}); }

/// Ignored rows must be 0, in logp and in dhidden.
void check_ignored(const IdentityArgs& args) { check_zero_rows(args, 0, rows_to_use(args.in(2), args.attrs)); }

/// The backward pass must recompute the logits.
template <int products>
Work work(const GoldArgs& args) {
  return linear_work(args.in(0), args.in(1), rows_to_use(args.in(2), args.attrs), products);
}

constexpr std::array kPasses{Pass{"forward", kForwardIn, kForwardOut, forward, check_ignored, work<1>,
                                  &kLinearLogpForward, nullptr, kForwardRecipes},
                             Pass{"backward", kBackwardIn, kBackwardOut, backward, check_ignored, work<3>,
                                  &kLinearLogpBackward, nullptr, kBackwardRecipes}};

void validate(const CaseSizes& sizes) {
  validate_linear_logp(sizes);
  validate_logit_transform(sizes, kOfTemperature, kOfSoftcap);
}
}  // namespace
}  // namespace linear_logp

void validate_linear_logp(const CaseSizes& sizes) {
  validate_ignore_index(sizes);
  const bool weight = sizes.has(linear_logp::kWeightCarry.name), bias = sizes.has(linear_logp::kBiasCarry.name);
  if (bias == (weight && sizes.has(linear_logp::kBias.name))) return;
  throw InputError(
      "--with",
      bias ? "dbias_carry needs bias and dlm_head_weight_carry"
           : "bias and dlm_head_weight_carry need dbias_carry: all gradients of weights are carried or none",
      "give dlm_head_weight_carry, or bias+dlm_head_weight_carry+dbias_carry");
}

void plant_in_linear_logp(const FillArgs& args) { plant_ignored_rows(args, "target_ids", "hidden"); }

constexpr std::array<Pass, 2> kTpLinearLogpPasses{
    Pass{"forward", linear_logp::kForwardIn, linear_logp::kForwardOut, linear_logp::tp_forward,
         linear_logp::check_ignored, linear_logp::work<1>, &kTpLinearLogpForward, nullptr,
         linear_logp::kTpForwardRecipes},
    Pass{"backward", linear_logp::kBackwardIn, linear_logp::kBackwardOut, linear_logp::tp_backward,
         linear_logp::check_ignored, linear_logp::work<3>, &kTpLinearLogpBackward, nullptr,
         linear_logp::kTpBackwardRecipes}};

extern const Operator kLinearLogp;
constexpr Operator kLinearLogp{"linear_logp",
                               "logprob",
                               "logp = z[t] - log(sum_v exp(z[v])), z = softcap tanh(x/softcap)/temperature, x = "
                               "hidden W^T + bias; 0 where t = ignore_index",
                               linear_logp::kRow,
                               linear_logp::kAttrs,
                               linear_logp::kPasses,
                               linear_logp::validate,
                               plant_in_linear_logp,
                               /*parallel_dim=*/"",
                               /*left_out=*/"ignored rows"};

}  // namespace checkop
