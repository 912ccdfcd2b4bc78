// SPDX-License-Identifier: Apache-2.0
// Could the data show a change? The share of stored elements whose bits change when sums are added in another order.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "case/case.hpp"

namespace checkop {

/// A violation must stay unseen with less than this probability.
inline constexpr double kUnseenLimit = 1e-9;

/// What one output of a case can show.
struct Sensitivity {
  enum class State : uint8_t {
    measured,
    not_applicable,  ///< no sum of three terms or more stands behind the output, or it is no output of rows: nothing to
                     ///< reorder, or nothing to compare row by row
    not_measured,    ///< `why` says why not
  };
  State state = State::not_measured;
  std::string why;
  int64_t elements = 0, changed = 0;  ///< emulated, and changed by the order that changes the fewest
  /// Elements of the case that contexts of rows compared, each counted once, of the axis that compared the fewest.
  int64_t compared = 0;

  /// Share q of elements that change: two standard deviations of `changed` below what was seen, at least 0.
  double share() const;
  /// (1 - q)^compared: the probability that a changed order shows in none of the compared elements.
  double unseen() const;
  bool proves() const { return state == State::measured && unseen() < kUnseenLimit; }
};

/// Multiply-adds of an emulation, about: of a case by itself.
inline constexpr double kQuickWork = 1e5, kThoroughWork = 3e8;

/// For every output of `c`. The pass is emulated in fp32 on rows of the same distribution, in three orders: from the
/// first term to the last, against that reversed and split in two halves. Of cases with too much work, or data, only
/// some rows are taken, and where a single row is too much its longest dimensions are halved: shorter sums change less
/// often, so the share is not overstated. fp64 is emulated as fp32, a format's own arithmetic stored in it.
std::vector<Sensitivity> sensitivity_of(const Case& c, unsigned threads, double work = kQuickWork);

/// The same of `inputs` that nobody generated: of rows spread evenly over them, none of them cut short.
std::vector<Sensitivity> sensitivity_of(const Case& c, const std::vector<Tensor>& inputs, unsigned threads,
                                        double work = kQuickWork);

/// Likewise, with more work where less does not show enough and the case may have elements enough for a proof.
std::vector<Sensitivity> own_sensitivity_of(const Case& c, unsigned threads);

/// The case whose launches can prove the most about outputs of `cases`, all of one pass and dtype, and what it can
/// show.
struct Proof {
  Case c;            ///< one of the cases, with more rows where it needs them, with wide exponents where rows do not do
  size_t index = 0;  ///< which
  std::vector<Sensitivity> sensitivity;
};

/// Chosen by a model, then measured, with more work where less does not do. Where the elements of all rows but the
/// first do not bring unseen() below its limit, rows are added while memory and time of a CPU or of a GPU permit, then
/// exponents spread, then both. Row r of a case has the same data in any number of rows. Where nothing does, the best
/// that was found.
Proof find_proof(std::span<const Case* const> cases, unsigned threads, bool on_gpu = false);

/// Elements of an output that the rows of `c`, without the first, hold.
int64_t elements_of_rows(const Case& c, const TensorSpec& output);

}  // namespace checkop
