// SPDX-License-Identifier: Apache-2.0
// The model that arithmetic mutants are made from. A few operators, written out as naively as can be.
#include <algorithm>
#include <cmath>

#include "error.hpp"
#include "faults.hpp"

namespace checkop::test {
namespace {

/// 11 significant bits, to nearest, with the exponent range of fp32.
double round_to_tf32(double x) {
  if (x == 0 || !std::isfinite(x)) return x;
  int exponent = 0;
  const double fraction = std::frexp(x, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, 11)), exponent - 11);
}

struct Matrix {
  std::vector<double> values;
  int64_t columns = 1;
  double operator()(int64_t row, int64_t column) const { return values[static_cast<size_t>(row * columns + column)]; }
  double& operator()(int64_t row, int64_t column) { return values[static_cast<size_t>(row * columns + column)]; }
  int64_t rows() const { return static_cast<int64_t>(values.size()) / columns; }
};

Matrix zeros(int64_t rows, int64_t columns) {
  return {std::vector<double>(static_cast<size_t>(rows * columns)), columns};
}

/// Rows [first, first + rows) of `m`.
Matrix rows_of(const Matrix& m, int64_t first, int64_t rows) {
  const auto begin = m.values.begin() + first * m.columns;
  return {{begin, begin + rows * m.columns}, m.columns};
}

void put_rows(const Matrix& part, int64_t first, Matrix& m) {
  std::copy(part.values.begin(), part.values.end(), m.values.begin() + first * m.columns);
}

/// All leading extents multiply into rows.
Matrix matrix_of(const Tensor& t) {
  Matrix m = zeros(t.count(), 1);
  info(t.dtype).decode(t.bytes.data(), m.values.data(), m.values.size());
  m.columns = t.shape.back();
  return m;
}

std::vector<int64_t> ids_of(const Tensor& t) {
  std::vector<int64_t> ids(static_cast<size_t>(t.count()));
  decode_int(t.dtype, t.bytes.data(), ids.data(), ids.size());
  return ids;
}

/// Per token: lp - old and lr - lp.
struct PolicyLogs {
  std::vector<double> delta, d;
};

class Evaluation {
 public:
  explicit Evaluation(const Model& model) : model_(model) {}

  template <class Term>
  double sum(int64_t terms, Term term) const {
    double total = 0;
    for (int64_t i = 0; i < terms; ++i)
      total = model_.bf16_accumulator ? round_to_bf16(total + term(i)) : total + term(i);
    return total;
  }

  /// At least one term is left of every contraction.
  template <class Term>
  double contract(int64_t terms, Term term) const {
    return sum(terms - std::min(model_.skip_terms, terms - 1), term);
  }

