// SPDX-License-Identifier: Apache-2.0
// What kernels find out about their inputs, read by the host while later kernels run; and the check of int32 indices
// that is built on it.
#pragma once

#include "cuda/common.cuh"

namespace checkop::kernels {

/// Workspace bytes that Findings needs; a whole alignment unit, so that what follows stays aligned.
constexpr size_t kFindingsBytes = 256;
constexpr unsigned long long kNothingFound = std::numeric_limits<unsigned long long>::max();

/// `n` numbers on the device that kernels lower by atomicMin() or set. begin() sets all to kNothingFound; found() marks
/// the end of the kernels that search; wait() makes the host wait for them, but not for what was enqueued later.
/// Kernels enqueued after the search run whatever it found, and must not access memory out of bounds.
template <int n>
class Findings {
 public:
  /// `memory`: kFindingsBytes of workspace that nothing else uses until wait() returns.
  Findings(const checkop_call* call, void* memory, cudaStream_t stream)
      : call_(call), numbers_(static_cast<unsigned long long*>(memory)), stream_(stream) {}
  ~Findings() {
    if (searched_ != nullptr) (void)cudaEventDestroy(searched_);
  }
  Findings(const Findings&) = delete;
  Findings& operator=(const Findings&) = delete;

  unsigned long long* on_device() const { return numbers_; }

  checkop_status begin() {
    if (auto s = check(cudaEventCreateWithFlags(&searched_, cudaEventDisableTiming))) return s;
    return check(cudaMemsetAsync(numbers_, 0xff, sizeof(values_), stream_));
  }
  checkop_status found() const {
    if (auto s = check(cudaGetLastError())) return s;
    return check(cudaEventRecord(searched_, stream_));
  }
  checkop_status wait() { return read(values_, numbers_, sizeof(values_)); }

  /// After wait().
  unsigned long long operator[](int i) const { return values_[i]; }

  /// Copies from the device on a separate existing stream, which waits only for the search.
  checkop_status read(void* to, const void* from, size_t bytes) const {
    if (auto s = check(cudaStreamWaitEvent(cudaStreamPerThread, searched_))) return s;
    if (auto s = check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, cudaStreamPerThread))) return s;
    return check(cudaStreamSynchronize(cudaStreamPerThread));
  }

 private:
  static_assert(n * sizeof(unsigned long long) <= kFindingsBytes);
  checkop_status check(cudaError_t error) const { return cuda_status(call_, error, "check the inputs"); }

  const checkop_call* call_;
  unsigned long long* numbers_;
  cudaStream_t stream_;
  cudaEvent_t searched_ = nullptr;
  unsigned long long values_[n] = {};
};

constexpr int kSearchThreads = 256;          // any size: each index is read once
constexpr int64_t kMostSearchBlocks = 1024;  // enough to fill a GPU; the kernel strides over the rest

// order-free: the smallest bad element is an integer minimum, independent of the order of the threads.
static __global__ __launch_bounds__(kSearchThreads) void find_bad_index(const int32_t* __restrict__ indices,
                                                                        int64_t count, int64_t first, int64_t end,
                                                                        unsigned long long* __restrict__ first_bad) {
  for (int64_t i = int64_t{blockIdx.x} * kSearchThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kSearchThreads) {
    if (indices[i] < first || indices[i] >= end) atomicMin(first_bad, static_cast<unsigned long long>(i));
  }
}

/// Refuses the call if Findings found a bad element (its first number); otherwise CHECKOP_OK. Indices lie in [first,
/// end); `first` is 0, or -1 if an index may be absent.
template <int n>
checkop_status refuse_bad_index(const checkop_call* call, const Findings<n>& findings, const int32_t* indices,
                                int64_t first, int64_t end, const char* name) {
  const unsigned long long bad = findings[0];
  if (bad == kNothingFound) return CHECKOP_OK;
  int32_t index = 0;
  if (auto status = findings.read(&index, indices + bad, sizeof(index))) return status;
  return say(call, CHECKOP_FAILED, "input '%s': element %llu is %d, %s [0, %lld)%s", name, bad, index,
             first < 0 ? "neither in" : "outside", static_cast<long long>(end), first < 0 ? " nor -1" : "");
}

/// Checks int32 indices while other work proceeds, as IdCheck does for int64 ids.
class IndexCheck {
 public:
  IndexCheck(const checkop_call* call, const int32_t* indices, int64_t count, int64_t first, int64_t end,
             const char* name, void* memory, cudaStream_t stream)
      : call_(call),
        indices_(indices),
        count_(count),
        first_(first),
        end_(end),
        name_(name),
        stream_(stream),
        findings_(call, memory, stream) {}

  checkop_status begin() {
    if (count_ == 0) return CHECKOP_OK;
    if (auto status = findings_.begin()) return status;
    const int64_t needed = ceil_div(count_, kSearchThreads);
    const auto blocks = static_cast<unsigned>(needed < kMostSearchBlocks ? needed : kMostSearchBlocks);
    find_bad_index<<<blocks, kSearchThreads, 0, stream_>>>(indices_, count_, first_, end_, findings_.on_device());
    return findings_.found();
  }
  checkop_status finish() {
    if (count_ == 0) return CHECKOP_OK;
    if (auto status = findings_.wait()) return status;
    return refuse_bad_index(call_, findings_, indices_, first_, end_, name_);
  }

 private:
  const checkop_call* call_;
  const int32_t* indices_;
  int64_t count_, first_, end_;
  const char* name_;
  cudaStream_t stream_;
  Findings<1> findings_;
};

}  // namespace checkop::kernels
