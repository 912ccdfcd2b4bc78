// SPDX-License-Identifier: Apache-2.0
// Attention as Hugging Face's eager_attention_forward and autograd compute it: every tensor in between is stored in the
// dtype of q, and masked keys get a number added to their scores.
//   eager-least      the least number of the dtype: their probability is 0
//   eager-infinite   -inf
//   eager-weak       -4: they keep some of their probability
//   eager-checked    as eager-least, but fails where k or v is not finite
// Supports no causal mask, window, soft cap, sinks, gradients of lse and no groups of heads.
#include <cmath>
#include <limits>

#include "mutate/gold_call.hpp"

namespace checkop::test {
namespace {

constexpr std::array kNames{"eager-least", "eager-infinite", "eager-weak", "eager-checked"};
constexpr std::array kPassNames{"forward", "backward"};

/// Rounds to `dtype`.
float stored(DType dtype, double x) {
  std::array<std::byte, 8> bytes{};
  double value = 0;
  info(dtype).encode(&x, bytes.data(), 1);
  info(dtype).decode(bytes.data(), &value, 1);
  return static_cast<float>(value);
}

double least(DType dtype) {
  constexpr double kLeastHalf = -65504, kLeastBf16 = -0x1.fep127;
  return dtype == DType::f16 ? kLeastHalf : dtype == DType::bf16 ? kLeastBf16 : std::numeric_limits<float>::lowest();
}

struct Matrix {
  Matrix(int64_t of_rows, int64_t of_columns)
      : rows(of_rows), columns(of_columns), values(static_cast<size_t>(of_rows * of_columns)) {}
  Matrix(const Tensor& tensor, int64_t first_row, int64_t of_rows) : Matrix(of_rows, tensor.shape.back()) {
    for (int64_t i = 0; i < rows * columns; ++i)
      values[static_cast<size_t>(i)] = static_cast<float>(tensor.at(first_row * columns + i));
  }
  float& at(int64_t row, int64_t column) { return values[static_cast<size_t>(row * columns + column)]; }
  float at(int64_t row, int64_t column) const { return values[static_cast<size_t>(row * columns + column)]; }
  Matrix transposed() const {
    Matrix to(columns, rows);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) to.at(c, r) = at(r, c);
    return to;
  }

  int64_t rows, columns;
  std::vector<float> values;
};

/// a b, accumulated in fp32 and stored in `dtype`.
Matrix product(const Matrix& a, const Matrix& b, DType dtype) {
  Matrix c(a.rows, b.columns);
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < b.columns; ++j) {
      float sum = 0;
      for (int64_t k = 0; k < a.columns; ++k) sum += a.at(i, k) * b.at(k, j);
      c.at(i, j) = stored(dtype, sum);
    }
  }
  return c;
}

/// One head of one batch entry.
struct Head {
  Head(const std::vector<Tensor>& inputs, int64_t index, double added, double scale_of_scores)
      : dtype(inputs[0].dtype),
        scale(static_cast<float>(scale_of_scores)),
        q(inputs[0], index * inputs[0].shape[2], inputs[0].shape[2]),
        k(inputs[1], index * inputs[1].shape[2], inputs[1].shape[2]),
        v(inputs[2], index * inputs[1].shape[2], inputs[1].shape[2]),
        p(product(q, k.transposed(), dtype)) {
    for (int64_t i = 0; i < p.rows; ++i) {
      float largest = -INFINITY, sum = 0;
      for (int64_t j = 0; j < p.columns; ++j) {
        float& score = p.at(i, j);
        score = stored(dtype, scale * score);
        const int64_t key = index / inputs[0].shape[1] * k.rows + j;
        if (!inputs[3].name.empty() && inputs[3].at(key) == 0)
          score = stored(dtype, static_cast<double>(score) + added);
        if (!(score <= largest)) largest = score;  // also where it is NaN, as in PyTorch
      }
      for (int64_t j = 0; j < p.columns; ++j) sum += p.at(i, j) = std::exp(p.at(i, j) - largest);
      for (int64_t j = 0; j < p.columns; ++j) p.at(i, j) = stored(dtype, p.at(i, j) / sum);
    }
  }

