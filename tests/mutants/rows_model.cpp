// SPDX-License-Identifier: Apache-2.0
// The model of operators that work row by row without products: rms_norm, silu, swiglu, embedding.
#include <cmath>

#include "faults.hpp"

namespace checkop::test {
namespace {

std::vector<double> values_of(const Tensor& t) {
  std::vector<double> values(static_cast<size_t>(t.count()));
  info(t.dtype).decode(t.bytes.data(), values.data(), values.size());
  return values;
}

Values rms_norm(const Model& model, const std::vector<Tensor>& in, const checkop_call& call, bool forward) {
  std::vector<double> x = values_of(in[0]), w = values_of(in[1]);
  const std::vector<double> g = forward ? x : values_of(in[2]);
  const size_t columns = w.size(), rows = x.size() / columns;
  const auto counted = columns - std::min(static_cast<size_t>(model.skip_terms), columns - 1);
  for (double& weight : w) weight += model.special == Fault::weight_plus_one ? 1 : 0;
  std::vector<double> dx(x.size()), dw(columns);
  for (size_t r = 0; r < rows; ++r) {
    double* row = &x[r * columns];
    double mean = 0, squares = 0, product = 0;
    for (size_t h = 0; h < columns; ++h) mean += row[h] / static_cast<double>(columns);
    for (size_t h = 0; h < columns; ++h) row[h] -= model.special == Fault::mean_subtracted ? mean : 0;
    for (size_t h = 0; h < counted; ++h) squares += row[h] * row[h], product += g[r * columns + h] * w[h] * row[h];
    const double n = static_cast<double>(columns), root = 1 / std::sqrt(squares / n + call.attrs[0].value);
    if (model.special == Fault::projection_dropped) product = 0;
    const bool kept = forward || in[3].name.empty() || in[3].at(static_cast<int64_t>(r)) != 0 || model.ignore_mask;
    for (size_t h = 0; h < columns; ++h) {
      const double upstream = g[r * columns + h];
      dx[r * columns + h] =
          forward ? row[h] * root * w[h] : root * upstream * w[h] - row[h] * root * root * root * product / n;
      if (kept) dw[h] += upstream * row[h] * root;
    }
  }
  if (forward) return {dx};
  return {dx, dw};
}

struct Logistic {
  double value, complement;
};
Logistic logistic(const Model& model, double x) {
  const double e = std::exp(model.special == Fault::exponent_sign ? x : -x);
  const double s = 1 / (1 + (model.bf16_exp ? round_to_bf16(e) : e));
  return {s, 1 - s};
}

Values silu(const Model& model, const std::vector<Tensor>& in, bool forward) {
  std::vector<double> x = values_of(in[0]);
  const std::vector<double> g = forward ? x : values_of(in[1]);
  for (size_t i = 0; i < x.size(); ++i) {
    const Logistic s = logistic(model, x[i]);
    const double term = model.special == Fault::derivative_short ? 0 : x[i] * s.complement;
    if (forward) x[i] = model.special == Fault::sigmoid_alone ? s.value : x[i] * s.value;
    if (!forward) x[i] = g[i] * s.value * (1 + term);
  }
  return {x};
}

Values swiglu(const Model& model, const std::vector<Tensor>& in, bool forward) {
  std::vector<double> gate = values_of(in[0]), up = values_of(in[1]);
  if (model.special == Fault::gate_and_up_swapped) gate.swap(up);
  const std::vector<double> g = forward ? gate : values_of(in[2]);
  std::vector<double> y(gate.size()), dgate(gate.size()), dup(gate.size());
  for (size_t i = 0; i < gate.size(); ++i) {
    const Logistic s = logistic(model, gate[i]);
    const double term = model.special == Fault::derivative_short ? 0 : gate[i] * s.complement;
    y[i] = gate[i] * s.value * up[i];
    dgate[i] = g[i] * up[i] * s.value * (1 + term), dup[i] = g[i] * gate[i] * s.value;
  }
  if (forward) return {y};
  return {dgate, dup};
}

Values embedding(const Model& model, const std::vector<Tensor>& in, const checkop_call& call, bool forward) {
  std::vector<int64_t> ids(static_cast<size_t>(in[0].count()));
  decode_int(in[0].dtype, in[0].bytes.data(), ids.data(), ids.size());
  const std::vector<double> source = values_of(in[1]);  // the table, or its rows' gradients
  const auto columns = static_cast<size_t>(in[1].shape.back());
  const int64_t vocab = forward ? in[1].shape[0] : call.outputs[0].shape[0];
  const size_t tokens = ids.size();
  std::vector<double> out((forward ? tokens : static_cast<size_t>(vocab)) * columns);
  for (size_t t = 0; t < tokens - (forward ? 0 : static_cast<size_t>(model.skip_terms)); ++t) {
    const size_t own = model.special == Fault::neighbours_id ? t / 2 * 2 : t;
    const auto id = static_cast<size_t>((ids[own] + model.label_shift) % vocab);
    for (size_t h = 0; h < columns; ++h) {
      double& to = out[(forward ? t : id) * columns + h];
      const size_t shift = model.special == Fault::misaligned_rows ? 1 : 0;
      const double from = source[((forward ? id : t) * columns + h + shift) % source.size()];
      to = forward || model.special == Fault::duplicates_overwrite ? from : to + from;
    }
  }
  return {out};
}

}  // namespace

double round_to_bf16(double x) {
  std::byte stored[2];
  const DTypeInfo& bf16 = info(DType::bf16);
  bf16.encode(&x, stored, 1);
  bf16.decode(stored, &x, 1);
  return x;
}

std::optional<Values> evaluate_rows(const Model& model, const Operator& op, const std::vector<Tensor>& in,
                                    const checkop_call& call, bool forward) {
  if (op.name == "rms_norm") return rms_norm(model, in, call, forward);
  if (op.name == "silu") return silu(model, in, forward);
  if (op.name == "swiglu") return swiglu(model, in, forward);
  if (op.name == "embedding") return embedding(model, in, call, forward);
  return {};
}

}  // namespace checkop::test
