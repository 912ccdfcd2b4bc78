// SPDX-License-Identifier: Apache-2.0
// Logits of hidden states and weights, and the gradients of both, as kernels compute them; the faults in either.
#pragma once

#include <algorithm>
#include <any>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "emulation/common.hpp"
#include "emulation/row_groups.hpp"
#include "recipes.hpp"

namespace checkop::emulation {

inline constexpr FaultSpec kLogitsRounded{"logits_rounded", "the logits are rounded to bf16 before the softmax",
                                          "accuracy", "fp32 fp16"};  // in bf16 it is a recipe
inline constexpr FaultSpec kDlogitsRounded{"dlogits_rounded", "the gradient of the logits is rounded to bf16",
                                           "accuracy", "fp32 fp16"};  // in bf16 it is a recipe
inline constexpr FaultSpec kIgnoredRowReachesWeight{
    "ignored_row_reaches_weight", "an ignored row's gradient is 0, and multiplied with its hidden state", "nonfinite"};

inline constexpr FaultSpec kWeightChunksRounded{
    "weight_chunks_rounded", "the weight's gradient is summed in bf16, four rows at a time", "accuracy", "", "",
    recipe::kSumsByChunk};

/// Faults that every operator over such logits can have.
inline constexpr std::array kLinearFaults{faults::kLastKDropped, faults::kLastKTileDropped, faults::kTf32Factors,
                                          kLogitsRounded, kBiasLeftOut};
inline constexpr auto kLinearGradientFaults =
    joined(kLinearFaults, std::array{kDlogitsRounded, kIgnoredRowReachesWeight});

struct LinearProblem {
  Matrix hidden;
  std::shared_ptr<const Matrix> weight;
  Matrix logits;
  std::vector<float> bias;  ///< empty where absent
};

/// hidden weight^T. Emulations that compute it alike share it.
inline Matrix shared_logits(const EmulationArgs& args, const LinearProblem& p) {
  struct Product {
    Matrix hidden, logits;
  };
  const auto made = [&] { return product(args, {p.hidden}, {*p.weight, true}); };
  if (args.kept == nullptr || !args.arithmetic.has_plain_products()) return made();
  std::any& kept = (*args.kept)["logits " + to_string(args.arithmetic.plan())];
  if (!kept.has_value() || std::any_cast<const Product&>(kept).hidden.values != p.hidden.values)
    kept = Product{p.hidden, made()};
  return std::any_cast<const Product&>(kept).logits;
}

/// Loads hidden (input 0) with zeros in rows where skipped(row), and weight (input 1), then computes the logits.
/// `bias`: the index of its input.
template <class Skipped>
LinearProblem load_linear(const EmulationArgs& args, int bias, const Skipped& skipped) {
  const Arithmetic& a = args.arithmetic;
  LinearProblem p{factor(args, 0), shared_factor(args, 1), {}, {}};
  for (int64_t r = 0; r < p.hidden.rows(); ++r)
    if (skipped(r)) std::fill_n(p.hidden.row(r), p.hidden.columns, 0.0F);
  p.logits = shared_logits(args, p);
  if (args.has(bias) && !a.has(kBiasLeftOut.name)) p.bias = args.floats(bias);
  const bool rounded = a.has(kLogitsRounded.name), rounds_product = !p.bias.empty() && a.rounds(recipe::kProduct);
  const bool rounds = rounds_product || a.rounds(recipe::kLogits);
  for (size_t i = 0; i < p.logits.values.size(); ++i) {
    float& x = p.logits.values[i];
    if (!p.bias.empty()) x = a.rounded_if(rounds_product, x) + p.bias[i % p.bias.size()];
    x = rounded ? Arithmetic::to_bf16(x) : a.rounded_if(rounds, x);
  }
  return p;
}

/// The gradient of a logit as it is multiplied.
inline float as_factor(const Arithmetic& a, float dx) {
  return a.has(kDlogitsRounded.name) ? Arithmetic::to_bf16(dx) : a.rounded_if(a.rounds(recipe::kDz), dx);
}

/// The sums of dx^T y over chunks of rows, in a kernel that rounds the part of each chunk and the running sum.
template <class OfPart, class OfSum>
std::vector<double> sums_by_chunk(const EmulationArgs& args, const Matrix& dx, const Matrix& y, int64_t chunk_rows,
                                  const OfPart& of_part, const OfSum& of_sum) {
  std::vector<double> sums(static_cast<size_t>(dx.columns * y.columns));
  for (int64_t first = 0; first < dx.rows(); first += chunk_rows) {
    const int64_t end = std::min(first + chunk_rows, dx.rows());
    const Matrix chunk = rows_of(dx, first, end), other = rows_of(y, first, end),
                 part = product(args, {chunk, true}, {other});
    for (size_t i = 0; i < sums.size(); ++i) sums[i] = of_sum(static_cast<float>(sums[i]) + of_part(part.values[i]));
  }
  return sums;
}

/// Stores the gradient of hidden in output 0, computed from `own` in place of dx; the gradient of the weight in output
/// 1; and with `has_bias` the gradient of the bias in output 2. `chunk_rows`: of sums_by_chunk_in_16_bit; 0: the pass
/// has no such recipe, or carried sums.
inline void store_linear_gradients(const EmulationArgs& args, const LinearProblem& p, const Matrix& own,
                                   const Matrix& dx, bool has_bias, int64_t chunk_rows = 0) {
  const Arithmetic& a = args.arithmetic;
  store(product(args, {own}, {*p.weight}), args.out(0));
  if (args.out(1).empty() && args.out(2).empty()) return;
  const Matrix y = a.has(kIgnoredRowReachesWeight.name) ? factor(args, 0) : p.hidden;
  if (chunk_rows > 0 && a.rounds(recipe::kSumsByChunk)) {
    const auto rounded = [&](float x) { return a.rounded_if(true, x); };
    args.out(1) = sums_by_chunk(args, dx, y, chunk_rows, rounded, rounded);
    const Matrix ones{std::vector<float>(static_cast<size_t>(dx.rows()), 1.0F), 1};
    if (has_bias) args.out(2) = sums_by_chunk(args, dx, ones, chunk_rows, rounded, rounded);
    return;
  }
  constexpr int64_t kFewRows = 4;
  if (a.has(kWeightChunksRounded.name)) {
    args.out(1) = sums_by_chunk(
        args, dx, y, kFewRows, [](float x) { return x; }, Arithmetic::to_bf16);
  } else {
    store(product(args, {dx, true}, {y}), args.out(1));
  }
  for (int64_t v = 0; has_bias && v < dx.columns; ++v)
    args.out(2)[static_cast<size_t>(v)] = a.sum(dx.rows(), [&](int64_t r) { return dx.row(r)[v]; });
}

}  // namespace checkop::emulation
