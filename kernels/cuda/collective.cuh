// SPDX-License-Identifier: Apache-2.0
// Shared by the CUDA candidates that move messages between ranks: sums of leaves in a given order, and the exchange of
// the parts of a message.
#pragma once

#include "cpu/collective.hpp"
#include "cuda/ranks.cuh"

namespace checkop::kernels::collective {

using native::Message;
using native::part_begin;

/// The same elements of every leaf.
template <typename T>
struct Leaves {
  int32_t count;
  const T* of[ranks::kMostSegments];
};

/// to[i] = the sum of element i of all leaves in fp32, from the first to the last or in a tree of neighbours, rounded
/// once.
template <typename T, bool tree>
__global__ __launch_bounds__(256) void add_leaves(Leaves<T> leaves, int64_t n, T* __restrict__ to) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x) {
    float sum = to_float(leaves.of[0][i]);
    if constexpr (!tree) {
      for (int leaf = 1; leaf < leaves.count; ++leaf) sum += to_float(leaves.of[leaf][i]);
    } else {
      float levels[7];  // sums of 1, 2, 4 ... 64 leaves
      levels[0] = sum;
      for (int leaf = 1; leaf < leaves.count; ++leaf) {
        float value = to_float(leaves.of[leaf][i]);
        int level = 0;
        for (; (leaf >> level & 1) != 0; ++level) value = levels[level] + value;
        levels[level] = value;
      }
      bool begun = false;
      for (int level = 0; leaves.count >> level != 0; ++level) {
        if ((leaves.count >> level & 1) == 0) continue;
        sum = begun ? levels[level] + sum : levels[level];
        begun = true;
      }
    }
    to[i] = from_float<T>(sum);
  }
}

/// Throws when there are more ranks or leaves than the kernels support, or no communicator between the ranks.
inline void check_ranks(const checkop_call& c) {
  if (c.world_size > 1 && c.comm == nullptr) throw native::Refusal(CHECKOP_FAILED, "no NCCL communicator");
  if (c.shard_total > ranks::kMostSegments) {
    throw native::Refusal(CHECKOP_UNSUPPORTED, std::to_string(c.shard_total) + " leaves: at most 64 are supported");
  }
}

/// Bytes for the other ranks' leaves of this rank's part.
inline size_t received_bytes(const checkop_call& c) {
  if (c.n_inputs < 1 || c.inputs[0].rank < 1 || c.world_size < 2) return 0;
  const checkop_tensor& x = c.inputs[0];
  const int64_t most = part_begin(x.shape[x.rank - 1], c.world_size, 1);
  const int64_t others = c.shard_total - (c.shard_end - c.shard_begin);
  return static_cast<size_t>(std::max<int64_t>(most * others, 0)) * (x.dtype == CHECKOP_F32 ? 4 : 2);
}

inline ncclResult_t first_error(ncclResult_t a, ncclResult_t b) {
  return a != ncclSuccess && a != ncclInProgress ? a : b;
}

/// This rank's part of the sum over all ranks' leaves: every rank sends each other one its part of all own leaves, and
/// adds up its own part of all leaves in the call's order. `to` has the elements of the part alone.
template <typename T>
void reduce_parts(const checkop_call& c, const native::Ranks& ranks, const Message& message, T* to) {
  const auto stream = static_cast<cudaStream_t>(c.stream);
  const auto* x = static_cast<const T*>(c.inputs[0].data);
  auto* received = static_cast<T*>(c.workspace);
  const int64_t numel = message.numel, count = message.end - message.begin;
  const int64_t most = part_begin(numel, ranks.size(), 1);
  const auto own = static_cast<int64_t>(ranks.last_segment() - ranks.first_segment());
  Leaves<T> leaves{static_cast<int32_t>(ranks.total()), {}};
  for (int64_t i = 0; i < own; ++i)
    leaves.of[ranks.first_segment() + static_cast<size_t>(i)] = x + i * numel + message.begin;
  if (ranks.size() > 1) {
    ranks::exchange(c, "exchange parts of leaves", [&](ncclComm_t comm) {
      ncclResult_t result = ncclSuccess;
      int64_t slot = 0;
      for (int32_t peer = 0; peer < ranks.size(); ++peer) {
        if (peer == ranks.rank()) continue;
        const int64_t begin = part_begin(numel, ranks.size(), peer);
        const auto bytes = static_cast<size_t>(part_begin(numel, ranks.size(), peer + 1) - begin) * sizeof(T);
        for (int64_t i = 0; i < own; ++i)
          result = first_error(result, ncclSend(x + i * numel + begin, bytes, ncclUint8, peer, comm, stream));
        for (size_t leaf = ranks.first_segment(peer); leaf < ranks.first_segment(peer + 1); ++leaf, ++slot) {
          T* into = received + slot * most;
          leaves.of[leaf] = into;
          result = first_error(result,
                               ncclRecv(into, static_cast<size_t>(count) * sizeof(T), ncclUint8, peer, comm, stream));
        }
      }
      return result;
    });
  }
  if (count == 0) return;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(ceil_div(count, 256), 4096));
  if (static_cast<int64_t>(native::attribute(c, "order")) == native::kTree) {
    add_leaves<T, true><<<blocks, 256, 0, stream>>>(leaves, count, to);
  } else {
    add_leaves<T, false><<<blocks, 256, 0, stream>>>(leaves, count, to);
  }
  ranks::require(cudaGetLastError(), "add leaves");
}

