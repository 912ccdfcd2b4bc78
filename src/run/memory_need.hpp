// SPDX-License-Identifier: Apache-2.0
// How much memory a check takes, estimated before anything is allocated.
#pragma once

#include <cstdint>
#include <string>

#include "case/case.hpp"
#include "device/device.hpp"

namespace checkop {

struct MemoryNeed {
  uint64_t host = 0;    ///< of the checker, and of the worker where it runs on the CPU
  uint64_t device = 0;  ///< of a CUDA device; 0 on the CPU
};

/// Of one check: inputs; outputs, once more for the run that repeats them; what the gold works with; the candidate's
/// copies between guard bands. Not its workspace, which only the candidate knows.
MemoryNeed memory_need(const Case& c, bool on_cuda, unsigned threads);

/// Why the check has no room: "needs 9.5 GiB of the host's memory, of which 4.0 GiB are free". Empty where it has, or
/// nothing is known. `limit`: what it may take of the host's memory, 0 for what is free.
std::string why_no_room(const Case& c, const DeviceInfo& device, unsigned threads, uint64_t limit);

}  // namespace checkop
