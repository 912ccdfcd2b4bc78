// SPDX-License-Identifier: Apache-2.0
// linear_logp: log-probability of the target under softmax(hidden * lm_head_weight^T + bias); the logits are never
// stored.
#include "linear_logp.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.hpp"
#include "identity.hpp"
#include "left_out.hpp"
#include "operator/operator.hpp"
#include "product.hpp"
#include "recipes.hpp"
#include "softmax.hpp"

namespace checkop {

// emulation/linear_logp.cpp
extern const Emulation kLinearLogpForward, kLinearLogpBackward, kTpLinearLogpForward, kTpLinearLogpBackward;

namespace {

constexpr std::string_view kRow = "batch seq", kRowHidden = "batch seq hidden", kVocabHidden = "vocab hidden";
constexpr TensorSpec kHidden{"hidden", kRowHidden, Fill::query};
constexpr TensorSpec kWeight{"lm_head_weight", kVocabHidden, Fill::weight, "hidden"};
constexpr TensorSpec kTargetIds{"target_ids", kRow, Fill::ids, "vocab", DType::i64};
constexpr TensorSpec kBias{"bias", "vocab", Fill::normal, "", {}, /*optional=*/true};
constexpr TensorSpec kGradLogp{"grad_logp", kRow, Fill::upstream, "", DType::f32};
// Sums of earlier calls: a batch may be split into calls at multiples of kCarryRows tokens. They have the size of
// gradients.
constexpr TensorSpec kWeightCarry{"dlm_head_weight_carry", kVocabHidden,     Fill::weight, "vocab", DType::f32,
                                  /*optional=*/true,       /*constant=*/true};
constexpr TensorSpec kBiasCarry{"dbias_carry",    "vocab", Fill::weight, "vocab", DType::f32, /*optional=*/true,
                                /*constant=*/true};

constexpr std::array kForwardIn{kHidden, kWeight, kTargetIds, kBias};
constexpr std::array kForwardOut{
    OutputSpec{{"logp", kRow, Fill::normal, "", DType::f32}, Numerics::logprob, "hidden vocab", /*sampled=*/true},
};
constexpr std::array kBackwardIn{kHidden, kWeight, kTargetIds, kBias, kGradLogp, kWeightCarry, kBiasCarry};
constexpr std::array kBackwardOut{
    OutputSpec{{"dhidden", kRowHidden}, Numerics::contraction, "hidden vocab", /*sampled=*/true},
    OutputSpec{{"dlm_head_weight", kVocabHidden, Fill::normal, "", {}, /*optional=*/false, false, kWeightCarry.name},
               Numerics::contraction,
               "hidden vocab batch*seq",
               /*sampled=*/true},
    OutputSpec{{"dbias", "vocab", Fill::normal, "", {}, /*optional=*/true, false, kBiasCarry.name},
               Numerics::reduction,
               "hidden vocab batch*seq",
               /*sampled=*/true},
};

constexpr std::array kAttrs{kIgnoreIndex};

constexpr std::string_view kGradients = "dhidden dlm_head_weight dbias";
constexpr std::array kForwardRecipes{
    Recipe{recipe::kLogits, "logp", k16Bit, /*exact=*/true, "z = round(hidden W^T + bias)",
           "a 16-bit lm_head (F.linear) before the log-probability, as in Hugging Face models, TRL and verl"},
    Recipe{recipe::kLogp, "logp", k16Bit, /*exact=*/true, "logp = round(z_t - lse(z))",
           "F.log_softmax of 16-bit logits in PyTorch"}};
constexpr std::array kBackwardRecipes{
    Recipe{recipe::kDz, kGradients, k16Bit, /*exact=*/false,
           "dhidden = round(dz) W, dlm_head_weight = round(dz)^T hidden, dbias = sum_rows round(dz)",
           "autograd of a 16-bit lm_head, Liger's fused linear cross entropy, Apple's cut cross entropy", "",
           /*independent=*/"batch seq vocab"},
    Recipe{recipe::kLogits, kGradients, k16Bit, /*exact=*/true, "z = round(hidden W^T + bias)",
           "a 16-bit lm_head (F.linear) before the log-probability, Liger's fused linear cross entropy"},
    Recipe{recipe::kLogp, kGradients, k16Bit, /*exact=*/true, "dz_v = g (1[v = t] - exp(round(z_v - lse(z))))",
           "autograd of F.log_softmax of 16-bit logits: its backward pass reads the saved 16-bit result"},
    Recipe{recipe::kUpstream, kGradients, k16Bit, /*exact=*/true, "dz_v = round(g) (1[v = t] - softmax(z)_v)",
           "autograd of a 16-bit log-probability that is cast to fp32: its gradient is cast to 16 bits"}};

constexpr int64_t kChunk = 1024;  // vocabulary columns with logits at one time; fixed: it orders the sums
constexpr int64_t kTileRows = 128, kTileColumns = 256;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// State of the gold for a set of rows: FP64 copies of hidden, the decoded chunk of weights, and its logits with their
/// error coefficients. Arrays have one row per row of the set.
class LinearLogp {
 public:
  LinearLogp(const GoldArgs& args, const Tensor* bias, const RowSet& set)
      : args_(args),
        bias_(bias),
        set_(set),
        rows_(set.count(args.in(2).count())),
        hidden_(args.in(0).shape.back()),
        vocab_(args.in(1).shape[0]),
        chunk_(std::min(kChunk, vocab_)),
        ids_(read_ids_to_use(args, args.in(2), vocab_)),
        h_(size(std::max<int64_t>(rows_, 1), hidden_)),  // without rows, one row of zeros: it adds nothing to any sum
        h_square_(h_.size()),
        w_(size(chunk_, hidden_)),
        w_square_(size(chunk_, hidden_)),
        logits_(size(std::max<int64_t>(rows_, 1), chunk_)),
        magnitude_(logits_.size()),
        rounds_logits_(args.recipes.has(recipe::kLogits)),
        rounds_logp_(args.recipes.has(recipe::kLogp)),
        rounds_dz_(args.recipes.has(recipe::kDz)),
        rounds_upstream_(args.recipes.has(recipe::kUpstream)),
        slack_(rounds_logits_ ? logits_.size() : 0) {
    args_.parallel_for(rows_, [&](int64_t r) {
      if (left_out(r)) return;  // zeros replace the row's content, which may be NaN
      decode_block({&args_.in(0), args_.in(2).count(), hidden_}, set_.at(r), 1, 0, hidden_, &h_[size(r, hidden_)],
                   &h_square_[size(r, hidden_)]);
    });
  }