  template <class Term>
  Matrix product(int64_t rows, int64_t columns, int64_t terms, Term term) const {
    Matrix out = zeros(rows, columns);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) out(r, c) = contract(terms, [&](int64_t k) { return term(r, c, k); });
    return out;
  }

  /// A factor of a product, as the multiplying unit takes it.
  Matrix factor(Matrix m) const {
    if (model_.tf32_factors) std::transform(m.values.begin(), m.values.end(), m.values.begin(), round_to_tf32);
    return m;
  }

  Fault special() const { return model_.special; }
  double exponential(double x) const { return model_.bf16_exp ? round_to_bf16(std::exp(x)) : std::exp(x); }

  /// An id that is not in the vocabulary, as rows that are left out may have, counts as 0.
  int64_t label(const std::vector<int64_t>& ids, int64_t row, int64_t vocab) const {
    const int64_t id = ids[static_cast<size_t>(row)];
    return ((id < 0 || id >= vocab ? 0 : id) + model_.label_shift) % vocab;
  }

  struct RowState {
    double max, sum;
  };
  RowState row_state(const Matrix& z, int64_t row) const {
    double max = z(row, 0);
    for (int64_t v = 1; v < z.columns; ++v) max = std::max(max, z(row, v));
    const int64_t terms = z.columns - std::min(model_.skip_vocab, z.columns - 1);
    return {max, sum(terms, [&](int64_t v) { return exponential(z(row, v) - max); })};
  }

  /// left_out[row]: the row is to be left out.
  Matrix logp(const Matrix& z, const std::vector<int64_t>& ids, const std::vector<char>& left_out) const {
    Matrix out = zeros(z.rows(), 1);
    for (int64_t r = 0; r < z.rows(); ++r) {
      const bool skip = left_out[static_cast<size_t>(r)] != 0;
      if (skip && selects()) continue;
      const RowState state = row_state(z, r);
      const bool no_target = skip && model_.left_out == LeftOut::counted;
      out(r, 0) = (no_target ? 0 : z(r, label(ids, r, z.columns))) - state.max - std::log(state.sum);
      if (skip && model_.left_out == LeftOut::multiplied) out(r, 0) *= 0;
    }
    return out;
  }

  Matrix dlogits(const Matrix& z, const std::vector<int64_t>& ids, const std::vector<double>& g,
                 const std::vector<char>& left_out) const {
    Matrix out = zeros(z.rows(), z.columns);
    for (int64_t r = 0; r < z.rows(); ++r) {
      const bool skip = left_out[static_cast<size_t>(r)] != 0;
      if (skip && selects()) continue;
      const RowState state = row_state(z, r);
      const bool no_target = skip && model_.left_out == LeftOut::counted;
      const double factor = skip && model_.left_out == LeftOut::multiplied ? 0 : g[static_cast<size_t>(r)];
      for (int64_t v = 0; v < z.columns; ++v) {
        const double probability = exponential(z(r, v) - state.max) / state.sum;
        const double onehot = v == label(ids, r, z.columns) && !no_target ? 1 : 0;
        out(r, v) = factor * (onehot - model_.softmax_scale * probability);
      }
    }
    return out;
  }

  bool selects() const { return model_.left_out == LeftOut::select || model_.left_out == LeftOut::reaches_weight; }

  /// 1 where the id is the call's ignore_index.
  static std::vector<char> ignored(const std::vector<int64_t>& ids, const checkop_call& call) {
    std::vector<char> left_out;
    for (const int64_t id : ids) left_out.push_back(id == static_cast<int64_t>(call.attrs[0].value));
    return left_out;
  }

  /// 1 where one of the masks is 0.
  std::vector<char> masked(const std::vector<const Tensor*>& masks) const {
    std::vector<char> left_out(static_cast<size_t>(masks[0]->count()));
    for (const Tensor* mask : masks)
      for (size_t r = 0; r < left_out.size() && !model_.ignore_mask; ++r)
        left_out[r] |= static_cast<char>(mask->at(static_cast<int64_t>(r)) == 0);
    return left_out;
  }

  /// Softmax of every row over the columns that keeps(row, column) leaves; 0 elsewhere.
  template <class Keeps>
  Matrix probabilities(const Matrix& scores, Keeps keeps) const {
    Matrix p = zeros(scores.rows(), scores.columns);
    for (int64_t r = 0; r < p.rows(); ++r) {
      std::vector<int64_t> kept;
      for (int64_t c = 0; c < p.columns; ++c)
        if (keeps(r, c)) kept.push_back(c);
      if (kept.empty()) continue;
      Matrix z = zeros(1, static_cast<int64_t>(kept.size()));
      for (int64_t i = 0; i < z.columns; ++i) z(0, i) = scores(r, kept[static_cast<size_t>(i)]);
      const RowState state = row_state(z, 0);
      for (int64_t i = 0; i < z.columns; ++i)
        p(r, kept[static_cast<size_t>(i)]) = exponential(z(0, i) - state.max) / state.sum;
    }
    return p;
  }

  /// p * (dp - rowsum(p * dp))
  Matrix dscores(const Matrix& p, const Matrix& dp) const {
    Matrix ds = zeros(p.rows(), p.columns);
    for (int64_t r = 0; r < p.rows(); ++r) {
      const double mean = contract(p.columns, [&](int64_t c) { return p(r, c) * dp(r, c); });
      for (int64_t c = 0; c < p.columns; ++c) ds(r, c) = p(r, c) * (dp(r, c) - model_.softmax_scale * mean);
    }
    return ds;
  }

  /// That a causal mask keeps of query i.
  int64_t last_key(int64_t i, int64_t q_seq, int64_t kv_seq) const {
    return i + (model_.ignore_causal_offset ? 0 : kv_seq - q_seq) + model_.causal_shift;
  }

  PolicyLogs policy_logs(const std::vector<Tensor>& in, const std::vector<char>& left_out) const {
    const std::vector<int64_t> ids = ids_of(in[2]);
    const std::vector<double> lp = logp(matrix_of(in[0]), ids, left_out).values;
    const std::vector<double> lr = logp(matrix_of(in[1]), ids, left_out).values;
    PolicyLogs logs;
    for (size_t r = 0; r < lp.size(); ++r) {
      logs.delta.push_back(lp[r] - in[4].at(static_cast<int64_t>(r)));
      logs.d.push_back(lr[r] - lp[r]);
    }
    return logs;
  }

  /// The estimate of KL by d = lr - lp, and its derivative by lp; reversed, of -d.
  double k3(double d) const { return std::exp(sign() * d) - sign() * d - 1; }
  double k3_slope(double d) const { return sign() * (1 - std::exp(sign() * d)); }
  double sign() const { return model_.special == Fault::kl_reversed ? -1 : 1; }

  /// Groups by samples_per_prompt alone.
  Values grpo_loss(const std::vector<Tensor>& in, const checkop_call& call, bool forward) const {
    const std::vector<char> left_out = masked({&in[3], &in[6]});
    const PolicyLogs logs = policy_logs(in, left_out);
    const auto samples = static_cast<int64_t>(call.attrs[0].value);
    const double clip = call.attrs[1].value, beta = call.attrs[2].value, eps = call.attrs[3].value;
    const int64_t rows = in[2].count(), seq = rows / in[5].count();
    const int64_t of_sample = model_.special == Fault::sample_variance ? 1 : 0;
    std::vector<double> factor(static_cast<size_t>(rows));
    double policy_loss = 0, kl = 0, n = 0;
    for (int64_t r = 0; r < rows; ++r) {
      if (left_out[static_cast<size_t>(r)] != 0) continue;
      const int64_t first = r / seq / samples * samples;
      double mean = 0, variance = 0;
      for (int64_t i = first; i < first + samples; ++i) mean += in[5].at(i) / static_cast<double>(samples);
      for (int64_t i = first; i < first + samples; ++i)
        variance += (in[5].at(i) - mean) * (in[5].at(i) - mean) / static_cast<double>(samples - of_sample);
      const double a = (in[5].at(r / seq) - mean) / std::sqrt(std::max(variance, eps * eps));
      const double ratio = std::exp(logs.delta[static_cast<size_t>(r)]), d = logs.d[static_cast<size_t>(r)];
      const double plain = ratio * a, clipped = std::clamp(ratio, 1 - clip, 1 + clip) * a;
      policy_loss -= std::min(plain, clipped), kl += k3(d), n += 1;
      factor[static_cast<size_t>(r)] = (plain <= clipped ? -plain : 0) + beta * k3_slope(d);
    }
    if (model_.special == Fault::mean_over_all_tokens) n = static_cast<double>(rows);
    if (forward) return {{(policy_loss + beta * kl) / n}, {policy_loss / n}, {kl / n}};
    for (double& f : factor) f *= in[8].at(0) / n;
    return {dlogits(matrix_of(in[0]), ids_of(in[2]), factor, left_out).values};
  }

 private:
  const Model& model_;
};

