// SPDX-License-Identifier: Apache-2.0
// Device: where a candidate's memory lives and its work runs. The CPU device and the factory are in device.cpp.
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

namespace checkop {

struct DeviceInfo {
  std::string kind;  ///< "cpu" or "cuda"
  int index = 0;
  std::string name;      ///< "NVIDIA H200"; the processor's name on the CPU
  std::string arch_key;  ///< "sm90"; "" on the CPU
  int arch = 0;          ///< 90; 0 on the CPU
  int multiprocessors = 0;
  uint64_t memory_bytes = 0;
  std::string driver, runtime;   ///< "13.0"; "" on the CPU
  uint64_t free_bytes = 0;       ///< of memory_bytes when it was opened; 0 on the CPU, whose memory is the host's
  int64_t most_ranks = 0;        ///< that can share a case, this device being the first's; 0: any number
  std::string ranks_limit = {};  ///< of what more would need more: "processes, and 2 run it"
};

/// That can share a case.
inline int64_t most_ranks(const DeviceInfo& device) { return device.most_ranks > 0 ? device.most_ranks : INT64_MAX; }

/// How the work of a launch comes to run.
struct LaunchMode {
  enum class Kind : uint8_t {
    plain,
    contended,  ///< beside other work, on a stream of its own, that holds `percent` of the multiprocessors
    replayed,   ///< recorded in a graph, which is launched twice
  };
  Kind kind = Kind::plain;
  int percent = 0;
};

class RankProcesses;  // rank.hpp

/// Why a rank's work will not come to its end.
struct Unfinished {
  bool is_late = false;
  std::string why;
};

/// The longest that Device::least_guard_bytes() may be. All of them are multiples of 256.
inline constexpr size_t kMostGuardBytes = 65536;

/// Every member throws DeviceError with what was being done and the driver's own words; a CUDA error is cleared first.
class Device {
 public:
  virtual ~Device() = default;
  /// Of a guard band. 4096 one-byte elements are a short step for a kernel that thinks in floats.
  virtual size_t least_guard_bytes() const { return kMostGuardBytes; }
  virtual DeviceInfo info() const = 0;
  virtual void* stream() = 0;  ///< a stream of our own, not the default stream; nullptr on the CPU
  virtual std::byte* allocate(size_t bytes, const std::string& what) = 0;  ///< 256-byte aligned
  virtual void free(std::byte* memory) noexcept = 0;
  virtual void upload(std::byte* device, const std::byte* host, size_t bytes) = 0;
  virtual void download(std::byte* host, const std::byte* device, size_t bytes) = 0;
  /// Fills [device, device + bytes) with repetitions of `pattern_bytes` (1, 2, 4 or 8) low bytes of `pattern`, as work
  /// on the stream.
  virtual void fill(std::byte* device, uint64_t pattern, size_t pattern_bytes, size_t bytes) = 0;
  /// Whether row k of `a` has the bytes of row rows[k] of `b` for every k with rows[k] >= 0, where rows have
  /// `row_bytes` bytes each. Compared where the memory is.
  virtual bool rows_equal(const std::byte* a, const std::byte* b, size_t row_bytes,
                          const std::vector<int64_t>& rows) = 0;
  /// Whether [a, a + bytes) and [b, b + bytes) are the same. Compared where the memory is.
  bool equal(const std::byte* a, const std::byte* b, size_t bytes);
  /// Row rows[k] of `from`, whose rows lie side by side with `row_bytes` bytes each, is copied to to + k * stride for
  /// every k with rows[k] >= 0; where it is negative, that place is left as it was. Copied where the memory is, as work
  /// on the stream.
  virtual void copy_rows(std::byte* to, size_t stride, const std::byte* from, size_t row_bytes,
                         const std::vector<int64_t>& rows) = 0;
  /// A number that other content, and the same content in another order, changes but for a chance of 2^-64. Differs
  /// from process to process. Computed where the memory is.
  virtual uint64_t fingerprint(const std::byte* memory, size_t bytes) = 0;
  /// Waits for all work of the device, whatever its stream, and reports asynchronous errors.
  virtual void synchronize(const std::string& what) = 0;