  /// Reduces every row over the whole vocabulary and picks the target's logit.
  void reduce() {
    softmax_.resize(size(rows_, 1));
    target_.resize(size(rows_, 1));
    for (int64_t begin = 0; begin < vocab_; begin += chunk_) {
      const int64_t n = load_chunk({}, begin);
      args_.parallel_for(rows_, [&](int64_t r) {
        const double *z = &logits_[size(r, chunk_)], *s = &magnitude_[size(r, chunk_)];
        const double* slack = slack_of(r);
        softmax_[size(r, 1)].add(z, s, n, slack);
        const int64_t column = target(r) - begin;
        if (column < 0 || column >= n) return;
        target_[size(r, 1)] = {z[column], s[column], slack == nullptr ? 0 : args_.recipes.in_units(slack[column])};
      });
    }
  }

  void emit_logp() const {
    for (int64_t r = 0; r < rows_; ++r) {
      const GoldElement selected = target_[size(r, 1)];
      GoldElement e{0, 0, 0};
      if (!left_out(r)) {
        const SoftmaxRow& softmax = softmax_[size(r, 1)];
        e = selected_logp(softmax, selected.value, selected.magnitude);
        e.rounding += selected.rounding + args_.recipes.in_units(lse_slack(args_.recipes, 0, softmax));
        e = rounded_if(rounds_logp_, args_, 0, e);
      }
      args_.sink({0, set_.at(r), 1, 1, &e.value, &e.magnitude, &e.rounding});
    }
  }

