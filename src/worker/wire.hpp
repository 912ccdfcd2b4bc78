// SPDX-License-Identifier: Apache-2.0
// What parent and worker say to each other, as JSON; tensors go beside it, as file descriptors or as bytes.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/frame.hpp"
#include "device/device.hpp"
#include "run/bench.hpp"
#include "run/run_result.hpp"
#include "tensor/tensor.hpp"

namespace checkop {

nlohmann::json encode(const Case& c);
Case decode_case(const nlohmann::json& json);

RunStatus decode_status(const nlohmann::json& json);
nlohmann::json encode(const RunChecks& checks);
RunChecks decode_checks(const nlohmann::json& json);

nlohmann::json encode(const RankRun& rank);
RankRun decode_rank(const nlohmann::json& json);

nlohmann::json encode(const RunResult& result);
RunResult decode_result(const nlohmann::json& json);

nlohmann::json encode(const BenchPlan& plan);
BenchPlan decode_plan(const nlohmann::json& json);
nlohmann::json encode(const BenchResult& result);
BenchResult decode_bench(const nlohmann::json& json);

nlohmann::json encode(const DeviceInfo& info);
DeviceInfo decode_device(const nlohmann::json& json);

/// Most bytes of tensors beside a request or an answer, so that each, with JSON of up to some 100 KiB, fits into a
/// socket's buffer of some 200 KiB: a sender does not wait for the reader, and all of an answer that is read late has
/// arrived.
inline constexpr size_t kMostBytesBeside = size_t{96} << 10;

/// What goes beside the JSON of tensors.
struct TensorMemory {
  std::vector<int> descriptors = {};  ///< of shared memory
  std::string bytes = {};             ///< of inputs in memory of one process; at most kMostBytesBeside
  std::vector<Bytes> copies = {};     ///< of the other such inputs, in shared memory
};
/// The same as it arrives, and how far it is used.
struct ArrivedMemory {
  explicit ArrivedMemory(Message message) : message(std::move(message)) {}
  Message message;
  size_t descriptors = 0, bytes = 0;
};

enum class Role : uint8_t { input, output };

/// Shares all of `outputs` but the first whose own bytes fit beside an answer; see Bytes::share().
void share_most(std::vector<Tensor>& outputs);

/// Names, types and shapes; appends the memory of present tensors to `memory`. Outputs in memory of one process arrive
/// as zeros, and come back by own_bytes().
nlohmann::json encode(const std::vector<Tensor>& tensors, Role role, TensorMemory& memory);
/// Maps shared tensors, inputs for reading only, and copies others. Throws WireError, and InputError as Bytes::map().
std::vector<Tensor> decode_tensors(const nlohmann::json& json, Role role, ArrivedMemory& memory);

/// What lies in tensors in memory of this process alone, one behind the other.
std::string own_bytes(const std::vector<Tensor>& tensors);
/// Copies the own_bytes() of the same tensors of another process. Throws WireError for another number of bytes.
void take_own_bytes(std::string_view bytes, std::vector<Tensor>& tensors);

}  // namespace checkop
