// SPDX-License-Identifier: Apache-2.0
// Trivial answers, which need no computation. A comparison that such an answer would pass proves nothing.
#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <string_view>
#include <vector>

#include "judge/bound.hpp"

namespace checkop {

enum class Trivial : uint8_t {
  zeros,          ///< 0 everywhere
  constant,       ///< the same number everywhere, whichever fits best
  next_row,       ///< every row holds the result of the next row, the last row that of the first
  largest_alone,  ///< the largest element of every row, else 0: a gradient that lost its softmax term
};
inline constexpr std::array kTrivialAnswers{Trivial::zeros, Trivial::constant, Trivial::next_row,
                                            Trivial::largest_alone};
std::string_view to_string(Trivial answer);  ///< "zeros", "constant", "next_row", "largest_alone"
std::string_view describe(Trivial answer);   ///< "all zeros"

/// Judges the trivial answers to one output by the element-wise gates. For next_row, the results of other rows are
/// taken from the candidate: they equal the gold within its bounds if the candidate passes, and matter only then.
class TrivialAnswers {
 public:
  /// `got` are the candidate's stored elements; `gates` must outlive this object.
  TrivialAnswers(DType dtype, const std::byte* got, MatrixView view, const std::vector<PreparedGate>& gates);

  /// Takes a gold row. Rows may come in any order from any thread. Nearly free once every answer was rejected.
  void look(int64_t row, const GoldRow& gold);

  /// Whether the answer differs from the gold. With a single row or element, next_row or constant equals the gold. So
  /// does next_row if the gold is all zeros, whatever small numbers the candidate computed.
  bool is_wrong(Trivial answer) const {
    return state(answer).wrong && (answer != Trivial::next_row || state(Trivial::zeros).wrong);
  }
  /// Whether some gate rejects the answer for some element.
  bool is_rejected(Trivial answer) const { return state(answer).rejected; }

 private:
  struct State {
    std::atomic<bool> wrong{false}, rejected{false};
    bool settled() const { return wrong && rejected; }
  };
  /// One element of the gold.
  struct Gold {
    double value, magnitude, rounding, spread;
    Gold(const GoldRow& row, size_t i)
        : value(row.value[i]), magnitude(row.magnitude[i]), rounding(row.rounding[i]), spread(row.spread[i]) {}
  };
  const State& state(Trivial answer) const { return states_[static_cast<size_t>(answer)]; }
  State& state(Trivial answer) { return states_[static_cast<size_t>(answer)]; }

  bool rejects(double answer, const Gold& gold) const;
  void look_for_constant(const GoldRow& gold);
  void look_at_next(int64_t row, const GoldRow& gold);

  DType dtype_;
  const std::byte* got_;
  MatrixView view_;
  const std::vector<PreparedGate>& gates_;
  std::array<State, kTrivialAnswers.size()> states_;
  std::mutex mutex_;
  // Over all elements seen, guarded by mutex_: the range of the gold, and of the constants within every bound.
  double least_, most_, from_, to_;
  bool finite_ = false, nonfinite_ = false;
};

/// The answer as a candidate would store it; `right` is the output of a candidate that passed.
Tensor trivial_tensor(Trivial answer, const Tensor& right, MatrixView view);

}  // namespace checkop
