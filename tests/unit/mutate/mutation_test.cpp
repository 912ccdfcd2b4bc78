// SPDX-License-Identifier: Apache-2.0
// The contract against faults and controls: it rejects every fault for the right reason and accepts every control.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "case/inputs.hpp"
#include "case/sweep.hpp"
#include "device/plugin.hpp"
#include "mutate/behaviour_faults.hpp"
#include "mutate/mutation.hpp"
#include "mutate/result_faults.hpp"
#include "run/runner.hpp"
#include "support/built.hpp"
#include "support/gold_helper.hpp"
#include "support/judge_helper.hpp"
#include "support/process.hpp"

namespace checkop::mutation_test {
namespace {

std::vector<Case> mutation_cases(std::string_view op) {
  return load_cases(CHECKOP_SOURCE_DIR "/cases/" + std::string(op) + ".json", "mutation");
}

std::string describe(const Case& c, const Trial& trial) {
  return case_name(c) + "/" + std::string(c.pass->name) + " " + trial.name + " " + trial.output + ": " +
         std::string(to_string(trial.judgment.verdict)) + " " + trial.judgment.kind + ": " + trial.judgment.reason;
}

/// Whether the gold of a case has elements that are not finite. A fault that moves elements moves them, too.
bool has_nonfinite_gold(const Case& c) {
  const std::vector<GoldOutput> gold = collect_gold(c, make_inputs(c, 1), 1);
  return std::any_of(gold.begin(), gold.end(), [](const GoldOutput& output) {
    return !std::all_of(output.value.begin(), output.value.end(), [](double x) { return std::isfinite(x); });
  });
}

/// Whether a case before has shown a fault, which then need not be tried again.
template <typename Killed>
bool is_killed(const Killed& killed, const typename Killed::key_type& fault) {
  const auto found = killed.find(fault);
  return found != killed.end() && found->second;
}

class Mutation : public testing::TestWithParam<const Operator*> {};

TEST_P(Mutation, TheDefaultContractRejectsEveryFaultAndAcceptsEveryControl) {
  const Contract contract = default_contract();
  // By pass, fault, output and dtype: a suite finds a fault if one of its cases does.
  using Key = std::tuple<std::string, std::string, std::string, DType>;
  std::map<Key, bool> changed, killed;
  std::map<std::string, std::set<std::string>> faults_of_pass;
  int64_t controls = 0;
  for (const Case& c : mutation_cases(GetParam()->name)) {
    std::optional<bool> moves_nonfinite;  // asked where a failure is of another kind
    const auto is_alive = [&](std::string_view name, std::string_view output) {
      return !is_killed(killed, {std::string(c.pass->name), std::string(name), std::string(output), c.dtype});
    };
    for (const Trial& trial : try_contract(c, contract, {}, 1, false, is_alive)) {
      if (trial.kind == Trial::Kind::control) {
        EXPECT_EQ(trial.judgment.verdict, Verdict::pass) << describe(c, trial);
        ++controls;
        continue;
      }
      ASSERT_NE(trial.kind, Trial::Kind::excluded) << describe(c, trial);
      const Key key{c.pass->name, trial.name, trial.output, c.dtype};
      changed[key] |= trial.kind == Trial::Kind::fault;
      const std::string& kind = trial.judgment.kind;
      bool is_expected = lists(trial.expected, kind);
      if (!is_expected && kind == "nonfinite" && trial.rejected()) {
        if (!moves_nonfinite) moves_nonfinite = has_nonfinite_gold(c);
        is_expected = *moves_nonfinite;
      }
      killed[key] |= trial.kind == Trial::Kind::fault && trial.rejected() && is_expected;
      if (trial.kind == Trial::Kind::fault) faults_of_pass[std::string(c.pass->name)].insert(trial.name);
    }
  }
  EXPECT_GT(controls, 0);
  for (const auto& [key, has_changed] : changed) {
    const auto& [pass, fault, output, dtype] = key;
    if (has_changed) {
      EXPECT_TRUE(killed[key]) << GetParam()->name << "/" << pass << " " << info(dtype).name << " " << fault << " "
                               << output;
    }
  }
  for (const Pass& pass : GetParam()->passes) {
    ASSERT_NE(pass.emulation, nullptr) << pass.name;
    EXPECT_GE(pass.emulation->faults.size(), 6U) << pass.name;
    const std::set<std::string>& seen = faults_of_pass[std::string(pass.name)];
    EXPECT_GE(seen.size(), 12U) << pass.name;
    // A fault that no case reveals has not been tested.
    for (const FaultSpec& fault : pass.emulation->faults)
      EXPECT_TRUE(seen.contains(std::string(fault.name))) << pass.name << " " << fault.name;
  }
}

const Candidate* find(const std::vector<Candidate>& candidates, std::string_view name, const Case& c) {
  for (const Candidate& candidate : candidates) {
    if (candidate.name == name && candidate.op == c.op->name && candidate.pass == c.pass->name) return &candidate;
  }
  return nullptr;
}

/// The judgment of candidate `name` for `c`.
Judgment judgment_of(const std::vector<Candidate>& candidates, std::string_view name, const Case& c,
                     const Contract& contract) {
  const Candidate* candidate = find(candidates, name, c);
  if (candidate == nullptr) return {Verdict::unsupported, "", "no such candidate"};
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  std::vector<Tensor> outputs = make_outputs(c);
  std::vector<Demands> demands;
  for (const OutputSpec& spec : c.pass->outputs) demands.push_back(contract.demands_for(c, spec));
  const auto device = open_cpu_device();
  RunChecks checks;
  // Sums of the gold that cancel leave rounding errors of FP64, which differ with the number of rows.
  checks.invariance = c.input_mode != InputMode::extreme || name != "perfect";
  const RunResult run = run_candidate(*device, *candidate, c, inputs, outputs, checks);
  std::vector<Comparison> comparisons;
  if (run.status == RunStatus::ok) comparisons = judge_outputs(c, inputs, outputs, contract, {}, 1);
  return judge(c, run, comparisons, demands, checks, /*accuracy=*/true);
}

/// Expects that a candidate of a plugin passes the cases of suite mutation under the default contract.
void expect_passes(const std::string& plugin, const std::string& candidate, std::string_view op) {
  const std::vector<Candidate> candidates = load_plugin(plugin);  // takes the digest of the file
  const Contract contract = default_contract();
  for (const Case& c : mutation_cases(op)) {
    const Judgment judgment = judgment_of(candidates, candidate, c, contract);
    EXPECT_EQ(judgment.verdict, Verdict::pass) << case_name(c) << " " << judgment.reason;
  }
}

TEST_P(Mutation, TheGoldPassesTheSameCases) {
  expect_passes(std::string(kPluginFolder) + "/perfect.so", "perfect", GetParam()->name);
}

TEST_P(Mutation, TheNativeCandidatePassesTheSameCases) {
  expect_passes(native_plugin(GetParam()->name), "native", GetParam()->name);
}

// --- what a failure says first ---------------------------------------------------------------------------------------

/// For faults of results, words of which the first sentence of the failure has one. It names faults that are not here.
const std::map<std::string, std::vector<std::string>>& words_of_faults() {
  static const std::map<std::string, std::vector<std::string>> kWords{
      {"zeros", {"zeros"}},
      {"constant", {"all hold the same value"}},
      {"nan", {"NaN"}},
      {"scaled_0.995", {"times the gold"}},
      {"scaled_1.02", {"times the gold"}},
      {"negated", {"-1 times the gold"}},
      {"stale_row", {"the gold of the row before", "zeros, only in row"}},  // where the row before is of zeros
      {"rows_swapped", {"have changed places"}},
      {"next_row", {"the gold of the row after", "have changed places"}},  // of two rows
      {"tiles_swapped", {"have changed places"}},
      {"last_column_left", {"zeros, only in column"}},
      {"last_tile_left", {"zeros, only in column"}},
      {"largest_alone", {"only the largest"}},
      {"one_element_doubled", {"one element alone", "2 times the gold"}},
      {"transposed_block", {"is transposed"}},
      {"truncated", {"toward zero"}},
      {"unwritten_row", {"never written"}},
      {"unwritten_zeros", {"never written"}},
      {"out_of_bounds_write", {"outside its buffers"}},
      {"input_overwritten", {"changed an input"}},
      {"input_toggled", {"changed an input"}},
      {"nondeterministic", {"disagree"}},
      {"batch_dependent", {"batch"}}};
  return kWords;
}

struct Sayings {
  int64_t faults = 0, named = 0;
  std::vector<std::string> wrong;
};

Sayings sayings_of(const Case& c, unsigned threads) {
  Sayings all;
  for (const Trial& trial : try_contract(c, default_contract(), {}, threads, /*diagnoses=*/true)) {
    if (trial.kind != Trial::Kind::fault || !trial.rejected()) continue;
    const std::string& said = trial.cause.empty() ? trial.judgment.reason : trial.cause;
    const auto found = words_of_faults().find(trial.name);
    const bool is_known = found == words_of_faults().end();
    const std::vector<std::string> words = is_known ? std::vector<std::string>{"(" + trial.name + ")"} : found->second;
    const bool named = std::any_of(words.begin(), words.end(),
                                   [&](const std::string& word) { return said.find(word) != std::string::npos; });
    ++all.faults;
    all.named += named ? 1 : 0;
    if (said.find(" is as where ") != std::string::npos && !(is_known && named))
      all.wrong.push_back(describe(c, trial) + " SAYS " + said);
  }
  return all;
}

// Takes one case of each pass, to save time: the others have the same patterns and emulations.
TEST(MutationDiagnosis, TheFirstSentenceNamesFourFifthsOfTheFaultsAndNoneIsSurelyAnother) {
  std::vector<Case> cases;
  std::set<const Pass*> seen;
  for (const Operator* op : operators()) {
    for (const Case& c : mutation_cases(op->name))
      if (c.dtype == DType::bf16 && c.input_mode != InputMode::extreme && c.input_mode != InputMode::captured &&
          seen.insert(c.pass).second)
        cases.push_back(c);
  }
  std::vector<Sayings> of_cases(cases.size());
  for_each_case(cases, 2, [&](size_t i, unsigned threads) { of_cases[i] = sayings_of(cases[i], threads); });
  Sayings total;
  std::map<std::string, Sayings> of_passes;
  for (size_t i = 0; i < cases.size(); ++i) {
    for (Sayings* to : {&total, &of_passes[std::string(cases[i].op->name) + "/" + std::string(cases[i].pass->name)]})
      to->faults += of_cases[i].faults, to->named += of_cases[i].named;
    for (const std::string& wrong : of_cases[i].wrong) ADD_FAILURE() << wrong;
  }
  std::string table;
  for (const auto& [pass, said] : of_passes)
    table += pass + ": " + std::to_string(said.named) + " of " + std::to_string(said.faults) + "\n";
  EXPECT_GT(total.faults, 1500) << "of " << cases.size() << " passes";
  EXPECT_GE(10 * total.named, 8 * total.faults) << table;
}

INSTANTIATE_TEST_SUITE_P(EveryOperator, Mutation, testing::ValuesIn(operators().begin(), operators().end()),
                         [](const auto& info) { return std::string(info.param->name); });

Case small_logp(std::string_view pass, DType dtype = DType::f32) {
  return gold_case("logp", pass, dtype, {{"batch", 2}, {"seq", 4}, {"vocab", 300}});
}

Contract with_gate(const std::string& gate) {
  return Contract::parse(R"({"format": "check_operator/contract-2", "name": "of this test", "rules": [
    {"match": {"op": "logp"}, "gates": [)" +
                             gate + R"(], "why": "a tolerance of this test, to see who passes"}]})",
                         "test.json");
}

std::set<std::string> survivors(const Case& c, const Contract& contract) {
  std::set<std::string> names;
  for (const Trial& trial : try_contract(c, contract, {}, 1)) {
    if (trial.kind == Trial::Kind::fault && !trial.rejected()) names.insert(trial.name);
  }
  return names;
}

TEST(MutationOfContracts, ATooLooseOneLetsFaultsLive) {
  const Contract loose = with_gate(R"({"metric": "atol_rtol", "atol": 0.05, "rtol": 0.01})");
  const std::set<std::string> alive = survivors(small_logp("backward"), loose);
  EXPECT_TRUE(alive.contains("softmax_term_dropped"));
  EXPECT_TRUE(alive.contains("largest_alone"));
  EXPECT_TRUE(alive.contains("scaled_0.995"));
  EXPECT_FALSE(alive.contains("nan"));
  EXPECT_FALSE(alive.contains("unwritten_row"));
  EXPECT_EQ(survivors(small_logp("backward"), default_contract()), std::set<std::string>{});
}

// Exact recipes loosen no bound, so that granting all of them at once must not hide a fault.
TEST(MutationOfContracts, TheFrameworkOneRejectsEveryFaultWhereItsRecipesAreExact) {
  const Contract framework = Contract::load(CHECKOP_SOURCE_DIR "/contracts/framework.json");
  int64_t passes = 0;
  for (const Operator* op : operators()) {
    for (const Pass& pass : op->passes) {
      const auto is_allowance = [](const Recipe& recipe) { return !recipe.exact; };
      const auto is_of_fp32 = [](const Recipe& recipe) { return lists(recipe.dtypes, "fp32"); };
      if (pass.recipes.empty() || std::any_of(pass.recipes.begin(), pass.recipes.end(), is_allowance)) continue;
      if (std::any_of(pass.recipes.begin(), pass.recipes.end(), is_of_fp32)) continue;  // TF32 is granted to nobody
      ++passes;
      std::map<std::string, bool> killed;  // a suite finds a fault if one of its cases does
      for (const Case& c : mutation_cases(op->name)) {
        if (c.pass != &pass || c.dtype != DType::bf16) continue;
        const auto is_alive = [&](std::string_view name, std::string_view output) {
          return !is_killed(killed, fmt::format("{} {}", name, output));
        };
        for (const Trial& trial : try_contract(c, framework, {}, 1, false, is_alive)) {
          if (trial.kind == Trial::Kind::fault) killed[trial.name + " " + trial.output] |= trial.rejected();
        }
      }
      EXPECT_FALSE(killed.empty()) << op->name;
      for (const auto& [fault, was_killed] : killed)
        EXPECT_TRUE(was_killed) << op->name << "/" << pass.name << " " << fault;
    }
  }
  EXPECT_EQ(passes, 31);
}

TEST(MutationOfContracts, TheSignOfAZeroIsAFaultForThoseThatRejectIt) {
  Case c = small_logp("backward");
  c.ignored_every = 1;  // all gradients are 0
  for (const bool strict : {false, true}) {
    const Contract contract =
        with_gate(strict ? R"({"metric": "bits"})" : R"({"metric": "atol_rtol", "atol": 0.05, "rtol": 0.01})");
    int64_t negated = 0;
    for (const Trial& trial : try_contract(c, contract, {}, 1)) {
      // Zeros in place of zeros have the same bits, and are no fault for any contract.
      if (trial.name == "zeros") {
        EXPECT_EQ(trial.kind, Trial::Kind::unchanged) << strict;
      }
      if (trial.name != "negated") continue;
      ++negated;
      EXPECT_EQ(trial.kind, strict ? Trial::Kind::fault : Trial::Kind::unchanged);
      EXPECT_EQ(trial.rejected(), strict) << trial.judgment.reason;
    }
    EXPECT_EQ(negated, 1) << strict;
  }
}

TEST(MutationOfContracts, ATooStrictOneRejectsControls) {
  const Contract strict = with_gate(R"({"metric": "ulp", "limit": 0})");
  int64_t rejected = 0;
  for (const Trial& trial : try_contract(small_logp("backward"), strict, {}, 1))
    rejected += trial.kind == Trial::Kind::control && trial.rejected() ? 1 : 0;
  EXPECT_GT(rejected, 0);
}

TEST(MutationOfContracts, MultiplyingByZeroIsNoFaultWhereFiniteNumbersAreAskedFor) {
  struct Question {
    Case c;
    std::string multiplied, read;
  };
  const Question questions[] = {
      {gold_case("attention", "forward", DType::f32,
                 {{"batch", 2}, {"q_heads", 2}, {"kv_heads", 1}, {"q_seq", 4}, {"kv_seq", 17}, {"head_dim", 8}},
                 {"key_padding_mask"}),
       "masked_keys_multiplied", "padding_mask_ignored"},
      {gold_case("ratio_kl", "backward", DType::f32, {{"batch", 2}, {"seq", 16}, {"vocab", 40}}), "masked_multiplied",
       "mask_ignored"},
      {small_logp("backward"), "ignored_row_multiplied", "ignored_row_counted"}};
  const Contract framework = Contract::load(CHECKOP_SOURCE_DIR "/contracts/framework.json");
  for (const Question& question : questions) {
    for (const bool strict : {true, false}) {
      int64_t seen = 0;
      for (const Trial& trial : try_contract(question.c, strict ? default_contract() : framework, {}, 1)) {
        if (trial.name == question.multiplied) {
          EXPECT_EQ(trial.kind, strict ? Trial::Kind::fault : Trial::Kind::unchanged) << trial.name;
          EXPECT_EQ(trial.rejected(), strict) << trial.name;
          ++seen;
        }
        if (trial.name == question.read) {
          EXPECT_EQ(trial.kind, Trial::Kind::fault) << trial.name;
          EXPECT_TRUE(trial.rejected()) << trial.name;
          EXPECT_EQ(trial.judgment.kind, strict ? "nonfinite" : "accuracy") << trial.judgment.reason;
          ++seen;
        }
      }
      EXPECT_EQ(seen, 2) << question.multiplied << " " << strict;
    }
  }
}

TEST(MutationOfContracts, PlansBeyondTheChainAreExcusedOnlyWhereTheyFail) {
  const Case c = small_logp("forward");
  const auto kinds = [&](const std::string& numbers) {
    std::map<Trial::Kind, int64_t> counts;
    for (const Trial& trial :
         try_contract(c, with_gate(R"({"metric": "bound_ratio", "limit": )" + numbers + R"(, "lambda": 6})"), {}, 1))
      ++counts[trial.kind];
    return counts;
  };
  EXPECT_EQ(kinds(R"(1, "max_chain": 1)")[Trial::Kind::excluded], 0)
      << "a chain that is too long, and a result that is right";
  auto strict = kinds(R"(1e-4, "max_chain": 1)");
  EXPECT_EQ(strict[Trial::Kind::control], 0);
  EXPECT_EQ(strict[Trial::Kind::excluded], std::ssize(all_plans()));
  EXPECT_EQ(kinds(R"(1e-4, "max_chain": 0)")[Trial::Kind::excluded], 0) << "no chain is too long";
}

TEST(MutationOfContracts, TrialsAreThoseOfTheSeed) {
  const auto ratios = [](uint64_t seed, unsigned threads) {
    Case c = small_logp("forward");
    c.seed = seed;
    std::vector<double> all;
    for (const Trial& trial : try_contract(c, default_contract(), {}, threads)) all.push_back(trial.worst_gate.ratio);
    return all;
  };
  EXPECT_EQ(ratios(7, 1), ratios(7, 3));
  EXPECT_NE(ratios(7, 1), ratios(8, 1));
}

TEST(MutationOfContracts, FaultsThatNeedAnInputOrADtypeWaitForIt) {
  const auto has = [](const Case& c, std::string_view fault) {
    for (const Trial& trial : try_contract(c, default_contract(), {}, 1))
      if (trial.name == fault) return true;
    return false;
  };
  Case c = gold_case("lm_head", "forward", DType::f32, {{"batch", 1}, {"seq", 3}, {"hidden", 5}, {"vocab", 7}});
  EXPECT_FALSE(has(c, "bias_left_out"));
  EXPECT_TRUE(has(c, "tf32_factors"));
  EXPECT_FALSE(has(c, "truncated"));
  c.optionals.insert("bias");
  EXPECT_TRUE(has(c, "bias_left_out"));
  c.dtype = DType::bf16;
  EXPECT_FALSE(has(c, "tf32_factors"));
  EXPECT_TRUE(has(c, "truncated"));
}

/// The controls of `c` on inputs whose first tensor is multiplied by `scale`: the size of its log-probabilities.
std::pair<double, int64_t> far_from_zero(const Case& c, double scale) {
  std::vector<Tensor> inputs = make_inputs(c, 1);
  for (int64_t i = 0; i < inputs[0].count(); ++i) inputs[0].set(i, scale * inputs[0].at(i));
  std::vector<const Tensor*> present;
  for (const Tensor& tensor : inputs) present.push_back(tensor.name.empty() ? nullptr : &tensor);
  double largest = 0;
  int64_t passed = 0;
  for (const Plan& plan : all_plans()) {
    std::vector<Tensor> outputs = make_outputs(c);
    Values values{std::vector<double>(static_cast<size_t>(outputs[0].count()))};
    const Arithmetic arithmetic(plan);
    c.pass->emulation->run({present, c.attrs, arithmetic, values, 1});
    info(outputs[0].dtype).encode(values[0].data(), outputs[0].bytes.data(), values[0].size());
    for (const double x : values[0]) largest = std::max(largest, std::abs(x));
    passed += judge_outputs(c, inputs, outputs, default_contract(), {}, 1)[0].passed() ? 1 : 0;
  }
  return {largest, passed};
}

// Tolerances that ignore the size of the summed terms reject right kernels here.
TEST(MutationOfContracts, RightKernelsPassHoweverFarFromZeroTheirResultsAre) {
  Case logits = gold_case("logp", "forward", DType::bf16, {{"batch", 2}, {"seq", 32}, {"vocab", 1000}});
  logits.ignored_every = 0;
  const auto [of_logits, logits_passed] = far_from_zero(logits, 3);
  EXPECT_GT(of_logits, 16);
  EXPECT_EQ(logits_passed, std::ssize(all_plans()));
  Case linear =
      gold_case("linear_logp", "forward", DType::bf16, {{"batch", 2}, {"seq", 8}, {"hidden", 512}, {"vocab", 300}});
  linear.ignored_every = 0;
  const auto [of_linear, linear_passed] = far_from_zero(linear, 40);
  EXPECT_GT(of_linear, 160);
  EXPECT_EQ(linear_passed, std::ssize(all_plans()));
}

const std::string kMutate = "mutate --op logp --pass backward --dtype bf16 ";

TEST(MutateCommand, ExitsByTheKillRateAndTheControls) {
  expect_exit(run_program(kMutate), 0, "kill rate 1.0000");
  const std::string seed = kMutate + "--contract " CHECKOP_SOURCE_DIR "/contracts/rl_kernel.json ";
  const ProcessResult loose = run_program(seed);
  expect_exit(loose, 1, "SURVIVED logp/backward bf16 bf16_exponential");
  EXPECT_NE(loose.text.find("of its limit would reject it, controls reach"), std::string::npos) << loose.text;
  expect_exit(run_program(seed + "--min-kill 0.1"), 0, "kill rate 0.");
}

TEST(MutateCommand, NamesTheFaultsOfAPassThatItsDataDoNotShow) {
  // With one row no fault can take the result of another row, and the first row has no large numbers.
  const ProcessResult one_row = run_program("mutate --op silu --dtype bf16 --batch 1 --seq 1 --hidden 300");
  expect_exit(one_row, 0, "12 not shown by this data;");
  for (const auto& [pass, output] : {std::pair{"backward", "dx"}, {"forward", "y"}}) {
    const size_t begin = one_row.text.find(fmt::format("\nsilu/{}\n", pass));
    ASSERT_NE(begin, std::string::npos) << one_row.text;
    const std::string table = one_row.text.substr(begin, one_row.text.find("\n\n", begin + 1) - begin);
    const std::string line = fmt::format(
        "\n  not shown by this data: exponential_ratio, stale_row ({0}), rows_swapped ({0}), next_row ({0}), "
        "transposed_block ({0}), unwritten_zeros",
        output);
    EXPECT_TRUE(table.ends_with(line)) << table;
  }
  // A row that is always alone can't differ from itself.
  expect_exit(run_program("mutate --op logp --dtype fp32 --batch 1 --seq 1 --vocab 17"), 0,
              "unwritten_zeros, batch_dependent\n");
  // In fp32 no kernel rounds to 16 bits, so that the fault has no place there; in bf16 it needs a temperature.
  const ProcessResult of_some = run_program("mutate --op logp --pass backward --dtype fp32,bf16 --seq 1 --vocab 200");
  EXPECT_NE(of_some.text.find(", unwritten_zeros, transform_in_16_bit in bf16\n"), std::string::npos) << of_some.text;
}

TEST(MutateCommand, TakesSizesSuitesAndSeeds) {
  expect_exit(run_program(kMutate + "--vocab 200 --seq 3 --seeds 2"), 0, "2 seeds");
  expect_exit(run_program("mutate --suite smoke --op silu --pass forward --dtype fp32"), 0, "kill rate 1.0000");
  expect_exit(run_program("mutate --suite mutation --op logp --vocab 3"), 2,
              "has no effect on cases that come from files");
  expect_exit(run_program(kMutate + "--seeds 0"), 2, "--seeds: expected 1 to 1000, got 0");
  expect_exit(run_program(kMutate + "--min-kill 1.5"), 2, "--min-kill: expected 0 to 1, got 1.5");
  expect_exit(run_program(kMutate + "--min-kill nan"), 2, "--min-kill");
}

}  // namespace
}  // namespace checkop::mutation_test
