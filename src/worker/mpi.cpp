// SPDX-License-Identifier: Apache-2.0
// The only file that knows MPI. A process that runs this code has one thread and runs no candidate: candidates can't
// reach MPI's memory, and nothing is forked while MPI is up.
#include "worker/mpi.hpp"

#include "base/error.hpp"

#ifdef CHECK_OPERATOR_MPI

#include <fmt/format.h>
#include <mpi.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/clock.hpp"
#include "base/external_process.hpp"
#include "base/interruption.hpp"
#include "worker/rank_job.hpp"

namespace checkop {
namespace {

using nlohmann::json;

/// What one process tells another, in front of the bytes of a stream.
enum class Kind : int32_t {
  open,   ///< a connection: streams `stream` and `stream` + 1
  bytes,  ///< of a stream
  close,  ///< of a stream: nothing more comes
  bye,    ///< rank 0 ends, with this code; said back by each of the others, as its last word
};
struct Header {
  Kind kind;
  int32_t code;
  int64_t stream;
};

/// The bytes of a stream go in parts; so many messages may be on their way before the next part is read.
constexpr size_t kMostPart = size_t{256} << 10, kMostSends = 16;
/// Time for a child to read a message, and for all processes to say goodbye.
constexpr std::chrono::seconds kSayLimit{5}, kByeLimit{10};
/// Without traffic for the first of these times, each turn of the loop waits for the second one.
constexpr std::chrono::microseconds kBusy{3000};
constexpr int kIdleMs = 1;

// --- the limit of the start, which MPI itself has none for ---
pid_t late_child = 0;

void end_late(int) {
  kill(late_child, SIGKILL);
  constexpr char kText[] =
      "check_operator: the processes of this job did not all start MPI in time, which is a quarter of --timeout-s; "
      "start check_operator in each of them, and nothing else\n";
  (void)!write(STDERR_FILENO, kText, sizeof(kText) - 1);
  _exit(5);
}

class StartLimit {
 public:
  StartLimit(pid_t child, std::chrono::milliseconds limit) {
    late_child = child;
    signal(SIGALRM, end_late);
    alarm(static_cast<unsigned>(std::chrono::ceil<std::chrono::seconds>(limit).count()));
  }
  ~StartLimit() { alarm(0); }
  StartLimit(const StartLimit&) = delete;
};

/// One end of a stream is here, the other one is at the process with the number `peer`.
struct Stream {
  Descriptor local;
  int peer = 0;
  std::string arrived = {};  ///< from there; the first `written` bytes of it have gone on
  size_t written = 0;
  bool ends = false;  ///< once all is written

  bool is_behind() const { return written < arrived.size(); }
};

class Relay {
 public:
  Relay(Descriptor channel, pid_t child) : channel_(std::move(channel)), child_(child) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &processes_);
  }

