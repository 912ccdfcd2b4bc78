// SPDX-License-Identifier: Apache-2.0
// The check that ids lie in their range. It runs on the device beside the kernels that use the ids, and writes what it
// found to host memory: a copy and an event would cost more than most kernels' launches.
#pragma once

#include <new>

#include "cuda/dependent.cuh"

namespace checkop::kernels {

/// Workspace bytes that IdCheck needs; a whole alignment unit, so that what follows stays aligned.
constexpr size_t kIdCheckBytes = 256;
constexpr unsigned long long kNoBadRow = std::numeric_limits<unsigned long long>::max();
constexpr int kIdThreads = 1024;

/// What find_bad_id() found, in pinned host memory.
struct IdFindings {
  unsigned long long ticket;   ///< of the search, written last
  unsigned long long bad_row;  ///< the first one, or kNoBadRow
  unsigned long long extra;
  int64_t id;  ///< of bad_row
};

/// Options of a search.
struct IdSearch {
  /// Rows where a mask, if given, is 0 may have any id.
  const uint8_t *mask = nullptr, *other_mask = nullptr;
  int64_t except = 0;                         ///< allowed in any row; 0 is in the range and so changes nothing
  const unsigned long long* extra = nullptr;  ///< a number that work enqueued before has left for the host
};

/// The next of this thread's kFindings places for findings, in turn: as many searches may be open at once, and no call
/// has more than two. The memory is kept until the thread ends, since allocating pinned memory takes longer than most
/// kernels run.
inline cudaError_t next_findings(IdFindings*& findings) {
  constexpr int kFindings = 8;
  struct Memory {
    IdFindings* at = nullptr;
    int next = 0;
    ~Memory() { (void)cudaFreeHost(at); }
  };
  thread_local Memory memory;
  if (memory.at == nullptr) {
    void* at = nullptr;
    if (auto error = cudaHostAlloc(&at, kFindings * sizeof(IdFindings), cudaHostAllocPortable)) return error;
    memory.at = new (at) IdFindings[kFindings]{};
  }
  findings = memory.at + memory.next;
  memory.next = (memory.next + 1) % kFindings;
  return cudaSuccess;
}

/// `state`, with several blocks: the smallest bad row so far; a place for IdSearch::extra; the number of blocks that
/// are done, less 1. The first and the last begin as 2^64 - 1. One block does not use it. Starts early, and lets the
/// next kernel start as soon as the work before both is done.
static __global__ __launch_bounds__(kIdThreads) void find_bad_id(const int64_t* __restrict__ ids, IdSearch search,
                                                                 int64_t rows, int64_t vocab,
                                                                 unsigned long long* __restrict__ state,
                                                                 volatile IdFindings* __restrict__ findings,
                                                                 unsigned long long ticket) {
  wait_for_kernel_before();
  start_dependent_kernel();
  __shared__ unsigned long long least;
  if (threadIdx.x == 0) least = kNoBadRow;
  __syncthreads();
  // order-free: the smallest bad row is an integer minimum, independent of the order of the threads.
#pragma unroll 4
  for (int64_t row = int64_t{blockIdx.x} * kIdThreads + threadIdx.x; row < rows;
       row += int64_t{gridDim.x} * kIdThreads) {
    const int64_t id = ids[row];  // of masked rows, too: loads do not wait for each other
    const bool counts = id != search.except && (search.mask == nullptr || search.mask[row] != 0) &&
                        (search.other_mask == nullptr || search.other_mask[row] != 0);
    if (counts && (id < 0 || id >= vocab)) atomicMin(&least, static_cast<unsigned long long>(row));
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  unsigned long long bad_row = least;
  if (gridDim.x > 1) {  // order-free: likewise, and whichever block comes last reads the same
    atomicMin(state, bad_row);
    __threadfence();
    if (atomicAdd(state + 2, 1) != gridDim.x - 2) return;  // not the last block
    __threadfence();
    bad_row = atomicMin(state, kNoBadRow);
  }
  findings->bad_row = bad_row;
  if (search.extra != nullptr) findings->extra = *search.extra;
  if (bad_row != kNoBadRow) findings->id = ids[bad_row];
  __threadfence_system();
  findings->ticket = ticket;
}

/// Checks that ids lie in [0, vocab) while other work proceeds: begin() enqueues the search, finish() waits for it but
/// not for work enqueued after it. The host waits because only it can put the bad row into the message. Kernels
/// enqueued in between run even if there are bad ids, and must not access memory out of bounds for them. The first of
/// them may start early (Launch): it needs nothing of the search, which lets it start when all else that it needs is
/// there.
class IdCheck {
 public:
  /// `flag`: kIdCheckBytes of workspace that nothing else uses until finish() returns.
  IdCheck(const checkop_call* call, const int64_t* ids, int64_t rows, int64_t vocab, const char* name, void* flag,
          cudaStream_t stream)
      : call_(call),
        ids_(ids),
        rows_(rows),
        vocab_(vocab),
        name_(name),
        state_(static_cast<unsigned long long*>(flag)),
        stream_(stream) {}
  ~IdCheck() {
    if (is_searching_) (void)cudaStreamSynchronize(stream_);
  }
  IdCheck(const IdCheck&) = delete;
  IdCheck& operator=(const IdCheck&) = delete;

  /// A place in `flag` for IdSearch::extra.
  static unsigned long long* extra_of(void* flag) { return static_cast<unsigned long long*>(flag) + 1; }

  checkop_status begin(const IdSearch& search = {}) {
    constexpr int64_t kRowsOfOneBlock = 16 * kIdThreads;  // it needs no memory that is set before
    constexpr int64_t kMostBlocks = 256;                  // enough to fill a GPU; the kernel strides over the rest
    if (auto s = check(next_findings(findings_))) return s;
    int64_t blocks = 1;
    if (rows_ > kRowsOfOneBlock) {
      blocks = ceil_div(rows_, kIdThreads) < kMostBlocks ? ceil_div(rows_, kIdThreads) : kMostBlocks;
      for (const int i : {0, 2})
        if (auto s = check(cudaMemsetAsync(state_ + i, 0xff, sizeof(*state_), stream_))) return s;
    }
    ticket_ = findings_->ticket + 1;  // read before the launch, whose kernel may be done at once
    const Launch launch{dim3(static_cast<unsigned>(blocks)), dim3(kIdThreads), stream_, 0, 1, /*starts_early=*/true};
    const auto error = launch_kernel(find_bad_id, launch, ids_, search, rows_, vocab_, state_, findings_, ticket_);
    is_searching_ = error == cudaSuccess;
    return check(error);
  }

  /// CHECKOP_FAILED with row and id when there is a bad one.
  checkop_status finish() {
    if (auto s = check(wait())) return s;
    is_searching_ = false;
    if (findings_->bad_row == kNoBadRow) return CHECKOP_OK;
    return say(call_, CHECKOP_FAILED, "input '%s': row %llu has id %lld, outside [0, %lld)", name_, findings_->bad_row,
               static_cast<long long>(findings_->id), static_cast<long long>(vocab_));
  }

  /// After finish().
  unsigned long long extra() const { return findings_->extra; }

 private:
  checkop_status check(cudaError_t error) const { return cuda_status(call_, error, "check ids"); }

  cudaError_t wait() const {
    constexpr unsigned kReadsPerQuery = 4096;  // a query takes longer than a read
    const auto is_found = [&] { return __atomic_load_n(&findings_->ticket, __ATOMIC_ACQUIRE) == ticket_; };
    for (unsigned reads = 1; !is_found(); ++reads) {
      if (reads % kReadsPerQuery != 0) continue;
      const cudaError_t error = cudaStreamQuery(stream_);
      if (error == cudaSuccess) return is_found() ? cudaSuccess : cudaErrorUnknown;
      if (error != cudaErrorNotReady) return error;
    }
    return cudaSuccess;
  }

  const checkop_call* call_;
  const int64_t* ids_;
  int64_t rows_, vocab_;
  const char* name_;
  unsigned long long* state_;
  cudaStream_t stream_;
  IdFindings* findings_ = nullptr;
  unsigned long long ticket_ = 0;
  bool is_searching_ = false;
};

/// begin() and finish() at once, for use where the host's wait is short compared with the kernel.
inline checkop_status check_ids(const checkop_call* call, const int64_t* ids, int64_t rows, int64_t vocab,
                                const char* name, void* flag, cudaStream_t stream, int64_t except) {
  IdCheck check(call, ids, rows, vocab, name, flag, stream);
  if (auto status = check.begin({.except = except})) return status;
  return check.finish();
}

}  // namespace checkop::kernels
