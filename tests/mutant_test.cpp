// SPDX-License-Identifier: Apache-2.0
// Every mutant must fail, for its own reason, under the shipped contract; perfect, native and the model must pass.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <set>

#include "device.hpp"
#include "gold.hpp"
#include "inputs.hpp"
#include "mutants/table.hpp"
#include "runner.hpp"
#include "verdict.hpp"

namespace checkop {
namespace {

using test::kMutants;
using test::Mutant;

constexpr std::array kDTypes{DType::f32, DType::bf16, DType::f16};
constexpr size_t kLeastMutants = 15;

struct Shapes {
  std::string_view op;
  std::map<std::string, int64_t, std::less<>> dims;
  std::set<std::string, std::less<>> optionals;
};

/// Small enough for a second of FP64 and large enough for a tile of 128 to be missing. Extents are no multiples of one
/// another, so that a mistaken stride shows.
const std::vector<Shapes>& shapes() {
  static const std::vector<Shapes> all{
      {"logp", {{"batch", 2}, {"seq", 6}, {"vocab", 1031}}, {}},
      {"linear_logp", {{"batch", 2}, {"seq", 6}, {"hidden", 192}, {"vocab", 389}}, {}},
      {"linear_logp", {{"batch", 2}, {"seq", 6}, {"hidden", 192}, {"vocab", 389}}, {"bias"}},
      {"matmul", {{"batch", 2}, {"seq", 24}, {"k_dim", 256}, {"n_dim", 72}}, {}},
      {"det_gemm", {{"batch", 2}, {"seq", 20}, {"k_dim", 272}, {"n_dim", 88}}, {}},
      {"lm_head", {{"batch", 2}, {"seq", 24}, {"hidden", 256}, {"vocab", 140}}, {}},
      {"lm_head", {{"batch", 2}, {"seq", 24}, {"hidden", 256}, {"vocab", 140}}, {"bias"}},
      {"rms_norm", {{"batch", 2}, {"seq", 24}, {"hidden", 200}}, {}},
      {"rms_norm", {{"batch", 2}, {"seq", 24}, {"hidden", 200}}, {"mask"}},
      {"embedding", {{"batch", 2}, {"seq", 24}, {"vocab", 23}, {"hidden", 40}}, {}},
      {"silu", {{"batch", 2}, {"seq", 24}, {"hidden", 200}}, {}},
      {"swiglu", {{"batch", 2}, {"seq", 24}, {"hidden", 200}}, {}},
      {"rope", {{"batch", 3}, {"heads", 3}, {"seq", 21}, {"head_dim", 40}}, {}},
      {"attention",
       {{"batch", 2}, {"q_heads", 4}, {"kv_heads", 2}, {"q_seq", 21}, {"kv_seq", 37}, {"head_dim", 24}},
       {}},
      {"attention",
       {{"batch", 2}, {"q_heads", 4}, {"kv_heads", 2}, {"q_seq", 21}, {"kv_seq", 37}, {"head_dim", 24}},
       {"key_padding_mask"}},
      {"kv_cache_attention",
       {{"batch", 2},
        {"q_heads", 4},
        {"kv_heads", 2},
        {"q_seq", 13},
        {"new_seq", 13},
        {"cache_seq", 22},
        {"head_dim", 24}},
       {}},
      {"kv_cache_attention",
       {{"batch", 2},
        {"q_heads", 4},
        {"kv_heads", 2},
        {"q_seq", 13},
        {"new_seq", 13},
        {"cache_seq", 22},
        {"head_dim", 24}},
       {"key_padding_mask"}},
      {"ratio_kl", {{"batch", 2}, {"seq", 6}, {"vocab", 1031}}, {}},
      {"pack", {{"batch", 9}, {"seq", 21}, {"hidden", 40}}, {}},
      {"grpo_loss", {{"batch", 8}, {"seq", 3}, {"vocab", 389}, {"group_bounds", 2}}, {}},
  };
  return all;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Shapes& shape : shapes()) {
    const Operator* op = find_operator(shape.op);
    for (const Pass& pass : op->passes)
      for (DType dtype : kDTypes) {
        Case c;
        c.op = op;
        c.pass = &pass;
        c.dtype = dtype;
        c.dims = shape.dims;
        c.optionals = shape.optionals;
        for (const AttrSpec& attr : op->attrs) c.attrs.push_back(attr.fallback);
        all.push_back(std::move(c));
      }
  }
  return all;
}

std::string plugin_path(const std::string& name) { return std::string(CHECKOP_TEST_PLUGIN_DIR) + "/" + name + ".so"; }
std::string native_path(const Operator& op) {
  return std::string(CHECKOP_BINARY_DIR) + "/kernels/" + std::string(op.name) + "/native.so";
}

const Candidate* find(const std::vector<Candidate>& candidates, std::string_view name, const Case& c) {
  for (const Candidate& candidate : candidates)
    if (candidate.name == name && candidate.op == c.op->name && candidate.pass == c.pass->name) return &candidate;
  return nullptr;
}

class Judge {
 public:
  Judge()
      : contract_(Contract::load(std::string(CHECKOP_SOURCE_DIR) + "/contracts/default.json")),
        device_(open_cpu_device()) {}

