// SPDX-License-Identifier: Apache-2.0
// Which of several processes this one is: what flags say, or else what a launcher left in the environment.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "base/error.hpp"
#include "base/paths.hpp"
#include "case/shards.hpp"
#include "case/sweep.hpp"
#include "cli/options.hpp"

namespace checkop {
namespace {

/// What a launcher calls a process's rank, their number, and the rank among those of the machine.
struct Launcher {
  const char *rank, *processes, *local_rank;
};

constexpr Launcher kLaunchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK"},  // torchrun
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
};

/// A number from `least` to `most`, out of `text`.
int32_t number_in(const std::string& where, const std::string& text, int32_t least, int32_t most) {
  int32_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || rest != end || value < least || value > most)
    throw InputError(where, fmt::format("expected a number from {} to {}, got '{}'", least, most, text),
                     where.starts_with("--") ? "" : "unset it, or give --rank and --world-size");
  return value;
}

/// Whether the selected checks can be of operators that ranks share.
bool shares_cases(const RunOptions& run) {
  if (!run.inputs_file.empty()) return false;
  const bool files = !run.cases.empty() || !run.suite.empty();
  const auto ops = parse_operators("--op", files && !run.has("--op") ? std::vector<std::string>{"all"} : run.ops);
  return std::any_of(ops.begin(), ops.end(), [](const Operator* op) { return !op->sharded_dim.empty(); });
}

/// Batch scripts of Slurm have its variables too, although they are one process.
bool is_in_use(const Launcher& launcher) {
  if (environment_variable(launcher.rank).empty()) return false;
  return environment_variable("SLURM_JOB_ID").empty() || std::string(launcher.rank) != "SLURM_PROCID" ||
         !environment_variable("SLURM_STEP_ID").empty();
}

void set_address(const RunOptions& run, RankPlace& place) {
  if (const std::string host = environment_variable("MASTER_ADDR"); !host.empty()) place.host = host;
  if (const std::string port = environment_variable("MASTER_PORT"); !port.empty()) place.port = port;
  const size_t colon = run.master.rfind(':');
  if (!run.master.empty()) {
    if (colon == std::string::npos || colon == 0)
      throw InputError("--master", fmt::format("expected HOST:PORT, got '{}'", run.master), "write 127.0.0.1:29500");
    place.host = run.master.substr(0, colon), place.port = run.master.substr(colon + 1);
  }
  constexpr int32_t kMostPort = 65535;
  const int32_t port = number_in(run.master.empty() ? "MASTER_PORT" : "--master", place.port, 1, kMostPort);
  // torchrun's own store may listen there.
  if (run.master.empty() && environment_variable("TORCHELASTIC_USE_AGENT_STORE") == "True" && port < kMostPort)
    place.port = std::to_string(port + 1);
}

}  // namespace

std::optional<RankPlace> rank_place(const RunOptions& run) {
  const auto* const launcher = std::find_if(std::begin(kLaunchers), std::end(kLaunchers), is_in_use);
  const bool launched = launcher != std::end(kLaunchers), given = run.has("--rank");
  if (run.has("--master") && !given && !launched)
    throw InputError("--master", "has no effect on one process", "add --rank and --world-size");
  if ((!given && !launched) || !run.replay.empty()) return {};
  if (!shares_cases(run)) {
    if (given) throw InputError("--rank", "no selected operator has ranks that share a case", "leave it out");
    return {};
  }
  constexpr auto kMost = static_cast<int32_t>(kMostRanks);
  RankPlace place;
  const auto size = run.dims.find(kWorldSize);
  if (given && size != run.dims.end()) {
    place.processes = number_in("--world-size", size->second, 1, kMost);
  } else if (launched && !environment_variable(launcher->processes).empty()) {
    place.processes = number_in(launcher->processes, environment_variable(launcher->processes), 1, kMost);
  } else {
    throw InputError(given ? "--rank" : launcher->rank, "says which process this is, and not of how many",
                     given ? "add --world-size N" : fmt::format("set {} too", launcher->processes));
  }
  const std::string where = given ? "--rank" : launcher->rank;
  place.rank =
      number_in(where, given ? fmt::to_string(run.rank) : environment_variable(launcher->rank), 0, place.processes - 1);
  if (launched && !environment_variable(launcher->local_rank).empty())
    place.local_rank = number_in(launcher->local_rank, environment_variable(launcher->local_rank), 0, kMost - 1);
  if (place.processes == 1) return {};
  set_address(run, place);
  for (const char* flag : {"--no-isolate", "--sanitize"})
    if (run.has(flag)) throw InputError(flag, "is for one process, and this is one of several", "leave it out");
  return place;
}

}  // namespace checkop
