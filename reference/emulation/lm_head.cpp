// SPDX-License-Identifier: Apache-2.0
// Emulates lm_head as kernels compute it.
#include <array>

#include "emulation/common.hpp"
#include "recipes.hpp"

namespace checkop {
namespace lm_head {
namespace {

using namespace emulation;

constexpr FaultSpec kWeightLayoutMistaken{"weight_layout_mistaken",
                                          "the weight is read as if it were stored as [hidden, vocab]"};
constexpr FaultSpec kVocabTileSkipped{"vocab_tile_skipped", "the last tile of the vocabulary is not computed"};
constexpr FaultSpec kBiasTwice{"bias_twice", "both parts of a split sum add the bias", "accuracy", "", "bias"};
constexpr FaultSpec kBiasShifted{"bias_shifted", "a column gets the bias of the next one", "accuracy", "", "bias"};
constexpr FaultSpec kRoundedBeforeBias{
    "rounded_before_bias", "the product is rounded to bf16 before the bias is added", "accuracy", "", "bias",
    recipe::kProduct};
constexpr FaultSpec kHiddenShifted{"hidden_shifted", "dweight pairs a gradient with the hidden state of the next row"};
constexpr FaultSpec kWeightOverwritten{"weight_gradient_overwritten",
                                       "dweight holds the second half of the rows, written over the first"};
// Not visible in bf16: the gradients are bf16 numbers already.
constexpr FaultSpec kGradRounded{"upstream_rounded", "the upstream gradient is rounded to bf16", "accuracy",
                                 "fp32 fp16"};
constexpr FaultSpec kBiasMean{"bias_gradient_mean", "dbias is the mean over the rows", "accuracy", "", "bias"};
/// Only with a bias: dbias is the only sum here that is not a dot product.
constexpr FaultSpec kBiasTileSkipped{faults::kLastTileSkipped.name, faults::kLastTileSkipped.meaning, "accuracy", "",
                                     "bias"};

/// The weight as an operand [vocab, hidden], or its transpose.
Operand weight_operand(const Arithmetic& arithmetic, Matrix& weight, bool transposed) {
  if (!arithmetic.has(kWeightLayoutMistaken.name)) return {weight, transposed};
  weight.columns = weight.rows();
  return {weight, !transposed};
}

/// Number of vocabulary columns that are computed.
int64_t computed(const Arithmetic& arithmetic, int64_t vocab) {
  constexpr int64_t kTile = 64;
  return arithmetic.has(kVocabTileSkipped.name) ? (vocab - 1) / kTile * kTile : vocab;
}

void add_bias(const EmulationArgs& args, Matrix& logits) {
  const Arithmetic& a = args.arithmetic;
  if (!args.has(2) || a.has(kBiasLeftOut.name)) return;
  const std::vector<float> bias = args.floats(2);
  const bool rounded = a.has(kRoundedBeforeBias.name);
  const float times = a.has(kBiasTwice.name) ? 2.0F : 1.0F;
  const int64_t shift = a.has(kBiasShifted.name) ? 1 : 0;
  for (int64_t r = 0; r < logits.rows(); ++r) {
    float* z = logits.row(r);
    for (int64_t v = 0; v < logits.columns; ++v)
      z[v] = (rounded ? Arithmetic::to_bf16(z[v]) : a.rounded_if(a.rounds(recipe::kProduct), z[v])) +
             times * bias[static_cast<size_t>((v + shift) % logits.columns)];
  }
}

void forward(const EmulationArgs& args) {
  const Matrix hidden = factor(args, 0);
  Matrix weight = factor(args, 1);
  Matrix logits = product(args, {hidden}, weight_operand(args.arithmetic, weight, true));
  add_bias(args, logits);
  for (int64_t r = 0; r < logits.rows(); ++r)
    std::fill(logits.row(r) + computed(args.arithmetic, logits.columns), logits.row(r) + logits.columns, 0.0F);
  store(logits, args.out(0));
}

/// The rows of hidden for dweight = grad_logits^T hidden.
Matrix hidden_of_rows(const EmulationArgs& args) {
  Matrix hidden = factor(args, 0);
  if (args.arithmetic.has(kHiddenShifted.name) && hidden.rows() > 0)
    std::rotate(hidden.values.begin(), hidden.values.begin() + hidden.columns, hidden.values.end());
  if (args.arithmetic.has(kWeightOverwritten.name))
    std::fill_n(hidden.values.begin(), hidden.rows() / 2 * hidden.columns, 0.0F);
  return hidden;
}

void backward(const EmulationArgs& args) {
  const Arithmetic& a = args.arithmetic;
  const Matrix grad = matrix(args, 3);  // as stored: dbias is no product
  Matrix weight = factor(args, 1), g = factor(args, 3);
  if (a.has(kGradRounded.name)) std::transform(g.values.begin(), g.values.end(), g.values.begin(), Arithmetic::to_bf16);
  store(product(args, {g}, weight_operand(a, weight, false)), args.out(0));

  Matrix dweight = product(args, {g, true}, {hidden_of_rows(args)});
  const int64_t vocab = g.columns;
  std::fill(dweight.row(computed(a, vocab)), dweight.row(vocab), 0.0F);
  store(dweight, args.out(1));

  if (!args.has(2)) return;
  const float scale = a.has(kBiasMean.name) ? 1 / static_cast<float>(g.rows()) : 1.0F;
  for (int64_t v = 0; v < computed(a, vocab); ++v)
    args.out(2)[static_cast<size_t>(v)] = scale * a.sum(g.rows(), [&](int64_t r) { return grad.row(r)[v]; });
}

constexpr std::array kForwardFaults{faults::kLastKDropped,
                                    faults::kLastKTileDropped,
                                    faults::kBf16Accumulator,
                                    faults::kBf16Partials,
                                    faults::kPartialLost,
                                    faults::kTf32Factors,
                                    kWeightLayoutMistaken,
                                    kVocabTileSkipped,
                                    kBiasLeftOut,
                                    kBiasTwice,
                                    kBiasShifted,
                                    kRoundedBeforeBias};
constexpr std::array kBackwardFaults{faults::kLastKDropped,
                                     faults::kLastKTileDropped,
                                     faults::kBf16Accumulator,
                                     faults::kBf16Partials,
                                     faults::kPartialLost,
                                     faults::kTf32Factors,
                                     kBiasTileSkipped,
                                     kWeightLayoutMistaken,
                                     kVocabTileSkipped,
                                     kHiddenShifted,
                                     kWeightOverwritten,
                                     kGradRounded,
                                     kBiasMean};

}  // namespace
}  // namespace lm_head

extern const Emulation kLmHeadForward, kLmHeadBackward;
const Emulation kLmHeadForward{lm_head::forward, lm_head::kForwardFaults};
const Emulation kLmHeadBackward{lm_head::backward, lm_head::kBackwardFaults};

}  // namespace checkop
