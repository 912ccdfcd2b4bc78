// SPDX-License-Identifier: Apache-2.0
// check_operator doctor: what this machine and this build have, and what is missing.
#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "abi/check_operator.h"
#include "base/error.hpp"
#include "base/output_file.hpp"
#include "base/paths.hpp"
#include "base/sandbox.hpp"
#include "base/text.hpp"
#include "base/version.hpp"
#include "case/sweep.hpp"
#include "cli/commands.hpp"
#include "device/nccl_comm.hpp"
#include "device/plugin.hpp"
#include "session/control.hpp"
#include "session/sanitizer_log.hpp"
#include "session/selection.hpp"
#include "worker/worker.hpp"

namespace checkop {
namespace {

/// The result of looking for one thing.
struct Diagnosed {
  std::string name = {}, value = {};  ///< "device cuda:0", "NVIDIA H200 (sm90), 132 SMs, 140.0 GiB"
  bool found = true;
  bool needed = false;       ///< this build can't check without it
  std::string install = {};  ///< how to get it, if it is missing
};

using Findings = std::vector<Diagnosed>;

constexpr std::string_view kInstallDriver = "sudo apt-get install cuda-drivers, then restart";

/// The loaded kernel module's version, "580.95.05"; "" without one.
std::string loaded_driver() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  std::getline(file,
               line);  // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  ..."; the word order varies
  return version_in(line);
}

void look_at_devices(Findings& findings) {
  const std::string module = loaded_driver();
  if (!built_with_cuda()) {
    findings.push_back(
        {"CUDA", "this build has none", false, false, "cmake --preset cuda && cmake --build --preset cuda"});
    findings.push_back(
        {"driver", module.empty() ? "none is loaded" : module, !module.empty(), false, std::string(kInstallDriver)});
    return;
  }
  const int devices = Worker({{}, "cpu", /*count_cuda_devices=*/true}).info().cuda_devices;
  std::string driver, runtime;
  Findings found;
  for (int i = 0; i < devices; ++i) {
    const std::string name = fmt::format("cuda:{}", i);
    try {
      const DeviceInfo info = Worker({{}, name}).info().device.value();
      driver = info.driver, runtime = info.runtime;
      found.push_back(
          {"device " + name, fmt::format("{} ({}), {} SMs, {}, {} free", info.name, info.arch_key, info.multiprocessors,
                                         format_bytes(info.memory_bytes), format_bytes(info.free_bytes))});
    } catch (const EnvironmentError& e) {
      found.push_back({"device " + name, e.what(), false, true, "nvidia-smi, for what the driver says of it"});
    }
  }
  if (devices == 0) found.push_back({"device", "no CUDA device", false, true, "nvidia-smi, for what the driver says"});
  const bool has_driver = !module.empty() || !driver.empty();
  const std::string versions = fmt::format("{}{}", module, driver.empty() ? "" : fmt::format(" for CUDA {}", driver));
  findings.push_back(
      {"driver", has_driver ? versions : "none is loaded", has_driver, true, std::string(kInstallDriver)});
  if (!runtime.empty()) findings.push_back({"CUDA runtime", runtime});
  findings.insert(findings.end(), found.begin(), found.end());
}

/// NCCL is loaded at run time, since only ranks on several devices need it.
void look_at_nccl(Findings& findings) {
  Diagnosed nccl{"NCCL", "libnccl.so.2 is not found", false, false, "sudo apt-get install libnccl2"};
  if (void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL)) {
    using GetVersion = int(int*);
    int version = 0;
    auto* get = reinterpret_cast<GetVersion*>(dlsym(library, "ncclGetVersion"));
    nccl.found = get != nullptr && get(&version) == 0;
    // 22703 means 2.27.3; before 2.9, 2804 meant 2.8.4.
    const int base = version >= 10000 ? 10000 : 1000;
    nccl.value = nccl.found ? fmt::format("{}.{}.{}", version / base, version % base / 100, version % 100)
                            : "libnccl.so.2 does not tell its version";
  }
  if (const std::string why = NcclComm::why_none(); nccl.found && built_with_cuda() && !why.empty())
    nccl = {"NCCL", why, false, false, "sudo apt-get install libnccl-dev, then configure and build again"};
  findings.push_back(std::move(nccl));
}

void look_at_sanitizer(Findings& findings) {
  const std::string path = find_sanitizer();
  findings.push_back(
      {"compute-sanitizer", path.empty() ? "not found" : path, !path.empty(), false, std::string(kInstallSanitizer)});
}

/// Which measures of a sandbox hold on this machine.
void look_at_sandbox(const std::string& name, SandboxRules::Processes processes, Findings& findings) {
  for (const SandboxMeasure& measure : probe_sandbox(processes)) {
    findings.push_back(
        {name, fmt::format("{}: {}", measure.what, measure.how), measure.holds, false,
         "a kernel from 5.13 on with Landlock and seccomp filters, outside a container that forbids them"});
  }
}

