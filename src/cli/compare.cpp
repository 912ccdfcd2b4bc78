// SPDX-License-Identifier: Apache-2.0
// check_operator compare: compares the tensors of two files under one class of a contract.
#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <memory>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/interruption.hpp"
#include "base/text.hpp"
#include "cli/commands.hpp"
#include "cli/run_outputs.hpp"
#include "session/own_data.hpp"
#include "session/selection.hpp"
#include "tensor/digest.hpp"

namespace checkop {
namespace {

/// One tensor of the gold file and its counterpart.
struct Pair {
  std::unique_ptr<OwnOperator> op;        ///< an operator whose only output is this tensor
  const SafetensorsEntry* got = nullptr;  ///< nullptr: missing
  std::string mismatch;                   ///< why the tensors can't be compared; "" if they can
};

/// Floating-point tensors of any precision are comparable; integers only with the same dtype.
bool are_comparable(DType a, DType b) { return a == b || (info(a).is_float && info(b).is_float); }

class Comparer {
 public:
  Comparer(const Options& options, const Contract& contract)
      : options_(options),
        contract_(contract),
        got_(options.compare.got),
        gold_(options.compare.gold),
        arch_key_(chosen_arch(options.run)),
        candidate_(std::filesystem::path(options.compare.got).filename().string()),
        threads_(thread_count(options.run)) {
    for (const SafetensorsEntry& entry : gold_.entries()) add(entry);
    if (pairs_.empty()) {
      if (!options.run.filter.empty())
        throw InputError(gold_.path(), fmt::format("holds no tensor of --filter '{}'", options.run.filter),
                         "give a glob that matches the name of a gold in it");
      throw InputError(gold_.path(), "holds no tensors", "give the file of the gold as the second one");
    }
  }

  const std::vector<Pair>& pairs() const { return pairs_; }

  /// Sentences about tensors without gold.
  std::vector<std::string> left_over() const {
    std::vector<std::string> sentences;
    for (const SafetensorsEntry& entry : got_.entries()) {
      if (wanted(entry.name) && gold_.find(entry.name) == nullptr)
        sentences.push_back(
            fmt::format("{}: '{}' has no gold in {} and was not compared", got_.path(), entry.name, gold_.path()));
    }
    return sentences;
  }

  CaseRecord judge_pair(const Pair& pair) const {
    const auto start = Clock::now();
    CaseRecord record;
    record.c = pair.op->as_case();
    record.candidate = candidate_;
    record.plugin_path = got_.path();
    record.device.kind = "none";
    record.device.name = "none: tensors of a file";
    record.device.arch_key = arch_key_;
    record.gold_file = gold_.path();
    record.checks.determinism = record.checks.invariance = record.checks.memory = false;  // nothing is run
    record.repeat = repeat_of(record.c);
    record.demands.push_back(contract_.demands_for(record.c, record.c.pass->outputs.front()));
    record.run.status = RunStatus::failed;
    record.run.message = pair.mismatch;
    if (pair.mismatch.empty()) {
      std::vector<Tensor> outputs;
      outputs.push_back(got_.read(*pair.got));
      record.plugin_digest = tensor_digest(outputs, threads_);
      const OwnGold gold(gold_, record.c);
      record.gold_dtypes = gold.dtypes();
      record.comparisons =
          judge_outputs(record.c, {}, outputs, contract_, subject(), threads_, {}, nullptr, gold.replay());
      record.run.status = RunStatus::ok;
      record.run.outputs.resize(1);
    }
    record.judgment = judge(record.c, record.run, record.comparisons, record.demands, record.checks, true,
                            contract_.known_for(record.c, subject()));
    record.times.total_ms = ms_since(start);
    return record;
  }

 private:
  Subject subject() const { return {arch_key_, candidate_}; }

  bool wanted(const std::string& name) const {
    return options_.run.filter.empty() || glob_matches(options_.run.filter, name);
  }

  void add(const SafetensorsEntry& gold) {
    if (!wanted(gold.name) || OwnGold::is_companion(gold_, gold.name)) return;
    Pair pair;
    pair.got = got_.find(gold.name);
    pair.op = std::make_unique<OwnOperator>(
        gold.name, options_.run.passes.front(), parse_numerics(options_.run.numerics).value(), options_.run.terms,
        std::vector<SafetensorsEntry>{}, std::vector{pair.got == nullptr ? gold : *pair.got});
    if (pair.got == nullptr) {
      pair.mismatch = fmt::format("{} holds no tensor '{}'", got_.path(), gold.name);
    } else if (pair.got->shape != gold.shape) {
      pair.mismatch =
          fmt::format("'{}' has shape {}, its gold {}", gold.name, to_string(pair.got->shape), to_string(gold.shape));
    } else if (!are_comparable(pair.got->dtype, gold.dtype)) {
      pair.mismatch =
          fmt::format("'{}' is {}, its gold {}", gold.name, info(pair.got->dtype).name, info(gold.dtype).name);
    } else {
      OwnGold::require_sound(gold_, pair.op->as_case(), contract_, subject());
    }
    pairs_.push_back(std::move(pair));
  }

  std::string repeat_of(const Case& c) const {
    std::string line = fmt::format("check_operator compare {} --contract {} --class {} --pass {} --filter {}",
                                   quote_command({got_.path(), gold_.path()}), quote_command({contract_.path()}),
                                   options_.run.numerics, c.pass->name, quote_command({std::string(c.op->name)}));
    if (options_.run.terms != 1) line += fmt::format(" --terms {}", options_.run.terms);
    if (!arch_key_.empty()) line += " --arch-key " + arch_key_;
    return line;
  }

  const Options& options_;
  const Contract& contract_;
  SafetensorsReader got_, gold_;
  std::string arch_key_, candidate_;
  unsigned threads_;
  std::vector<Pair> pairs_;
};

}  // namespace

int compare_command(const Options& options) {
  const auto start = Clock::now();
  const Contract contract = load_contract(options.run);
  const Comparer comparer(options, contract);
  Report report = new_report(options, contract);
  for (const std::string& sentence : comparer.left_over()) warn(report, options, sentence);
  report.planned = std::ssize(comparer.pairs());
  RunOutputs outputs(options.run, report);
  note_interruptions();
  std::vector<Progress::Step> steps;
  for (const Pair& pair : comparer.pairs()) {
    const Case& c = pair.op->as_case();
    steps.push_back({std::string(c.op->name), static_cast<double>(tensor_bytes(c))});
  }
  DeviceInfo none;
  none.kind = "none";
  none.name = "none: tensors of a file";
  outputs.begin(report, none, 1, std::move(steps));
  try {
    for (const Pair& pair : comparer.pairs()) {
      report.records.push_back(comparer.judge_pair(pair));
      report.wall_ms = ms_since(start);
      outputs.add(report, report.records.back());
      stop_if_interrupted();
    }
  } catch (const Interrupted&) {
    report.stopped = interruption();
  }
  return finish(report, outputs, start);
}

}  // namespace checkop
