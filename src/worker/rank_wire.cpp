// SPDX-License-Identifier: Apache-2.0
// The JSON of ranks.
#include "worker/rank_wire.hpp"

#include <cstdint>
#include <nlohmann/json.hpp>

#include "base/frame.hpp"
#include "worker/wire.hpp"

namespace checkop {
namespace {

using nlohmann::json;

}  // namespace

json encode(const RankPart& place) { return {place.rank, place.world_size, place.begin, place.end, place.total}; }

RankPart decode_place(const json& json) {
  return {json.at(0).get<int32_t>(), json.at(1).get<int32_t>(), json.at(2).get<int64_t>(), json.at(3).get<int64_t>(),
          json.at(4).get<int64_t>()};
}

json encode(const RankLaunch& launch) {
  const std::vector<uint8_t> comm_id(launch.comm_id.begin(), launch.comm_id.end());  // any bytes
  return {static_cast<int>(launch.mode.kind), launch.mode.percent, comm_id, launch.limit.count()};
}

void decode_launch(const json& json, RankLaunch& launch) {
  launch.mode = {static_cast<LaunchMode::Kind>(json.at(0).get<int>()), json.at(1).get<int>()};
  const auto comm_id = json.at(2).get<std::vector<uint8_t>>();
  launch.comm_id.assign(comm_id.begin(), comm_id.end());
  launch.limit = std::chrono::milliseconds(json.at(3).get<int64_t>());
}

json encode(const RankLaunchStatus& answer) {
  const auto& stopped = answer.status.stopped;
  return {{"status", stopped ? static_cast<int>(stopped->status) : static_cast<int>(RunStatus::ok)},
          {"message", stopped ? stopped->message : answer.status.message},
          {"ms", answer.ms},
          {"broken_off", answer.is_broken_off}};
}

RankLaunchStatus decode_answer(const json& json) {
  RankLaunchStatus answer;
  const auto message = json.at("message").get<std::string>();
  if (const RunStatus status = decode_status(json.at("status")); status == RunStatus::ok) {
    answer.status.message = message;
  } else {
    answer.status.stopped = Stopped{status, message};
  }
  answer.ms = json.at("ms").get<double>();
  answer.is_broken_off = json.at("broken_off").get<bool>();
  return answer;
}

json encode_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Stopped& stopped) {
    return {{"stopped", static_cast<int>(stopped.status)}, {"text", stopped.message}};
  } catch (const OutOfMemory& e) {
    return {{"memory", true}, {"text", e.what()}};
  } catch (const DeviceError& e) {
    return {{"sticky", e.sticky()}, {"text", e.what()}};
  }
}

void rethrow_error(const json& answer) {
  if (!answer.contains("text")) return;
  const auto text = answer.at("text").get<std::string>();
  if (answer.contains("stopped")) throw Stopped{decode_status(answer.at("stopped")), text};
  if (answer.contains("memory")) throw OutOfMemory(text);
  throw DeviceError(text, answer.at("sticky").get<bool>());
}

}  // namespace checkop
