// SPDX-License-Identifier: Apache-2.0
// Gold of operators over logits = hidden W^T + bias that are never stored as a whole: computes the logits and their
// errors for one chunk of the vocabulary at a time, and the products of their gradients with weights and hidden states.
#pragma once

#include <algorithm>
#include <any>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "entropy_row.hpp"
#include "gold_element.hpp"
#include "logit_transform.hpp"
#include "operator/operator.hpp"
#include "product.hpp"
#include "recipes.hpp"

namespace checkop {

/// The operands of the logits, and which rows have any.
struct LinearInputs {
  const Tensor &hidden, &weight;
  const Tensor* bias;      ///< nullptr for none
  std::vector<char> used;  ///< for each row of hidden; 0: the row is not read and adds nothing to any gradient
  LogitTransform transform;
  bool folds_slack = false;  ///< the slack of a rounded logit counts as rounding of its z
  double lost = 0;           ///< lost_by_tensor_cores() in a forward pass
};

/// What tensor cores lose of a logit, in units of u of its product's magnitude; 0 unless the operands have 16 bits.
/// They add 8 products a step, 16 on Hopper, and truncate the sum: that loses up to 2u of the partial sum, u on average
/// at most, and always toward zero. Partial sums of terms in no particular order are half of the magnitude on average.
/// In gradients the loss is far below what a contract grants to the products and sums that follow, whose chains over
/// the vocabulary or the rows also multiply the errors of their operands.
double lost_by_tensor_cores(const Tensor& hidden);

/// Indices of the gradients among the outputs, and sums of earlier calls that those of weights continue; nullptr for
/// none.
struct LinearOutputs {
  int hidden, weight, bias;
  const Tensor *weight_carry = nullptr, *bias_carry = nullptr;
  int64_t chunk_rows = 0;  ///< of sums_by_chunk_in_16_bit; 0: the operator has no such recipe
};

/// Logits rounded to 16 bits before what follows them.
constexpr Recipe rounds_logits(std::string_view outputs, std::string_view source) {
  return {recipe::kLogits, outputs, k16Bit, /*exact=*/true, "x = round(hidden W^T + bias)", source};
}
/// Logits that are rounded before their bias is added, too. Without a bias nothing changes.
constexpr Recipe rounds_product_of_logits(std::string_view outputs) {
  Recipe recipe = rounds_product(outputs, "x = round(round(hidden W^T) + bias)");
  recipe.excludes = recipe::kLogits;
  return recipe;
}
/// Gradients of logits rounded to 16 bits as operands of the backward products.
constexpr Recipe rounds_dz(std::string_view outputs, std::string_view source) {
  return {recipe::kDz,
          outputs,
          k16Bit,
          /*exact=*/false,
          "dhidden = round(dx) W, dlm_head_weight = round(dx)^T hidden, dbias = sum_rows round(dx)",
          source,
          "",
          /*independent=*/"batch seq vocab"};
}

/// Parts of the weight's gradient, one for each chunk of rows, and their running sums rounded to 16 bits. For the parts
/// c_j of n chunks and s_j = c_1 + ... + c_j, roundings err by
///   deviation = u_case sqrt((sum over j of c_j^2 + sum over 1 < j < n of s_j^2)/3)
/// s_1 is c_1, and s_n is what is stored; with one chunk nothing is rounded twice. Other chunks have other parts, which
/// this does not allow for. With carried sums, which are fp32, kernels do not round: then nothing is allowed for.
constexpr Recipe rounds_sums_by_chunk(std::string_view source) {
  return {recipe::kSumsByChunk,
          "dlm_head_weight dbias",
          k16Bit,
          /*exact=*/false,
          "s = round(s + round(dx^T hidden of a chunk of rows)), chunk after chunk",
          source};
}

/// A set of rows: FP64 copies of hidden, the decoded chunk of weights, and its logits with their error coefficients.
/// Arrays have one row per row of the set.
class LinearLogits {
 public:
  /// Recipes: logits_in_16_bit rounds the logits, product_in_16_bit also rounds them before the bias is added,
  /// dz_in_16_bit rounds their gradients, sums_by_chunk_in_16_bit sums of these.
  LinearLogits(const GoldArgs& args, const LinearInputs& in, const RowSet& set);