  /// Inputs are kept between calls: every candidate of a case gets copies of the same ones.
  Judgment operator()(const Case& c, const Candidate& candidate) {
    auto& inputs = inputs_[case_name(c) + std::string(c.pass->name)];
    if (inputs.empty()) inputs = make_inputs(c, 1);
    std::vector<Tensor> outputs = make_outputs(c);
    std::vector<Demands> demands;
    for (const OutputSpec& spec : c.pass->outputs) demands.push_back(contract_.demands_for(c, spec));
    const RunChecks checks;
    const RunResult run = run_candidate(*device_, candidate, c, inputs, outputs, checks);
    std::vector<Comparison> comparisons;
    if (run.status == RunStatus::ok) comparisons = judge_outputs(c, inputs, outputs, contract_, {}, 1);
    for (const Comparison& comparison : comparisons)
      for (const GateResult& gate : comparison.gates) {
        double& worst = worst_ratio_[c.dtype];
        worst = std::max(worst, gate.achieved / gate.limit);
      }
    return judge(c, run, comparisons, demands, checks, /*accuracy=*/true);
  }

  /// Error over bound, the largest of each dtype. Of 16-bit outputs it is near 1 for any right answer: the bound has
  /// room for one rounding and for little else.
  const std::map<DType, double>& worst_ratio() const { return worst_ratio_; }

