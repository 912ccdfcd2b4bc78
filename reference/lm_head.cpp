// SPDX-License-Identifier: Apache-2.0
// lm_head: logits = hidden * weight^T + bias, the last layer of a language model.
#include <algorithm>
#include <array>
#include <cmath>

#include "identity.hpp"
#include "operator/operator.hpp"
#include "product.hpp"
#include "tensor_core.hpp"

namespace checkop {

extern const Emulation kLmHeadForward, kLmHeadBackward;  // emulation/lm_head.cpp

namespace lm_head {
namespace {

constexpr std::string_view kRowHidden = "batch seq hidden", kRowVocab = "batch seq vocab",
                           kVocabHidden = "vocab hidden";
constexpr TensorSpec kHidden{"hidden", kRowHidden};
constexpr TensorSpec kWeight{"weight", kVocabHidden, Fill::weight, "hidden"};
constexpr TensorSpec kBias{"bias", "vocab", Fill::normal, "", {}, /*optional=*/true};
constexpr TensorSpec kGradLogits{"grad_logits", kRowVocab, Fill::upstream};

constexpr std::array kForwardIn{kHidden, kWeight, kBias};
constexpr std::array kForwardOut{OutputSpec{{"logits", kRowVocab}, Numerics::contraction, "hidden", /*sampled=*/true}};
constexpr std::array kBackwardIn{kHidden, kWeight, kBias, kGradLogits};
constexpr std::array kBackwardOut{
    OutputSpec{{"dhidden", kRowHidden}, Numerics::contraction, "vocab", /*sampled=*/true},
    OutputSpec{{"dweight", kVocabHidden}, Numerics::contraction, "batch*seq", /*sampled=*/true},
    OutputSpec{{"dbias", "vocab", Fill::normal, "", {}, /*optional=*/true}, Numerics::reduction, "batch*seq"},
};

/// Views a tensor [batch, seq, x] as a matrix of rows.
Factor rows_of(const Tensor& t, bool transposed = false) {
  return {&t, t.count() / t.shape.back(), t.shape.back(), transposed};
}

/// Emits output `index` = sum of the rows of `matrix`; the magnitude is as in emit_product.
void emit_column_sums(const GoldArgs& args, int index, const Factor& matrix) {
  constexpr int64_t kBlock = 1024;  // columns per task
  args.parallel_for((matrix.columns + kBlock - 1) / kBlock, [&](int64_t task) {
    const int64_t first = task * kBlock, n = std::min(kBlock, matrix.columns - first);
    const auto count = static_cast<size_t>(n);
    std::vector<double> row(count), row_square(count), value(count), magnitude(count);
    const std::vector<double> rounding(count, 0.0);
    for (int64_t r = 0; r < matrix.rows; ++r) {
      decode_block(matrix, r, 1, first, n, row.data(), row_square.data());
      for (size_t i = 0; i < count; ++i) value[i] += row[i], magnitude[i] += row_square[i];
    }
    for (size_t i = 0; i < count; ++i) magnitude[i] = std::abs(value[i]) + std::sqrt(magnitude[i]);
    args.sink({index, first, n, 1, value.data(), magnitude.data(), rounding.data()});
  });
}

constexpr std::array kForwardRecipes{tf32_operands("logits"), rounds_partials("logits"),
                                     rounds_product("logits", "logits = round(hidden weight^T) + bias")};
constexpr std::array kBackwardRecipes{tf32_operands("dhidden dweight"), rounds_partials("dhidden dweight")};

/// Gold of lm_head.
///   in:  hidden[batch, seq, hidden], weight[vocab, hidden], bias[vocab] optional     out: logits[batch, seq, vocab]
///   logits = hidden weight^T + bias
void forward(const GoldArgs& args) {
  const Tensor &hidden = args.in(0), &weight = args.in(1);
  emit_product(args, 0, rows_of(hidden), rows_of(weight, true), args.inputs[2]);
}

/// Gold of lm_head's gradients.
///   in:  as forward, then grad_logits[batch, seq, vocab]
///   out: dhidden[batch, seq, hidden] = grad_logits weight,  dweight[vocab, hidden] = grad_logits^T hidden,
///        dbias[vocab] = sum of grad_logits over rows
/// Source: differentiated by hand; checked by gradient_test.
void backward(const GoldArgs& args) {
  const Tensor &hidden = args.in(0), &weight = args.in(1), &grad = args.in(3);
  emit_product(args, 0, rows_of(grad), rows_of(weight));
  emit_product(args, 1, rows_of(grad, true), rows_of(hidden));
  if (args.has(2)) emit_column_sums(args, 2, rows_of(grad));
}

void check_logits(const IdentityArgs& args) {
  check_product(args, 0, rows_of(args.in(0)), rows_of(args.in(1), true), args.inputs[2]);
}

void check_gradients(const IdentityArgs& args) {
  const Tensor &hidden = args.in(0), &weight = args.in(1), &grad = args.in(3);
  check_product(args, 0, rows_of(grad), rows_of(weight));
  check_product(args, 1, rows_of(grad, true), rows_of(hidden));
}

void model_logits(const ModelArgs& args) {
  emit_tensor_core_product(args, 0, rows_of(args.in(0)), rows_of(args.in(1), true), args.inputs[2]);
}

/// dbias is not a product, so it has no model.
void model_gradients(const ModelArgs& args) {
  const Tensor &hidden = args.in(0), &weight = args.in(1), &grad = args.in(3);
  emit_tensor_core_product(args, 0, rows_of(grad), rows_of(weight));
  emit_tensor_core_product(args, 1, rows_of(grad, true), rows_of(hidden));
}

/// Operations of `products` products: 2 rows hidden vocab each.
template <int products>
Work work(const GoldArgs& args) {
  return {2.0 * products * static_cast<double>(args.in(0).count()) * static_cast<double>(args.in(1).shape[0])};
}

constexpr std::array kPasses{Pass{"forward", kForwardIn, kForwardOut, forward, check_logits, work<1>, &kLmHeadForward,
                                  model_logits, kForwardRecipes},
                             Pass{"backward", kBackwardIn, kBackwardOut, backward, check_gradients, work<2>,
                                  &kLmHeadBackward, model_gradients, kBackwardRecipes}};

}  // namespace
}  // namespace lm_head

extern const Operator kLmHead;
constexpr Operator kLmHead{"lm_head",   "reduction", "logits = hidden weight^T + bias",
                           "batch seq", {},          lm_head::kPasses};

}  // namespace checkop