  int64_t rows() const { return rows_; }
  /// The row of hidden that row r of the set is.
  int64_t row(int64_t r) const { return set_.at(r); }
  bool left_out(int64_t r) const { return in_.used[size(set_.at(r), 1)] == 0; }

  /// Calls body(r, first, logits) for every row that is not left out and every chunk of the vocabulary, with the
  /// transformed logits of the columns from `first` on. Several rows run at once; the chunks of a row come in order.
  template <class Body>
  void for_each_part(const Body& body) {
    for (int64_t begin = 0; begin < vocab_; begin += chunk_) {
      const int64_t n = load_chunk({}, begin);
      args_.parallel_for(rows_, [&](int64_t r) {
        if (left_out(r)) return;
        static thread_local std::vector<TransformedLogit> part;
        part.clear();
        for (int64_t v = 0; v < n; ++v) part.push_back(logit(r, v));
        body(r, begin, std::span<const TransformedLogit>(part));
      });
    }
  }

  /// What compute() returns: for each row of the set a Row, which depends on the row's logits and ids. Golds of the
  /// same case and inputs that round logits in the same way compute the Row of a row once.
  template <class Row, class Compute>
  std::vector<Row> of_rows(const Compute& compute) const {
    if (args_.kept == nullptr) return compute();
    const int roundings = rounds_logits_ + 2 * rounds_product_ + 4 * stepped_.is_active();
    std::any& kept = (*args_.kept)["rows, roundings " + std::to_string(roundings)];
    if (!kept.has_value()) kept = std::vector<std::optional<Row>>(in_.used.size());
    auto& known = std::any_cast<std::vector<std::optional<Row>>&>(kept);
    std::vector<Row> rows;
    for (int64_t r = 0; r < rows_; ++r) {
      const auto& one = known[size(row(r), 1)];
      if (!one) break;
      rows.push_back(*one);
    }
    if (std::ssize(rows) == rows_) return rows;
    rows = compute();
    for (int64_t r = 0; r < rows_; ++r) known[size(row(r), 1)] = rows[size(r, 1)];
    return rows;
  }

  /// The entropy of each row. Reads the logits twice.
  std::vector<EntropyRow> entropies();

  /// Recomputes the logits chunk by chunk, turns them into gradients and multiplies these by weights and hidden states.
  /// gradient_of(r) returns a function (column, logit) -> gradient of the untransformed logit, a GoldElement. The
  /// gradient of hidden accumulates over the chunks and needs every column; those of weight and bias are final after
  /// each chunk and need every row.
  template <class GradientOf>
  void emit_gradients(const RowSet& columns, bool wants_dh, bool wants_dw, const LinearOutputs& outputs,
                      const GradientOf& gradient_of) {
    const auto set_to_absolute = [](std::vector<double>& to, const std::vector<double>& values) {
      to.resize(values.size());
      std::transform(values.begin(), values.end(), to.begin(), [](double v) { return std::abs(v); });
    };
    Sums dh(wants_dh ? size(rows_, hidden_) : 0),
        dw(wants_dw ? size(std::min(chunk_, columns.count(vocab_)), hidden_) : 0);
    std::vector<double> abs_h, abs_w;
    if (wants_dw) set_to_absolute(abs_h, h_);
    dz_square_.resize(logits_.size());
    const int64_t chunk_rows = outputs.weight_carry == nullptr && rounds_chunks_ ? outputs.chunk_rows : 0;
    for (int64_t begin = 0; begin < columns.count(vocab_); begin += chunk_) {
      const int64_t n = load_chunk(columns, begin);
      args_.parallel_for(rows_, [&](int64_t r) { differentiate_row(r, columns, begin, n, gradient_of); });
      if (wants_dh) {
        set_to_absolute(abs_w, w_);
        add_product(false, rows_, n, logits_, w_, 1.0, dh.value);
        add_product(false, rows_, n, dz_square_, w_square_, 1.0, dh.square);
        add_product(false, rows_, n, magnitude_, abs_w, 1.0, dh.error);
      }
      if (!wants_dw) continue;
      const int64_t terms = std::max<int64_t>(rows_, 1);
      add_product(true, n, terms, logits_, h_, 0.0, dw.value);
      add_product(true, n, terms, dz_square_, h_square_, 0.0, dw.square);
      add_product(true, n, terms, magnitude_, abs_h, 0.0, dw.error);
      const RoundedSums of_chunks = chunk_rows > 0 ? sums_of_chunks(n, chunk_rows) : RoundedSums();
      args_.parallel_for(n, [&](int64_t v) {
        emit_row(outputs.weight, columns.at(begin + v), rows_, v, dw, of_chunks, outputs.weight_carry);
        if (in_.bias != nullptr) emit_bias_gradient(outputs, columns.at(begin + v), v, chunk_rows);
      });
    }
    if (wants_dh)
      args_.parallel_for(
          rows_, [&](int64_t r) { emit_row(outputs.hidden, set_.at(r), vocab_, r, dh, RoundedSums(), nullptr); });
  }

