// SPDX-License-Identifier: Apache-2.0
// What parent and worker say to each other, as JSON; tensor memory goes as file descriptors beside it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "base/frame.hpp"
#include "device/device.hpp"
#include "run/bench.hpp"
#include "run/run_result.hpp"

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

/// Names, types and shapes; appends the descriptors of present tensors to `descriptors`.
nlohmann::json encode(const std::vector<Tensor>& tensors, std::vector<int>& descriptors);
/// Maps the tensors, taking descriptors from position `next` on.
std::vector<Tensor> decode_tensors(const nlohmann::json& json, std::vector<Descriptor>& descriptors, size_t& next,
                                   bool writable);

}  // namespace checkop
