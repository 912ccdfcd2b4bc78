// SPDX-License-Identifier: Apache-2.0
// Shared by the tensor-parallel CUDA candidates, in addition to cpu/ranks.hpp: the softmax statistics of every row
// and vocabulary segment, all-gathered by NCCL and combined in the order of the vocabulary.
#pragma once

#include <nccl.h>

#include <chrono>
#include <optional>
#include <thread>

#include "cpu/ranks.hpp"
#include "cuda/ids.cuh"
#include "cuda/row_sums.cuh"

namespace checkop::kernels::ranks {

// --- failures --------------------------------------------------------------------------------------------------------

inline void require(cudaError_t error, const char* doing) {
  if (error == cudaSuccess) return;
  throw native::Refusal(CHECKOP_FAILED,
                        std::string(doing) + ": " + cudaGetErrorName(error) + ": " + cudaGetErrorString(error));
}

/// Runs an exchange between all ranks on the call's stream: calls enqueue(), whose NCCL calls form one group. Returns
/// when all of them are on the stream; the communicator may be non-blocking.
template <class Enqueue>
void exchange(const checkop_call& c, const char* doing, Enqueue&& enqueue) {
  const auto comm = static_cast<ncclComm_t>(c.comm);
  ncclResult_t result = ncclGroupStart();
  if (result == ncclSuccess) {
    result = enqueue(comm);
    const ncclResult_t ended = ncclGroupEnd();
    if (result == ncclSuccess || result == ncclInProgress) result = ended;
  }
  while (result == ncclInProgress) {
    // After a rank has failed, the host may end the communicator.
    if (const char* why = c.host_comm->error(c.host_comm); *why != '\0')
      throw native::Refusal(CHECKOP_FAILED, std::string(doing) + ": " + why);
    std::this_thread::sleep_for(std::chrono::microseconds(5));
    if (ncclCommGetAsyncError(comm, &result) != ncclSuccess) result = ncclInternalError;
  }
  if (result == ncclSuccess) return;
  throw native::Refusal(CHECKOP_FAILED,
                        std::string(doing) + ": " + ncclGetErrorString(result) + ": " + ncclGetLastError(comm));
}

// --- target ids ------------------------------------------------------------------------------------------------------

/// sum += hash of every id together with its row.
static __global__ void sum_hashes(const int64_t* __restrict__ ids, int64_t rows, unsigned long long* __restrict__ sum) {
  unsigned long long mine = 0;
  for (int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; row < rows;
       row += int64_t{gridDim.x} * blockDim.x) {
    // The finalizer of splitmix64, applied to id and row together.
    uint64_t x = static_cast<uint64_t>(ids[row]) + static_cast<uint64_t>(row) * 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    mine += x ^ x >> 31;
  }
  atomicAdd(sum, mine);  // order-free: a sum of integers modulo 2^64
}

/// Checks and hashes target ids while other work proceeds: call begin() before enqueueing that work, hash() after.
class TargetIdCheck {
 public:
  /// `flag` (kIdCheckBytes) and `sum` (8 bytes) are workspace that hash() reads.
  TargetIdCheck(const checkop_call& c, const checkop_tensor& ids, const char* name, int64_t rows, int64_t ignored,
                void* flag, void* sum)
      : call_(c),
        ids_(static_cast<const int64_t*>(ids.data)),
        rows_(rows),
        ignored_(ignored),
        sum_(static_cast<unsigned long long*>(sum)),
        check_(&c, ids_, rows, c.shard_total, name, flag, static_cast<cudaStream_t>(c.stream)) {}

  void begin() {
    if (rows_ == 0) return;
    constexpr int kThreads = 256;
    const auto stream = static_cast<cudaStream_t>(call_.stream);
    require(cudaMemsetAsync(sum_, 0, sizeof(*sum_), stream), "check and hash target ids");
    const auto blocks = static_cast<unsigned>(ceil_div(rows_, kThreads) < 64 ? ceil_div(rows_, kThreads) : 64);
    sum_hashes<<<blocks, kThreads, 0, stream>>>(ids_, rows_, sum_);
    if (const auto status = check_.begin({.except = ignored_})) throw native::Refusal(status, message_text());
  }

  /// Waits for begin()'s work and returns the hash. Bad ids are reported by refuse_bad_ids().
  uint64_t hash() {
    unsigned long long sum = 0;
    if (rows_ == 0) return sum;
    status_ = check_.finish();
    if (status_ != CHECKOP_OK) message_ = message_text();
    require(cudaMemcpyAsync(&sum, sum_, sizeof(sum), cudaMemcpyDeviceToHost, cudaStreamPerThread),
            "check and hash target ids");
    require(cudaStreamSynchronize(cudaStreamPerThread), "check and hash target ids");
    return sum;
  }

  /// Call once all ranks are known to have the same ids: then all refuse them or none.
  void refuse_bad_ids() const {
    if (status_ != CHECKOP_OK) throw native::Refusal(status_, message_);
  }

