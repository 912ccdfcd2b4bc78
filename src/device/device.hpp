// SPDX-License-Identifier: Apache-2.0
// Device: holds a candidate's memory and runs its work. The CPU device and the factories are in device.cpp.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/shared_memory.hpp"

namespace checkop {

struct DeviceInfo {
  std::string kind;  ///< "cpu" or "cuda"
  int index = 0;
  std::string name;      ///< "NVIDIA H200"; on the CPU the processor's name
  std::string arch_key;  ///< "sm90"; on the CPU ""
  int arch = 0;          ///< 90; on the CPU 0
  int multiprocessors = 0;
  uint64_t memory_bytes = 0;
  std::string driver, runtime;   ///< "13.0"; on the CPU ""
  uint64_t free_bytes = 0;       ///< of memory_bytes, when the device was opened; 0 on the CPU, which uses host memory
  int64_t most_ranks = 0;        ///< most ranks of a case whose rank 0 uses this device; 0: any number
  std::string ranks_limit = {};  ///< for messages, what limits most_ranks: "processes, and 2 run it"
  /// How tensors get to a candidate in another process, and why not in a better way: "memfd; not cuda_vmm: ...". Empty
  /// if the worker itself loads the candidate.
  std::string transport = {};
};

/// The most ranks that can share a case.
inline int64_t most_ranks(const DeviceInfo& device) { return device.most_ranks > 0 ? device.most_ranks : INT64_MAX; }

/// How the work of a launch is run.
struct LaunchMode {
  enum class Kind : uint8_t {
    plain,
    contended,  ///< beside other work, on its own stream, that occupies `percent` of the SMs
    replayed,   ///< recorded in a graph that is launched twice
  };
  Kind kind = Kind::plain;
  int percent = 0;
};

class RankProcesses;  // rank.hpp

/// Why a rank's work will not finish.
struct Unfinished {
  bool is_late = false;
  std::string why;
};

/// Upper limit of Device::least_guard_bytes(), which is a multiple of 256.
inline constexpr size_t kMostGuardBytes = 65536;

/// Memory of a device. All members throw DeviceError with the attempted operation and the driver's message.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  /// Minimum size of a guard band. 4096 one-byte elements would be a short distance for a kernel that indexes floats.
  virtual size_t least_guard_bytes() const { return kMostGuardBytes; }
  virtual std::byte* allocate(size_t bytes, const std::string& what) = 0;  ///< 256-byte aligned
  /// Memory that a candidate in another process maps, after Device::share_memory(); before, the same as allocate().
  virtual std::byte* allocate_shared(size_t bytes, const std::string& what, Access) { return allocate(bytes, what); }
  /// Bytes that allocate_shared() takes for `bytes`, where the other process can reach all of them; otherwise `bytes`.
  virtual size_t shared_bytes(size_t bytes) const { return bytes; }
  virtual void free(std::byte* memory) noexcept = 0;  ///< of both kinds
  virtual void upload(std::byte* device, const std::byte* host, size_t bytes) = 0;
  virtual void download(std::byte* host, const std::byte* device, size_t bytes) = 0;
  /// Fills [device, device + bytes) with repetitions of the low `pattern_bytes` (1, 2, 4 or 8) bytes of `pattern`.
  /// Enqueued on the stream.
  virtual void fill(std::byte* device, uint64_t pattern, size_t pattern_bytes, size_t bytes) = 0;
  /// Whether row k of `a` equals row rows[k] of `b` for every k with rows[k] >= 0. Rows have `row_bytes` bytes.
  /// Compared on the device.
  virtual bool rows_equal(const std::byte* a, const std::byte* b, size_t row_bytes,
                          const std::vector<int64_t>& rows) = 0;
  /// Whether [a, a + bytes) and [b, b + bytes) are equal. Compared on the device.
  bool equal(const std::byte* a, const std::byte* b, size_t bytes);
  /// Copies row rows[k] of `from` to to + k * stride for every k with rows[k] >= 0; leaves other places unchanged. The
  /// rows of `from` are contiguous, `row_bytes` bytes each. Copied on the device, enqueued on the stream.
  virtual void copy_rows(std::byte* to, size_t stride, const std::byte* from, size_t row_bytes,
                         const std::vector<int64_t>& rows) = 0;
  /// A hash of content and order: other content has the same fingerprint with a probability of 2^-64. Differs between
  /// processes. Computed on the device.
  virtual uint64_t fingerprint(const std::byte* memory, size_t bytes) = 0;
  /// Copies within the device; enqueued on the stream.
  virtual void copy(std::byte* to, const std::byte* from, size_t bytes) = 0;
};

/// Work on a device's stream. All members throw DeviceError.
class DeviceStream {
 public:
  virtual ~DeviceStream() = default;
  virtual void* stream() = 0;  ///< a stream of our own, never the default stream; nullptr on the CPU
  /// Makes this the current CUDA device of the calling thread.
  virtual void make_current() {}
  /// Calls `launch` and runs the work that it enqueues on stream() in this mode. `launch` returns whether it enqueued
  /// anything, and must not throw. The work may still run on return. Throws LaunchModeUnsupported if the mode is
  /// impossible.
  virtual void run(const LaunchMode& mode, const std::function<bool()>& launch) = 0;
  /// Waits for all work of the device on all streams, and reports asynchronous errors.
  virtual void synchronize(const std::string& what) = 0;
  /// Waits until other processes have nothing running on the device, too, where several take turns on it. Returns
  /// whether that was so within `limit`.
  virtual bool wait_until_alone(std::chrono::milliseconds) { return true; }
};

