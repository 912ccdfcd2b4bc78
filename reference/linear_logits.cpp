// SPDX-License-Identifier: Apache-2.0
// Computes chunks of logits, and the products of their gradients.
#include "linear_logits.hpp"

#include "left_out.hpp"
#include "softmax.hpp"

namespace checkop {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

double lost_by_tensor_cores(const Tensor& hidden) {
  constexpr int64_t kStep = 8;
  return info(hidden.dtype).bytes == 2 ? static_cast<double>(ceil_div(hidden.shape.back(), kStep)) / 2 : 0;
}

LinearLogits::LinearLogits(const GoldArgs& args, const LinearInputs& in, const RowSet& set)
    : args_(args),
      in_(in),
      set_(set),
      rows_(set.count(std::ssize(in.used))),
      hidden_(in.hidden.shape.back()),
      vocab_(in.weight.shape[0]),
      chunk_(std::min(kChunk, vocab_)),
      h_(size(std::max<int64_t>(rows_, 1), hidden_)),  // without rows, one row of zeros: it adds nothing to any sum
      h_square_(h_.size()),
      logits_(size(std::max<int64_t>(rows_, 1), chunk_)),
      magnitude_(logits_.size()),
      stepped_(args, in.transform),
      rounds_product_(in.bias != nullptr && args.recipes.has(recipe::kProduct)),
      rounds_logits_(rounds_product_ || args.recipes.has(recipe::kLogits)),
      rounds_dz_(args.recipes.has(recipe::kDz)),
      rounds_chunks_(args.recipes.has(recipe::kSumsByChunk)),
      slack_(rounds_logits_ ? logits_.size() : 0),
      lost_(in.lost > 0 ? logits_.size() : 0) {
  args_.parallel_for(rows_, [&](int64_t r) {
    if (left_out(r)) return;  // zeros replace the row's content, which may be NaN
    decode_block({&in_.hidden, std::ssize(in_.used), hidden_}, set_.at(r), 1, 0, hidden_, &h_[size(r, hidden_)],
                 &h_square_[size(r, hidden_)]);
  });
}

std::vector<EntropyRow> LinearLogits::entropies() {
  return of_rows<EntropyRow>([&] {
    std::vector<SoftmaxRow> softmax(size(rows_, 1));
    for_each_part(
        [&](int64_t r, int64_t, std::span<const TransformedLogit> part) { add_logits(softmax[size(r, 1)], part); });
    std::vector<EntropyRow> all(softmax.begin(), softmax.end());
    for_each_part([&](int64_t r, int64_t, std::span<const TransformedLogit> part) { all[size(r, 1)].add(part); });
    return all;
  });
}

int64_t LinearLogits::load_chunk(const RowSet& columns, int64_t begin) {
  const int64_t n = std::min(chunk_, columns.count(vocab_) - begin);
  w_.resize(size(n, hidden_)), w_square_.resize(w_.size());
  args_.parallel_for(n, [&](int64_t v) {
    decode_block({&in_.weight, vocab_, hidden_}, columns.at(begin + v), 1, 0, hidden_, &w_[size(v, hidden_)],
                 &w_square_[size(v, hidden_)]);
  });
  const int64_t column_tiles = ceil_div(n, kTileColumns);
  args_.parallel_for(ceil_div(rows_, kTileRows) * column_tiles, [&](int64_t task) {
    const int64_t r = task / column_tiles * kTileRows, v = task % column_tiles * kTileColumns;
    const int64_t m = std::min(kTileRows, rows_ - r), width = std::min(kTileColumns, n - v);
    const size_t h_at = size(r, hidden_), w_at = size(v, hidden_), out_at = size(r, chunk_) + size(v, 1);
    dense_product(false, true, m, width, hidden_, &h_[h_at], hidden_, &w_[w_at], hidden_, 0.0, &logits_[out_at],
                  chunk_);
    dense_product(false, true, m, width, hidden_, &h_square_[h_at], hidden_, &w_square_[w_at], hidden_, 0.0,
                  &magnitude_[out_at], chunk_);
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < width; ++j) {
        const size_t at = out_at + size(i, chunk_) + size(j, 1);
        const double b = in_.bias == nullptr ? 0 : in_.bias->at(columns.at(begin + v + j));
        const double of_product = std::abs(logits_[at]) + std::sqrt(magnitude_[at]);
        const GoldElement product{logits_[at], of_product, in_.lost * of_product};
        magnitude_[at] = of_product + std::abs(b);
        if (!lost_.empty()) lost_[at] = product.rounding;
        GoldElement sum{logits_[at] + b, magnitude_[at], product.rounding};
        if (rounds_product_) {
          sum = sum_of_16_bit(rounded_if(true, args_, 0, product), exact(b));
        }
        logits_[at] = sum.value;
        if (!rounds_logits_) continue;
        const Rounded rounded = args_.recipes.round(0, sum.value, sum.magnitude, sum.rounding);
        logits_[at] = rounded.value, slack_[at] = rounded.slack;
      }
    }
  });
  return n;
}