/// Head by head; a group's heads add up in dk and dv.
Values attention(const Evaluation& e, const std::vector<Tensor>& in, bool forward, bool causal, double scale) {
  const Shape &qs = in[0].shape, &ks = in[1].shape;
  const int64_t q_seq = qs[2], kv_seq = ks[2], width = qs[3], group = qs[1] / ks[1];
  if (scale < 0) scale = 1 / std::sqrt(static_cast<double>(width));
  const Matrix all_q = matrix_of(in[0]);
  Matrix all_k = matrix_of(in[1]), all_v = matrix_of(in[2]);
  const bool reads_masked = e.special() == Fault::masked_keys_multiplied;
  for (int64_t row = 0; row < all_k.rows() && !in[3].name.empty() && !reads_masked; ++row) {
    // What a masked key holds is not read.
    if (in[3].at(row / (ks[1] * kv_seq) * kv_seq + row % kv_seq) != 0) continue;
    for (int64_t d = 0; d < width; ++d) all_k(row, d) = all_v(row, d) = 0;
  }
  const Matrix all_g = forward ? all_q : matrix_of(in[4]);
  Matrix dq = zeros(all_q.rows(), width), dk = zeros(all_k.rows(), width), dv = dk;
  for (int64_t head = 0; head < qs[0] * qs[1]; ++head) {
    const int64_t q_at = head * q_seq, k_at = head / group * kv_seq, mask_at = head / qs[1] * kv_seq;
    const Matrix q = rows_of(all_q, q_at, q_seq), g = rows_of(all_g, q_at, q_seq);
    const Matrix k = rows_of(all_k, k_at, kv_seq), v = rows_of(all_v, k_at, kv_seq);
    const Matrix scores = e.product(q_seq, kv_seq, width, [&](auto i, auto j, auto d) { return q(i, d) * k(j, d); });
    Matrix scaled = scores;
    for (double& s : scaled.values) s *= scale;
    const Matrix p = e.probabilities(scaled, [&](int64_t i, int64_t j) {
      return (!causal || j <= e.last_key(i, q_seq, kv_seq)) && (in[3].name.empty() || in[3].at(mask_at + j) != 0);
    });
    if (forward) {
      put_rows(e.product(q_seq, width, kv_seq, [&](auto i, auto d, auto j) { return p(i, j) * v(j, d); }), q_at, dq);
      continue;
    }
    const Matrix dp = e.product(q_seq, kv_seq, width, [&](auto i, auto j, auto d) { return g(i, d) * v(j, d); });
    Matrix ds = e.dscores(p, dp);
    for (double& s : ds.values) s *= scale;
    put_rows(e.product(q_seq, width, kv_seq, [&](auto i, auto d, auto j) { return ds(i, j) * k(j, d); }), q_at, dq);
    const Matrix own_dk = e.product(kv_seq, width, q_seq, [&](auto j, auto d, auto i) { return ds(i, j) * q(i, d); });
    const Matrix own_dv = e.product(kv_seq, width, q_seq, [&](auto j, auto d, auto i) { return p(i, j) * g(i, d); });
    for (int64_t j = 0; j < kv_seq; ++j)
      for (int64_t d = 0; d < width; ++d) dk(k_at + j, d) += own_dk(j, d), dv(k_at + j, d) += own_dv(j, d);
  }
  if (forward) return {dq.values};
  return {dq.values, dk.values, dv.values};
}

}  // namespace