  /// Gathers the introductions of all children and passes them to this one. Returns false if a child ended before it
  /// sent its own.
  bool introduce() {
    Message own;
    if (receive_message(channel_.get(), own, Clock::now() + std::chrono::hours(1), kAlwaysAlive) != Received::message)
      own.body.clear();
    int length = static_cast<int>(own.body.size()), total = 0;
    std::vector<int> lengths(static_cast<size_t>(processes_)), begins(lengths.size());
    MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, MPI_COMM_WORLD);
    for (size_t r = 0; r < lengths.size(); ++r) begins[r] = std::exchange(total, total + lengths[r]);
    std::string all(static_cast<size_t>(total), '\0');
    MPI_Allgatherv(own.body.data(), length, MPI_CHAR, all.data(), lengths.data(), begins.data(), MPI_CHAR,
                   MPI_COMM_WORLD);
    MPI_Comm machine;
    int local_rank = 0;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &machine);
    MPI_Comm_rank(machine, &local_rank);
    MPI_Comm_free(&machine);
    if (std::find(lengths.begin(), lengths.end(), 0) != lengths.end()) return false;
    json members = json::array();
    for (size_t r = 0; r < lengths.size(); ++r)
      members.push_back(all.substr(static_cast<size_t>(begins[r]), static_cast<size_t>(lengths[r])));
    tell_child({{"rank", rank_}, {"processes", processes_}, {"local_rank", local_rank}, {"members", members}}, {});
    return true;
  }

  int run() {
    // Rank 0 talks with all others, and they with rank 0 alone: one message of each is awaited at a time.
    for (int peer = rank_ == 0 ? 1 : 0; peer < (rank_ == 0 ? processes_ : 1); ++peer) {
      peers_.push_back({peer, std::vector<char>(sizeof(Header) + kMostPart)});
      awaited_.push_back(MPI_REQUEST_NULL);
    }
    for (size_t i = 0; i < peers_.size(); ++i) await(i);
    while (!is_at_end()) {
      wait_for_local();
      take_messages();
      drop_sent();
    }
    return rank_ == 0 ? end_all() : end_own();
  }

 private:
  struct Peer {
    int rank;
    std::vector<char> message;
  };
  struct Sent {
    std::vector<char> message;
    MPI_Request request;
  };

  // --- MPI's side ---
  void await(size_t i) {
    MPI_Irecv(peers_[i].message.data(), static_cast<int>(peers_[i].message.size()), MPI_BYTE, peers_[i].rank, 0,
              MPI_COMM_WORLD, &awaited_[i]);
  }

  void send(int peer, const Header& header, const char* bytes = nullptr, size_t n = 0) {
    std::vector<char> message(sizeof(header) + n);
    std::memcpy(message.data(), &header, sizeof(header));
    if (n > 0) std::memcpy(message.data() + sizeof(header), bytes, n);
    sent_.push_back({std::move(message), MPI_REQUEST_NULL});
    Sent& last = sent_.back();
    MPI_Isend(last.message.data(), static_cast<int>(last.message.size()), MPI_BYTE, peer, 0, MPI_COMM_WORLD,
              &last.request);
    last_traffic_ = Clock::now();
  }

  void drop_sent() {
    for (int done = 1; !sent_.empty();) {
      MPI_Test(&sent_.front().request, &done, MPI_STATUS_IGNORE);
      if (done == 0) return;
      sent_.pop_front();
    }
  }

  void take_messages() {
    for (;;) {
      int index = 0, is_there = 0, size = 0;
      MPI_Status status;
      MPI_Testany(static_cast<int>(awaited_.size()), awaited_.data(), &index, &is_there, &status);
      if (is_there == 0 || index == MPI_UNDEFINED) return;
      MPI_Get_count(&status, MPI_BYTE, &size);
      const auto i = static_cast<size_t>(index);
      Header header{};
      std::memcpy(&header, peers_[i].message.data(), sizeof(header));
      take(peers_[i].rank, header, peers_[i].message.data() + sizeof(header),
           static_cast<size_t>(size) - sizeof(header));
      if (header.kind != Kind::bye) await(i);
      last_traffic_ = Clock::now();
    }
  }

  void take(int peer, const Header& header, const char* bytes, size_t n) {
    switch (header.kind) {
      case Kind::open:
        open_here(peer, header.stream);
        return;
      case Kind::bye:
        ++byes_;
        bye_code_ = header.code;
        return;
      case Kind::bytes:
      case Kind::close:
        break;
    }
    const auto found = streams_.find(header.stream);
    if (found == streams_.end()) return;  // its end here is closed, as the peer is about to learn
    found->second.arrived.append(bytes, n);
    found->second.ends |= header.kind == Kind::close;
    write_out(found);
  }

  // --- the child's side ---
  using Streams = std::map<int64_t, Stream>;

  void tell_child(const json& body, const std::vector<int>& descriptors) {
    try {
      send_message(channel_.get(), body, descriptors, Clock::now() + kSayLimit);
    } catch (const WireError&) {  // it has ended, or is about to
    }
  }

  /// A connection from rank 0: its ends here are the child's.
  void open_here(int peer, int64_t number) {
    RankStreamPair streams = make_streams();
    tell_child({{"rank", peer}}, {streams.other.talk.get(), streams.other.end.get()});
    streams_[number] = {std::move(streams.own.talk), peer};
    streams_[number + 1] = {std::move(streams.own.end), peer};
  }

  /// Takes the worker's new connection to a rank, and closes earlier ones to the same rank: their worker was killed.
  void read_channel() {
    Message message;
    try {
      if (receive_message(channel_.get(), message, Clock::now() + kSayLimit, kAlwaysAlive) == Received::message) {
        const int peer = json::parse(message.body).at("rank").get<int>();
        if (rank_ == 0 && peer > 0 && peer < processes_ && message.descriptors.size() == 2) {
          for (auto each = streams_.begin(); each != streams_.end();)
            each = each->second.peer == peer ? close(each) : std::next(each);
          send(peer, {Kind::open, 0, next_stream_});
          for (Descriptor& end : message.descriptors) streams_[next_stream_++] = {std::move(end), peer};
          return;
        }
      }
    } catch (const WireError&) {
    } catch (const json::exception&) {
    }
    channel_ = Descriptor();  // the child has ended, or a candidate wrote there: no rank can be reached any more
  }

  Streams::iterator close(Streams::iterator stream) {
    send(stream->second.peer, {Kind::close, 0, stream->first});
    return streams_.erase(stream);
  }

  /// Sends on the bytes that the local end wrote. Returns the next stream.
  Streams::iterator read_in(Streams::iterator stream) {
    const ssize_t n = recv(stream->second.local.get(), part_.data(), part_.size(), MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return std::next(stream);
    if (n <= 0) return close(stream);
    send(stream->second.peer, {Kind::bytes, 0, stream->first}, part_.data(), static_cast<size_t>(n));
    return std::next(stream);
  }

  /// Writes the bytes that came from the peer to the local end. Returns the next stream.
  Streams::iterator write_out(Streams::iterator at) {
    Stream& stream = at->second;
    while (stream.is_behind()) {
      const ssize_t n = ::send(stream.local.get(), stream.arrived.data() + stream.written,
                               stream.arrived.size() - stream.written, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno != EAGAIN) stream.written = stream.arrived.size();  // nobody reads it any more
      if (n < 0) break;
      stream.written += static_cast<size_t>(n);
    }
    if (stream.written >= stream.arrived.size() / 2) stream.arrived.erase(0, std::exchange(stream.written, 0));
    return stream.ends && !stream.is_behind() ? streams_.erase(at) : std::next(at);
  }

  void wait_for_local() {
    const bool may_read = sent_.size() < kMostSends;
    std::vector<pollfd> entries{{channel_.get(), POLLIN, 0}};  // one that is -1 is not looked at
    for (const auto& [number, stream] : streams_) {
      const int events = (may_read ? POLLIN : 0) | (stream.is_behind() ? POLLOUT : 0);
      entries.push_back({events == 0 ? -1 : stream.local.get(), static_cast<short>(events), 0});
    }
    const bool is_busy = Clock::now() - last_traffic_ < kBusy;
    if (poll(entries.data(), entries.size(), is_busy ? 0 : kIdleMs) <= 0) {
      if (is_busy) sched_yield();  // where processes share a core, the one that is waited for may need it
      return;
    }
    auto entry = entries.begin() + 1;
    for (auto each = streams_.begin(); each != streams_.end(); ++entry) {
      if ((entry->revents & POLLOUT) != 0) {
        each = write_out(each);
      } else if (entry->revents != 0) {
        each = may_read ? read_in(each) : std::next(each);
      } else {
        ++each;
      }
    }
    if (entries.front().revents != 0) read_channel();
  }

  // --- the end ---
  bool is_at_end() {
    if (!child_status_) {
      int status = 0;
      if (waitpid(child_, &status, WNOHANG) == child_) child_status_ = status;
      child_end_ = Clock::now();
    }
    if (*interruption() != '\0') {
      if (rank_ > 0) return true;
      if (!std::exchange(is_stopped_, true)) kill(child_, SIGTERM);
    }
    if (rank_ == 0) return child_status_.has_value();
    // A child that ended by itself met the error that rank 0 meets and reports, too.
    return byes_ > 0 || (child_status_ && (WIFSIGNALED(*child_status_) || Clock::now() > child_end_ + kByeLimit));
  }

  int child_code() const { return WIFEXITED(*child_status_) ? WEXITSTATUS(*child_status_) : 4; }

  void await_byes(int64_t count) {
    for (const auto until = Clock::now() + kByeLimit; Clock::now() < until && (byes_ < count || !sent_.empty());) {
      take_messages();
      drop_sent();
      poll(nullptr, 0, kIdleMs);
    }
  }

  /// Writes at once: the launcher ends all processes as soon as one of them ends.
  static void say(const std::string& sentence) {
    const std::string line = "check_operator: " + sentence + "\n";
    (void)!write(STDERR_FILENO, line.data(), line.size());
  }

  int end_all() {
    const int code = child_code();
    if (is_stopped_) return code;  // the launcher ends the others, and MPI can't tell which are left
    if (WIFSIGNALED(*child_status_)) say("the process that runs the checks was " + describe_end(*child_status_));
    for (const Peer& peer : peers_) send(peer.rank, {Kind::bye, code, 0});
    await_byes(std::ssize(peers_));
    if (byes_ < std::ssize(peers_)) {
      // The mpirun of Open MPI 4.1 ends the others of its own accord, and can hang or crash over MPI_Abort().
      if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) _exit(std::max(code, 4));
      MPI_Abort(MPI_COMM_WORLD, std::max(code, 4));
    }
    MPI_Finalize();
    return code;
  }

  int end_own() {
    if (!child_status_) {
      kill(-child_, SIGKILL);
      waitpid(child_, nullptr, 0);
    }
    if (byes_ == 0 && *interruption() != '\0') return 4;
    if (byes_ == 0) {
      say(fmt::format("rank {}: its process {}{}", rank_, WIFSIGNALED(*child_status_) ? "was " : "",
                      describe_end(*child_status_)));
      MPI_Abort(MPI_COMM_WORLD, 4);  // the launcher tells rank 0
    }
    send(0, {Kind::bye, 0, 0});
    await_byes(byes_);
    MPI_Finalize();
    return bye_code_;
  }

  Descriptor channel_;
  pid_t child_;
  int rank_ = 0, processes_ = 1;
  Streams streams_;
  int64_t next_stream_ = 0;  ///< rank 0 alone opens connections
  std::vector<Peer> peers_;
  std::vector<MPI_Request> awaited_;  ///< of each peer
  std::deque<Sent> sent_;             ///< and perhaps not gone yet
  std::vector<char> part_ = std::vector<char>(kMostPart);
  Clock::time_point last_traffic_ = {}, child_end_ = {};
  std::optional<int> child_status_;
  int64_t byes_ = 0;
  int bye_code_ = 4;
  bool is_stopped_ = false;
};

}  // namespace

bool built_with_mpi() { return true; }

int relay(Descriptor channel, pid_t child, std::chrono::milliseconds limit) {
  std::optional<StartLimit> start(std::in_place, child, limit);
  MPI_Init(nullptr, nullptr);
  note_interruptions(/*all=*/true);
  Relay of_job(std::move(channel), child);
  const bool all_met = of_job.introduce();
  start.reset();
  if (!all_met) MPI_Abort(MPI_COMM_WORLD, 4);
  return of_job.run();
}

}  // namespace checkop

#else

namespace checkop {

bool built_with_mpi() { return false; }

int relay(Descriptor, pid_t, std::chrono::milliseconds) {
  throw EnvironmentError("ranks: this build has no MPI; install libopenmpi-dev, and build again");
}

}  // namespace checkop

#endif
