// SPDX-License-Identifier: Apache-2.0
// What runs in a worker process from the fork to its end.
#pragma once

#include <sys/types.h>

#include "isolate.hpp"

namespace checkop {

/// "cpu", "cuda" or "cuda:N". Throws InputError for other names, EnvironmentError and DeviceError as the device does.
std::unique_ptr<Device> open_device(const std::string& name);

/// Serves requests that come over `socket` until the parent closes its end.
[[noreturn]] void run_child(int socket, pid_t parent, const WorkerConfig& config);

}  // namespace checkop
