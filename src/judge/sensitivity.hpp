// SPDX-License-Identifier: Apache-2.0
// Could the data show a change in the order of addition? The share of stored elements whose bits such a change affects.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "case/case.hpp"

namespace checkop {

/// The largest accepted probability that a violation stays unseen.
inline constexpr double kUnseenLimit = 1e-9;

/// Whether one output of a case can show a changed order of addition.
struct Sensitivity {
  enum class State : uint8_t {
    measured,
    not_applicable,  ///< the output has no sums of three terms or more, so nothing can be reordered; or it has no
                     ///< rows to compare
    not_measured,    ///< for the reason in `why`
  };
  State state = State::not_measured;
  std::string why;
  int64_t elements = 0, changed = 0;  ///< emulated elements, and how many the least effective reordering changed
  /// Distinct elements of the case that contexts of rows compared, on the axis that compared the fewest.
  int64_t compared = 0;

  /// Share q of elements that change: (changed - 2*sqrt(changed)) / elements, two standard deviations on the safe side.
  double share() const;
  /// (1 - q)^compared: the probability that a changed order changes none of the compared elements.
  double unseen() const;
  bool proves() const { return state == State::measured && unseen() < kUnseenLimit; }
};

/// Approximate multiply-adds of an emulation of one case.
inline constexpr double kQuickWork = 1e5, kThoroughWork = 3e8;

/// The sensitivity of every output of `c`. Emulates the pass in fp32 on rows of the same distribution, in three orders:
/// first to last term, compared with last to first and with two halves. If the case has too much work or data, only
/// some rows are emulated. If even one row is too much, its longest dimensions are halved; shorter sums change less
/// often, so the share is not overstated. fp64 is emulated as fp32: a format whose arithmetic is as precise as its
/// storage.
std::vector<Sensitivity> sensitivity_of(const Case& c, unsigned threads, double work = kQuickWork);

/// The same for given `inputs`: uses rows spread evenly over them and does not shorten rows.
std::vector<Sensitivity> sensitivity_of(const Case& c, const std::vector<Tensor>& inputs, unsigned threads,
                                        double work = kQuickWork);

/// sensitivity_of() that retries with more work, if the first result proves too little and the case has many elements.
std::vector<Sensitivity> own_sensitivity_of(const Case& c, unsigned threads);

/// The case whose launches prove the most about the outputs of `cases`, and its sensitivity. The cases share one pass
/// and dtype.
struct Proof {
  Case c;            ///< one of the cases, if needed with more rows, and with wide exponents if rows are not enough
  size_t index = 0;  ///< of the case in `cases`
  std::vector<Sensitivity> sensitivity;
};

/// Chooses a case by an estimate, then measures its sensitivity, with more work if less does not prove enough. If all
/// rows but the first are too few to bring unseen() below its limit, it adds rows as far as the memory and time of a
/// CPU or GPU permit, then spreads exponents, then does both. Row r of a case has the same data for any number of rows.
/// Returns the best case found, even if it proves too little.
Proof find_proof(std::span<const Case* const> cases, unsigned threads, bool on_gpu = false);

/// Elements of an output in all rows of `c` but the first.
int64_t elements_of_rows(const Case& c, const TensorSpec& output);

}  // namespace checkop
