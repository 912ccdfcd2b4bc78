// SPDX-License-Identifier: Apache-2.0
// What the worker of rank 0 and the process of another rank say to each other, as JSON.
#pragma once

#include <exception>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "run/rank.hpp"

namespace checkop {

/// Most bytes of a rank's part of an exchange.
inline constexpr size_t kMostExchanged = size_t{1} << 32;
inline constexpr char kLostConnection[] = "its connection ended";

nlohmann::json encode(const RankPart& place);
RankPart decode_place(const nlohmann::json& json);

nlohmann::json encode(const RankLaunch& launch);
void decode_launch(const nlohmann::json& json, RankLaunch& launch);

nlohmann::json encode(const RankLaunchStatus& answer);
RankLaunchStatus decode_answer(const nlohmann::json& json);

/// A Stopped or DeviceError as an answer, and thrown again on the other side. Rethrows what is neither.
nlohmann::json encode_error(const std::exception_ptr& error);
void rethrow_error(const nlohmann::json& answer);

}  // namespace checkop