/// Gives every rank the parts of all ranks: this rank's own part is in its place of the message `to`.
template <typename T>
void gather_parts(const checkop_call& c, const native::Ranks& ranks, const Message& message, T* to) {
  if (ranks.size() == 1) return;
  ranks::exchange(c, "all-gather parts", [&](ncclComm_t comm) {
    const auto stream = static_cast<cudaStream_t>(c.stream);
    const auto bytes_of = [](int64_t elements) { return static_cast<size_t>(elements) * sizeof(T); };
    ncclResult_t result = ncclSuccess;
    for (int32_t peer = 0; peer < ranks.size(); ++peer) {
      if (peer == ranks.rank()) continue;
      const int64_t begin = part_begin(message.numel, ranks.size(), peer);
      const int64_t end = part_begin(message.numel, ranks.size(), peer + 1);
      result = first_error(
          result, ncclSend(to + message.begin, bytes_of(message.end - message.begin), ncclUint8, peer, comm, stream));
      result = first_error(result, ncclRecv(to + begin, bytes_of(end - begin), ncclUint8, peer, comm, stream));
    }
    return result;
  });
}

/// Copies `bytes` on the call's stream.
inline void copy(const checkop_call& c, void* to, const void* from, size_t bytes) {
  ranks::require(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(c.stream)),
                 "copy a message");
}

/// Agrees with the other ranks on the call; then calls body(ranks, message, TypeTag<T>).
template <class Body>
checkop_status run(const checkop_call* call, const char* input, native::Holds in, const char* output, native::Holds out,
                   size_t workspace, const Body& body) {
  return native::run(call, [&](const checkop_call& c) {
    native::Ranks ranks(c, native::kLeafWords);
    Message message;
    ranks.agree([&](native::RankInfo& own) {
      check_ranks(c);
      message = native::check_message(c, input, in, output, out, own);
      native::check_computed_dtype(c.inputs[0].dtype);
      ranks::require_workspace(c, workspace);
    });
    with_float_type(c.inputs[0].dtype, [&](auto tag) {
      body(c, ranks, message, tag);
      return CHECKOP_OK;
    });
  });
}

// --- NCCL's own collectives ---

template <typename T>
constexpr ncclDataType_t nccl_type() {
  if constexpr (std::is_same_v<T, float>) return ncclFloat;
  if constexpr (std::is_same_v<T, __half>) return ncclHalf;
  return ncclBfloat16;
}

/// Refuses what NCCL's sums do not support: a given order, and several leaves a rank.
inline void check_nccl_sum(const checkop_call& c) {
  if (native::attribute(c, "order") >= 0) {
    throw native::Refusal(CHECKOP_UNSUPPORTED,
                          "NCCL adds in an order of its own, which may depend on the message; give --order -1");
  }
  if (c.shard_total != c.world_size) {
    throw native::Refusal(CHECKOP_UNSUPPORTED, std::to_string(c.shard_total) + " leaves on " +
                                                   std::to_string(c.world_size) +
                                                   " ranks: NCCL takes one message of each rank");
  }
}

/// Refuses parts of different lengths, which NCCL's collectives do not support.
inline void check_nccl_parts(const checkop_call& c, int64_t numel) {
  if (numel % c.world_size == 0) return;
  throw native::Refusal(CHECKOP_UNSUPPORTED, std::to_string(numel) + " elements on " + std::to_string(c.world_size) +
                                                 " ranks: NCCL takes parts of equal length");
}

/// Runs a launch with this input and output by ncclReduceScatter.
inline checkop_status nccl_reduce_scatter(const checkop_call* call, const char* input, const char* output) {
  return run(call, input, native::Holds::leaves, output, native::Holds::part, 0,
             [](const checkop_call& c, const native::Ranks& ranks, const native::Message& message, auto tag) {
               using T = typename decltype(tag)::type;
               check_nccl_sum(c);
               check_nccl_parts(c, message.numel);
               const void* from = c.inputs[0].data;
               void* to = c.outputs[0].data;
               const auto part = static_cast<size_t>(message.end - message.begin);
               if (ranks.size() == 1) return copy(c, to, from, part * sizeof(T));
               ranks::exchange(c, "reduce-scatter", [&](ncclComm_t comm) {
                 return ncclReduceScatter(from, to, part, nccl_type<T>(), ncclSum, comm,
                                          static_cast<cudaStream_t>(c.stream));
               });
             });
}

/// Runs a launch with this input and output by ncclAllGather.
inline checkop_status nccl_all_gather(const checkop_call* call, const char* input, const char* output) {
  return run(call, input, native::Holds::part, output, native::Holds::all, 0,
             [](const checkop_call& c, const native::Ranks& ranks, const native::Message& message, auto tag) {
               using T = typename decltype(tag)::type;
               check_nccl_parts(c, message.numel);
               const void* from = c.inputs[0].data;
               void* to = c.outputs[0].data;
               const auto part = static_cast<size_t>(message.end - message.begin);
               if (ranks.size() == 1) return copy(c, to, from, part * sizeof(T));
               ranks::exchange(c, "all-gather", [&](ncclComm_t comm) {
                 return ncclAllGather(from, to, part, nccl_type<T>(), comm, static_cast<cudaStream_t>(c.stream));
               });
             });
}

}  // namespace checkop::kernels::collective
