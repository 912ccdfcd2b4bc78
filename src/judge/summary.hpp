// SPDX-License-Identifier: Apache-2.0
// Errors of an output together: sums over rows and blocks, and what they say.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "judge/bound.hpp"
#include "operator/operator.hpp"

namespace checkop {

/// Sums over the finite elements of a row. Totals are taken in row order, whatever the order in which rows arrive.
struct RowSums {
  double abs_error = 0, squared_error = 0, squared_gold = 0;
  double squared_ratio = 0;                           ///< of errors over their bounds; only for bound_rms
  double squared_got = 0;                             ///< of the candidate's elements; only for cosine
  double largest_error = 0, largest_of_baseline = 0;  ///< only for max_vs_baseline
  double squared_rounding = 0;                        ///< of the gold stored once; only for vs_baseline
  double leaning = 0, may_lean = 0;                   ///< S and A of bias_statistic(); only for bias_t
  int64_t finite = 0;
  bool seen = false;

  void add(double gold, double error) {
    abs_error += error;
    squared_error += error * error;
    squared_gold += gold * gold;
    ++finite;
  }
  RowSums& operator+=(const RowSums& other);
};

/// What a metric of the whole output says of the candidate.
struct Achieved {
  double value = 0;
  int64_t out_of_bound = 0;  ///< blocks or tokens beyond the limit, where the metric has some
};

/// |error|_2 / |gold|_2; infinite for a gold of zeros that is missed. Such errors are what element-wise gates leave
/// open: each within its own tolerance, all of them large. Under bound_ratio with limit 1 a 16-bit output's is at most
/// u_out + |E|_2/|y|_2, so this gate is for contracts whose elements have more room.
Achieved rel_l2(const RowSums& total);

/// |c - y|^2/(|c|^2 + |y|^2): what DeepGEMM's tests call calc_diff. Single rows and small elements do not show in it.
Achieved cosine(const RowSums& total);

/// The largest error over that of a baseline which is right but for its precision. Elements below the largest do not
/// show in it.
Achieved max_vs_baseline(const RowSums& total);

/// rms(error) / rms(r(y) - y), r(y) the gold rounded once to the output's dtype: how much worse than storing the exact
/// result. Rounding c = r(y + e) gives |c - y| <= |r(y) - y| + 2|e|, since c is the nearest number to y + e; so a
/// candidate whose computation errs by e has at most 1 + 2*rms(e)/rms(r(y) - y), whatever the data, and one that rounds
/// twice, truncates or carries 16 bits has more. 0 where there is no error; infinite where the gold can be stored and
/// was missed. After the tests of FlashAttention, which compare with the maximum error of another kernel (Dao, 2022).
Achieved vs_baseline(const RowSums& total);

/// rms of |c - y|/B over all elements. Under lambda = 6 a bound is six standard deviations of a sum of independent
/// roundings, so right candidates have an rms of a sixth or less: their worst element is near the bound once in 1e8.
/// One whose arithmetic is coarser has all of its errors there, each within its bound. For outputs in the precision of
/// the arithmetic: of 16-bit outputs the rounding to them fills the bound, evenly, with an rms of 0.58.
Achieved bound_rms(const RowSums& total);

/// How far the errors of a candidate lean to one side: truncation in place of rounding, a factor a little off one.
/// Of an element with value y, computation error bound E, half an ulp h of the output and bound B = E + h:
///   z = sign(y)*(c - r(y))/B      where E >= h, or where |c - y| > B; else 0
///   a = (bias + one_sided*growth)*magnitude/B + u*rounding/B      where E >= h; else 0
/// r(y) is subtracted, not y: what the gold loses by being stored is known and no news about the candidate. Where E is
/// below h, an element within its bound got one of the two numbers that are right and says nothing; so equal inputs,
/// whose errors are one error many times, can't add up. `a` is what may lean: functions of a library, tensor cores that
/// truncate, and of the roundings of a sum the share that the contract grants (equal terms round to the same side).
/// With S and A the sums of z and a over a row:
///   t = max(0, |sum S| - sum A) / sqrt(sum (|S| + A)^2)
/// Derivation: S = b + X with |b| <= A and X symmetric about 0, rows independent. Then |sum S| - sum A <= |sum X| and
/// X^2 <= (|S| + A)^2, and given the |X| their signs are fair coins, so P(t > x) <= 2*exp(-x^2/2) (Hoeffding): 5e-11 at
/// x = 7, whatever the distribution and the correlation within a row. Rows that are the same count once; t is at most
/// the root of the number of rows, so fewer than 49 can't reach 7.
/// Source: Efron, "Student's t-test under symmetry conditions", JASA 64 (1969).
Achieved bias_statistic(std::span<const RowSums> rows);

struct Leaning {
  double leaning, may_lean;  ///< z and a of bias_statistic()
};
/// Of one finite element: `y` the gold, `stored` the gold rounded once, `c` the candidate's value.
Leaning leaning_of(const PreparedGate& gate, double one_sided, double y, double stored, double c, double magnitude,
                   double rounding);

/// Squared errors and golds by block of rows x columns, from rows in any order: those of a block are kept until all
/// have come and are added in row order.
class BlockSums {
 public:
  /// `wanted` are the rows that will come.
  BlockSums(int64_t rows, int64_t columns, MatrixView view, const RowSet& wanted);

  int64_t width() const { return columns_; }
  size_t blocks_per_row() const { return per_row_; }
  /// `sums` has a RowSums for each of the blocks that the row crosses. Any thread; each row once.
  void add(int64_t row, std::span<const RowSums> sums);
  /// The largest rel_l2 of a block; a block whose gold is all zero must be met exactly.
  Achieved worst(double limit) const;

 private:
  struct Strip {
    std::map<int64_t, std::vector<RowSums>> pending;  ///< by row, so that they are added in order
    int64_t missing = 0;
    std::vector<RowSums> total;
  };
  int64_t rows_, columns_;
  size_t per_row_;
  std::vector<Strip> strips_;  ///< under mutex_
  std::mutex mutex_;
};

}  // namespace checkop