  /// Recomputes the logits chunk by chunk, turns them into gradients and multiplies these by weights and hidden states.
  /// dhidden accumulates over the chunks and needs every column; dlm_head_weight and dbias are final after each chunk
  /// and need every row.
  void emit_gradients(const RowSet& columns, bool wants_dh, bool wants_dw) {
    const Tensor& grad = args_.in(4);
    const auto absolute = [](const std::vector<double>& values) {
      std::vector<double> result(values.size());
      std::transform(values.begin(), values.end(), result.begin(), [](double v) { return std::abs(v); });
      return result;
    };
    Sums dh(wants_dh ? size(rows_, hidden_) : 0), dw(wants_dw ? size(chunk_, hidden_) : 0);
    const std::vector<double> abs_h = wants_dw ? absolute(h_) : std::vector<double>();
    dz_square_.resize(logits_.size());
    for (int64_t begin = 0; begin < columns.count(vocab_); begin += chunk_) {
      const int64_t n = load_chunk(columns, begin);
      args_.parallel_for(rows_, [&](int64_t r) { differentiate_row(r, columns, begin, n, grad.at(set_.at(r))); });
      if (wants_dh) {
        const std::vector<double> abs_w = absolute(w_);
        add_product(false, rows_, n, logits_, w_, 1.0, dh.value);
        add_product(false, rows_, n, dz_square_, w_square_, 1.0, dh.square);
        add_product(false, rows_, n, magnitude_, abs_w, 1.0, dh.error);
      }
      if (!wants_dw) continue;
      const int64_t terms = std::max<int64_t>(rows_, 1);
      add_product(true, n, terms, logits_, h_, 0.0, dw.value);
      add_product(true, n, terms, dz_square_, h_square_, 0.0, dw.square);
      add_product(true, n, terms, magnitude_, abs_h, 0.0, dw.error);
      args_.parallel_for(n, [&](int64_t v) {
        emit_row(1, columns.at(begin + v), v, dw, args_.inputs[5]);
        if (bias_ != nullptr) emit_bias_gradient(columns.at(begin + v), v);
      });
    }
    if (wants_dh) args_.parallel_for(rows_, [&](int64_t r) { emit_row(0, set_.at(r), r, dh, nullptr); });
  }

 private:
  /// The parts of a gradient's element: the sum, the sum of squared terms, and the sum of the terms' own errors.
  struct Sums {
    explicit Sums(size_t count) : value(count), square(count), error(count) {}
    std::vector<double> value, square, error;
  };

  static size_t size(int64_t a, int64_t b) { return static_cast<size_t>(a * b); }

  int64_t target(int64_t r) const { return ids_[size(set_.at(r), 1)]; }

  bool left_out(int64_t r) const { return target(r) == kLeftOut; }

  /// How far the rounded logits of row r may be off; nullptr if they are not rounded.
  const double* slack_of(int64_t r) const { return rounds_logits_ ? &slack_[size(r, chunk_)] : nullptr; }

  /// Computes logits_[rows, chunk] = hidden * weight^T + bias for as many columns of the set as a chunk holds, from its
  /// begin-th column on; magnitude_ is emit_product's plus |bias|. Returns the number of columns.
  int64_t load_chunk(const RowSet& columns, int64_t begin) {
    const int64_t n = std::min(chunk_, columns.count(vocab_) - begin);
    args_.parallel_for(n, [&](int64_t v) {
      decode_block({&args_.in(1), vocab_, hidden_}, columns.at(begin + v), 1, 0, hidden_, &w_[size(v, hidden_)],
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
          const double b = bias_ == nullptr ? 0 : bias_->at(columns.at(begin + v + j));
          magnitude_[at] = std::abs(logits_[at]) + std::sqrt(magnitude_[at]) + std::abs(b);
          logits_[at] += b;
          if (!rounds_logits_) continue;
          const Rounded rounded = args_.recipes.round(0, logits_[at], magnitude_[at], 0);
          logits_[at] = rounded.value, magnitude_[at] = 0, slack_[at] = rounded.slack;
        }
      }
    });
    return n;
  }

  /// Turns a row of the chunk's logits into dz and its squares, and the magnitudes into the errors of dz as an operand
  /// of the following sums. All errors of a row depend on the same log-sum-exp, so their absolute values add up.
  void differentiate_row(int64_t r, const RowSet& columns, int64_t begin, int64_t n, double g) {
    if (rounds_upstream_) g = args_.recipes.round(g);
    const LogitGradient gradient(softmax_[size(r, 1)], g);
    const RoundedLogitGradient rounded(args_, 0, softmax_[size(r, 1)], g, rounds_logp_);
    const bool rounds = rounds_logits_ || rounds_logp_;
    const double* slack = slack_of(r);
    double *z = &logits_[size(r, chunk_)], *s = &magnitude_[size(r, chunk_)], *square = &dz_square_[size(r, chunk_)];
    for (int64_t v = 0; v < n; ++v) {
      GoldElement e{0, 0, 0};
      const bool selected = columns.at(begin + v) == target(r);
      if (!left_out(r))
        e = rounds ? rounded(z[v], s[v], slack == nullptr ? 0 : slack[v], selected) : gradient(z[v], s[v], selected);
      z[v] = e.value;
      const double size = rounds_dz_ && !left_out(r) ? args_.recipes.size(e.value) : e.value;
      square[v] = size * size;
      s[v] = e.magnitude + e.rounding / kLeastGrowth;
    }
  }

