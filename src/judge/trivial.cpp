// SPDX-License-Identifier: Apache-2.0
// Tests each trivial answer element by element until it was rejected.
#include "judge/trivial.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "judge/bound.hpp"

namespace checkop {
namespace {

uint64_t stored_bits(DType dtype, double x) {
  std::array<std::byte, 8> stored{};
  info(dtype).encode(&x, stored.data(), 1);
  return load_bits(dtype, stored.data(), 0);
}

size_t largest_of(const double* row, int64_t n) {
  const auto smaller = [](double a, double b) { return std::abs(a) < std::abs(b); };
  return static_cast<size_t>(std::max_element(row, row + n, smaller) - row);
}

}  // namespace

std::string_view to_string(Trivial answer) {
  switch (answer) {
    case Trivial::zeros:
      return "zeros";
    case Trivial::constant:
      return "constant";
    case Trivial::next_row:
      return "next_row";
    case Trivial::largest_alone:
      return "largest_alone";
  }
  return "?";
}

std::string_view describe(Trivial answer) {
  switch (answer) {
    case Trivial::zeros:
      return "all zeros";
    case Trivial::constant:
      return "one constant everywhere";
    case Trivial::next_row:
      return "the result of the next row in every row";
    case Trivial::largest_alone:
      return "only the largest element of every row";
  }
  return "?";
}

TrivialAnswers::TrivialAnswers(DType dtype, const std::byte* got, MatrixView view,
                               const std::vector<PreparedGate>& gates)
    : dtype_(dtype),
      got_(got),
      view_(view),
      gates_(gates),
      least_(kInfinity),
      most_(-kInfinity),
      from_(-kInfinity),
      to_(kInfinity) {}

bool TrivialAnswers::rejects(double answer, const Gold& gold) const {
  return std::any_of(gates_.begin(), gates_.end(), [&](const PreparedGate& gate) {
    if (gate.gate.metric == Metric::bits) return stored_bits(dtype_, answer) != stored_bits(dtype_, gold.value);
    if (gate.gate.metric != Metric::ulp)
      return !(std::abs(answer - gold.value) <= gate.allowed(gold.value, gold.magnitude, gold.rounding, gold.spread));
    const auto distance = ulp_distance(dtype_, stored_bits(dtype_, answer), stored_bits(dtype_, gold.value));
    return !distance || !(static_cast<double>(*distance) <= gate.gate.limit);
  });
}

void TrivialAnswers::look(int64_t row, const GoldRow& gold) {
  const int64_t n = view_.columns;
  const double* value = gold.value;
  State &zeros = state(Trivial::zeros), &largest_alone = state(Trivial::largest_alone);
  if (!zeros.settled() || !largest_alone.settled()) {
    const size_t largest = n > 1 ? largest_of(value, n) : 0;
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
      if (value[i] == 0) continue;
      const bool is_rejected = rejects(0, {gold, i});
      zeros.wrong = true;
      if (is_rejected) zeros.rejected = true;
      if (n > 1 && i != largest) {
        largest_alone.wrong = true;
        if (is_rejected) largest_alone.rejected = true;
      }
      if (zeros.settled() && (n == 1 || largest_alone.settled())) break;
    }
  }
  if (!state(Trivial::constant).settled()) look_for_constant(gold);
  if (!state(Trivial::next_row).settled() && view_.rows > 1) look_at_next(row, gold);
}

void TrivialAnswers::look_for_constant(const GoldRow& gold) {
  const int64_t n = view_.columns;
  const double* value = gold.value;
  double least = kInfinity, most = -kInfinity, from = -kInfinity, to = kInfinity;
  bool nonfinite = false;
  for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
    if (!std::isfinite(value[i])) {
      nonfinite = true;
      continue;
    }
    least = std::min(least, value[i]), most = std::max(most, value[i]);
    for (const PreparedGate& gate : gates_) {
      const double allowed = gate.allowed(value[i], gold.magnitude[i], gold.rounding[i], gold.spread[i]);
      if (allowed < 0) continue;  // bits and ulp are judged by the range of the gold
      from = std::max(from, value[i] - allowed), to = std::min(to, value[i] + allowed);
    }
  }
  const std::lock_guard lock(mutex_);
  least_ = std::min(least_, least), most_ = std::max(most_, most);
  from_ = std::max(from_, from), to_ = std::min(to_, to);
  finite_ |= least <= most, nonfinite_ |= nonfinite;
  State& constant = state(Trivial::constant);
  constant.wrong = least_ < most_ || (finite_ && nonfinite_);
  bool is_rejected = (finite_ && nonfinite_) || from_ > to_;
  for (const PreparedGate& gate : gates_) {
    if (!constant.wrong || !finite_) break;
    const uint64_t a = stored_bits(dtype_, least_), b = stored_bits(dtype_, most_);
    if (gate.gate.metric == Metric::bits) is_rejected |= a != b;
    if (gate.gate.metric != Metric::ulp) continue;
    const auto distance = ulp_distance(dtype_, a, b);
    is_rejected |= !distance || !(static_cast<double>(*distance) <= 2 * gate.gate.limit);
  }
  constant.rejected = is_rejected;
}

void TrivialAnswers::look_at_next(int64_t row, const GoldRow& gold) {
  const DTypeInfo& type = info(dtype_);
  const auto n = static_cast<size_t>(view_.columns);
  static thread_local std::vector<double> own, answer;
  const auto decode = [&](int64_t r, std::vector<double>& to) {
    to.resize(n);
    type.decode(got_ + static_cast<size_t>(r) * n * type.bytes, to.data(), n);
  };
  decode(row, own), decode((row + 1) % view_.rows, answer);
  if (own == answer) return;  // compared as numbers, so that -0 equals 0
  State& next_row = state(Trivial::next_row);
  next_row.wrong = true;
  for (size_t i = 0; i < n && !next_row.rejected; ++i) {
    if (rejects(answer[i], {gold, i})) next_row.rejected = true;
  }
}

Tensor trivial_tensor(Trivial answer, const Tensor& right, MatrixView view) {
  const auto n = static_cast<size_t>(right.count());
  std::vector<double> values(n);
  const DTypeInfo& type = info(right.dtype);
  type.decode(right.bytes.data(), values.data(), n);
  switch (answer) {
    case Trivial::zeros:
      std::fill(values.begin(), values.end(), 0.0);
      break;
    case Trivial::constant: {
      double sum = 0, finite = 0;
      for (const double x : values) {
        if (std::isfinite(x)) sum += x, finite += 1;
      }
      std::fill(values.begin(), values.end(), sum / std::max(finite, 1.0));
      break;
    }
    case Trivial::next_row:
      if (view.rows > 1) std::rotate(values.begin(), values.begin() + view.columns, values.end());
      break;
    case Trivial::largest_alone:
      for (size_t at = 0; view.columns > 1 && at < n; at += static_cast<size_t>(view.columns)) {
        double* row = &values[at];
        const size_t largest = largest_of(row, view.columns);
        for (size_t i = 0; i < static_cast<size_t>(view.columns); ++i) row[i] = i == largest ? row[i] : 0;
      }
      break;
  }
  Tensor tensor(right.name, right.dtype, right.shape);
  type.encode(values.data(), tensor.bytes.data(), n);
  return tensor;
}

}  // namespace checkop
