// SPDX-License-Identifier: Apache-2.0
// What parent and worker say to each other: framed JSON over a socket, tensor memory as file descriptors beside it.
#pragma once

#include <chrono>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench.hpp"
#include "runner.hpp"

namespace checkop {

/// The other side can't be understood, or can't be written to.
class WireError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Owns a file descriptor.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();
  int get() const { return fd_; }
  int release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }

 private:
  int fd_;
};

struct Message {
  std::string body;  ///< JSON
  std::vector<Descriptor> descriptors;
};

/// At most this many descriptors travel with a message.
inline constexpr size_t kMaxDescriptors = 16;

/// Writes one message. Throws WireError, also when the other side is gone or `deadline` passes.
void send_message(int socket, const nlohmann::json& body, const std::vector<int>& descriptors,
                  std::chrono::steady_clock::time_point deadline);

enum class Received : uint8_t { message, end, late };

/// Reads one message. `end`: the other side closed its end, or `is_alive` (asked a few times a second) denies that it
/// lives. `late`: `deadline` has passed. Throws WireError for what is no message.
Received receive_message(int socket, Message& message, std::chrono::steady_clock::time_point deadline,
                         const std::function<bool()>& is_alive);

nlohmann::json encode(const Case& c);
Case decode_case(const nlohmann::json& json);

nlohmann::json encode(const RunChecks& checks);
RunChecks decode_checks(const nlohmann::json& json);

nlohmann::json encode(const RunResult& result);
RunResult decode_result(const nlohmann::json& json);

nlohmann::json encode(const BenchPlan& plan);
BenchPlan decode_plan(const nlohmann::json& json);
nlohmann::json encode(const BenchResult& result);
BenchResult decode_bench(const nlohmann::json& json);

nlohmann::json encode(const DeviceInfo& info);
DeviceInfo decode_device(const nlohmann::json& json);

/// Names, types and shapes; appends the descriptors of present tensors to `descriptors`.
nlohmann::json encode(const std::vector<Tensor>& tensors, std::vector<int>& descriptors);
/// Maps the tensors, taking descriptors from position `next` on.
std::vector<Tensor> decode_tensors(const nlohmann::json& json, std::vector<Descriptor>& descriptors, size_t& next,
                                   bool writable);

/// One line for a log or a socket; bytes that are no UTF-8 are replaced, since a candidate's message may hold any.
std::string dump(const nlohmann::json& json);

}  // namespace checkop
