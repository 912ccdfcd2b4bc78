// SPDX-License-Identifier: Apache-2.0
// Names of run statuses.
#include "run/run_result.hpp"

namespace checkop {

std::string_view to_string(RunStatus status) {
  switch (status) {
    case RunStatus::ok:
      return "ok";
    case RunStatus::unsupported:
      return "unsupported";
    case RunStatus::failed:
      return "failed";
    case RunStatus::crashed:
      return "crashed";
    case RunStatus::timeout:
      return "timeout";
    case RunStatus::no_device:
      return "no_device";
    case RunStatus::no_memory:
      return "no_memory";
    case RunStatus::skipped:
      return "skipped";
  }
  return "?";
}

}  // namespace checkop