  /// out[m, hidden] = keep*out + x * y[k, hidden], where x is a [rows, chunk] array or its transpose.
  void add_product(bool transpose, int64_t m, int64_t k, const std::vector<double>& x, const std::vector<double>& y,
                   double keep, std::vector<double>& out) {
    const int64_t column_tiles = ceil_div(hidden_, kTileColumns);
    args_.parallel_for(ceil_div(m, kTileRows) * column_tiles, [&](int64_t task) {
      const int64_t r = task / column_tiles * kTileRows, c = task % column_tiles * kTileColumns;
      dense_product(transpose, false, std::min(kTileRows, m - r), std::min(kTileColumns, hidden_ - c), k,
                    &x[transpose ? size(r, 1) : size(r, chunk_)], chunk_, &y[size(c, 1)], hidden_, keep,
                    &out[size(r, hidden_) + size(c, 1)], hidden_);
    });
  }

  /// Adds the carry and returns the element with its error coefficients. The carry is one more exact term: it has no
  /// operands with errors, so it is in neither `square` nor `error`. It makes partial sums larger by up to its own
  /// size, in at most one addition per token, at whichever end it is added. That is growth over the chain of tokens. It
  /// is not part of the magnitude: dz_in_16_bit rounds the other terms alone, of which sum |t| <= sqrt(n sum t^2).
  GoldElement finish(int output, double value, double square, double error, double carry) const {
    value += carry;
    const auto terms = static_cast<double>(output == 0 ? vocab_ : rows_);
    const Spread of_dz = rounds_dz_ ? args_.recipes.of_terms(output, square, std::sqrt(terms * square)) : Spread();
    return {value, std::abs(value) + std::sqrt(square) + error,
            kLeastGrowth * std::sqrt(static_cast<double>(rows_)) * std::abs(carry), of_dz};
  }

  /// Emits row `row` of output `output` from row `from` of `sums`. `carry`: nullptr for none.
  void emit_row(int output, int64_t row, int64_t from, Sums& sums, const Tensor* carry) const {
    static thread_local std::vector<double> rounding, spread, deviation, carried;
    for (auto* array : {&rounding, &spread, &deviation}) array->resize(size(hidden_, 1));
    carried.assign(size(hidden_, 1), 0);
    if (carry != nullptr) decode_row(*carry, row, carried);
    const size_t at = size(from, hidden_);
    for (size_t i = 0; i < size(hidden_, 1); ++i) {
      const GoldElement e = finish(output, sums.value[at + i], sums.square[at + i], sums.error[at + i], carried[i]);
      sums.value[at + i] = e.value, sums.error[at + i] = e.magnitude, rounding[i] = e.rounding;
      spread[i] = e.spread.most, deviation[i] = e.spread.deviation;
    }
    args_.sink(
        {output, row, 1, hidden_, &sums.value[at], &sums.error[at], rounding.data(), spread.data(), deviation.data()});
  }

  /// Emits row `row` of dbias from column v of the chunk.
  void emit_bias_gradient(int64_t row, int64_t v) const {
    double value = 0, square = 0, error = 0;
    for (int64_t r = 0; r < rows_; ++r) {
      const size_t at = size(r, chunk_) + size(v, 1);
      value += logits_[at];
      square += dz_square_[at];
      error += magnitude_[at];
    }
    const Tensor* carry = args_.inputs[6];
    const GoldElement e = finish(2, value, square, error, carry == nullptr ? 0 : carry->at(row));
    args_.sink({2, row, 1, 1, &e.value, &e.magnitude, &e.rounding, &e.spread.most, &e.spread.deviation});
  }

