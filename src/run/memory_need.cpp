// SPDX-License-Identifier: Apache-2.0
// Adds up the sizes of tensors as the runner and the gold use them.
#include "run/memory_need.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/host_memory.hpp"
#include "base/text.hpp"
#include "case/rank_parts.hpp"
#include "device/buffers.hpp"

namespace checkop {
namespace {

/// Program, libraries and OpenBLAS's buffers. Per thread: transfers and comparisons use blocks of some MiB.
constexpr uint64_t kProgramBytes = uint64_t{160} << 20, kBytesPerThread = uint64_t{32} << 20;
/// CUDA contexts and their modules: of a worker and of its plugins' process, and of a second pair.
constexpr uint64_t kContextBytes = uint64_t{2} << 30;

struct Sizes {
  uint64_t inputs = 0, outputs = 0, guards = 0, decoded = 0;

  uint64_t add(const Case& c, const TensorSpec& spec) {
    if (!is_present(c, spec)) return 0;
    const size_t width = info(dtype_of(c, spec)).bytes;
    guards += 2 * std::max(static_cast<uint64_t>(kGuardElements) * width, uint64_t{kMostGuardBytes});
    return static_cast<uint64_t>(element_count(shape_of(c, spec))) * width;
  }
};

Sizes sizes_of(const Case& c) {
  Sizes sizes;
  for (const TensorSpec& spec : c.pass->inputs) {
    const uint64_t bytes = sizes.add(c, spec);
    sizes.inputs += bytes;
    // The gold may hold weights and their magnitudes as doubles.
    if (!is_per_row(*c.op, spec)) sizes.decoded += bytes / info(dtype_of(c, spec)).bytes * 2 * sizeof(double);
  }
  for (const OutputSpec& spec : c.pass->outputs) sizes.outputs += sizes.add(c, spec.tensor);
  return sizes;
}

}  // namespace

MemoryNeed memory_need(const Case& c, bool on_cuda, unsigned threads) {
  const Sizes sizes = sizes_of(c);
  uint64_t copies = sizes.inputs + sizes.outputs + sizes.guards;
  for (int64_t rank = 0; is_tensor_parallel(c) && rank < world_size(c); ++rank) {  // in addition to the whole tensors
    const Sizes part = sizes_of(rank_case(c, rank));
    copies += part.inputs + part.outputs + part.guards;
  }
  MemoryNeed need;
  need.host = kProgramBytes + threads * kBytesPerThread + sizes.inputs + 2 * sizes.outputs;
  // The candidate's copies are freed before the gold begins.
  need.host += std::max(sizes.decoded, on_cuda ? 0 : copies);
  if (on_cuda) need.device = copies + kContextBytes;
  return need;
}

std::string why_no_room(const Case& c, const DeviceInfo& device, unsigned threads, uint64_t limit) {
  const bool on_cuda = device.kind == "cuda";
  const MemoryNeed need = memory_need(c, on_cuda, threads);
  const std::optional<uint64_t> free = limit > 0 ? limit : available_memory_for(need.host);
  if (free && need.host > *free) {
    return fmt::format("needs {} of the host's memory, of which {} {}", format_bytes(need.host), format_bytes(*free),
                       limit > 0 ? "may be used" : "are free");
  }
  if (on_cuda && device.free_bytes > 0 && need.device > device.free_bytes) {
    return fmt::format("needs {} of device memory, of which {} are free", format_bytes(need.device),
                       format_bytes(device.free_bytes));
  }
  return "";
}

bool has_room_for_other_data(const Case& c, const DeviceInfo& device, unsigned threads, uint64_t limit) {
  const Sizes sizes = sizes_of(c);
  const uint64_t need = memory_need(c, device.kind == "cuda", threads).host + sizes.inputs + sizes.outputs;
  const std::optional<uint64_t> free = limit > 0 ? limit : available_memory_for(need);
  return !free || need <= *free;
}

}  // namespace checkop
