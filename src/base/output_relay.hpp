// SPDX-License-Identifier: Apache-2.0
// What an untrusted process prints, on this process's standard error.
#pragma once

#include <atomic>
#include <thread>

#include "base/frame.hpp"

namespace checkop {

/// Copies what is written to writer() to standard error, on a thread, until all who hold that end have closed it. So
/// the other process never holds this one's terminal, pipe or file, whose state and contents it could change. Control
/// characters become '?', every line begins with "plugin: ", and after a mebibyte the rest is left out.
class OutputRelay {
 public:
  /// Throws std::system_error without descriptors or threads.
  OutputRelay();
  OutputRelay(const OutputRelay&) = delete;
  OutputRelay& operator=(const OutputRelay&) = delete;
  /// Waits for the end of what is written: the process must have ended.
  ~OutputRelay();

  /// The end for the other process; close_writer() closes it here.
  int writer() const { return writer_.get(); }
  void close_writer() { writer_ = Descriptor(); }
  /// Waits until what has been written is copied, for a tenth of a second at most.
  void settle() const;

 private:
  void copy();

  Descriptor reader_, writer_;
  std::atomic<bool> is_copying_ = false;
  std::thread thread_;
};

}  // namespace checkop
