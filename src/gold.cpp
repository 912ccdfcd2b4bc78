// SPDX-License-Identifier: Apache-2.0
// Case -> gold -> comparison, streamed.
#include "gold.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>

#include "parallel.hpp"

namespace checkop {

void GoldArgs::parallel_for(int64_t n, const std::function<void(int64_t)>& body) const {
  checkop::parallel_for(threads, n, body);
}

void run_gold(const Case& c, const std::vector<Tensor>& inputs, unsigned threads, const GoldSink& sink) {
  std::vector<const Tensor*> present;
  for (const Tensor& tensor : inputs) present.push_back(tensor.name.empty() ? nullptr : &tensor);
  std::vector<Shape> output_shapes;
  for (const OutputSpec& spec : c.pass->outputs) {
    output_shapes.push_back(is_present(c, spec.tensor) ? shape_of(c, spec.tensor) : Shape());
  }
  c.pass->gold({present, c.attrs, threads, sink, output_shapes});
}

int64_t sum_terms(const Case& c, const OutputSpec& output) {
  int64_t longest = 1;
  for (std::string_view sum : split_dims(output.reduced)) {  // "hidden vocab batch*seq"
    int64_t terms = 1;
    while (!sum.empty()) {
      const size_t end = std::min(sum.find('*'), sum.size());
      terms *= c.dims.find(sum.substr(0, end))->second;
      sum.remove_prefix(std::min(end + 1, sum.size()));
    }
    longest = std::max(longest, terms);
  }
  return longest;
}

std::vector<Comparison> judge_outputs(const Case& c, const std::vector<Tensor>& inputs,
                                      const std::vector<Tensor>& outputs, const Contract& contract,
                                      std::string_view arch_key, unsigned threads, GoldTimes* times) {
  using Clock = std::chrono::steady_clock;
  std::vector<std::optional<OutputComparison>> comparisons(outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].name.empty()) continue;
    const OutputSpec& spec = c.pass->outputs[i];
    comparisons[i].emplace(outputs[i].dtype, outputs[i].bytes.data(), matrix_view(*c.op, spec.tensor, outputs[i].shape),
                           contract.gates_for(c, spec, arch_key), sum_terms(c, spec));
  }
  std::atomic<int64_t> compare_ns{0};
  const auto start = Clock::now();
  run_gold(c, inputs, threads, [&](const GoldRows& rows) {
    const auto before = Clock::now();
    if (auto& comparison = comparisons[static_cast<size_t>(rows.output)]) comparison->add(rows);
    compare_ns += std::chrono::nanoseconds(Clock::now() - before).count();
  });
  if (times != nullptr) {
    times->wall_ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    times->compare_ms = static_cast<double>(compare_ns) / 1e6 / std::max(1u, threads);
  }
  std::vector<Comparison> results;
  for (const auto& comparison : comparisons) results.push_back(comparison ? comparison->finish() : Comparison{});
  return results;
}

}  // namespace checkop
