// SPDX-License-Identifier: Apache-2.0
// What a plugin's process and its owner say to each other. The owner sends requests; the process answers each once.
// Nothing of an answer but its kind counts as evidence: texts are shown to people.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/frame.hpp"

namespace checkop::host {

/// The descriptors on which the process finds its owner: one for kernels, one for what must not wait for them.
inline constexpr int kOwner = 3, kControl = 4;

enum class Request : uint8_t {
  enter,   ///< the sandbox for the plugins at these paths, and this GPU; answered by `bytes`, `refused` or `no_device`
  load,    ///< these plugins; answered by `table` or `refused`
  gate,    ///< the page of a Gate, which comes with it; it and empty `turns` may come before `load`
  launch,  ///< a kernel in a mode; the windows to let go and to map come first
  turns,   ///< many launches of a kernel, on several calls in turns, which wait at the gate; answered by `ready`, and
           ///< once more where one does not end with CHECKOP_OK, as `launch`
  workspace,  ///< how many bytes a kernel wants
  drop,       ///< windows to let go
  lane,       ///< serve one more connection, in a thread
};

enum class Answer : uint8_t {
  table,         ///< of the plugins
  refused,       ///< they can't be loaded: a text
  done,          ///< status, message
  ready,         ///< the launches wait at the gate
  bytes,         ///< of a workspace
  no_memory,     ///< the function threw std::bad_alloc
  threw,         ///< the function threw an exception with this text
  threw_other,   ///< the function threw something else
  gather,        ///< an exchange with other ranks: bytes, which the owner answers before anything else happens
  wrote_input,   ///< the function writes to the window of this number, at this offset, and ends by that
  no_mode,       ///< the launch can't be run in this mode: a text
  device_error,  ///< a GPU's: what it means and a text
  no_device      ///< the GPU can't be used at all: a text
};

/// What an error of a GPU means for the process.
enum class Harm : uint8_t {
  none,
  no_memory,
  lost  ///< the process can't use the device any more
};

/// How launches that are timed run.
enum class Timer : uint8_t {
  plain,    ///< one after the other, and the process waits for all of their work
  claimed,  ///< between two events of a GPU behind a cover, which give Gate::claimed_ns
  whole,  ///< as `plain`; the process may run from before the data come until the device is idle, and all of it counts
  recorded,  ///< the same, recorded before they wait at the gate, where a GPU can do that
};

/// Stands for no GPU, in place of an index.
inline constexpr int32_t kNoGpu = -1;

/// Memory of the owner as the process sees it: pages behind a descriptor, between addresses that can't be touched.
struct Window {
  uint64_t number;  ///< never used twice
  uint64_t offset, bytes;
  bool is_writable;
};

/// A page through which the owner begins launches and sees their end, without system calls. The owner takes from it
/// that they ended, and for Timer::claimed a time that it bounds by its own clock.
struct Gate {
  alignas(64) std::atomic<uint64_t> begin;  ///< by the owner: a number that nobody knew before
  alignas(64) std::atomic<uint64_t> beats;  ///< by the process: goes up while it waits
  alignas(64) std::atomic<uint64_t> end;    ///< by the process: `begin`, once what was begun is done
  std::atomic<uint64_t> is_answered;        ///< before `end`: whether an answer follows
  std::atomic<uint64_t> claimed_ns;         ///< before `end` of Timer::claimed: how long they took by its own account
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

/// Whether this value of Gate::begin begins a warm-up pass without launches; a pass with launches follows.
inline bool is_dry(uint64_t number) { return number % 2 == 0; }

/// A message under construction.
class Packer {
 public:
  template <class T>
  Packer& put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Packer& text(std::string_view text) {
    put(static_cast<uint64_t>(text.size()));
    bytes_.append(text);
    return *this;
  }
  Packer& append(const Packer& other) {
    bytes_.append(other.bytes_);
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

/// Reads a message. Throws WireError where it ends early.
class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : rest_(bytes) {}

  template <class T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string_view text() { return take(get<uint64_t>()); }
  /// A number of items that follow, each of at least one byte.
  uint64_t count() {
    const auto n = get<uint64_t>();
    if (n > rest_.size()) throw WireError("a message ends early");
    return n;
  }

 private:
  std::string_view take(uint64_t bytes) {
    if (bytes > rest_.size()) throw WireError("a message ends early");
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
  }

  std::string_view rest_;
};

/// Sends one message and waits as long as it takes. Returns whether the other end took it.
bool send(int socket, std::string_view message, const std::vector<int>& descriptors = {});

/// Waits for one message. Returns false where the other end has closed the connection. Throws WireError for a malformed
/// message, or one of more than `most` bytes.
bool receive(int socket, std::string& message, std::vector<Descriptor>& descriptors, uint64_t most);

/// No limit, for requests: the process trusts its owner.
inline constexpr uint64_t kAnyLength = ~uint64_t{0};

}  // namespace checkop::host
