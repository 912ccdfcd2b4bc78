// SPDX-License-Identifier: Apache-2.0
// Code shared by several emulations: matrices, products, softmax rows.
#pragma once

#include <algorithm>
#include <any>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "operator/emulation.hpp"

namespace checkop::emulation {

/// A row-major matrix of floats.
struct Matrix {
  std::vector<float> values;
  int64_t columns = 1;

  static Matrix zeros(int64_t rows, int64_t columns) {
    return {std::vector<float>(static_cast<size_t>(rows * columns)), columns};
  }
  int64_t rows() const { return static_cast<int64_t>(values.size()) / std::max<int64_t>(columns, 1); }
  float* row(int64_t r) { return values.data() + r * columns; }
  const float* row(int64_t r) const { return values.data() + r * columns; }
};

/// Input `index` as a matrix; all leading extents form the rows.
inline Matrix matrix(const EmulationArgs& args, int index) { return {args.floats(index), args.in(index).shape.back()}; }
/// The same as an operand of products.
inline Matrix factor(const EmulationArgs& args, int index) {
  return {args.arithmetic.factors(args.floats(index)), args.in(index).shape.back()};
}

/// factor() of a large input: emulations that don't round it share one.
inline std::shared_ptr<const Matrix> shared_factor(const EmulationArgs& args, int index) {
  const auto made = [&] { return std::make_shared<const Matrix>(factor(args, index)); };
  if (args.kept == nullptr || args.arithmetic.rounds_factors()) return made();
  std::any& kept = (*args.kept)["factor " + std::to_string(index)];
  if (!kept.has_value()) kept = made();
  return std::any_cast<std::shared_ptr<const Matrix>>(kept);
}

/// A matrix, used as stored or transposed.
struct Operand {
  const Matrix& m;
  bool transposed = false;
  int64_t rows() const { return transposed ? m.columns : m.rows(); }
  int64_t columns() const { return transposed ? m.rows() : m.columns; }
};

/// x y; each element is one dot product.
Matrix product(const EmulationArgs& args, Operand x, Operand y);

/// x after it was stored in `dtype`, with one rounding.
inline float stored_as(DType dtype, float x) {
  double value = x;
  std::byte bytes[sizeof(double)];
  info(dtype).encode(&value, bytes, 1);
  info(dtype).decode(bytes, &value, 1);
  return static_cast<float>(value);
}

inline void store(const Matrix& m, std::vector<double>& to) { to.assign(m.values.begin(), m.values.end()); }

/// The softmax of a row, represented by its maximum and its sum of exponentials.
struct SoftmaxRow {
  float max = 0, sum = 0;
  float logp(float z) const { return z - max - std::log(sum); }
};
/// Reduces n logits. Implements the faults below up to kTileOfInfinities.
SoftmaxRow softmax_row(const Arithmetic& arithmetic, const float* z, int64_t n);

inline constexpr FaultSpec kPaddedColumnCounted{"padded_column_counted",
                                                "columns of padding, which hold 0, count in the sum of exponentials"};
inline constexpr FaultSpec kSumNotRescaled{"sum_not_rescaled",
                                           "the running sum is not rescaled when the maximum grows"};
inline constexpr FaultSpec kMaximumNotSubtracted{
    "maximum_not_subtracted", "exponentials are taken of the logits themselves", "nonfinite", "", "", "", "extreme"};
inline constexpr FaultSpec kMaximumOfFirstTile{"maximum_of_first_tile",
                                               "the maximum of the first tile is taken for that of the row",
                                               "nonfinite",
                                               "",
                                               "",
                                               "",
                                               "extreme"};
inline constexpr FaultSpec kTileOfInfinities{
    "tile_of_infinities",
    "a first tile that is all -inf makes NaN of the row: -inf is subtracted from -inf",
    "nonfinite",
    "",
    "",
    "",
    "extreme"};
inline constexpr FaultSpec kWrongLabel{"wrong_label", "the id is one too large"};
inline constexpr FaultSpec kSoftmaxTermDropped{"softmax_term_dropped",
                                               "the softmax term is missing: only the target's gradient is nonzero"};
inline constexpr FaultSpec kSoftmaxSignFlipped{"softmax_sign_flipped",
                                               "the softmax term of the gradient has the wrong sign"};

// Faults of losses over tokens, as rare as a fault of one thread in a thousand.
inline constexpr FaultSpec kTokenLost{"token_lost", "one token in a thousand is left out of the mean"};
inline constexpr FaultSpec kTokenAdvantage{"token_advantage",
                                           "one token in a thousand has the advantage of another sequence"};
/// Whether token i has the fault `fault`, which is one of these.
inline bool is_rare_token(const Arithmetic& arithmetic, const FaultSpec& fault, int64_t i) {
  return i % 1000 == 999 && arithmetic.has(fault.name);
}

inline constexpr FaultSpec kBiasLeftOut{"bias_left_out", "the bias is not added", "accuracy", "", "bias"};

/// Stores the gradient of a row's log-probability, times g, in to[0 ... n): g*(1[v = id] - softmax(z)_v). Implements
/// the faults of the softmax term.
void logp_gradient_row(const Arithmetic& arithmetic, const SoftmaxRow& row, const float* z, int64_t n, int64_t id,
                       float g, double* to);
inline void logp_gradient_row(const Arithmetic& arithmetic, const float* z, int64_t n, int64_t id, float g,
                              double* to) {
  logp_gradient_row(arithmetic, softmax_row(arithmetic, z, n), z, n, id, g, to);
}

/// Faults of every softmax_row().
inline constexpr std::array kSoftmaxFaults{faults::kLastTileSkipped, faults::kBf16Accumulator, faults::kBf16Partials,
                                           faults::kPartialLost,     faults::kBf16Exponential, kPaddedColumnCounted,
                                           kSumNotRescaled,          kMaximumNotSubtracted,    kMaximumOfFirstTile};

/// `id`, or with the fault kWrongLabel the next id.
inline int64_t label(const Arithmetic& arithmetic, int64_t id, int64_t vocab) {
  return arithmetic.has(kWrongLabel.name) ? (id + 1) % vocab : id;
}

/// The two lists of faults as one.
template <size_t n, size_t m>
constexpr std::array<FaultSpec, n + m> joined(const std::array<FaultSpec, n>& a, const std::array<FaultSpec, m>& b) {
  std::array<FaultSpec, n + m> all{};
  std::copy(a.begin(), a.end(), all.begin());
  std::copy(b.begin(), b.end(), all.begin() + n);
  return all;
}

}  // namespace checkop::emulation
