// SPDX-License-Identifier: Apache-2.0
// The page on which a plugin's process and the judge begin and end what is timed, as an attacker finds it: it looks for
// the mapping, and knows the source.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

namespace test_plugin {

/// As checkop::host::Gate.
struct GateOfJudge {
  alignas(64) std::atomic<uint64_t> begin;
  alignas(64) std::atomic<uint64_t> beats;
  alignas(64) std::atomic<uint64_t> end;
  std::atomic<uint64_t> is_answered, claimed_ns;
};

/// nullptr: there is none.
inline GateOfJudge* find_gate() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long first = 0, last = 0;
    if (line.find("rw-s") == std::string::npos || line.find("memfd:checkop") == std::string::npos) continue;
    if (std::sscanf(line.c_str(), "%lx-%lx", &first, &last) != 2 || last - first != 4096) continue;
    return reinterpret_cast<GateOfJudge*>(first);
  }
  return nullptr;
}

}  // namespace test_plugin
