// SPDX-License-Identifier: Apache-2.0
// Shared by the candidates that move messages between ranks: what a rank checks of a call, and sums of leaves on the
// CPU.
#pragma once

#include "cpu/ranks.hpp"

namespace native {

constexpr RankWords kLeafWords{"the leaves", "a leaf count of", "an element count of"};

/// The order in which leaves are added; any order below 0.
constexpr int64_t kAnyOrder = -1, kChain = 0, kTree = 1;

/// A call's message: `numel` elements, of which this rank holds [begin, end) where the message is divided.
struct Message {
  int64_t numel = 0, begin = 0, end = 0;
};

/// Where the part of rank `rank` begins in a divided message: parts are nearly even, longer ones first.
inline int64_t part_begin(int64_t numel, int32_t ranks, int32_t rank) {
  return numel / ranks * rank + std::min<int64_t>(rank, numel % ranks);
}

/// A tensor of a call is the message of every leaf of this rank, a part of the message, or all of it.
enum class Holds : uint8_t { leaves, part, all };

/// Checks both tensors of a call. At most one of them is a part, since a rank that has only parts of a message can't
/// know its length.
inline Message check_message(const checkop_call& c, const char* input, Holds in, const char* output, Holds out,
                             RankInfo& own) {
  check_counts(c, 1, 1);
  const checkop_tensor &x = c.inputs[0], &y = c.outputs[0];
  Extent leaves{"the rank's part of leaves", c.shard_end - c.shard_begin}, numel{"numel"},
      part{"the rank's part of numel"};
  const auto check = [&](const checkop_tensor& t, const char* name, Holds holds) {
    if (holds != Holds::leaves) return check_list(t, name, x.dtype, holds == Holds::part ? part : numel);
    Extent rows{"leaves"};
    check_matrix(t, name, x.dtype, rows, numel);
    if (numel.value > 0) leaves.bind(rows.value, name);  // an empty matrix has no rows
  };
  check(x, input, in);
  check(y, output, out);
  Message message{numel.value, part_begin(numel.value, c.world_size, c.rank),
                  part_begin(numel.value, c.world_size, c.rank + 1)};
  if (part.value >= 0) part.bind(message.end - message.begin, in == Holds::part ? input : output);
  own.rows = message.numel, own.dtype = x.dtype;
  return message;
}

struct AddVectors {
  std::vector<float> operator()(std::vector<float> a, const std::vector<float>& b) const {
    for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
    return a;
  }
};

/// Elements [first, first + n) of the sum over all ranks' leaves, stored behind each other. Every rank must call this.
inline void add_leaves(const checkop_call& c, const Ranks& ranks, int64_t numel, int64_t first, int64_t n) {
  const checkop_tensor& x = c.inputs[0];
  const auto order = static_cast<int64_t>(attribute(c, "order"));
  const size_t width = x.dtype == CHECKOP_F32 ? 4 : 2, bytes = static_cast<size_t>(numel) * width;
  const auto own = static_cast<size_t>(c.shard_end - c.shard_begin);
  const auto* data = static_cast<const std::byte*>(x.data);
  const std::vector<std::byte> mine(data, data + own * bytes);
  Tree<std::vector<float>, AddVectors> tree;
  std::vector<float> chain;
  ranks.for_each_segment(mine, bytes, [&](size_t leaf, const std::byte* values) {
    checkop_tensor t = x;
    t.data = const_cast<std::byte*>(values);
    std::vector<float> row(static_cast<size_t>(n));
    load(t, first, n, row.data());
    if (order == kTree) {
      tree.add(std::move(row));
    } else if (leaf == 0) {
      chain = std::move(row);
    } else {
      chain = AddVectors{}(std::move(chain), row);
    }
  });
  if (order == kTree) chain = tree.finish();
  store(c.outputs[0], 0, n, chain.data());
}

/// Copies the parts of all ranks into the output, one behind the other. Every rank must call this.
inline void gather_parts(const checkop_call& c, const Ranks& ranks, const Message& message) {
  const checkop_tensor& x = c.inputs[0];
  const size_t width = x.dtype == CHECKOP_F32 ? 4 : 2;
  const auto* data = static_cast<const std::byte*>(x.data);
  const std::vector<std::byte> own(data, data + static_cast<size_t>(message.end - message.begin) * width);
  const size_t most = static_cast<size_t>(part_begin(message.numel, ranks.size(), 1)) * width;
  auto* to = static_cast<std::byte*>(c.outputs[0].data);
  ranks.for_each_rank(own, most, [&](size_t rank, const std::byte* values) {
    const auto r = static_cast<int32_t>(rank);
    const int64_t begin = part_begin(message.numel, ranks.size(), r),
                  end = part_begin(message.numel, ranks.size(), r + 1);
    std::copy_n(values, static_cast<size_t>(end - begin) * width, to + static_cast<size_t>(begin) * width);
  });
}

/// Runs a launch with this input and output: each rank gets its part of the sum over the leaves of all ranks.
inline checkop_status reduce_scatter(const checkop_call* call, const char* input, const char* output) {
  return run(call, [&](const checkop_call& c) {
    Ranks ranks(c, kLeafWords);
    Message message;
    ranks.agree([&](RankInfo& own) {
      message = check_message(c, input, Holds::leaves, output, Holds::part, own);
      check_computed_dtype(c.inputs[0].dtype);
    });
    add_leaves(c, ranks, message.numel, message.begin, message.end - message.begin);
  });
}

/// Runs a launch with this input and output: every rank gets the parts of all ranks.
inline checkop_status all_gather(const checkop_call* call, const char* input, const char* output) {
  return run(call, [&](const checkop_call& c) {
    Ranks ranks(c, kLeafWords);
    Message message;
    ranks.agree([&](RankInfo& own) {
      message = check_message(c, input, Holds::part, output, Holds::all, own);
      check_computed_dtype(c.inputs[0].dtype);
    });
    gather_parts(c, ranks, message);
  });
}

}  // namespace native
