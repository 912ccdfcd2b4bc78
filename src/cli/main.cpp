// SPDX-License-Identifier: Apache-2.0
// argv -> Options -> command -> exit code. The only place that turns exceptions into exit codes.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <system_error>

#include "base/error.hpp"
#include "base/heap.hpp"
#include "cli/commands.hpp"
#include "cli/options.hpp"
#include "cli/python.hpp"
#include "worker/worker.hpp"

namespace checkop {
namespace {

constexpr char kUnwritable[] = "standard output: cannot be written; make room, or write to another place";

int run(int argc, char** argv) {
  const auto options = parse_options(argc, argv);
  if (!options) return 0;
  const Isolation isolation(!options->run.no_isolate);
  if (Isolation::is_on()) keep_freed_memory();  // otherwise candidates run in this process
  switch (options->command) {
    case Command::run:
      return options->run.replay.empty() ? run_command(*options) : replay_command(*options);
    case Command::compare:
      return compare_command(*options);
    case Command::bench:
      return bench_command(*options);
    case Command::mutate:
      return mutate_command(*options);
    case Command::recipe:
      return recipe_command(*options);
    case Command::init:
      return init_command(*options);
    case Command::doctor:
      return doctor_command(*options);
    case Command::list:
      return list_command(*options);
    case Command::show:
      return show_command(*options);
    case Command::explain:
      return explain_command(*options);
    case Command::lint:
      return lint_command(*options);
    case Command::diff:
      return diff_command(*options);
    case Command::calibrate:
      return calibrate_command(*options);
    case Command::report:
      return report_command(*options);
    case Command::report_diff:
      return report_diff_command(*options);
    case Command::report_merge:
      return report_merge_command(*options);
    case Command::certify:
      return certify_command(*options);
    case Command::verify:
      return verify_command(*options);
    case Command::import_definition:
      become_import(options->import_arguments);
    case Command::completion:
      std::fputs(options->completion.c_str(), stdout);
      return 0;
  }
  return 2;
}

/// Opens standard streams that the caller closed, or the next file or socket would take their place. Standard output
/// can't be written then, and the run says so.
void keep_standard_streams() {
  for (int stream = 0; stream <= STDERR_FILENO; ++stream) {
    if (fcntl(stream, F_GETFD) < 0) open("/dev/null", stream == STDERR_FILENO ? O_WRONLY : O_RDONLY);
  }
}

}  // namespace
}  // namespace checkop

int main(int argc, char** argv) {
  using namespace checkop;
  keep_standard_streams();
  signal(SIGXFSZ, SIG_IGN);  // a file that exceeds its size limit becomes an error message, not a crash
  try {
    const int code = run(argc, argv);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) throw EnvironmentError(kUnwritable);
    return code;
  } catch (const EnvironmentError& e) {
    std::fprintf(stderr, "check_operator: %s\n", e.what());
    return 5;
  } catch (const InputError& e) {
    std::fprintf(stderr, "check_operator: %s\n", e.what());
    return 2;
  } catch (const std::system_error& e) {  // no space for standard output, no more threads
    std::fprintf(stderr, "check_operator: %s\n", std::ferror(stdout) != 0 ? kUnwritable : e.what());
    return 5;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "check_operator: internal error: %s\n", e.what());
    return 4;
  }
}
