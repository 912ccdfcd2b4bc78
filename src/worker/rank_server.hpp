// SPDX-License-Identifier: Apache-2.0
// A process that holds a rank for rank 0's workers.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace checkop {

struct RankServer {
  int32_t rank = 0;
  std::map<std::string, std::string> plugins;  ///< digest -> path
  std::string cuda_device;                     ///< "cuda:1", for candidates that run on one; "": see cuda_index
  int32_t cuda_index = 0;                      ///< of the device, unless this process sees only one
};

/// Holds the rank, in a fresh process for each connection that comes over `channel`, until the relaying parent ends or
/// kills this process.
void serve_rank(int channel, const RankServer& server);

}  // namespace checkop
