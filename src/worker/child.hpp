// SPDX-License-Identifier: Apache-2.0
// What runs in a worker process from the fork to its end.
#pragma once

#include "worker/worker.hpp"

namespace checkop {

/// "cpu", "cuda" or "cuda:N". Throws InputError for other names, EnvironmentError and DeviceError as the device does.
std::unique_ptr<Device> open_device(const std::string& name);

/// Separates the process from its parent's signals, terminal and files. The socket becomes descriptor 3; the channel
/// (to other ranks, or of --exec-fd), if there is one, becomes 4; all other descriptors are closed.
void detach_from_parent(int socket, int channel);
inline constexpr int kNoChannel = -1;

/// Whether the plugins get a process of their own, started by the worker. They do not where WorkerConfig::in_worker is
/// set, if ranks are processes, or if the plugins are linked into this program; on a GPU, not under a tool of NVIDIA.
bool has_plugin_host(const WorkerConfig& config);

/// Serves requests that come over `socket` until the parent closes its end. Returns the exit code of the process.
int run_child(int socket, const WorkerConfig& config);

}  // namespace checkop