void LinearLogits::add_product(bool transpose, int64_t m, int64_t k, const std::vector<double>& x,
                               const std::vector<double>& y, double keep, std::vector<double>& out, int64_t first) {
  const int64_t column_tiles = ceil_div(hidden_, kTileColumns);
  args_.parallel_for(ceil_div(m, kTileRows) * column_tiles, [&](int64_t task) {
    const int64_t r = task / column_tiles * kTileRows, c = task % column_tiles * kTileColumns;
    dense_product(transpose, false, std::min(kTileRows, m - r), std::min(kTileColumns, hidden_ - c), k,
                  &x[transpose ? size(first, chunk_) + size(r, 1) : size(r, chunk_)], chunk_,
                  &y[size(first, hidden_) + size(c, 1)], hidden_, keep, &out[size(r, hidden_) + size(c, 1)], hidden_);
  });
}

LinearLogits::RoundedSums LinearLogits::sums_of_chunks(int64_t n, int64_t chunk_rows) {
  RoundedSums sums(size(n, hidden_));
  const int64_t chunks = ceil_div(rows_, chunk_rows);
  std::vector<double> part(size(n, hidden_)), sum(part.size());
  for (int64_t chunk = 0; chunk < chunks && chunks > 1; ++chunk) {
    const int64_t first = chunk * chunk_rows;
    add_product(true, n, std::min(chunk_rows, rows_ - first), logits_, h_, 0.0, part, first);
    args_.parallel_for(n, [&](int64_t v) {
      for (size_t i = size(v, hidden_); i < size(v + 1, hidden_); ++i) {
        sum[i] += part[i];
        sums.add(i, part[i], args_.recipes);
        if (chunk > 0 && chunk + 1 < chunks) sums.add(i, sum[i], args_.recipes);
      }
    });
  }
  return sums;
}

GoldElement LinearLogits::finish(int output, int64_t terms, double value, double square, double error,
                                 const Spread& of_chunks, double carry) const {
  value += carry;
  const Spread of_dz =
      rounds_dz_ ? args_.recipes.of_terms(output, square, std::sqrt(static_cast<double>(terms) * square)) : Spread();
  return {value,
          std::abs(value) + std::sqrt(square) + error,
          kLeastGrowth * std::sqrt(static_cast<double>(rows_)) * std::abs(carry),
          {of_dz.most + of_chunks.most, std::hypot(of_dz.deviation, of_chunks.deviation)}};
}

void LinearLogits::emit_row(int output, int64_t row, int64_t terms, int64_t from, Sums& sums,
                            const RoundedSums& of_chunks, const Tensor* carry) const {
  static thread_local std::vector<double> rounding, spread, deviation, carried;
  for (auto* array : {&rounding, &spread, &deviation}) array->resize(size(hidden_, 1));
  carried.assign(size(hidden_, 1), 0);
  if (carry != nullptr) decode_row(*carry, row, carried);
  const size_t at = size(from, hidden_);
  for (size_t i = 0; i < size(hidden_, 1); ++i) {
    const GoldElement e = finish(output, terms, sums.value[at + i], sums.square[at + i], sums.error[at + i],
                                 of_chunks.spread(at + i, output, args_.recipes), carried[i]);
    sums.value[at + i] = e.value, sums.error[at + i] = e.magnitude, rounding[i] = e.rounding;
    spread[i] = e.spread.most, deviation[i] = e.spread.deviation;
  }
  args_.sink(
      {output, row, 1, hidden_, &sums.value[at], &sums.error[at], rounding.data(), spread.data(), deviation.data()});
}

void LinearLogits::emit_bias_gradient(const LinearOutputs& outputs, int64_t row, int64_t v, int64_t chunk_rows) const {
  double value = 0, square = 0, error = 0, part = 0;
  RoundedSums sums(chunk_rows > 0 ? 1 : 0);
  for (int64_t r = 0; r < rows_; ++r) {
    const size_t at = size(r, chunk_) + size(v, 1);
    value += logits_[at], part += logits_[at];
    square += dz_square_[at];
    error += magnitude_[at];
    if (chunk_rows == 0 || rows_ <= chunk_rows || ((r + 1) % chunk_rows != 0 && r + 1 < rows_)) continue;
    sums.add(0, part, args_.recipes);
    if (r >= chunk_rows && r + 1 < rows_) sums.add(0, value, args_.recipes);
    part = 0;
  }
  const Tensor* const carry = outputs.bias_carry;
  const GoldElement e = finish(outputs.bias, rows_, value, square, error, sums.spread(0, outputs.bias, args_.recipes),
                               carry == nullptr ? 0 : carry->at(row));
  args_.sink({outputs.bias, row, 1, 1, &e.value, &e.magnitude, &e.rounding, &e.spread.most, &e.spread.deviation});
}

Work linear_work(const Tensor& hidden, const Tensor& weight, const std::vector<char>& used, int products) {
  const auto rows = static_cast<double>(std::count_if(used.begin(), used.end(), [](char u) { return u != 0; }));
  return {2.0 * products * rows * static_cast<double>(weight.count()), bytes_left_out(hidden, used)};
}

}  // namespace checkop
