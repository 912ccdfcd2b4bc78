// SPDX-License-Identifier: Apache-2.0
// Checks a kernel that is linked into the running program.
#include "cli/linked_checks.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <set>

#include "base/error.hpp"
#include "base/paths.hpp"
#include "base/text.hpp"
#include "cli/options.hpp"
#include "device/device.hpp"
#include "device/plugin.hpp"
#include "report/report.hpp"
#include "session/control.hpp"
#include "session/selection.hpp"
#include "session/session.hpp"
#include "worker/worker.hpp"

namespace checkop {
namespace {

/// Makes a candidate name from any text: "ns::my_launch" -> "ns__my_launch".
std::string candidate_name(const char* text) {
  std::string name = text == nullptr ? "" : text;
  for (char& c : name) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!is_plain) c = '_';
  }
  const size_t begin = name.find_first_not_of('_');
  return begin == std::string::npos ? "launch" : name.substr(begin);
}

/// Throws InputError for flags that have no effect in a test or that contradict its arguments.
void refuse_foreign_flags(const Options& options, const std::vector<std::string>& arguments) {
  const std::string where = "EXPECT_OPERATOR_PASSES";
  for (const std::string& argument : arguments) {
    const std::string flag = argument.substr(0, argument.find('='));
    for (const std::string_view own : {"--op", "--pass", "--check-grad", "--candidate", "--plugin"}) {
      if (flag == own)
        throw InputError(where, flag + " is set by the first arguments",
                         "write (\"OP\", launch, ...), or (\"OP/backward\", launch, ...)");
    }
  }
  if (options.command != Command::run) throw InputError(where, "got a command", "give flags that choose cases");
  const RunOptions& run = options.run;
  const std::set<std::string> useful{"--op",       "--pass",           "--candidate",  "--cases",     "--suite",
                                     "--dtype",    "--preset",         "--filter",     "--device",    "--contract",
                                     "--arch-key", "--force-arch-key", "--check",      "--gold-rows", "--threads",
                                     "--plugin",   "--timeout-s",      "--no-isolate", "--seed",      "--grad-seed"};
  for (const std::string& flag : run.given) {
    if (useful.contains(flag) ||
        std::find(run.given_case_flags.begin(), run.given_case_flags.end(), flag) != run.given_case_flags.end())
      continue;
    throw InputError(where, flag + " has no effect here", "leave it out");
  }
}

/// Whether this process has initialised CUDA, so that a forked child could not use it.
bool has_used_cuda() {
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (driver == nullptr) return false;
  const auto count = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  constexpr int kNotInitialized = 3;  // CUDA_ERROR_NOT_INITIALIZED
  int devices = 0;
  const bool used = count != nullptr && count(&devices) != kNotInitialized;
  dlclose(driver);
  return used;
}

/// The lines of print_record(), without the column of tags.
std::string block_of(const CaseRecord& record) {
  char* text = nullptr;
  size_t bytes = 0;
  std::FILE* stream = open_memstream(&text, &bytes);
  if (stream == nullptr) return record.judgment.reason;
  print_record(stream, record);
  std::fclose(stream);
  const std::string lines(text, bytes);
  std::free(text);
  constexpr size_t kTag = 13;
  std::string block;
  for (size_t begin = 0; begin < lines.size();) {
    const size_t end = std::min(lines.find('\n', begin), lines.size());
    const std::string line = lines.substr(begin, end - begin);
    block += (begin == 0 ? fmt::format("{}: ", to_string(record.judgment.verdict)) : std::string("  ")) +
             (line.size() > kTag ? line.substr(kTag) : line) + "\n";
    begin = end + 1;
  }
  return block;
}

/// The checks that did not pass, with counts; "" if all passed.
std::string failures_of(const Report& report) {
  constexpr int kShown = 10;
  std::string blocks;
  int failed = 0;
  for (const CaseRecord& record : report.records) {
    if (exit_code({record.judgment.verdict}) == 0) continue;
    if (++failed <= kShown) blocks += block_of(record);
  }
  if (report.records.empty()) return "no case was selected, so nothing was checked\n";
  if (failed == 0) return "";
  std::string text = fmt::format("{} of {} checks did not pass; contract {} ({})\n", failed, report.records.size(),
                                 report.contract_path, report.contract_hash);
  for (const std::string& warning : report.warnings) text += warning + "\n";
  text += blocks;
  if (failed > kShown) text += fmt::format("and {} more\n", failed - kShown);
  return text;
}

LinkedOutcome check(checkop_kernel kernel, const std::vector<std::string>& arguments, const std::string& test) {
  if (kernel.struct_size < sizeof kernel) {
    throw InputError("EXPECT_OPERATOR_PASSES", fmt::format("struct_size of the kernel is {}", kernel.struct_size),
                     "set it to sizeof(checkop_kernel)");
  }
  kernel.struct_size = sizeof kernel;  // drops members that a later header added
  const std::string name = candidate_name(kernel.name), program = executable_path();
  std::vector<const char*> argv{"check_operator", "--op",       kernel.op,  "--pass",       kernel.pass,
                                "--candidate",    name.c_str(), "--plugin", program.c_str()};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  const auto options = parse_options(static_cast<int>(argv.size()), argv.data());
  if (!options) throw InputError("EXPECT_OPERATOR_PASSES", "got --help or --version", "leave it out");
  refuse_foreign_flags(*options, arguments);
  const RunOptions& run = options->run;

  kernel.name = name.c_str();
  if (kernel.device < 0) {
    const bool cuda = run.device == "auto" ? built_with_cuda() : run.device != "cpu";
    kernel.device = cuda ? CHECKOP_CUDA : CHECKOP_CPU;
  }
  const checkop_plugin plugin{CHECKOP_ABI_VERSION, 1, &kernel};
  const LinkedPlugin linked(program, plugin);
  const Isolation isolation(!run.no_isolate && !(kernel.device == CHECKOP_CUDA && has_used_cuda()));

  const Contract contract = load_contract(run);
  Session session(run, select_checks(run));
  session.require_judgeable(contract);
  session.plan_for(contract);
  session.find_proofs();
  Report report;
  report.contract_path = contract.path();
  report.contract_hash = contract.hash();
  report.warnings = contract.warnings();
  for (const std::string& device : session.controlled_devices()) {
    report.controls.push_back(run_control(device, session.plan()));
  }
  session.run_all([&](Attempt& attempt) {
    session.judge_by(contract, attempt);
    attempt.record.repeat = fmt::format("{} {}", quote_command({short_path(program), "--gtest_filter=" + test}),
                                        "# " + case_flags(attempt.record.c));
    report.records.push_back(std::move(attempt.record));
  });
  report.planned = std::ssize(report.records);
  report.complete = true;
  judge_as_a_whole(report);
  return {exit_code_of(report), failures_of(report)};
}

}  // namespace

LinkedOutcome check_linked(const checkop_kernel& kernel, const std::vector<std::string>& arguments,
                           const std::string& test) {
  try {
    return check(kernel, arguments, test);
  } catch (const EnvironmentError& e) {
    return {5, std::string(e.what()) + "\n"};
  } catch (const InputError& e) {
    return {2, std::string(e.what()) + "\n"};
  } catch (const std::exception& e) {
    return {4, fmt::format("internal error: {}\n", e.what())};
  }
}

}  // namespace checkop
