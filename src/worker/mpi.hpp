// SPDX-License-Identifier: Apache-2.0
// MPI between the processes of a job: each carries the bytes of its child's connections to those of the others.
#pragma once

#include <sys/types.h>

#include <chrono>

#include "base/frame.hpp"

namespace checkop {

bool built_with_mpi();

/// Starts MPI, and relays until the child of rank 0 has ended. Returns the child's exit code, with which all processes
/// of the job end; 4 if the child vanished. `channel` leads to `child`; see split_job(). Ends this process with code 5
/// and a sentence when not all processes of the job have started within `limit`. Throws EnvironmentError in a build
/// without MPI.
int relay(Descriptor channel, pid_t child, std::chrono::milliseconds limit);

}  // namespace checkop
