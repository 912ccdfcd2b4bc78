// SPDX-License-Identifier: Apache-2.0
// Reads the output of compute-sanitizer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace checkop {

struct SanitizerLog {
  std::string summary;  ///< "ERROR SUMMARY: 2 errors"; empty if no process ran to its end under the tool
  int64_t errors = 0;   ///< sum over all summaries
  std::string first;    ///< first line of the first finding: "Invalid __global__ write of size 4 bytes"
};

/// Reads compute-sanitizer's lines in `text`; skips the program's own lines.
SanitizerLog read_sanitizer_log(std::string_view text);

/// The path of compute-sanitizer, searched on PATH and in the CUDA Toolkit (CUDA_HOME or /usr/local/cuda). "" if it is
/// not found.
std::string find_sanitizer();

/// How to install it: one shell line.
inline constexpr std::string_view kInstallSanitizer =
    "sudo apt-get install cuda-sanitizer-13-0, or the package of your CUDA version; or put compute-sanitizer on PATH";

}  // namespace checkop
