// SPDX-License-Identifier: Apache-2.0
// A job of several processes, one a rank, that a launcher of MPI started. Each of them forks before MPI starts: the
// parent relays bytes through MPI (mpi.hpp) and does nothing else, the child runs checks or holds a rank. The child and
// its workers reach the other processes only over a channel to the parent, which passes them connections to ranks.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/frame.hpp"

namespace checkop {

/// What a process says of itself to all others at the start.
struct Introduction {
  std::string version, arguments;    ///< of the program; its command line
  std::vector<std::string> plugins;  ///< their digests, sorted
  std::string host;
  int64_t process = 0;
  std::string error;  ///< why it can't take part; "" when it can
};

/// Where a process stands among the others.
struct RankPlace {
  int32_t rank = 0, processes = 1;
  int32_t local_rank = 0;             ///< among those of its machine
  std::vector<Introduction> members;  ///< by rank
};

/// Throws InputError naming the first rank that can't take part, or is not of the same program, arguments and plugins
/// as rank 0.
void require_same(const std::vector<Introduction>& members);

/// A connection between a worker of rank 0 and the process of another rank. Bytes come out of it as they went in.
struct RankStreams {
  Descriptor talk = Descriptor();  ///< to the process that holds the rank for as long as this connection lasts
  Descriptor end = Descriptor();   ///< to its parent, which says how it ended
};

/// Both streams as a pair of ends each. Throws EnvironmentError when the system has no room for them.
struct RankStreamPair {
  RankStreams own, other;
};
RankStreamPair make_streams();

/// Connects a worker of rank 0 to a rank. Throws WireError when the job is over.
RankStreams connect_to_rank(int channel, int32_t rank);

/// A process of the job.
class RankJob {
 public:
  explicit RankJob(Descriptor channel) : channel_(std::move(channel)) {}

  /// Waits until all have introduced themselves. Throws EnvironmentError when the parent gave up on that.
  RankPlace introduce(const Introduction& own);
  int channel() const { return channel_.get(); }

 private:
  Descriptor channel_;
};

/// This process and its child, after fork().
struct SplitJob {
  pid_t child = 0;     ///< 0 in the child itself
  Descriptor channel;  ///< its own end
};

/// Forks. The child has a process group of its own, so that it survives a launcher's SIGKILL to the parent's group and
/// can finish a report. It then gets SIGTERM, perhaps not for the first time.
SplitJob split_job();

}  // namespace checkop
