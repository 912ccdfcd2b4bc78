// SPDX-License-Identifier: Apache-2.0
// Error statistics of a whole output: sums over rows and blocks, and the metrics computed from them.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "judge/bound.hpp"
#include "operator/operator.hpp"

namespace checkop {

/// Sums over the finite elements of a row. Totals are added in row order, whatever the order of arrival.
struct RowSums {
  double abs_error = 0, signed_error = 0, squared_error = 0, squared_gold = 0;
  double squared_ratio = 0;                           ///< of error over bound; only for bound_rms
  double squared_got = 0;                             ///< of the candidate's elements; only for cosine
  double largest_error = 0, largest_of_baseline = 0;  ///< only for max_vs_baseline
  double squared_rounding = 0;      ///< of the error of storing the gold; for vs_baseline and vs_reference
  double largest_rounding = 0;      ///< only for vs_reference, as the next two
  double squared_of_reference = 0;  ///< of the reference's error
  double largest_of_reference = 0;
  double bias = 0, allowed_bias = 0;  ///< S and A of bias_statistic(); only for bias_t
  double squared_noise = 0;  ///< of error over its standard deviation, over `noisy` elements; only for noise_rms
  int64_t finite = 0, noisy = 0, noisy_rows = 0;
  bool seen = false;

  void add(double gold, double error) {
    abs_error += error;
    squared_error += error * error;
    squared_gold += gold * gold;
    ++finite;
  }
  RowSums& operator+=(const RowSums& other);
};

/// The value of a whole-output metric.
struct Achieved {
  double value = 0;
  int64_t out_of_bound = 0;  ///< blocks or tokens beyond the limit, for metrics that count them
};

/// |error|_2 / |gold|_2; infinite if the gold is zero and the output is not. Finds what element-wise gates miss: errors
/// that are each within tolerance, but all large. Under bound_ratio with limit 1, rel_l2 of a 16-bit output is at most
/// u_out + |E|_2/|y|_2 anyway, so this gate is for contracts with wider element bounds.
Achieved rel_l2(const RowSums& total);

/// |c - y|^2/(|c|^2 + |y|^2), calc_diff in DeepGEMM's tests. Hardly depends on single rows or small elements.
Achieved cosine(const RowSums& total);

/// The largest error over the largest error of a baseline that errs only by its precision. Ignores all elements but
/// those with the largest errors.
Achieved max_vs_baseline(const RowSums& total);

/// rms(error) / rms(r(y) - y), where r(y) is the gold rounded once to the output's dtype: how much worse than storing
/// the exact result. Rounding c = r(y + e) gives |c - y| <= |r(y) - y| + 2|e|, since c is the number nearest to y + e.
/// So a candidate whose computation errs by e has at most 1 + 2*rms(e)/rms(r(y) - y), whatever the data; a candidate
/// that rounds twice, truncates or carries 16 bits has more. 0 without errors; infinite if the gold is representable
/// and the output differs. After the tests of FlashAttention, which compare with the maximum error of another kernel
/// (Dao, 2022).
Achieved vs_baseline(const RowSums& total);

/// The error over that of a reference in its own dtypes and half the error of storing the gold: the larger of the
/// quotients of root mean squares and of largest errors. With limit 2 a candidate may err twice as much as the
/// reference, and once more by rounding its output. For sums whose magnitudes are unknown: the reference's error shows
/// how large the rounding errors of these data are.
Achieved vs_reference(const RowSums& total);

/// rms of |c - y|/B over all elements. With lambda = 6, a bound is six standard deviations of a sum of independent
/// roundings, so right candidates have an rms of 1/6 or less: an element is near its bound once in 1e8. Coarser
/// arithmetic puts all errors near their bounds, without exceeding them. For outputs as precise as the arithmetic: in
/// 16-bit outputs the final rounding fills the bound evenly, with an rms of 0.58.
/// Rows with the same gold and errors count once, because equal inputs make one error, not many. If fewer than four
/// elements with errors remain, their rms says nothing, and the result is 0.
Achieved bound_rms(std::span<const RowSums> rows);

/// rms of the errors, divided by the standard deviation of unbiased roundings (PreparedGate::variance()), and divided
/// by the largest value that right candidates reach with so few independent errors:
///   sqrt(mean((c - y)^2/variance) / (1 + 2*sqrt(x/k) + 2*x/k)),  x = 25
/// `independent`: see Gates. k is the number of elements, or min(rows, independent) where the elements of a row, or
/// rows, share their errors, as dq does the rounding of o.
/// For k independent normal errors the mean square exceeds 1 + 2*sqrt(x/k) + 2*x/k with probability exp(-x), 1e-11. If
/// groups of elements err alike, of which none is larger than n/k, the same holds with k.
/// A right candidate has about 1 or less, because the bounds behind the variances are above the actual roundings. A
/// truncated result has up to 2. Finds errors that hide in a spread that is wide enough for single elements; see
/// GoldRows.
/// Source: Laurent and Massart, "Adaptive estimation of a quadratic functional by model selection", Annals of
/// Statistics 28 (2000), lemma 1.
Achieved noise_rms(const RowSums& total, int64_t independent);

/// How far a candidate's errors are biased to one side, as truncation or a factor slightly off 1 makes them.
/// For an element with value y, computation error bound E, half an ulp h of the output and bound B = E + h:
///   z = sign(y)*(c - r(y))/B      if E >= h or |c - y| > B; else 0
///   a = ((bias + one_sided*growth)*magnitude + u*rounding)/B      if E >= h; else 0
/// z uses r(y), not y, because the gold's own rounding error is known and says nothing about the candidate.
/// If E < h, an element within its bound is one of the two right numbers and says nothing. So equal inputs, which
/// repeat one error many times, can't add up.
/// `a` is the allowed bias: of library functions, of tensor cores that truncate, and the share of a sum's roundings
/// that the contract grants (equal terms round to the same side). With S and A the sums of z and a over a row:
///   t = max(0, |sum S| - sum A) / sqrt(sum (|S| + A)^2)
/// Derivation: let S = b + X with |b| <= A, X symmetric about 0 and rows independent. Then |sum S| - sum A <= |sum X|
/// and X^2 <= (|S| + A)^2. Given all |X|, their signs are fair coins, so P(t > x) <= 2*exp(-x^2/2) (Hoeffding). That is
/// 5e-11 at x = 7, whatever the distribution and the correlation within a row. Equal rows count once. t is at most the
/// square root of the number of rows, so fewer than 49 rows can't reach 7. If m rows each share their errors, the sum
/// of their S is squared, which is at most m times the sum of their squares: then t is divided by sqrt(m), where m is
/// the number of rows over `independent`, 1 or more; see Gates.
/// Source: Efron, "Student's t-test under symmetry conditions", JASA 64 (1969).
Achieved bias_statistic(std::span<const RowSums> rows, int64_t independent = 0);

struct ElementBias {
  double bias, allowed;  ///< z and a of bias_statistic()
};
/// For one finite element: `y` is the gold, `stored` the gold rounded once, `c` the candidate's value.
ElementBias bias_of(const PreparedGate& gate, double one_sided, double y, double stored, double c, double magnitude,
                    double rounding, double spread = 0);

/// Squared errors and golds by block of rows x columns. Rows may come in any order: the sums of a block are kept until
/// all its rows are there, then added in row order.
class BlockSums {
 public:
  /// add() will be called for the rows in `wanted`.
  BlockSums(int64_t rows, int64_t columns, MatrixView view, const RowSet& wanted);

  int64_t width() const { return columns_; }
  size_t blocks_per_row() const { return per_row_; }
  /// `sums` has one entry for each block that the row crosses. Thread-safe; call once per row.
  void add(int64_t row, std::span<const RowSums> sums);
  /// The largest rel_l2 of a block; a block whose gold is zero must be matched exactly.
  Achieved worst(double limit) const;

 private:
  struct Strip {
    std::map<int64_t, std::vector<RowSums>> pending;  ///< by row, so that rows are added in order
    int64_t missing = 0;
    std::vector<RowSums> total;
  };
  int64_t rows_, columns_;
  size_t per_row_;
  std::vector<Strip> strips_;  ///< guarded by mutex_
  std::mutex mutex_;
};

}  // namespace checkop
