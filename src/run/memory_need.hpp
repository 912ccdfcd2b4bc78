// SPDX-License-Identifier: Apache-2.0
// Estimates the memory of a check before anything is allocated.
#pragma once

#include <cstdint>
#include <string>

#include "case/case.hpp"
#include "device/device.hpp"

namespace checkop {

struct MemoryNeed {
  uint64_t host = 0;    ///< of the checker, and of the worker if it runs on the CPU
  uint64_t device = 0;  ///< of a CUDA device; 0 on the CPU
};

/// The memory of one check: inputs; outputs twice, since a second launch repeats them; the gold's working memory; the
/// candidate's copies between guard bands. Excludes its workspace, whose size only the candidate knows.
MemoryNeed memory_need(const Case& c, bool on_cuda, unsigned threads);

/// Why the check does not fit: "needs 9.5 GiB of the host's memory, of which 4.0 GiB are free". "" if it fits or if the
/// free memory is unknown. `limit`: the host memory that may be used; 0: all that is free.
std::string why_no_room(const Case& c, const DeviceInfo& device, unsigned threads, uint64_t limit);

/// Whether the host also has room for a second set of inputs and outputs of the check.
bool has_room_for_other_data(const Case& c, const DeviceInfo& device, unsigned threads, uint64_t limit);

}  // namespace checkop