  /// The gradient of q k^T.
  Matrix score_gradient(const Matrix& grad) const {
    Matrix ds = product(grad, v.transposed(), dtype);
    for (int64_t i = 0; i < ds.rows; ++i) {
      float sum = 0;
      for (int64_t j = 0; j < ds.columns; ++j) sum += p.at(i, j) * ds.at(i, j);
      for (int64_t j = 0; j < ds.columns; ++j)
        ds.at(i, j) = stored(dtype, scale * stored(dtype, p.at(i, j) * (ds.at(i, j) - sum)));
    }
    return ds;
  }

  DType dtype;
  float scale;
  Matrix q, k, v, p;
};

void put(const Matrix& from, int64_t head, std::vector<double>& to) {
  std::copy(from.values.begin(), from.values.end(), to.begin() + head * std::ssize(from.values));
}

checkop_status launch(size_t number, const checkop_call* call) {
  const bool backward = number % kPassNames.size() == 1;
  const std::string_view name = kNames[number / kPassNames.size()];
  const Pass& pass = *find_pass(*find_operator("attention"), kPassNames[number % kPassNames.size()]);
  if (call->attrs[0].value != 0 || call->inputs[0].shape[1] != call->inputs[1].shape[1]) return CHECKOP_UNSUPPORTED;
  const bool has_window = call->attrs[2].value >= 0 || call->attrs[3].value >= 0, has_cap = call->attrs[4].value != 0;
  if (has_window || has_cap) return CHECKOP_UNSUPPORTED;
  if (call->inputs[4].data != nullptr || (backward && call->inputs[8].data != nullptr)) return CHECKOP_UNSUPPORTED;
  if (!backward && call->outputs[1].data != nullptr) return CHECKOP_UNSUPPORTED;  // lse, which eager kernels lack
  return answer(*call, [&] {
    const std::vector<Tensor> inputs = inputs_of(pass, *call);
    if (name == "eager-checked" && (has_nonfinite(inputs[1], 1) || has_nonfinite(inputs[2], 1)))
      throw std::runtime_error("k or v is not finite");
    const Shape& shape = inputs[0].shape;
    const double scale = call->attrs[1].value < 0 ? 1 / std::sqrt(static_cast<double>(shape[3])) : call->attrs[1].value;
    const double added = name == "eager-weak" ? -4 : name == "eager-infinite" ? -INFINITY : least(inputs[0].dtype);
    Values values = room_for(pass, *call, Parts(pass, *call));
    for (int64_t h = 0; h < shape[0] * shape[1]; ++h) {
      const Head head(inputs, h, added, scale);
      if (!backward) {
        put(product(head.p, head.v, head.dtype), h, values[0]);
        continue;
      }
      const Matrix grad(inputs[5], h * shape[2], shape[2]), ds = head.score_gradient(grad);
      put(product(ds, head.k, head.dtype), h, values[0]);
      put(product(ds.transposed(), head.q, head.dtype), h, values[1]);
      put(product(head.p.transposed(), grad, head.dtype), h, values[2]);
    }
    for (size_t i = 0; i < values.size(); ++i)
      if (call->outputs[i].data != nullptr) store(call->outputs[i], values[i]);
  });
}

}  // namespace
}  // namespace checkop::test

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) {
  using namespace checkop::test;
  constexpr size_t kRoom = kNames.size() * kPassNames.size();
  static constexpr auto kLaunches = checkop::numbered_launches<kRoom, launch>();
  static const std::vector<checkop_kernel> kernels = [] {
    std::vector<checkop_kernel> all;
    for (size_t i = 0; i < kRoom; ++i)
      all.push_back({sizeof(checkop_kernel), kNames[i / kPassNames.size()], "attention",
                     kPassNames[i % kPassNames.size()], CHECKOP_CPU, 0, 0, nullptr, kLaunches[i]});
    return all;
  }();
  static checkop_plugin plugin;
  return checkop::plugin_of(plugin, kernels, kRoom);
}