/// Time that work takes on a device. All members throw DeviceError.
class DeviceTimer {
 public:
  virtual ~DeviceTimer() = default;
  virtual size_t cache_bytes() const = 0;  ///< of the last-level cache
  /// Evicts launches' data from the cache by reading a buffer several times as large; enqueued on the stream. Writes
  /// nothing, since modified lines would be written back while the next launch is timed.
  virtual void flush_cache() = 0;
  /// Milliseconds of the work that `enqueue` puts on the stream, measured with events; on the CPU with the clock. The
  /// stream first idles for `cover_us`, so that the host gets ahead and launch overhead is not measured. It then runs
  /// the work of `prepare`, so that work which a candidate hid beside the stream sees only the earlier data. Waits for
  /// the end of all work on the device; work elsewhere that outlasts the stream counts.
  virtual double time_ms(const std::function<void()>& enqueue, double cover_us,
                         const std::function<void()>& prepare) = 0;
};

/// A device: its memory, its stream, its timer, and how ranks that share a case communicate on it. CUDA errors are
/// cleared before a DeviceError is thrown.
class Device : public DeviceMemory, public DeviceStream, public DeviceTimer {
 public:
  virtual DeviceInfo info() const = 0;
  /// From now on the candidate is another process: allocate_shared() takes arenas, which it maps, and launch modes that
  /// need the candidate in this process are unsupported. Call it before any memory is allocated. `read_only_inputs`:
  /// the other process can't write to memory of Access::read, where the system allows this. Throws EnvironmentError
  /// with the reason if there is no such memory, which is the default.
  virtual std::shared_ptr<SharedMemory> share_memory(bool read_only_inputs);
  /// The same for a process that maps each block by itself, inputs for reading only, and runs launches in all modes
  /// that the device has. With several_processes, for several such processes.
  virtual std::shared_ptr<SharedMemory> share_blocks(Sharing sharing = Sharing::one_process);
  void run(const LaunchMode& mode, const std::function<bool()>& launch) override;
  /// How another process is to run what run() calls, after share_blocks().
  const LaunchMode& mode_elsewhere() const { return mode_elsewhere_; }

  // For ranks that share a case. Each rank has a device; the first rank of a process has this one.
  /// The device of rank `rank` of this process: on the CPU this one, with CUDA the one with the index of this one plus
  /// `rank`. Throws EnvironmentError if there are too few.
  virtual Device& of_rank(int32_t rank);
  /// The id of the communicator of `world_size` ranks, the same until abort_comms(); "" if they communicate through the
  /// host. Throws EnvironmentError without NCCL.
  virtual std::string comm_id(int32_t world_size);
  /// The communicator of a rank, after all ranks have joined it; nullptr if ranks need none.
  virtual void* join_comm(const std::string& comm_id, int32_t rank, int32_t world_size,
                          std::chrono::milliseconds limit);
  /// Waits for the work on stream(). Gives up and returns why if `limit` has passed, the communicator reports an error,
  /// or `is_broken` becomes true.
  virtual std::optional<Unfinished> finish(std::chrono::milliseconds limit, const std::atomic<bool>& is_broken);
  /// Aborts all communicators, and so all waiting for other ranks; thread-safe. Later ones get a new id.
  virtual void abort_comms() noexcept {}

  /// Declares that ranks 1 and up are in other processes, and that at most `most` ranks share a case.
  void use_rank_processes(RankProcesses& processes, int64_t most) { processes_ = &processes, most_ranks_ = most; }
  RankProcesses* processes() const { return processes_; }  ///< nullptr if all ranks are in this process

  /// Sets DeviceInfo::transport.
  void note_transport(std::string transport) { transport_ = std::move(transport); }

 protected:
  void complete(DeviceInfo& info) const;  ///< adds the transport, and the limit of ranks if they are processes

  LaunchMode mode_elsewhere_;
  RankProcesses* processes_ = nullptr;
  int64_t most_ranks_ = 0;
  std::string transport_;
};

/// A device call failed while a candidate ran. After a `sticky` error the process can't use the device any more.
class DeviceError : public std::exception {
 public:
  DeviceError(std::string message, bool sticky) : message_(std::move(message)), sticky_(sticky) {}
  const char* what() const noexcept override { return message_.c_str(); }
  bool sticky() const { return sticky_; }

 private:
  std::string message_;
  bool sticky_;
};

/// The device, or the work, does not support a launch mode.
class LaunchModeUnsupported : public std::exception {
 public:
  explicit LaunchModeUnsupported(std::string why) : why_(std::move(why)) {}
  const char* what() const noexcept override { return why_.c_str(); }

 private:
  std::string why_;
};

/// The requested memory is not available.
class OutOfMemory : public DeviceError {
 public:
  explicit OutOfMemory(std::string message) : DeviceError(std::move(message), /*sticky=*/false) {}
};

std::unique_ptr<Device> open_cpu_device();
/// Host memory for a candidate that computes on another device; info() returns `elsewhere`.
std::unique_ptr<Device> open_cpu_device(const DeviceInfo& elsewhere);
/// Throws EnvironmentError if this build has no CUDA or the machine has no such device.
std::unique_ptr<Device> open_cuda_device(int index);
/// Number of usable CUDA devices; 0 without a driver or in a build without CUDA. Never throws.
int cuda_device_count();
bool built_with_cuda();

}  // namespace checkop
