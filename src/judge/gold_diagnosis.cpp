// SPDX-License-Identifier: Apache-2.0
// Collects the inputs of diagnose(): gold rows near failing elements, and masks over elements of the output.
#include <algorithm>
#include <map>
#include <mutex>

#include "case/sampling.hpp"
#include "judge/diagnosis.hpp"
#include "judge/gold.hpp"
#include "judge/gold_faults.hpp"

namespace checkop {
namespace {

constexpr double kMostDiagnosisWork = 1e9;  // in units of gold_work(); for a gold that can't compute single rows

std::map<int64_t, NearbyRow> nearby_rows(const Case& c, const std::vector<Tensor>& inputs, size_t index,
                                         const MatrixView& view, const OutputComparison& comparison,
                                         const std::vector<int64_t>& wanted, unsigned threads, KeptResults* kept) {
  const auto& outputs = c.pass->outputs;
  if (wanted.empty() || (!outputs[index].sampled && gold_work(c) > kMostDiagnosisWork)) return {};
  std::map<int64_t, NearbyRow> found;
  std::mutex mutex;
  const auto take = [&](const GoldRows& block) {
    if (block.output != static_cast<int>(index)) return;
    const int64_t cut = block.columns / view.columns;
    for (const int64_t row : wanted) {
      const int64_t at = (row - block.first_row * cut) * view.columns;
      if (row < block.first_row * cut || row >= (block.first_row + block.n_rows) * cut) continue;
      NearbyRow near;
      near.value.assign(block.value + at, block.value + at + view.columns);
      for (int64_t i = at; i < at + view.columns; ++i)
        near.allowed.push_back(comparison.allowed(block.value[i], block.magnitude[i], block.rounding[i]));
      const std::lock_guard lock(mutex);
      found[row] = std::move(near);
    }
  };
  run_gold(c, inputs, threads, take, rows_of(c, outputs[index], wanted), {}, kept);
  return found;
}

/// Stride of each dimension of `spec` in memory, in elements.
std::map<std::string_view, int64_t> strides_of(const Case& c, const TensorSpec& spec) {
  std::map<std::string_view, int64_t> strides;
  const auto names = split_dims(spec.dims);
  int64_t stride = 1;
  for (size_t i = names.size(); i-- > 0;) {
    strides[names[i]] = stride;
    stride *= extent_of(c, names[i]);
  }
  return strides;
}

/// Masks whose dimensions are all dimensions of the output.
std::vector<MaskOf> masks_of(const Case& c, const std::vector<Tensor>& inputs, const TensorSpec& output,
                             int64_t columns) {
  std::vector<MaskOf> masks;
  const auto of_output = strides_of(c, output);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const TensorSpec& spec = c.pass->inputs[i];
    if (spec.fill != Fill::mask || inputs[i].name.empty()) continue;
    const auto of_mask = strides_of(c, spec);
    const bool fits = std::all_of(of_mask.begin(), of_mask.end(),
                                  [&](const auto& dim) { return of_output.find(dim.first) != of_output.end(); });
    if (!fits) continue;
    const auto is_zero = [&c, &mask = inputs[i], of_mask, of_output, columns](int64_t row, int64_t column) {
      int64_t at = 0;
      for (const auto& [dim, stride] : of_mask) {
        at += (row * columns + column) / of_output.find(dim)->second % extent_of(c, dim) * stride;
      }
      return mask.at(at) == 0;
    };
    masks.push_back({std::string(spec.name), is_zero});
  }
  return masks;
}

/// All rows of an output, of the gold of the whole case.
std::map<int64_t, NearbyRow> all_rows(const EmulatedFaults::Gold& gold, size_t index, const MatrixView& view,
                                      const OutputComparison& comparison) {
  std::map<int64_t, NearbyRow> rows;
  for (int64_t r = 0; r < view.rows; ++r) {
    const auto at = static_cast<size_t>(r * view.columns), n = static_cast<size_t>(view.columns);
    NearbyRow& row = rows[r];
    row.value.assign(&gold.value[index][at], &gold.value[index][at] + n);
    for (size_t i = at; i < at + n; ++i)
      row.allowed.push_back(
          comparison.allowed(gold.value[index][i], gold.magnitude[index][i], gold.rounding[index][i]));
  }
  return rows;
}

}  // namespace

void diagnose_outputs(const JudgedOutputs& judged, EmulatedFaults& emulated, std::vector<Comparison>& results,
                      bool poisoned) {
  const Case& c = judged.c;
  std::vector<KnownFaults> known = known_faults(judged, emulated);
  const bool is_cheap = has_cheap_gold(judged);
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].out_of_bound == 0) continue;
    const TensorSpec& spec = c.pass->outputs[i].tensor;
    const Tensor& output = judged.outputs[i];
    const OutputComparison& compared = *judged.compared[i];
    const MatrixView view = judged_view(*c.op, spec, output.shape);
    const FailureSummary failures = compared.failures();
    Suspect suspect{output.dtype, output.bytes.data(), view, judged.rows[i], failures, {}, {}, {}, poisoned};
    suspect.nearby = is_cheap ? all_rows(emulated.gold({}), i, view, compared)
                              : nearby_rows(c, judged.inputs, i, view, compared, rows_to_compare(failures, view.rows),
                                            judged.threads, judged.kept);
    suspect.masks = masks_of(c, judged.inputs, spec, view.columns);
    for (const std::string_view dim : split_dims(spec.dims)) suspect.dims.emplace_back(dim, extent_of(c, dim));
    const Pattern seen = diagnose(suspect);
    known[i].certain &= !seen.complete;
    const std::string fault = describe(known[i]);
    results[i].diagnosis = seen.text.empty() || fault.empty() ? fault + seen.text : fault + "; " + seen.text;
  }
}

}  // namespace checkop