  const GoldArgs& args_;
  const Tensor* bias_;
  const RowSet& set_;
  int64_t rows_, hidden_, vocab_, chunk_;
  std::vector<int64_t> ids_;
  std::vector<double> h_, h_square_, w_, w_square_, logits_, magnitude_, dz_square_;
  const bool rounds_logits_, rounds_logp_, rounds_dz_, rounds_upstream_;
  std::vector<double> slack_;
  std::vector<SoftmaxRow> softmax_;
  std::vector<GoldElement> target_;
};

/// Gold of linear_logp.
///   in:  hidden[batch, seq, hidden], lm_head_weight[vocab, hidden], target_ids[batch, seq], bias[vocab] optional
///   out: logp[batch, seq]
///   z = hidden W^T + bias,  logp = z_t - log sum_v exp(z_v)
/// If the id is ignore_index: 0, and the row of hidden is not read.
/// Throws InputError for any other id outside [0, vocab).
void forward(const GoldArgs& args) {
  LinearLogp gold(args, args.inputs[3], args.rows(0));
  gold.reduce();
  gold.emit_logp();
}

/// Gold of linear_logp's gradients.
///   in:  as forward, then grad_logp[batch, seq], dlm_head_weight_carry[vocab, hidden] and dbias_carry[vocab], optional
///   out: dhidden[batch, seq, hidden] = dz W,  dlm_head_weight[vocab, hidden] = dz^T hidden,
///        dbias[vocab] = sum of dz over rows
///   dz_v = g*(1[v = t] - softmax(z)_v);  rows whose id is ignore_index are left out of all three outputs
///   With carries, dlm_head_weight and dbias are f32: these sums plus the carry.
/// Source: differentiated by hand; checked by gradient_test.
void backward(const GoldArgs& args) {
  static const RowSet kAll;
  const RowSet &rows = args.rows(0), &columns = args.rows(1);
  const auto emit = [&](const RowSet& of_hidden, const RowSet& of_weight, bool wants_dh, bool wants_dw) {
    LinearLogp gold(args, args.inputs[3], of_hidden);
    gold.reduce();
    gold.emit_gradients(of_weight, wants_dh, wants_dw);
  };
  if (rows.all && columns.all) {
    emit(kAll, kAll, true, true);
  } else {
    emit(rows, kAll, true, false);
    emit(kAll, columns, false, true);
  }
}

/// Ignored rows must be 0, in logp and in dhidden.
void check_ignored(const IdentityArgs& args) { check_zero_rows(args, 0, rows_to_use(args.in(2), args.attrs)); }

/// Operations of `products` products: each takes 2 hidden vocab operations per used row. The backward pass must
/// recompute the logits.
template <int products>
Work work(const GoldArgs& args) {
  const Tensor &hidden = args.in(0), &weight = args.in(1);
  const std::vector<char> used = rows_to_use(args.in(2), args.attrs);
  const auto rows = static_cast<double>(std::count(used.begin(), used.end(), 1));
  return {2.0 * products * rows * static_cast<double>(weight.count()), bytes_left_out(hidden, used)};
}

constexpr std::array kPasses{Pass{"forward", kForwardIn, kForwardOut, forward, check_ignored, work<1>,
                                  &kLinearLogpForward, nullptr, kForwardRecipes},
                             Pass{"backward", kBackwardIn, kBackwardOut, backward, check_ignored, work<3>,
                                  &kLinearLogpBackward, nullptr, kBackwardRecipes}};
}  // namespace

void validate_linear_logp(const CaseSizes& sizes) {
  validate_ignore_index(sizes);
  const bool weight = sizes.has(kWeightCarry.name), bias = sizes.has(kBiasCarry.name);
  if (bias == (weight && sizes.has(kBias.name))) return;
  throw InputError(
      "--with",
      bias ? "dbias_carry needs bias and dlm_head_weight_carry"
           : "bias and dlm_head_weight_carry need dbias_carry: all gradients of weights are carried or none",
      "give dlm_head_weight_carry, or bias+dlm_head_weight_carry+dbias_carry");
}

void plant_in_linear_logp(const FillArgs& args) { plant_ignored_rows(args, "target_ids", "hidden"); }

constexpr std::array<Pass, 2> kTpLinearLogpPasses{Pass{"forward", kForwardIn, kForwardOut, forward, check_ignored,
                                                       work<1>, &kTpLinearLogpForward, nullptr, kForwardRecipes},
                                                  Pass{"backward", kBackwardIn, kBackwardOut, backward, check_ignored,
                                                       work<3>, &kTpLinearLogpBackward, nullptr, kBackwardRecipes}};

extern const Operator kLinearLogp;
constexpr Operator kLinearLogp{"linear_logp",
                               "logprob",
                               "logp = z[t] - log(sum_v exp(z[v])), z = hidden W^T + bias; 0 where t = ignore_index",
                               kRow,
                               kAttrs,
                               kPasses,
                               validate_linear_logp,
                               plant_in_linear_logp,
                               /*parallel_dim=*/"",
                               /*left_out=*/"ignored rows"};

}  // namespace checkop