 private:
  static constexpr int64_t kChunk = 1024;  // columns with logits at one time; fixed: it orders the sums
  static constexpr int64_t kTileRows = 128, kTileColumns = 256;

  /// The parts of a gradient's element: the sum, the sum of squared terms, and the sum of the terms' own errors.
  struct Sums {
    explicit Sums(size_t count) : value(count), square(count), error(count) {}
    std::vector<double> value, square, error;
  };

  /// What a kernel rounds on the way to each element: sums of the squares and of the sizes. Empty: nothing.
  struct RoundedSums {
    explicit RoundedSums(size_t count = 0) : square(count), size(count) {}
    std::vector<double> square, size;

    void add(size_t at, double rounded, const ActiveRecipes& recipes) {
      const double of = recipes.size(rounded);
      square[at] += of * of, size[at] += of;
    }
    Spread spread(size_t at, int output, const ActiveRecipes& recipes) const {
      return square.empty() ? Spread() : recipes.of_terms(output, square[at], size[at]);
    }
  };

  static size_t size(int64_t a, int64_t b) { return static_cast<size_t>(a * b); }

  /// Computes logits_[rows, chunk] = hidden * weight^T + bias for as many columns of the set as a chunk holds, from its
  /// begin-th column on; magnitude_ is emit_product's magnitude plus |bias|. Returns the number of columns.
  int64_t load_chunk(const RowSet& columns, int64_t begin);

  TransformedLogit logit(int64_t r, int64_t v) const {
    const TransformedLogit logit = transformed(size(r, chunk_) + size(v, 1));
    return in_.folds_slack ? slack_folded(logit, args_.recipes) : logit;
  }
  double lost(size_t at) const { return lost_.empty() ? 0 : lost_[at]; }
  TransformedLogit transformed(size_t at) const {
    if (stepped_.is_active()) {
      return stepped_(rounds_logits_ ? GoldElement{logits_[at], 0, args_.recipes.in_units(slack_[at])}
                                     : GoldElement{logits_[at], magnitude_[at], lost(at)});
    }
    if (!rounds_logits_) return in_.transform(logits_[at], magnitude_[at], lost(at));
    return in_.transform(logits_[at], slack_[at], args_.recipes);
  }

