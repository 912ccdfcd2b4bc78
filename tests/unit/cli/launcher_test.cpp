// SPDX-License-Identifier: Apache-2.0
// The variables that show that a launcher started this process as one of several, and the message of a build without
// MPI.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "cli/launcher.hpp"
#include "cli/options.hpp"
#include "support/message_of.hpp"

namespace checkop::launch_test {
namespace {

using Variables = std::map<std::string, std::string>;

Environment with(const Variables& variables) {
  return [variables](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? "" : found->second;
  };
}

/// "VARIABLE N"; "" for one process.
std::string launch(const Variables& variables) {
  const std::optional<Launcher> found = launcher_of(with(variables));
  return found ? found->variable + " " + std::to_string(found->processes) : "";
}

RunOptions asked(const std::vector<std::string>& arguments) {
  std::vector<const char*> argv{"check_operator"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  return parse_options(static_cast<int>(argv.size()), argv.data())->run;
}

TEST(Launcher, SeveralProcessesAreKnownByTheLaunchersVariable) {
  EXPECT_EQ(launch({}), "");
  EXPECT_EQ(launch({{"OMPI_COMM_WORLD_SIZE", "4"}, {"PMIX_RANK", "2"}}), "OMPI_COMM_WORLD_SIZE 4");
  EXPECT_EQ(launch({{"OMPI_COMM_WORLD_SIZE", "1"}, {"PMIX_RANK", "0"}}), "");
  EXPECT_EQ(launch({{"PMI_SIZE", "3"}}), "PMI_SIZE 3");
  EXPECT_EQ(launch({{"PMIX_RANK", "0"}}), "PMIX_RANK 0");
  EXPECT_EQ(launch({{"SLURM_NTASKS", "8"}, {"SLURM_STEP_ID", "0"}, {"PMIX_RANK", "1"}}), "SLURM_NTASKS 8");
  EXPECT_EQ(launch({{"SLURM_NTASKS", "8"}}), "");  // a batch script is one process
  EXPECT_EQ(launch({{"SLURM_NTASKS", "1"}, {"SLURM_STEP_ID", "0"}}), "");
  EXPECT_EQ(launch({{"WORLD_SIZE", "8"}, {"RANK", "1"}}), "");
}

TEST(Launcher, ANumberThatIsNoneIsRefused) {
  for (const char* number : {"many", "0", "-1", "2x"}) {
    EXPECT_EQ(message_of([&] {
                launch({{"PMI_SIZE", number}});
              }),
              fmt::format("PMI_SIZE: expected the number of processes, got '{}'; unset it", number));
  }
}

TEST(Launcher, ABuildWithoutMpiRefusesToBeOneOfSeveral) {
  const Environment mpirun = with({{"OMPI_COMM_WORLD_SIZE", "2"}});
  const RunOptions shared = asked({"--op", "tp_logp"});
  EXPECT_EQ(
      message_of([&] { launcher_for_ranks(shared, mpirun, /*has_mpi=*/false); }),
      "ranks: OMPI_COMM_WORLD_SIZE says that a launcher started this process as one of several, and this build has "
      "no MPI; install libopenmpi-dev and build again, or unset OMPI_COMM_WORLD_SIZE");
  EXPECT_EQ(launcher_for_ranks(shared, mpirun, /*has_mpi=*/true)->processes, 2);
  EXPECT_FALSE(launcher_for_ranks(shared, with({}), /*has_mpi=*/false));
  EXPECT_FALSE(launcher_for_ranks(asked({"--op", "logp"}), mpirun, /*has_mpi=*/false));  // no rank has a part of it
  EXPECT_TRUE(launcher_for_ranks(asked({"--suite", "smoke"}), mpirun, /*has_mpi=*/true));
}

TEST(Launcher, FlagsForOneProcessAreRefused) {
  for (const std::vector<std::string>& flags : {std::vector<std::string>{"--no-isolate"}, {"--sanitize", "memcheck"}}) {
    std::vector<std::string> arguments{"--op", "tp_logp"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    EXPECT_EQ(message_of([&] {
                launcher_for_ranks(asked(arguments), with({{"PMI_SIZE", "2"}}), /*has_mpi=*/true);
              }),
              fmt::format("{}: is for one process, and this is one of several; leave it out", flags.front()));
  }
}

}  // namespace
}  // namespace checkop::launch_test
