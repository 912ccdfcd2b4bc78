// SPDX-License-Identifier: Apache-2.0
// Whether a launcher started this process as one of several.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "session/run_options.hpp"

namespace checkop {

/// The value of a variable; "" when it is not set.
using Environment = std::function<std::string(const char*)>;

/// How this process knows that a launcher started it as one of several.
struct Launcher {
  std::string variable;   ///< of the environment, "PMI_SIZE"
  int32_t processes = 0;  ///< 0: the variable does not give the number
};

/// The job that a launcher of MPI describes in the environment; nothing if this is a single process. Throws InputError
/// for a variable that holds no number of processes.
std::optional<Launcher> launcher_of(const Environment& environment);

/// launcher_of() if a selected operator is tensor-parallel, otherwise nothing. With several processes, throws
/// EnvironmentError if this build has no MPI, and InputError for flags that need a single process.
std::optional<Launcher> launcher_for_ranks(const RunOptions& run, const Environment& environment, bool has_mpi);

}  // namespace checkop