/// Whether the CUDA driver starts in the sandbox of a plugin.
void look_at_gpu_sandbox(Findings& findings) {
  if (!built_with_cuda()) return;
  Diagnosed sandbox{"sandbox of a GPU", "", true, false, "a GPU, or --no-isolate for plugins that can be trusted"};
  try {
    const Worker plugin_starts({{control_plugin("cuda")}, "cuda:0"});
    const CudaFiles files = cuda_files();
    sandbox.value = fmt::format("as the sandbox, but for {}; writes to {}", fmt::join(files.devices, ", "),
                                fmt::join(files.writable, ", "));
  } catch (const std::exception& e) {  // of the input or the machine
    sandbox.value = e.what();
    sandbox.found = false;
  }
  findings.push_back(std::move(sandbox));
}

/// Loads each plugin in its own process, so that one that can't be loaded does not hide the others.
void look_at_plugin(const std::string& path, Findings& findings) {
  Diagnosed plugin{"plugin " + short_path(path), "", true, true, ""};
  try {
    const WorkerInfo info = Worker({{path}}).info();
    std::vector<std::string> names;
    for (const Candidate& each : info.candidates) {
      std::string name = fmt::format("{}/{}", each.op, each.name);
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
    }
    plugin.value = fmt::format("ABI {}, digest {}: {}", CHECKOP_ABI_VERSION, file_digest(path), fmt::join(names, ", "));
  } catch (const InputError& e) {
    plugin = {plugin.name, e.what(), false, true, fmt::format("a build against ABI {}", CHECKOP_ABI_VERSION)};
  }
  findings.push_back(std::move(plugin));
}

void look_at_plugins(const std::vector<std::string>& more, Findings& findings) {
  std::vector<std::string> paths = shipped_plugins({});
  for (const Operator* op : operators()) {
    const std::string name(op->name);
    if (shipped_plugins({name}).empty())
      findings.push_back(
          {"plugin of " + name, "there is none", false, true, "cmake --build --preset cpu --target kernels"});
  }
  paths.insert(paths.end(), more.begin(), more.end());
  for (const std::string& path : paths) look_at_plugin(path, findings);
}

/// A file or folder that is shipped with the program. `describe` gets its path and returns a summary of its content.
void look_at_shipped(const std::string& name, const std::function<std::string(const std::string&)>& describe,
                     Findings& findings) {
  try {
    const std::string path = find_shipped(name);
    findings.push_back({name, fmt::format("{}: {}", path, describe(path))});
  } catch (const InputError& e) {
    findings.push_back({name, e.what(), false, true, "this program again, or run it from its source tree"});
  }
}

Findings look_around(const RunOptions& options) {
  Findings findings;
  findings.push_back({"check_operator", fmt::format("{}, {}, {}, {}", kVersion, kCompiler, kBuildType,
                                                    built_with_cuda() ? "with CUDA" : "without CUDA")});
  look_at_devices(findings);
  look_at_nccl(findings);
  look_at_sanitizer(findings);
  look_at_sandbox("sandbox", SandboxRules::Processes::none, findings);
  look_at_gpu_sandbox(findings);
  look_at_sandbox("sandbox of --exec", SandboxRules::Processes::in_group, findings);
  look_at_shipped(
      "contracts/default.json", [&](const std::string& path) { return "hash " + load_contract(options, path).hash(); },
      findings);
  look_at_shipped(
      "cases",
      [](const std::string& path) { return fmt::format("{} cases of suite smoke", load_cases(path, "smoke").size()); },
      findings);
  look_at_plugins(options.plugins, findings);
  return findings;
}

nlohmann::json to_json(const Findings& findings, bool ok) {
  nlohmann::json list = nlohmann::json::array();
  for (const Diagnosed& f : findings) {
    list.push_back({{"name", f.name},
                    {"value", f.value},
                    {"found", f.found},
                    {"needed", f.needed},
                    {"install", f.found ? nlohmann::json(nullptr) : nlohmann::json(f.install)}});
  }
  return {{"format", "check_operator/doctor-1"}, {"ok", ok}, {"findings", list}};
}

}  // namespace

int doctor_command(const Options& options) {
  const Findings findings = look_around(options.run);
  const bool ok =
      std::none_of(findings.begin(), findings.end(), [](const Diagnosed& f) { return f.needed && !f.found; });
  const std::string json = to_json(findings, ok).dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (!options.run.json_file.empty()) write_file(options.run.json_file, json);
  if (options.run.json_to_stdout) {
    fmt::print("{}", json);
    return ok ? 0 : 5;
  }
  for (const Diagnosed& f : findings) {
    fmt::print("{} {:<24} {}\n", f.found ? "[   OK    ]" : f.needed ? "[ MISSING ]" : "[ absent  ]", f.name, f.value);
    if (!f.found && !f.install.empty()) fmt::print("            get it with: {}\n", f.install);
  }
  fmt::print("{}\n", ok ? "Nothing is missing that this build needs."
                        : "Something is missing that this build needs (exit code 5).");
  return ok ? 0 : 5;
}

}  // namespace checkop