 private:
  std::string message_text() const { return call_.message == nullptr ? "" : call_.message; }

  const checkop_call& call_;
  const int64_t* ids_;
  int64_t rows_, ignored_;
  unsigned long long* sum_;
  IdCheck check_;
  checkop_status status_ = CHECKOP_OK;
  std::string message_;
};

// --- softmax statistics of segments ----------------------------------------------------------------------------------

/// A row's softmax over a segment: the candidate's two numbers for a sum of exponentials, and the target's logit if the
/// segment holds the target.
struct alignas(16) SegmentStats {
  float max, sum, target_logit;
  uint32_t holds_target;
};

constexpr int kMostRanks = 64, kMostSegments = 64;

/// Index of the gathered statistics: [rank][segment of the rank, up to `most`][row].
struct GatheredStats {
  int32_t ranks, most;
  int32_t first[kMostRanks + 1];  ///< first segment of every rank, then the number of segments

  explicit GatheredStats(const native::Ranks& of) : ranks(of.size()), most(0), first{} {
    for (int32_t r = 0; r <= ranks; ++r) first[r] = static_cast<int32_t>(of.first_segment(r));
    for (int32_t r = 0; r < ranks; ++r) most = std::max(most, first[r + 1] - first[r]);
  }
};

/// The most segments that a rank can have, as far as it can tell alone, and the bytes for the statistics of all ranks.
struct StatsSize {
  int64_t own_segments, other_segments, most_segments, rows;
  int32_t ranks;

  StatsSize(const checkop_call& c, int64_t rows_of) : rows(rows_of), ranks(c.world_size) {
    const auto canonical = static_cast<int64_t>(native::attribute(c, "canonical_segments"));
    own_segments = std::ssize(native::own_bounds(c)) - 1;
    other_segments = (canonical > 0 ? canonical : ranks) - own_segments;
    // Each other rank has at least one.
    most_segments = std::max(own_segments, other_segments + own_segments - (ranks - 1));
  }
  int64_t own_bytes() const { return most_segments * rows * static_cast<int64_t>(sizeof(SegmentStats)); }
  int64_t all_bytes() const { return ranks == 1 ? 0 : ranks * own_bytes(); }
};

/// Throws when there are more ranks or segments than the kernels support, or no communicator between the ranks.
inline void check_ranks(const checkop_call& c) {
  if (c.world_size > 1 && c.comm == nullptr) throw native::Refusal(CHECKOP_FAILED, "no NCCL communicator");
  const auto canonical = static_cast<int64_t>(native::attribute(c, "canonical_segments"));
  if (c.world_size > kMostRanks || canonical > kMostSegments) {
    throw native::Refusal(CHECKOP_UNSUPPORTED, std::to_string(c.world_size) + " ranks and " +
                                                   std::to_string(canonical) +
                                                   " canonical segments: at most 64 of each are supported");
  }
}

inline void require_workspace(const checkop_call& c, size_t bytes) {
  if (c.workspace_bytes < bytes)
    throw native::Refusal(CHECKOP_FAILED, "workspace has " + std::to_string(c.workspace_bytes) + " bytes, " +
                                              std::to_string(bytes) + " are needed");
}

/// All-gathers the statistics; returns `own` if there are no other ranks.
inline const SegmentStats* all_gather_stats(const checkop_call& c, const GatheredStats& of, const SegmentStats* own,
                                            SegmentStats* all, int64_t rows) {
  if (of.ranks == 1) return own;
  const auto bytes = static_cast<size_t>(of.most * rows) * sizeof(SegmentStats);
  exchange(c, "all-gather the softmax statistics", [&](ncclComm_t comm) {
    return ncclAllGather(own, all, bytes, ncclUint8, comm, static_cast<cudaStream_t>(c.stream));
  });
  return all;
}

/// Calls finish(row, sum over all segments, target's logit) for every row. Sum: two numbers with merged(Sum, Sum).
template <typename Sum, typename Finish>
__global__ __launch_bounds__(256) void combine_stats(const SegmentStats* __restrict__ stats, GatheredStats of,
                                                     int64_t rows, Finish finish) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  Sum all{-INFINITY, 0.0f};
  float target_logit = 0.0f;
  for (int r = 0; r < of.ranks; ++r) {
    for (int s = 0; s < of.first[r + 1] - of.first[r]; ++s) {
      const SegmentStats part = stats[(int64_t{r} * of.most + s) * rows + row];
      all = merged(all, Sum{part.max, part.sum});
      if (part.holds_target != 0) target_logit = part.target_logit;
    }
  }
  finish(row, all, target_logit);
}

template <typename Sum, typename Finish>
void launch_combine(const SegmentStats* stats, const GatheredStats& of, int64_t rows, const Finish& finish,
                    cudaStream_t stream) {
  combine_stats<Sum><<<static_cast<unsigned>(ceil_div(rows, 256)), 256, 0, stream>>>(stats, of, rows, finish);
}

