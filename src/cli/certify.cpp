// SPDX-License-Identifier: Apache-2.0
// check_operator certify and verify: writes the results of the checks of invariance and determinism to a file, and
// compares such a file with another one or with new results.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/output_file.hpp"
#include "base/text.hpp"
#include "base/version.hpp"
#include "cli/commands.hpp"
#include "report/certificate.hpp"
#include "report/json.hpp"
#include "session/control.hpp"
#include "session/session.hpp"

namespace checkop {
namespace {

using Json = nlohmann::json;

/// The results of the invariance and determinism checks.
struct Seen {
  Json content;   ///< of a certificate; null unless all checks passed
  Report report;  ///< has all records
};

/// Requests both checks by name, so that they cover all axes.
RunOptions certifying(RunOptions run) {
  run.checks = {"invariance", "determinism"};
  run.given.insert("--check");
  return run;
}

/// Whether the check allows a certificate. A case without rows has no bits and is fine; a case that did not fit into
/// memory is not.
bool holds(const CaseRecord& record) {
  return record.judgment.verdict == Verdict::pass ||
         (record.judgment.verdict == Verdict::skipped && record.run.status == RunStatus::ok);
}

Seen look(const RunOptions& run, Selection selection) {
  const Contract contract = load_contract(run);
  Session session(run, std::move(selection));
  session.plan_for(contract);
  session.find_proofs();
  Seen seen;
  for (const std::string& device : session.controlled_devices()) {
    seen.report.controls.push_back(run_control(device, session.plan()));
  }
  Json entries = Json::array();
  session.run_all([&](Attempt& attempt) {
    session.judge_by(contract, attempt);
    const CaseRecord& record = attempt.record;
    if (record.judgment.verdict == Verdict::pass) {
      entries.push_back(certificate_entry(record, attempt.outputs, session.threads()));
    }
    seen.report.records.push_back(std::move(attempt.record));
  });
  seen.report.complete = true;
  mark_insensitive(seen.report);
  void_passes(seen.report);
  const auto fails = [](const CaseRecord& record) { return !holds(record); };
  if (entries.empty() || std::any_of(seen.report.records.begin(), seen.report.records.end(), fails)) return seen;
  seen.content = {{"version", kVersion},
                  {"device", device_json(seen.report.records.front().device)},
                  {"contract", contract.hash()},
                  {"entries", std::move(entries)}};
  return seen;
}

/// Prints why there is no certificate, and returns the exit code.
int refuse(const Seen& seen) {
  for (const CaseRecord& record : seen.report.records) {
    if (holds(record)) continue;
    fmt::print("{}/{}  {}  {}: {}: {}\n", record.c.op->name, record.c.pass->name, record.candidate, case_name(record.c),
               to_string(record.judgment.verdict), record.judgment.reason);
  }
  const int code = exit_code_of(seen.report);
  fmt::print("No certificate: not every check passed (exit code {}).\n", code == 0 ? 3 : code);
  return code == 0 ? 3 : code;
}

void tell(const Json& content) {
  for (const Json& entry : content.at("entries")) {
    std::vector<std::string> axes;
    for (const Json& output : entry.at("bits")) {
      for (const Json& axis : output.at("axes")) {
        const std::string name = axis.at("axis").get<std::string>();
        if (axis.at("contexts") == axis.at("unsupported")) continue;
        if (std::find(axes.begin(), axes.end(), name) == axes.end()) axes.push_back(name);
      }
    }
    fmt::print("{}/{}  {}  {}: the same bits on {}\n", entry.at("op").get<std::string>(),
               entry.at("pass").get<std::string>(), entry.at("candidate").get<std::string>(),
               entry.at("case").get<std::string>(), fmt::join(axes, ", "));
  }
}

Json load(const std::string& path) { return unseal(read_text_file(path, "a certificate"), path); }

/// The checks that made the certificate, from the flags that it contains.
Selection checks_of(const Json& content, const RunOptions& run) {
  Selection selection;
  for (const Json& entry : content.at("entries")) {
    std::vector<std::string> words{"check_operator"};
    for (const std::string_view word : split_dims(entry.at("flags").get_ref<const std::string&>()))
      words.emplace_back(word);
    std::vector<const char*> arguments;
    for (const std::string& word : words) arguments.push_back(word.c_str());
    const auto parsed = parse_options(static_cast<int>(arguments.size()), arguments.data());
    // lint: allow message, certify writes flags that select cases
    if (!parsed) throw InputError("certificate", "its flags select no case", "certify again");
    RunOptions own = parsed->run;
    own.candidates = {entry.at("candidate").get<std::string>()};
    own.device = run.has("--device") ? run.device : content.at("device").at("kind").get<std::string>();
    own.plugins = run.plugins;
    Selection found = select_checks(own);
    std::move(found.checks.begin(), found.checks.end(), std::back_inserter(selection.checks));
  }
  return selection;
}

int tell_differences(const Differences& found) {
  for (const std::string& line : found.environment) fmt::print("differs, as it may: {}\n", line);
  for (const std::string& line : found.bits) fmt::print("DIFFERS: {}\n", line);
  if (found.bits.empty() && found.compared == 0) {
    fmt::print("Nothing was compared (exit code 3).\n");
    return 3;
  }
  fmt::print("{} output{} compared: {}.\n", found.compared, found.compared == 1 ? "" : "s",
             found.bits.empty() ? "the same bits" : "different bits");
  return found.bits.empty() ? 0 : 1;
}

}  // namespace

int certify_command(const Options& options) {
  const RunOptions run = certifying(options.run);
  require_writable(options.certificate.out);
  Selection selection = select_checks(run);
  if (selection.candidate_count() > 1) {
    throw InputError("--candidate", "a certificate is for one candidate", "name one");
  }
  const Seen seen = look(run, std::move(selection));
  if (seen.content.is_null()) return refuse(seen);
  write_file(options.certificate.out, seal(seen.content));
  tell(seen.content);
  fmt::print("Written to {}.\n", options.certificate.out);
  return 0;
}

int verify_command(const Options& options) {
  const Json first = load(options.certificate.files.front());
  if (options.certificate.files.size() > 1) {
    return tell_differences(compare_certificates(first, load(options.certificate.files.back()), false));
  }
  const RunOptions run = certifying(options.run);
  const Seen seen = look(run, checks_of(first, run));
  if (seen.content.is_null()) return refuse(seen);
  return tell_differences(compare_certificates(first, seen.content, true));
}

}  // namespace checkop
