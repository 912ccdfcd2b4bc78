// SPDX-License-Identifier: Apache-2.0
// Answers that need no computation: a comparison that they would pass tells nothing.
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
  constant,       ///< one number everywhere, whichever suits best
  next_row,       ///< every row holds the result of the next one, the last row that of the first
  largest_alone,  ///< of every row the largest element, else 0: a gradient that lost its softmax term
};
inline constexpr std::array kTrivialAnswers{Trivial::zeros, Trivial::constant, Trivial::next_row,
                                            Trivial::largest_alone};
std::string_view to_string(Trivial answer);  ///< "zeros", "constant", "next_row", "largest_alone"
std::string_view describe(Trivial answer);   ///< "all zeros"

/// What gates of single elements make of the trivial answers to one output. The results of other rows are taken from
/// the candidate: where it passes they are the gold's within their bounds, and where not nobody asks.
class TrivialAnswers {
 public:
  /// `got` are the candidate's stored elements; `gates` must outlive this.
  TrivialAnswers(DType dtype, const std::byte* got, MatrixView view, const std::vector<PreparedGate>& gates);

  /// Takes a gold row, in any order, from any thread. Costs next to nothing once every answer was rejected.
  void look(int64_t row, const double* value, const double* magnitude, const double* rounding);

  /// Whether the answer differs from the gold. One of the only row, or of the only element, does not: it is the gold.
  bool is_wrong(Trivial answer) const { return state(answer).wrong; }
  /// Whether some gate rejects it somewhere.
  bool is_rejected(Trivial answer) const { return state(answer).rejected; }

 private:
  struct State {
    std::atomic<bool> wrong{false}, rejected{false};
    bool settled() const { return wrong && rejected; }
  };
  /// An element of the gold.
  struct Gold {
    double value, magnitude, rounding;
  };
  const State& state(Trivial answer) const { return states_[static_cast<size_t>(answer)]; }
  State& state(Trivial answer) { return states_[static_cast<size_t>(answer)]; }

  bool rejects(double answer, const Gold& gold) const;
  void look_for_constant(int64_t n, const double* value, const double* magnitude, const double* rounding);
  void look_at_next(int64_t row, const double* value, const double* magnitude, const double* rounding);

  DType dtype_;
  const std::byte* got_;
  MatrixView view_;
  const std::vector<PreparedGate>& gates_;
  std::array<State, kTrivialAnswers.size()> states_;
  std::mutex mutex_;
  // Of all elements seen, under mutex_: the golds' range, and the constants within every bound.
  double least_, most_, from_, to_;
  bool finite_ = false, nonfinite_ = false;
};

/// The answer as a candidate would store it, where `right` is the result of one that passed.
Tensor trivial_tensor(Trivial answer, const Tensor& right, MatrixView view);

}  // namespace checkop