/// A Finish that writes the SegmentStats of a row, for reductions that end in finish(row, Sum).
struct WriteSegmentStats {
  const float* __restrict__ target_logit;  ///< set for rows whose target is in the segment
  const int64_t* __restrict__ target_ids;
  int64_t begin, end;  ///< of the segment in the vocabulary
  SegmentStats* __restrict__ stats;

  template <typename Sum>
  __device__ void operator()(int64_t row, const Sum& total) const {
    const int64_t target = target_ids[row];
    const bool holds = target >= begin && target < end;
    const auto [max, sum] = total;
    stats[row] = {max, sum, holds ? target_logit[row] : 0.0f, holds ? 1u : 0u};
  }
};

// --- sums over ranks -------------------------------------------------------------------------------------------------

/// Every segment's contribution to the same rows, [rows, ld] each.
struct Shares {
  int32_t count;
  const float* of[kMostSegments];
};

/// to[row, column] = sum of the contributions in their order, rounded once.
template <typename T>
__global__ __launch_bounds__(256) void add_shares(Shares shares, int64_t ld, int64_t rows, int64_t columns,
                                                  T* __restrict__ to) {
  const int64_t count = rows * columns;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t at = i / columns * ld + i % columns;
    float sum = shares.of[0][at];
    for (int s = 1; s < shares.count; ++s) sum += shares.of[s][at];
    to[i] = from_float<T>(sum);
  }
}

/// The rows whose contributions each rank adds up: [first(rank), first(rank + 1)).
struct RowsOfRanks {
  int64_t rows;
  int32_t ranks;
  int64_t first(int32_t rank) const { return rows / ranks * rank + std::min<int64_t>(rank, rows % ranks); }
  int64_t count(int32_t rank) const { return first(rank + 1) - first(rank); }
  int64_t most() const { return ceil_div(rows, ranks); }
};

/// Adds up all segments' contributions and gives every rank all rows, in a fixed order: a reduce-scatter, in which each
/// rank receives the contributions to its rows and adds them, then an all-gather of the sums.
///   own: [segments of this rank][rows, ld]   received: [all other segments][most rows of a rank, ld]
///   to: [rows, columns]
template <typename T>
void reduce_shares(const checkop_call& c, const native::Ranks& ranks, const float* own, float* received, int64_t rows,
                   int64_t columns, int64_t ld, T* to) {
  const RowsOfRanks of{rows, ranks.size()};
  const int32_t self = ranks.rank();
  const auto stream = static_cast<cudaStream_t>(c.stream);
  const int64_t first = of.first(self), count = of.count(self);
  Shares shares{static_cast<int32_t>(ranks.first_segment(ranks.size())), {}};
  for (size_t s = ranks.first_segment(), i = 0; s < ranks.last_segment(); ++s, ++i)
    shares.of[s] = own + (static_cast<int64_t>(i) * rows + first) * ld;
  const auto result_of = [](ncclResult_t a, ncclResult_t b) { return a != ncclSuccess && a != ncclInProgress ? a : b; };
  if (ranks.size() > 1) {
    exchange(c, "reduce-scatter dhidden: exchange contributions", [&](ncclComm_t comm) {
      ncclResult_t result = ncclSuccess;
      int64_t slot = 0;
      for (int32_t peer = 0; peer < ranks.size(); ++peer) {
        if (peer == self) continue;
        for (size_t i = 0; i < ranks.last_segment() - ranks.first_segment(); ++i) {
          const float* from = own + (static_cast<int64_t>(i) * rows + of.first(peer)) * ld;
          result = result_of(result,
                             ncclSend(from, static_cast<size_t>(of.count(peer) * ld), ncclFloat, peer, comm, stream));
        }
        for (size_t s = ranks.first_segment(peer); s < ranks.first_segment(peer + 1); ++s, ++slot) {
          float* into = received + slot * of.most() * ld;
          shares.of[s] = into;
          result = result_of(result, ncclRecv(into, static_cast<size_t>(count * ld), ncclFloat, peer, comm, stream));
        }
      }
      return result;
    });
  }
  if (count * columns > 0) {
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(ceil_div(count * columns, 256), 4096));
    add_shares<T><<<blocks, 256, 0, stream>>>(shares, ld, count, columns, to + first * columns);
    require(cudaGetLastError(), "reduce-scatter dhidden: add contributions");
  }
  if (ranks.size() == 1) return;
  const auto bytes_of = [&](int64_t n_rows) { return static_cast<size_t>(n_rows * columns) * sizeof(T); };
  exchange(c, "all-gather dhidden", [&](ncclComm_t comm) {
    ncclResult_t result = ncclSuccess;
    for (int32_t peer = 0; peer < ranks.size(); ++peer) {
      if (peer == self) continue;
      result = result_of(result, ncclSend(to + first * columns, bytes_of(count), ncclUint8, peer, comm, stream));
      result = result_of(
          result, ncclRecv(to + of.first(peer) * columns, bytes_of(of.count(peer)), ncclUint8, peer, comm, stream));
    }
    return result;
  });
}

}  // namespace checkop::kernels::ranks
