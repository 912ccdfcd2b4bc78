// SPDX-License-Identifier: Apache-2.0
// Helpers for tests: gates in one line, and the comparison of a matrix under them.
#pragma once

#include <vector>

#include "judge/compare.hpp"

namespace checkop::compare_test {

inline Gate gate(Metric metric, double limit = 1) {
  Gate gate;
  gate.metric = metric;
  gate.limit = limit;
  gate.source = "test";
  return gate;
}

inline Gate bound_gate(double limit = 1) {
  Gate bound = gate(Metric::bound_ratio, limit);
  bound.max_chain = 1024;
  return bound;
}

inline Gate tolerance(double atol, double rtol) {
  Gate tolerance = gate(Metric::atol_rtol);
  tolerance.atol = atol;
  tolerance.rtol = rtol;
  return tolerance;
}

struct Matrix {
  int64_t rows, columns;
  std::vector<double> got, gold;
  double magnitude = 1, rounding = 1;  ///< of every element
  std::vector<double> reference = {};  ///< empty: none

  /// A matrix of zeros.
  Matrix(int64_t rows, int64_t columns)
      : rows(rows), columns(columns), got(static_cast<size_t>(rows * columns)), gold(got) {}
};

/// Hands over the rows last to first, so that no test can rely on their order.
inline Comparison compare(DType dtype, const Matrix& m, std::vector<Gate> gates,
                          TokenQuantity tokens = TokenQuantity::none) {
  Tensor tensor("y", dtype, {m.rows, m.columns});
  for (size_t i = 0; i < m.got.size(); ++i) tensor.set(static_cast<int64_t>(i), m.got[i]);
  OutputComparison comparison(dtype, tensor.bytes.data(), {m.rows, m.columns}, {std::move(gates), false, "test"}, 1, {},
                              tokens);
  const std::vector<double> magnitude(static_cast<size_t>(m.columns), m.magnitude);
  const std::vector<double> rounding(static_cast<size_t>(m.columns), m.rounding);
  for (int64_t r = m.rows; r-- > 0;) {
    const auto at = static_cast<size_t>(r * m.columns);
    comparison.add({0, r, 1, m.columns, &m.gold[at], magnitude.data(), rounding.data(), nullptr, nullptr,
                    m.reference.empty() ? nullptr : &m.reference[at]});
  }
  return comparison.finish();
}

}  // namespace checkop::compare_test