  /// Calls `launch`, which puts work on stream() and says whether it did, so that the work runs in this mode; what it
  /// put there may still run at the end. `launch` must not throw. Throws NotOnDevice where that can't be.
  virtual void run(const LaunchMode& mode, const std::function<bool()>& launch);

  // For ranks that share a case. Each has a device; of those of one process, the first has this one.
  /// That of rank `rank` of this process: this one on the CPU, the one so many numbers on with CUDA. Throws
  /// EnvironmentError when there are not so many.
  virtual Device& of_rank(int32_t rank);
  /// Makes it the one that CUDA calls of this thread are about.
  virtual void make_current() {}
  /// Where so many ranks can meet; "" where they talk through the host alone. Throws EnvironmentError without NCCL.
  virtual std::string name_meeting(int32_t world_size);
  /// The communicator of a rank, once all have come to that meeting; nullptr where they need none.
  virtual void* join(const std::string& meeting, int32_t rank, int32_t world_size, std::chrono::milliseconds limit);
  /// Waits for what is on stream(), until it is done or will not be: `limit` has passed, the communicator reports an
  /// error, or `is_broken` became true.
  virtual std::optional<Unfinished> finish(std::chrono::milliseconds limit, const std::atomic<bool>& is_broken);
  /// Ends what waits for other ranks, from any thread. The next meeting is another one.
  virtual void leave_meetings() noexcept {}

  /// From here on ranks 1 and up are in other processes, and at most `most` ranks share a case.
  void share(RankProcesses& processes, int64_t most) { processes_ = &processes, most_ranks_ = most; }
  RankProcesses* processes() const { return processes_; }  ///< nullptr: all ranks are in this process

  // For timing.
  virtual size_t cache_bytes() const = 0;  ///< of the last-level cache
  /// Copies within the device, as work on the stream.
  virtual void copy(std::byte* to, const std::byte* from, size_t bytes) = 0;
  /// Reads a buffer of kFlushCaches times the last-level cache, as work on the stream: what launches left there is
  /// gone. Nothing is written: modified lines would go back to memory while the next launch is timed.
  virtual void flush_cache() = 0;
  /// Milliseconds of the device, by events around what `enqueue` puts on the stream; on the CPU, by the clock. The
  /// stream first idles for `cover_us`, while the host gets ahead of it, so that the time to launch is not in the
  /// result. Waits for the end.
  virtual double time_ms(const std::function<void()>& enqueue, double cover_us) = 0;

 protected:
  void tell_ranks(DeviceInfo& info) const;  ///< how many can share a case, where they are processes

  RankProcesses* processes_ = nullptr;
  int64_t most_ranks_ = 0;
};

inline constexpr size_t kFlushCaches = 4;

/// Failure of a device call while a candidate runs. `sticky` errors leave the process without a usable device.
class DeviceError : public std::exception {
 public:
  DeviceError(std::string message, bool sticky) : message_(std::move(message)), sticky_(sticky) {}
  const char* what() const noexcept override { return message_.c_str(); }
  bool sticky() const { return sticky_; }

 private:
  std::string message_;
  bool sticky_;
};

/// A manner of running work that the device, or the work, does not know.
class NotOnDevice : public std::exception {
 public:
  explicit NotOnDevice(std::string why) : why_(std::move(why)) {}
  const char* what() const noexcept override { return why_.c_str(); }

 private:
  std::string why_;
};

/// There is not as much memory as was asked for.
class OutOfMemory : public DeviceError {
 public:
  explicit OutOfMemory(std::string message) : DeviceError(std::move(message), /*sticky=*/false) {}
};

std::unique_ptr<Device> open_cpu_device();
/// Memory of the host, for a candidate that computes elsewhere; info() is what is known of there.
std::unique_ptr<Device> open_cpu_device(const DeviceInfo& elsewhere);
/// Throws EnvironmentError when this build has no CUDA or the machine no such device.
std::unique_ptr<Device> open_cuda_device(int index);
/// CUDA devices that can be used; 0 without a driver or in a build without CUDA. Never throws.
int cuda_device_count();
bool built_with_cuda();

}  // namespace checkop