Values Model::evaluate(const Operator& op, const Pass& pass, const checkop_call& call) const {
  const std::vector<Tensor> in = inputs_of(pass, call);
  const Evaluation e(*this);
  const bool forward = pass.name == "forward";
  if (auto values = evaluate_rows(*this, op, in, call, forward)) return *values;
  if (op.name == "matmul" || op.name == "det_gemm") {
    const Matrix a = e.factor(matrix_of(in[0])), b = e.factor(matrix_of(in[1]));
    if (forward)
      return {e.product(a.rows(), b.columns, b.rows(), [&](int64_t r, int64_t n, int64_t k) {
                 return a(r, k) * b(k, n);
               }).values};
    const Matrix g = e.factor(matrix_of(in[2]));
    const Matrix da =
        e.product(a.rows(), a.columns, b.columns, [&](auto r, auto k, auto n) { return g(r, n) * b(k, n); });
    const Matrix db =
        e.product(b.rows(), b.columns, a.rows(), [&](auto k, auto n, auto r) { return a(r, k) * g(r, n); });
    return {da.values, db.values};
  }
  if (op.name == "lm_head") {
    const Matrix hidden = e.factor(matrix_of(in[0])), weight = e.factor(matrix_of(in[1]));
    const bool biased = !in[2].name.empty() && special != Fault::bias_left_out;
    const Matrix bias = biased ? matrix_of(in[2]) : zeros(1, weight.rows());
    const auto logit = [&](auto r, auto v, auto h) { return hidden(r, h) * weight(v, h); };
    if (forward) {
      Matrix z = e.product(hidden.rows(), weight.rows(), hidden.columns, logit);
      for (int64_t r = 0; r < z.rows(); ++r)
        for (int64_t v = 0; v < z.columns; ++v) z(r, v) += bias(0, v);
      return {z.values};
    }
    const Matrix g = e.factor(matrix_of(in[3]));
    const Matrix dhidden =
        e.product(g.rows(), hidden.columns, g.columns, [&](auto r, auto h, auto v) { return g(r, v) * weight(v, h); });
    const Matrix dweight =
        e.product(g.columns, hidden.columns, g.rows(), [&](auto v, auto h, auto r) { return g(r, v) * hidden(r, h); });
    const Matrix dbias = e.product(1, g.columns, g.rows(), [&](auto, auto v, auto r) { return g(r, v); });
    return {dhidden.values, dweight.values, dbias.values};
  }
  if (op.name == "logp") {
    const Matrix z = matrix_of(in[0]);
    const std::vector<int64_t> ids = ids_of(in[1]);
    const std::vector<char> ignored = Evaluation::ignored(ids, call);
    if (forward) return {e.logp(z, ids, ignored).values};
    return {e.dlogits(z, ids, matrix_of(in[2]).values, ignored).values};
  }
  if (op.name == "ratio_kl") {
    const std::vector<char> masked = e.masked({&in[3]});
    const PolicyLogs logs = e.policy_logs(in, masked);
    std::vector<double> ratio(logs.delta.size(), 1), kl(ratio.size()), factor(ratio.size());
    for (size_t r = 0; r < ratio.size(); ++r) {
      const auto row = static_cast<int64_t>(r);
      if (masked[r] != 0) continue;
      ratio[r] = std::exp(logs.delta[r]);
      kl[r] = e.k3(logs.d[r]);
      if (!forward) factor[r] = in[5].at(row) * ratio[r] + in[6].at(row) * e.k3_slope(logs.d[r]);
    }
    if (forward) return {ratio, kl};
    return {e.dlogits(matrix_of(in[0]), ids_of(in[2]), factor, masked).values};
  }
  if (op.name == "grpo_loss") return e.grpo_loss(in, call, forward);
  if (op.name == "linear_logp") {
    const std::vector<int64_t> ids = ids_of(in[2]);
    const std::vector<char> ignored = Evaluation::ignored(ids, call);
    Matrix hidden = e.factor(matrix_of(in[0]));
    const Matrix weight = e.factor(matrix_of(in[1]));
    for (int64_t r = 0; r < hidden.rows() && left_out == LeftOut::select; ++r)
      for (int64_t h = 0; h < hidden.columns && ignored[static_cast<size_t>(r)] != 0; ++h) hidden(r, h) = 0;
    Matrix z = e.product(hidden.rows(), weight.rows(), hidden.columns,
                         [&](auto r, auto v, auto h) { return hidden(r, h) * weight(v, h); });
    const bool has_bias = !in[3].name.empty();
    if (has_bias && special != Fault::bias_left_out) {
      const Matrix bias = matrix_of(in[3]);
      for (int64_t r = 0; r < z.rows(); ++r)
        for (int64_t v = 0; v < z.columns; ++v) z(r, v) += bias(0, v);
    }
    if (forward) return {e.logp(z, ids, ignored).values};
    const Matrix dz = e.dlogits(z, ids, matrix_of(in[4]).values, ignored);
    const Matrix dhidden =
        e.product(z.rows(), hidden.columns, z.columns, [&](auto r, auto h, auto v) { return dz(r, v) * weight(v, h); });
    const Matrix dweight =
        e.product(z.columns, hidden.columns, z.rows(), [&](auto v, auto h, auto r) { return dz(r, v) * hidden(r, h); });
    Matrix dbias;
    if (has_bias) dbias = e.product(1, z.columns, z.rows(), [&](auto, auto v, auto r) { return dz(r, v); });
    return {dhidden.values, dweight.values, dbias.values};
  }
  if (op.name == "pack") return pack_model(*this, in, forward);
  if (op.name == "kv_cache_attention") return kv_cache_model(*this, pass, call);
  if (op.name == "attention") return attention(e, in, forward, call.attrs[0].value != 0, call.attrs[1].value);
  throw InputError("mutants", "no model of operator '" + std::string(op.name) + "'");
}

}  // namespace checkop::test
