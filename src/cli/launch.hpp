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

/// By what this process knows that it is one of several.
struct Launch {
  std::string variable;
  int32_t processes = 0;  ///< 0: the variable does not say
};

/// What a launcher of MPI left in the environment; nothing where it started one process. Throws InputError for a
/// variable that makes no sense.
std::optional<Launch> launch_of(const Environment& environment);

/// Likewise, where the processes share cases. Throws EnvironmentError where they do and this build has no MPI,
/// InputError for flags that are for one process.
std::optional<Launch> launch_of_ranks(const RunOptions& run, const Environment& environment, bool has_mpi);

}  // namespace checkop
