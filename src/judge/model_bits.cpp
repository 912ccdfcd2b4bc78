// SPDX-License-Identifier: Apache-2.0
// Compares stored bits with the model's, and finds the nearest order of addition where they differ.
#include "judge/model_bits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "operator/model.hpp"

namespace checkop {
namespace {

/// An output as a matrix, and the arguments of the pass's model.
struct Modelled {
  const Case& c;
  const std::vector<const Tensor*>& inputs;
  size_t index;
  const Tensor& output;
  MatrixView view;
  unsigned threads;

  std::vector<std::byte> stored(const float* values) const {
    const std::vector<double> wide(values, values + view.columns);
    std::vector<std::byte> bytes(wide.size() * info(output.dtype).bytes);
    info(output.dtype).encode(wide.data(), bytes.data(), wide.size());
    return bytes;
  }

  /// Calls body(element, got, expected) for every element of `rows`; `got` and `expected` are stored bits.
  template <class Body>
  void each(const ModelOrder& order, const RowSet& rows, const Body& body) const {
    std::vector<RowSet> sets(c.pass->outputs.size(), RowSet{false, {}});
    sets[index] = rows;
    c.pass->model({inputs, sets, order, threads, [&](int of, int64_t row, const float* values) {
                     if (of != static_cast<int>(index)) return;
                     const std::vector<std::byte> expected = stored(values);
                     for (int64_t i = 0; i < view.columns; ++i) {
                       const int64_t element = row * view.columns + i;
                       body(element, load_bits(output.dtype, output.bytes.data(), element),
                            load_bits(output.dtype, expected.data(), i));
                     }
                   }});
  }

  double value(uint64_t bits) const {
    double decoded = 0;
    info(output.dtype).decode(reinterpret_cast<const std::byte*>(&bits), &decoded, 1);
    return decoded;
  }
  bool equal(uint64_t got, uint64_t expected) const {
    return got == expected || (std::isnan(value(got)) && std::isnan(value(expected)));
  }
};

/// Evenly spread rows of `rows`, few enough that one core can model them in every order in about a second.
RowSet some_of(const std::set<int64_t>& rows, int64_t per_row) {
  constexpr int64_t kWork = int64_t{1} << 27;
  constexpr int64_t kMost = 16;
  const int64_t n = std::min(std::clamp<int64_t>(kWork / std::max<int64_t>(per_row, 1), 1, kMost), std::ssize(rows));
  const std::vector<int64_t> all(rows.begin(), rows.end());
  RowSet some{false, {}};
  for (int64_t i = 0; i < n; ++i) some.chosen.push_back(all[static_cast<size_t>(i * std::ssize(all) / n)]);
  return some;
}

/// Share of equal elements for each of `orders`, the largest first; ties stay in their order.
std::vector<OrderLikeness> likenesses(const Modelled& m, std::span<const ModelOrder> orders, const RowSet& rows) {
  std::vector<OrderLikeness> all;
  for (const ModelOrder& order : orders) {
    int64_t equal = 0, compared = 0;
    m.each(order, rows, [&](int64_t, uint64_t got, uint64_t expected) {
      equal += m.equal(got, expected) ? 1 : 0;
      ++compared;
    });
    all.push_back({to_string(order), static_cast<double>(equal) / static_cast<double>(std::max<int64_t>(compared, 1))});
  }
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.equal > b.equal; });
  return all;
}

ModelComparison compare(const Modelled& m, const Gate& gate, const RowSet& rows, int64_t terms) {
  ModelComparison result;
  result.arch = modelled_arch(gate).key;
  result.order = to_string(model_order(gate));
  result.expected = rows.count(m.view.rows) * m.view.columns;
  std::set<int64_t> differing;
  m.each(model_order(gate), rows, [&](int64_t element, uint64_t got, uint64_t expected) {
    ++result.compared;
    if (m.equal(got, expected)) return;
    differing.insert(element / m.view.columns);
    if (result.different++ > 0 && element > result.first_index) return;
    result.first_index = element;
    result.got = m.value(got), result.model = m.value(expected);
    result.got_bits = got, result.model_bits = expected;
  });
  if (result.different == 0) return result;
  const int64_t products = terms * (multiplies_codes(*m.c.pass) ? kScaledCodes : 1);
  const RowSet tried = some_of(differing, m.view.columns * products);
  result.rows_tried = std::ssize(tried.chosen);
  result.orders = likenesses(m, all_orders(gate.block), tried);
  return result;
}

const Gate* find_gate(const Gates& gates) {
  const auto found = std::find_if(gates.all.begin(), gates.all.end(),
                                  [](const Gate& gate) { return gate.metric == Metric::bits_of_model; });
  return found == gates.all.end() ? nullptr : &*found;
}

}  // namespace

void check_model(const Case& c, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs,
                 const std::vector<Gates>& gates, const std::vector<int64_t>& terms, const std::vector<RowSet>& rows,
                 unsigned threads, std::vector<Comparison>& comparisons) {
  std::vector<const Tensor*> in;
  for (const Tensor& tensor : inputs) in.push_back(tensor.name.empty() ? nullptr : &tensor);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Gate* gate = find_gate(gates[i]);
    if (gate == nullptr || outputs[i].name.empty() || c.pass->model == nullptr) continue;
    const MatrixView view = judged_view(*c.op, c.pass->outputs[i].tensor, outputs[i].shape);
    const ModelComparison model = compare({c, in, i, outputs[i], view, threads}, *gate, rows[i], terms[i]);
    for (GateResult& result : comparisons[i].gates) {
      if (result.metric != Metric::bits_of_model) continue;
      result = gate_result(*gate, static_cast<double>(model.different));
      result.out_of_bound = model.different;
      result.holds = model.different == 0 && model.compared == model.expected;
    }
    comparisons[i].model = model;
  }
}

std::string describe(const ModelComparison& m) {
  if (m.compared != m.expected) return fmt::format("the model gave {} of {} elements", m.compared, m.expected);
  std::string text = fmt::format("{} of {} differ", m.different, m.compared);
  if (!m.orders.empty()) {
    text += fmt::format("; nearest order: {} ({:.4g} % equal)", m.orders.front().order, 100 * m.orders.front().equal);
  }
  return text;
}

std::string describe_orders(const ModelComparison& m) {
  std::string text;
  for (const OrderLikeness& likeness : m.orders)
    text += fmt::format("{}{} {:.4g} %", text.empty() ? "" : ", ", likeness.order, 100 * likeness.equal);
  return text;
}

}  // namespace checkop
