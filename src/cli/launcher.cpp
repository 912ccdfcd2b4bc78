// SPDX-License-Identifier: Apache-2.0
// Looks in the environment for what launchers of MPI leave there.
#include "cli/launcher.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/error.hpp"
#include "case/sweep.hpp"

namespace checkop {
namespace {

/// A variable that a launcher sets in each of its processes.
struct Variable {
  const char* name;
  bool is_number;     ///< it holds the number of processes; else the rank
  const char* needs;  ///< the variable counts only if this one is set, too; "": always
};

/// A batch script of Slurm is one process, but has SLURM_NTASKS as well; only a step of srun has SLURM_STEP_ID.
constexpr Variable kVariables[] = {
    {"OMPI_COMM_WORLD_SIZE", true, ""},       // mpirun of Open MPI
    {"PMI_SIZE", true, ""},                   // mpirun of MPICH and of Intel, srun --mpi=pmi2
    {"SLURM_NTASKS", true, "SLURM_STEP_ID"},  // srun
    {"PMIX_RANK", false, ""},                 // any launcher that speaks PMIx
};

/// Whether the run may select operators whose cases ranks share.
bool shares_cases(const RunOptions& run) {
  if (!run.inputs_file.empty() || !run.replay.empty()) return false;
  const bool files = !run.cases.empty() || !run.suite.empty();
  const auto ops = parse_operators("--op", files && !run.has("--op") ? std::vector<std::string>{"all"} : run.ops);
  return std::any_of(ops.begin(), ops.end(), [](const Operator* op) { return !op->parallel_dim.empty(); });
}

}  // namespace

std::optional<Launcher> launcher_of(const Environment& environment) {
  for (const Variable& variable : kVariables) {
    const std::string text = environment(variable.name);
    if (text.empty() || (*variable.needs != '\0' && environment(variable.needs).empty())) continue;
    if (!variable.is_number) return Launcher{variable.name, 0};
    int32_t processes = 0;
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, processes);
    if (error != std::errc{} || rest != end || processes < 1)
      throw InputError(variable.name, fmt::format("expected the number of processes, got '{}'", text), "unset it");
    if (processes == 1) return {};
    return Launcher{variable.name, processes};
  }
  return {};
}

std::optional<Launcher> launcher_for_ranks(const RunOptions& run, const Environment& environment, bool has_mpi) {
  if (!shares_cases(run)) return {};
  std::optional<Launcher> launcher = launcher_of(environment);
  if (!launcher) return {};
  if (!has_mpi) {
    throw EnvironmentError(
        fmt::format("ranks: {} says that a launcher started this process as one of several, and this build has no MPI; "
                    "install libopenmpi-dev and build again, or unset {}",
                    launcher->variable, launcher->variable));
  }
  for (const char* flag : {"--no-isolate", "--sanitize"})
    if (run.has(flag)) throw InputError(flag, "is for one process, and this is one of several", "leave it out");
  return launcher;
}

}  // namespace checkop