  /// Turns a row of the chunk's logits into gradients and their squares, and the magnitudes into the errors of the
  /// gradients as operands of the following sums. All errors of a row depend on the same log-sum-exp, so their absolute
  /// values add up.
  template <class GradientOf>
  void differentiate_row(int64_t r, const RowSet& columns, int64_t begin, int64_t n, const GradientOf& gradient_of) {
    double *z = &logits_[size(r, chunk_)], *s = &magnitude_[size(r, chunk_)], *square = &dz_square_[size(r, chunk_)];
    if (left_out(r)) {
      for (double* array : {z, s, square}) std::fill_n(array, n, 0.0);
      return;
    }
    const auto gradient = gradient_of(r);
    for (int64_t v = 0; v < n; ++v) {
      const GoldElement e = gradient(columns.at(begin + v), logit(r, v));
      const double of_square = rounds_dz_ ? args_.recipes.size(e.value) : e.value;
      z[v] = e.value, square[v] = of_square * of_square, s[v] = e.magnitude + e.rounding / kLeastGrowth;
    }
  }

  /// out[m, hidden] = keep*out + x * y[k, hidden], where x is a [rows, chunk] array or its transpose, and y has k rows
  /// from `first` on. Of a transpose, x has these rows, too.
  void add_product(bool transpose, int64_t m, int64_t k, const std::vector<double>& x, const std::vector<double>& y,
                   double keep, std::vector<double>& out, int64_t first = 0);

  /// The rounded sums of the gradients of the n weights of a chunk of the vocabulary; see rounds_sums_by_chunk().
  RoundedSums sums_of_chunks(int64_t n, int64_t chunk_rows);

  /// Adds the carry and returns the element with its error coefficients. `terms`: the number of terms of the sum. The
  /// carry is one more, exact term: it is in neither `square` nor `error`. It enlarges partial sums by up to its own
  /// size, in at most one addition per token, wherever the kernel adds it; this counts as growth over the chain of
  /// tokens. It is not part of the magnitude: dz_in_16_bit rounds only the other terms t, and sum |t| <= sqrt(n sum
  /// t^2).
  GoldElement finish(int output, int64_t terms, double value, double square, double error, const Spread& of_chunks,
                     double carry) const;

  /// Emits row `row` of output `output` from row `from` of `sums`. `carry`: nullptr for none.
  void emit_row(int output, int64_t row, int64_t terms, int64_t from, Sums& sums, const RoundedSums& of_chunks,
                const Tensor* carry) const;
  /// Emits row `row` of the bias's gradient from column v of the chunk.
  void emit_bias_gradient(const LinearOutputs& outputs, int64_t row, int64_t v, int64_t chunk_rows) const;

  const GoldArgs& args_;
  const LinearInputs& in_;
  const RowSet& set_;
  int64_t rows_, hidden_, vocab_, chunk_;
  std::vector<double> h_, h_square_, w_, w_square_, logits_, magnitude_, dz_square_;
  const SteppedTransform stepped_;
  const bool rounds_product_, rounds_logits_, rounds_dz_, rounds_chunks_;
  std::vector<double> slack_;
  std::vector<double> lost_;  ///< by each logit, in units of u; empty: nothing
};

/// Emits all gradients: of hidden the rows args.rows(outputs.hidden), of weight and bias the rows
/// args.rows(outputs.weight). `prepare(logits)` returns the gradient_of for emit_gradients().
template <class Prepare>
void emit_linear_gradients(const GoldArgs& args, const LinearInputs& in, const LinearOutputs& outputs,
                           const Prepare& prepare) {
  static const RowSet kAll;
  const RowSet &rows = args.rows(outputs.hidden), &columns = args.rows(outputs.weight);
  const auto emit = [&](const RowSet& of_hidden, const RowSet& of_weight, bool wants_dh, bool wants_dw) {
    LinearLogits logits(args, in, of_hidden);
    logits.emit_gradients(of_weight, wants_dh, wants_dw, outputs, prepare(logits));
  };
  if (rows.all && columns.all) {
    emit(kAll, kAll, true, true);
  } else {
    if (rows.count(std::ssize(in.used)) > 0) emit(rows, kAll, true, false);
    if (columns.count(in.weight.shape[0]) > 0) emit(kAll, columns, false, true);
  }
}

/// Operations of `products` products, each of 2 hidden vocab operations per used row, and the bytes that are left out.
Work linear_work(const Tensor& hidden, const Tensor& weight, const std::vector<char>& used, int products);

}  // namespace checkop
