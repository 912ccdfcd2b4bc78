// SPDX-License-Identifier: Apache-2.0
// Several data sets of a case, and a verdict on each.
#include "session/bench_judge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <random>

#include "base/frame.hpp"
#include "base/host_memory.hpp"
#include "base/mix.hpp"
#include "case/inputs.hpp"
#include "case/rank_parts.hpp"
#include "case/sampling.hpp"
#include "judge/gold.hpp"
#include "judge/verdict.hpp"

namespace checkop {
namespace {

constexpr size_t kMostSets = 16;
/// Most bytes of the inputs of all data sets of a case. If each set is within it, two sets may exceed it together, and
/// on a GPU four: the times that a process reports are bounded by launches on data that none had before, two of four
/// sets.
constexpr uint64_t kDataBytes = uint64_t{256} << 20;
/// Launches whose outputs may differ, by the contract, from those of others on the same data.
constexpr size_t kDiffering = 2;
/// If the golds of all sets of a candidate take more than this gold_work(), they have as many rows as a part of it
/// allows, and `fewest` at least. Without quick rows, sets but the drawn one have none if a set takes more than this.
constexpr double kMostWork = 1e10;
struct SampledRows {
  double work;
  int64_t fewest;
};
constexpr SampledRows kOfDrawn{1e10, 64}, kOfOthers{1e9, 8};

struct Sizes {
  uint64_t inputs = 0, outputs = 0;
  size_t tensors_in = 0, tensors_out = 0;
};

Sizes sizes_of(const Case& c) {
  Sizes sizes;
  const auto bytes_of = [&](const TensorSpec& spec) {
    return static_cast<uint64_t>(element_count(shape_of(c, spec))) * info(dtype_of(c, spec)).bytes;
  };
  for (const TensorSpec& spec : c.pass->inputs)
    if (is_present(c, spec)) sizes.inputs += bytes_of(spec), ++sizes.tensors_in;
  for (const OutputSpec& spec : c.pass->outputs)
    if (is_present(c, spec.tensor)) sizes.outputs += bytes_of(spec.tensor), ++sizes.tensors_out;
  return sizes;
}

/// The number of data sets: 2 or more unless memory is short or ranks share the case, which have copies of their own.
size_t sets_of(const Case& c, uint64_t candidates, const DeviceInfo& device) {
  if (is_tensor_parallel(c)) return 1;
  const Sizes sizes = sizes_of(c);
  const size_t by_bytes = kDataBytes / std::max<uint64_t>(1, sizes.inputs);
  const size_t by_message = (kMaxDescriptors - kDiffering * candidates * sizes.tensors_out) /
                            std::max<size_t>(1, sizes.tensors_in + candidates * sizes.tensors_out);
  const size_t least = device.kind == "cuda" && sizes.inputs <= kDataBytes ? 4 : 2;
  const size_t sets = std::min(std::clamp<size_t>(by_bytes, least, kMostSets), std::max<size_t>(1, by_message));
  const auto fit = [&](uint64_t n) {
    const uint64_t kept = n * (sizes.inputs + candidates * sizes.outputs);
    const uint64_t buffers = (n + 1) * sizes.inputs + n * candidates * sizes.outputs;
    const bool on_cuda = device.kind == "cuda";
    if (on_cuda && device.free_bytes > 0 && buffers > device.free_bytes / 2) return false;
    const auto free = available_memory();
    return !free || kept + (on_cuda ? 0 : buffers) <= *free / 2;
  };
  return fit(sets) ? sets : 1;
}

/// Finite numbers in what the operator leaves out, where the contract grants them to any candidate.
LeftOut left_out_of(const Case& c, const std::vector<const ChosenCandidate*>& candidates, const Contract& contract,
                    const std::string& arch_key) {
  for (const ChosenCandidate* candidate : candidates) {
    for (const OutputSpec& spec : c.pass->outputs) {
      const Gates gates = contract.gates_for(c, spec, {arch_key, candidate->name, candidate->recipes});
      if (gates.left_out.content == LeftOut::finite) return LeftOut::finite;
    }
  }
  return LeftOut::nonfinite;
}

/// Whether the gold of a few rows is quick.
bool has_quick_rows(const Case& c) {
  const auto& outputs = c.pass->outputs;
  const auto is_whole = [&](const OutputSpec& spec) {
    return is_present(c, spec.tensor) && !spec.sampled_whole.empty();
  };
  const auto is_sampled = [&](const OutputSpec& spec) { return is_present(c, spec.tensor) && spec.sampled; };
  return std::any_of(outputs.begin(), outputs.end(), is_sampled) &&
         std::none_of(outputs.begin(), outputs.end(), is_whole);
}

/// The number of rows of a set to judge. A row of an output takes about its share of gold_work().
int64_t count_of(const SampledRows& sampled, const Case& c) {
  int64_t all = std::numeric_limits<int64_t>::max();  // of the output that has the fewest
  for (const OutputSpec& spec : c.pass->outputs)
    if (spec.sampled && is_present(c, spec.tensor))
      all = std::min(all, judged_view(*c.op, spec.tensor, shape_of(c, spec.tensor)).rows);
  const double share = std::min(1.0, sampled.work / gold_work(c));
  return std::max(sampled.fewest, static_cast<int64_t>(share * static_cast<double>(all)));
}

bool may_differ(const Case& c, const Contract& contract) {
  return std::any_of(c.pass->outputs.begin(), c.pass->outputs.end(),
                     [&](const OutputSpec& spec) { return !contract.demands_for(c, spec).determinism; });
}

}  // namespace

Case case_of_set(const Case& c, size_t set) {
  Case other = c;
  if (set > 0) {
    other.seed = mix_bits(c.seed + set);
    other.grad_seed = mix_bits(c.grad_seed + set);
  }
  return other;
}

BenchData make_bench_data(const Case& c, const std::vector<const ChosenCandidate*>& candidates, const DeviceInfo& info,
                          const Contract& contract, const std::string& arch_key, unsigned threads) {
  BenchData data;
  const LeftOut left_out = left_out_of(c, candidates, contract, arch_key);
  const size_t sets = sets_of(c, candidates.size(), info);
  for (size_t set = 0; set < sets; ++set) data.inputs.push_back(make_inputs(case_of_set(c, set), threads, left_out));
  data.outputs.resize(candidates.size());
  for (auto& of_candidate : data.outputs) {
    for (size_t i = 0; i < sets + (may_differ(c, contract) ? kDiffering : 0); ++i)
      of_candidate.push_back(make_outputs(c));
  }
  return data;
}

void judge_bench(const Case& c, const ChosenCandidate& candidate, const BenchData& data, size_t index,
                 const Contract& contract, const std::string& arch_key, unsigned threads, BenchRun& run) {
  if (run.status != RunStatus::ok) return;
  const Subject subject{arch_key, candidate.name, candidate.recipes};
  std::vector<Demands> demands;
  for (const OutputSpec& spec : c.pass->outputs) demands.push_back(contract.demands_for(c, spec));
  RunResult seen = run.seen;
  seen.status = RunStatus::ok;
  const RunChecks checks{.invariance = false};
  std::vector<size_t> first_launches;  // on each data set; launches that differ from them follow
  for (size_t slot = 0; slot < std::min(run.kept.size(), data.inputs.size()); ++slot)
    if (run.kept[slot] >= 0) first_launches.push_back(slot);
  // So that a candidate can't know for which data the gold has most rows.
  const size_t drawn = first_launches.empty() ? 0 : first_launches[std::random_device{}() % first_launches.size()];
  const double work = gold_work(c);
  const bool quick = has_quick_rows(c), samples = quick && work * static_cast<double>(data.inputs.size()) > kMostWork;
  for (size_t slot = 0; slot < run.kept.size(); ++slot) {
    if (run.kept[slot] < 0) continue;
    if (!quick && work > kMostWork && slot != drawn && slot < data.inputs.size()) continue;
    const auto set = static_cast<size_t>(run.kept[slot]);
    const Case judged = case_of_set(c, set);
    const int64_t rows =
        samples ? count_of(slot == drawn ? kOfDrawn : kOfOthers, c) : contract.sampling().rows_for(work);
    const std::vector<Comparison> comparisons =
        judge_outputs(judged, data.inputs[set], data.outputs[index][slot], contract, subject, threads,
                      sample_rows(judged, data.inputs[set], rows, std::random_device{}()));
    const Judgment judgment =
        judge(judged, seen, comparisons, demands, checks, /*accuracy=*/true, contract.known_for(judged, subject));
    if (judgment.verdict == Verdict::pass || judgment.verdict == Verdict::xfail) continue;
    run.status = RunStatus::failed;
    run.message = judgment.verdict == Verdict::vacuous ? fmt::format("proves nothing: {}", judgment.reason)
                                                       : fmt::format("{}: {}", judgment.kind, judgment.reason);
    if (judgment.kind == "determinism") run.message += fmt::format(" ({})", seen.message);
    if (set > 0 && is_of_numbers(judgment)) run.message += fmt::format(" (data of --seed {})", judged.seed);
    return;
  }
}

}  // namespace checkop
