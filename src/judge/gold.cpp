// SPDX-License-Identifier: Apache-2.0
// Runs the gold and streams its rows into the comparisons.
#include "judge/gold.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>

#include "base/clock.hpp"
#include "base/parallel.hpp"
#include "judge/model_bits.hpp"
#include "judge/residuals.hpp"

namespace checkop {

void GoldArgs::parallel_for(int64_t n, const std::function<void(int64_t)>& body) const {
  checkop::parallel_for(threads, n, body);
}

void IdentityArgs::parallel_for(int64_t n, const std::function<void(int64_t)>& body) const {
  checkop::parallel_for(threads, n, body);
}

const RowSet& GoldArgs::rows(int output) const {
  static const RowSet kAll;
  return row_sets.empty() ? kAll : row_sets[static_cast<size_t>(output)];
}

void GoldArgs::for_rows(int output, int64_t total, const std::function<void(int64_t)>& body) const {
  const RowSet& set = rows(output);
  parallel_for(set.count(total), [&](int64_t i) { body(set.at(i)); });
}

namespace {

/// Calls body with the GoldArgs of the case.
template <typename Body>
auto with_gold_args(const Case& c, const std::vector<Tensor>& inputs, unsigned threads, const GoldSink& sink,
                    const std::vector<RowSet>& rows, const Body& body) {
  std::vector<const Tensor*> present;
  for (const Tensor& tensor : inputs) present.push_back(tensor.name.empty() ? nullptr : &tensor);
  std::vector<Shape> output_shapes;
  for (const OutputSpec& spec : c.pass->outputs) {
    output_shapes.push_back(is_present(c, spec.tensor) ? shape_of(c, spec.tensor) : Shape());
  }
  return body(GoldArgs{present, c.attrs, threads, sink, output_shapes, rows});
}

}  // namespace

void run_gold(const Case& c, const std::vector<Tensor>& inputs, unsigned threads, const GoldSink& sink,
              const std::vector<RowSet>& rows) {
  with_gold_args(c, inputs, threads, sink, rows, c.pass->gold);
}

Cost cost_of(const Case& c, const std::vector<Tensor>& inputs) {
  Work work;
  if (c.pass->work != nullptr) work = with_gold_args(c, inputs, 1, {}, {}, c.pass->work);
  double bytes = -work.unread_bytes;
  for (const Tensor& tensor : inputs) bytes += static_cast<double>(tensor.bytes.size());
  for (const OutputSpec& spec : c.pass->outputs) {
    if (!is_present(c, spec.tensor)) continue;
    const int64_t count = element_count(shape_of(c, spec.tensor));
    bytes += static_cast<double>(count) * static_cast<double>(info(dtype_of(c, spec.tensor)).bytes);
  }
  return {work.flops, bytes};
}

int64_t sum_terms(const Case& c, const OutputSpec& output) {
  int64_t longest = 1;
  for (const std::string_view sum : split_dims(output.reduced)) longest = std::max(longest, extent_of(c, sum));
  return longest;
}

namespace {

std::vector<Comparison> judge_once(const Case& c, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs,
                                   const Contract& contract, const Subject& subject, unsigned threads,
                                   const std::vector<RowSet>& rows, GoldTimes* times, const GoldReplay& stored) {
  const std::vector<RowSet> sets = rows.empty() ? std::vector<RowSet>(outputs.size()) : rows;
  std::vector<std::optional<OutputComparison>> comparisons(outputs.size());
  std::vector<Gates> gates(outputs.size());
  std::vector<int64_t> terms(outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].name.empty()) continue;
    const OutputSpec& spec = c.pass->outputs[i];
    gates[i] = contract.gates_for(c, spec, subject);
    // Equal inputs repeat one error many times, so its sign says nothing about bias.
    if (c.input_mode == InputMode::constant)
      std::erase_if(gates[i].all, [](const Gate& gate) { return gate.metric == Metric::bias_t; });
    if (c.pass->identities == nullptr)
      std::erase_if(gates[i].all, [](const Gate& gate) { return gate.metric == Metric::identities; });
    terms[i] = sum_terms(c, spec);
    comparisons[i].emplace(outputs[i].dtype, outputs[i].bytes.data(), judged_view(*c.op, spec.tensor, outputs[i].shape),
                           gates[i], terms[i], sets[i], token_quantity(spec));
  }
  std::atomic<int64_t> compare_ns{0};
  const auto start = Clock::now();
  const auto ms = [](Clock::duration time) { return std::chrono::duration<double, std::milli>(time).count(); };
  const auto compare = [&](const GoldRows& block) {
    const auto before = Clock::now();
    if (auto& comparison = comparisons[static_cast<size_t>(block.output)]) comparison->add(block);
    compare_ns += std::chrono::nanoseconds(Clock::now() - before).count();
  };
  if (stored) {
    stored(threads, compare);
  } else {
    run_gold(c, inputs, threads, compare, rows);
  }
  const auto identities_start = Clock::now();
  std::vector<Comparison> results;
  for (const auto& comparison : comparisons) results.push_back(comparison ? comparison->finish() : Comparison{});
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].out_of_bound == 0 || stored) continue;
    results[i].diagnosis = diagnose_output(c, inputs, i, outputs[i], *comparisons[i], sets[i], threads);
  }
  check_identities(c, inputs, outputs, gates, terms, sets, threads, results);
  check_model(c, inputs, outputs, gates, terms, sets, threads, results);
  if (times != nullptr) {
    const auto end = Clock::now();
    times->wall_ms = ms(end - start);
    times->compare_ms = static_cast<double>(compare_ns) / 1e6 / std::max(1u, threads) + ms(end - identities_start);
  }
  return results;
}

Tensor copy_of(const Tensor& tensor) {
  if (tensor.name.empty()) return {};
  Tensor copy(tensor.name, tensor.dtype, tensor.shape);
  std::copy_n(tensor.bytes.data(), tensor.bytes.size(), copy.bytes.data());
  return copy;
}

}  // namespace

std::vector<Comparison> judge_outputs(const Case& c, const std::vector<Tensor>& inputs,
                                      const std::vector<Tensor>& outputs, const Contract& contract,
                                      const Subject& subject, unsigned threads, const std::vector<RowSet>& rows,
                                      GoldTimes* times, const GoldReplay& stored) {
  std::vector<Comparison> results = judge_once(c, inputs, outputs, contract, subject, threads, rows, times, stored);
  for (size_t i = 0; i < results.size(); ++i) {
    Comparison& result = results[i];
    const bool by_elements_alone = std::all_of(result.gates.begin(), result.gates.end(),
                                               [](const GateResult& gate) { return is_elementwise(gate.metric); });
    if (!result.passed() || by_elements_alone) continue;
    std::erase_if(result.would_pass, [&](Trivial answer) {
      std::vector<Tensor> tried;
      for (const Tensor& output : outputs) tried.push_back(copy_of(output));
      tried[i] = trivial_tensor(answer, outputs[i], judged_view(*c.op, c.pass->outputs[i].tensor, outputs[i].shape));
      return !judge_once(c, inputs, tried, contract, subject, threads, rows, nullptr, stored)[i].passed();
    });
  }
  return results;
}

}  // namespace checkop