 private:
  Contract contract_;
  std::unique_ptr<Device> device_;
  std::map<std::string, std::vector<Tensor>> inputs_;
  std::map<DType, double> worst_ratio_;
};

std::string describe(const Case& c, const std::string& candidate, const Judgment& judgment) {
  return case_name(c) + "/" + std::string(c.pass->name) + " " + candidate + ": " +
         std::string(to_string(judgment.verdict)) + " " + judgment.kind + ": " + judgment.reason;
}

TEST(Mutants, EachFailsForItsOwnReason) {
  const std::vector<Candidate> candidates = load_plugin(plugin_path("mutants"));
  Judge judge_candidate;
  std::map<std::string_view, int> runs;
  for (const Case& c : cases()) {
    for (const Mutant& mutant : kMutants) {
      if (mutant.kind.empty() || !applies(mutant, *c.op, *c.pass) || !shows_in(mutant, c.dtype)) continue;
      if (!shows_with(mutant, c.optionals)) continue;
      const std::string name = candidate_name(mutant);
      const Candidate* candidate = find(candidates, name, c);
      ASSERT_NE(candidate, nullptr) << name;
      const Judgment judgment = judge_candidate(c, *candidate);
      EXPECT_EQ(judgment.verdict, Verdict::fail) << describe(c, name, judgment);
      EXPECT_EQ(judgment.kind, mutant.kind) << describe(c, name, judgment);
      ++runs[mutant.name];
    }
  }
  EXPECT_GE(runs.size(), kLeastMutants);
  for (const Mutant& mutant : kMutants) EXPECT_EQ(runs[mutant.name] == 0, mutant.kind.empty()) << mutant.name;
}

TEST(Mutants, EveryPassOfEveryOperatorHasCasesAndMutants) {
  for (const Operator* op : operators()) {
    EXPECT_TRUE(std::any_of(shapes().begin(), shapes().end(), [&](const Shapes& s) { return s.op == op->name; }))
        << op->name << " has no shapes here";
    for (const Pass& pass : op->passes) {
      const auto count = std::count_if(kMutants.begin(), kMutants.end(), [&](const Mutant& mutant) {
        return !mutant.kind.empty() && applies(mutant, *op, pass);
      });
      EXPECT_GE(static_cast<size_t>(count), kLeastMutants - 3) << op->name << "/" << pass.name;
    }
  }
}

// Faults that any kernel may have say little of an operator; these are its own.
TEST(Mutants, EveryPassHasThreeFaultsOfItsOwn) {
  const std::set<test::Fault> common{test::Fault::gradient_scaled, test::Fault::transposed_block,
                                     test::Fault::truncation, test::Fault::tail_not_computed};
  for (const Operator* op : operators()) {
    for (const Pass& pass : op->passes) {
      const auto count = std::count_if(kMutants.begin(), kMutants.end(), [&](const Mutant& mutant) {
        return !mutant.kind.empty() && !mutant.passes.empty() && !common.contains(mutant.fault) &&
               applies(mutant, *op, pass);
      });
      EXPECT_GE(count, 3) << op->name << "/" << pass.name;
    }
  }
}

/// Judges candidate `name`, one of `candidates_of(op)`, in every case of the operators that `wanted` takes.
template <class CandidatesOf, class Wanted>
void expect_all_pass(const std::string& name, CandidatesOf candidates_of, Wanted wanted) {
  Judge judge_candidate;
  for (const Case& c : cases()) {
    if (!wanted(c)) continue;
    const std::vector<Candidate>& candidates = candidates_of(*c.op);
    const Candidate* candidate = find(candidates, name, c);
    ASSERT_NE(candidate, nullptr) << name << " " << c.op->name << "/" << c.pass->name;
    const Judgment judgment = judge_candidate(c, *candidate);
    EXPECT_EQ(judgment.verdict, Verdict::pass) << describe(c, name, judgment);
  }
  for (const auto& [dtype, ratio] : judge_candidate.worst_ratio())
    ::testing::Test::RecordProperty("worst_ratio_" + std::string(info(dtype).name), std::to_string(ratio));
}

const auto everywhere = [](const Case&) { return true; };

TEST(Controls, PerfectPasses) {
  const std::vector<Candidate> candidates = load_plugin(plugin_path("perfect"));
  expect_all_pass(
      "perfect", [&](const Operator&) -> const auto& { return candidates; }, everywhere);
}

TEST(Controls, TheModelWithoutAFaultPasses) {
  const std::vector<Candidate> candidates = load_plugin(plugin_path("mutants"));
  ASSERT_EQ(kMutants[0].fault, test::Fault::none);
  const auto modelled = [](const Case& c) { return applies(kMutants[0], *c.op, *c.pass); };
  expect_all_pass(
      "control-none", [&](const Operator&) -> const auto& { return candidates; }, modelled);
}

TEST(Controls, NativePasses) {
  std::map<const Operator*, std::vector<Candidate>> candidates;
  for (const Operator* op : operators()) candidates[op] = load_plugin(native_path(*op));
  expect_all_pass(
      "native", [&](const Operator& op) -> const auto& { return candidates[&op]; }, everywhere);
}

}  // namespace
}  // namespace checkop
