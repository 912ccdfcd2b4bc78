// SPDX-License-Identifier: Apache-2.0
// What runs in the process that holds a rank for one request of rank 0's.
#pragma once

#include <sys/types.h>

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

/// Serves over `socket` until its other end closes. The exit code of the process.
int serve_rank(int socket, const RankServer& server);

}  // namespace checkop
