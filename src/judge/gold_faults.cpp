// SPDX-License-Identifier: Apache-2.0
// Emulates the known faults one by one until one explains the failing elements.
#include "judge/gold_faults.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "case/rank_parts.hpp"
#include "case/sampling.hpp"
#include "operator/emulation.hpp"

namespace checkop {
namespace {

constexpr double kMostEmulationWork = 5e8;  // of all emulations together, in units of gold_work()
constexpr double kExplained = 4e-4;         // share of the squared errors that may remain: 2 % in norm

/// The emulated part of a case: all of it, or the batch's rows [first, first + n).
struct Part {
  Case c;
  std::vector<Tensor> sliced;  // by input; inputs that are not per-row have no name
  std::vector<const Tensor*> inputs;
  int64_t first_element = 0, elements = 0;  // range of the output
};

Part whole(const Case& c, const std::vector<Tensor>& inputs, size_t index) {
  Part part{c, {}, {}, 0, element_count(shape_of(c, c.pass->outputs[index].tensor))};
  for (const Tensor& tensor : inputs) part.inputs.push_back(tensor.name.empty() ? nullptr : &tensor);
  return part;
}

Part rows_of(const Case& c, const std::vector<Tensor>& inputs, size_t index, int64_t first, int64_t n) {
  Part part{slice_rows(c, first, first + n), {}, {}, 0, 0};
  const TensorSpec& output = c.pass->outputs[index].tensor;
  const int64_t width = matrix_view(*c.op, output, shape_of(c, output)).columns;
  part.first_element = first * width, part.elements = n * width;
  part.sliced.resize(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const TensorSpec& spec = c.pass->inputs[i];
    if (inputs[i].name.empty() || !is_per_row(*c.op, spec)) {
      part.inputs.push_back(inputs[i].name.empty() ? nullptr : &inputs[i]);
      continue;
    }
    Tensor rows(inputs[i].name, inputs[i].dtype, shape_of(part.c, spec));
    const auto row_bytes = inputs[i].bytes.size() / static_cast<size_t>(row_count(c));
    std::copy_n(inputs[i].bytes.data() + static_cast<size_t>(first) * row_bytes, rows.bytes.size(), rows.bytes.data());
    part.sliced[i] = std::move(rows);
    part.inputs.push_back(&part.sliced[i]);
  }
  return part;
}

/// The part that can be emulated in time: the whole case, or the batch row of a failing element; nullopt for neither.
std::optional<Part> part_of(const Case& c, const std::vector<Tensor>& inputs, size_t index,
                            const FailureSummary& failures) {
  const double runs = static_cast<double>(c.pass->emulation->faults.size() + all_plans().size());
  if (gold_work(c) * runs <= kMostEmulationWork) return whole(c, inputs, index);
  const TensorSpec& output = c.pass->outputs[index].tensor;
  const int64_t rows = row_count(c);
  if (!is_per_row(*c.op, output) || gold_work(c) / static_cast<double>(rows) * runs > kMostEmulationWork) return {};
  const Shape shape = shape_of(c, output);
  const int64_t judged = judged_view(*c.op, output, shape).columns, width = matrix_view(*c.op, output, shape).columns;
  const FailingElement& one = failures.sample[failures.sample.size() / 2];
  return rows_of(c, inputs, index, (one.row * judged + one.column) / width, 1);
}

std::vector<double> emulated(const Part& part, size_t index, const Plan& plan, std::string_view fault,
                             unsigned threads) {
  Values values;
  for (const OutputSpec& output : part.c.pass->outputs) {
    const bool present = is_present(part.c, output.tensor);
    values.emplace_back(present ? static_cast<size_t>(element_count(shape_of(part.c, output.tensor))) : 0);
  }
  const Arithmetic arithmetic(plan, fault);
  const std::vector<int64_t> bounds = part_bounds(part.c);
  part.c.pass->emulation->run({part.inputs, part.c.attrs, arithmetic, values, threads, bounds});
  return std::move(values[index]);
}

/// The errors of bf16 sums depend on the order of addition; those of other faults hardly do.
std::span<const Plan> plans_for(const FaultSpec& fault) {
  static constexpr std::array kAny{Plan{Plan::Order::blocked, 512}};
  return fault.name == faults::kBf16Accumulator.name ? all_plans() : kAny;
}

}  // namespace

std::string emulated_fault(const Case& c, const std::vector<Tensor>& inputs, size_t index,
                           const FailureSummary& failures, unsigned threads) {
  if (c.pass->emulation == nullptr || failures.sample.empty()) return "";
  const std::optional<Part> part = part_of(c, inputs, index, failures);
  if (!part) return "";
  const TensorSpec& output = c.pass->outputs[index].tensor;
  const DTypeInfo& type = info(dtype_of(c, output));
  const int64_t columns = judged_view(*c.op, output, shape_of(c, output)).columns;
  struct Seen {
    size_t at;
    const FailingElement* element;
  };
  std::vector<Seen> seen;
  double squared_error = 0;
  for (const FailingElement& e : failures.sample) {
    const int64_t at = e.row * columns + e.column - part->first_element;
    if (at < 0 || at >= part->elements || !std::isfinite(e.got) || !std::isfinite(e.gold)) continue;
    seen.push_back({static_cast<size_t>(at), &e});
    squared_error += (e.got - e.gold) * (e.got - e.gold);
  }
  if (seen.empty()) return "";
  for (const FaultSpec& fault : c.pass->emulation->faults) {
    if (fault.needs.starts_with('-') ? c.optionals.contains(fault.needs.substr(1))
                                     : !fault.needs.empty() && !c.optionals.contains(fault.needs))
      continue;
    for (const Plan& plan : plans_for(fault)) {
      const std::vector<double> wrong = emulated(*part, index, plan, fault.name, threads);
      double unexplained = 0;
      for (const Seen& s : seen) {
        std::array<std::byte, 8> stored{};
        double value = 0;
        type.encode(&wrong[s.at], stored.data(), 1);
        type.decode(stored.data(), &value, 1);
        unexplained += (s.element->got - value) * (s.element->got - value);
      }
      if (unexplained <= kExplained * squared_error) return fmt::format("as where {} ({})", fault.meaning, fault.name);
    }
  }
  return "";
}

}  // namespace checkop
