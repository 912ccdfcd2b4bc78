// SPDX-License-Identifier: Apache-2.0
// What compute-sanitizer wrote.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace checkop {

struct SanitizerLog {
  std::string summary;  ///< "ERROR SUMMARY: 2 errors"; empty when there is none: it never saw a process to its end
  int64_t errors = 0;   ///< of all summaries
  std::string first;    ///< first line of the first finding: "Invalid __global__ write of size 4 bytes"
};

/// Reads the lines of compute-sanitizer out of `text`, in which the program's own may stand too.
SanitizerLog read_sanitizer_log(std::string_view text);

/// The path of compute-sanitizer: on PATH, or in the CUDA Toolkit, which is in CUDA_HOME or /usr/local/cuda. Empty when
/// it is nowhere.
std::string find_sanitizer();

/// How to get it: one line for a shell.
inline constexpr std::string_view kInstallSanitizer =
    "sudo apt-get install cuda-sanitizer-13-0, or the package of your CUDA version; or put compute-sanitizer on PATH";

}  // namespace checkop
