// SPDX-License-Identifier: Apache-2.0
// Emulates messages between ranks, and the faults of kernels that add or move them.
#include "collective.hpp"

#include <array>

#include "emulation/common.hpp"

namespace checkop {
namespace collective {
namespace {

using namespace emulation;

constexpr FaultSpec kRankLost{"rank_lost", "what the last rank holds is left out"};
constexpr FaultSpec kRankTwice{"rank_twice", "what the last rank holds is added twice"};
constexpr FaultSpec kRankAlone{"rank_alone", "a rank returns the sum of its own leaves"};
constexpr FaultSpec kFirstLeafAlone{"first_leaf_alone", "of a rank's leaves only the first one is added"};
constexpr FaultSpec kAveraged{"averaged", "the sum is divided by the number of ranks"};
constexpr FaultSpec kBf16Sum{"bf16_sum",         "the sum is rounded to bf16 after each leaf", "accuracy", "", "",
                             recipe::kSumsByRank};
constexpr FaultSpec kBf16Wire{"bf16_on_the_wire", "messages are rounded to bf16 before they are sent", "accuracy",
                              "fp32 fp16"};
constexpr FaultSpec kTail{"tail_not_reduced", "elements behind the last multiple of 8 are the first rank's own"};
constexpr FaultSpec kChunk{"chunk_not_reduced", "of as many chunks as ranks, the last one is the last rank's own"};
constexpr FaultSpec kLate{"read_late", "the last rank's leaves are read one element late"};
constexpr FaultSpec kOrderReversed{"order_reversed", "an order is asked for, and leaves are added from last to first"};

constexpr FaultSpec kNextPart{"next_part", "a rank has the part of the next one"};
constexpr FaultSpec kFirstPart{"first_part_everywhere", "in place of every part stands the first rank's"};
constexpr FaultSpec kLastPartLost{"last_part_lost", "in place of the last rank's part stand zeros"};
constexpr FaultSpec kTailLost{"tail_lost", "elements behind the last multiple of 8 are not copied"};
constexpr FaultSpec kEqualParts{"equal_parts", "all parts are taken to be as long as the longest"};

size_t at(int64_t index) { return static_cast<size_t>(index); }

/// The leaves that are added, as fp32, and which rank holds them.
class Leaves {
 public:
  explicit Leaves(const EmulationArgs& args) : args_(args), order_(leaf_order(args.attrs)), x_(matrix(args, 0)) {
    const int64_t count = x_.rows();
    bounds_.assign(args.bounds.begin(), args.bounds.end());
    if (bounds_.empty()) bounds_ = {0, count};  // no ranks
    if (!args.arithmetic.has(kBf16Wire.name)) return;
    for (float& value : x_.values) value = Arithmetic::to_bf16(value);
  }

  int64_t numel() const { return x_.columns; }
  int64_t ranks() const { return std::ssize(bounds_) - 1; }

  /// Element i of the sum.
  float sum(int64_t i) const {
    const Arithmetic& a = args_.arithmetic;
    const int64_t last = bounds_[at(ranks() - 1)];
    std::vector<float> terms;
    if (a.has(kRankAlone.name) || (a.has(kTail.name) && i >= numel() / 8 * 8)) {
      terms = column(0, bounds_[1], i);
    } else if (a.has(kChunk.name) && i >= numel() * (ranks() - 1) / ranks()) {
      terms = column(last, bounds_.back(), i);
    } else if (a.has(kFirstLeafAlone.name)) {
      for (int64_t rank = 0; rank < ranks(); ++rank) terms.push_back(x_.row(bounds_[at(rank)])[i]);
    } else {
      terms = column(0, a.has(kRankLost.name) && last > 0 ? last : bounds_.back(), i);
      if (a.has(kRankTwice.name))
        for (const float term : column(last, bounds_.back(), i)) terms.push_back(term);
    }
    const float total = added(std::move(terms));
    return a.has(kAveraged.name) ? total / static_cast<float>(ranks()) : total;
  }

 private:
  std::vector<float> column(int64_t first, int64_t end, int64_t i) const {
    std::vector<float> terms;
    for (int64_t leaf = first; leaf < end; ++leaf) {
      const bool is_late = leaf >= bounds_[at(ranks() - 1)] && args_.arithmetic.has(kLate.name);
      terms.push_back(x_.row(leaf)[is_late ? (i + 1) % numel() : i]);
    }
    return terms;
  }

  float added(std::vector<float> terms) const {
    const Arithmetic& a = args_.arithmetic;
    const auto n = std::ssize(terms);
    // A kernel that keeps an order rounds once.
    if (const bool rounds = order_ == LeafOrder::any && a.rounds(recipe::kSumsByRank); rounds || a.has(kBf16Sum.name)) {
      float sum = terms.front();
      for (size_t i = 1; i < terms.size(); ++i)
        sum = rounds ? a.rounded_if(true, sum + terms[i]) : Arithmetic::to_bf16(sum + terms[i]);
      return sum;
    }
    if (order_ == LeafOrder::any) return n == 1 ? terms.front() : a.sum(n, [&](int64_t i) { return terms[at(i)]; });
    if (a.has(kOrderReversed.name)) std::reverse(terms.begin(), terms.end());
    return sum_of_leaves(order_, terms);
  }

  const EmulationArgs& args_;
  LeafOrder order_;
  Matrix x_;
  std::vector<int64_t> bounds_;
};

void sum(const EmulationArgs& args) {
  const Leaves leaves(args);
  args.parallel_for(leaves.numel(), [&](int64_t i) { args.out(0)[at(i)] = leaves.sum(i); });
}

/// The parts of a message, one for each rank; without ranks the whole message is one part.
class MessageParts {
 public:
  MessageParts(const EmulationArgs& args, int64_t numel)
      : ranks_(std::max<int64_t>(1, std::ssize(args.bounds) - 1)), numel_(numel) {}

  int64_t begin(int64_t rank) const { return numel_ / ranks_ * rank + std::min(rank, numel_ % ranks_); }
  int64_t length(int64_t rank) const { return begin(rank + 1) - begin(rank); }
  int64_t last() const { return ranks_ - 1; }
  /// The part that element i is in.
  int64_t part_of(int64_t i) const {
    int64_t rank = 0;
    while (i >= begin(rank + 1)) ++rank;
    return rank;
  }
  /// Element i of the message as ranks hold it that have the next one's part.
  int64_t in_next_part(int64_t i) const { return (i + length(0)) % numel_; }

 private:
  int64_t ranks_, numel_;
};

void scattered_sum(const EmulationArgs& args) {
  const Leaves leaves(args);
  const MessageParts parts(args, leaves.numel());
  const bool next = args.arithmetic.has(kNextPart.name);
  args.parallel_for(leaves.numel(),
                    [&](int64_t i) { args.out(0)[at(i)] = leaves.sum(next ? parts.in_next_part(i) : i); });
}

void gathered_parts(const EmulationArgs& args) {
  const Arithmetic& a = args.arithmetic;
  const std::vector<float> x = args.floats(0);
  const auto numel = std::ssize(x);
  const MessageParts parts(args, numel);
  const auto source = [&](int64_t i) -> int64_t {  // -1: nothing
    const int64_t part = parts.part_of(i);
    if (a.has(kNextPart.name)) return parts.in_next_part(i);
    if (a.has(kFirstPart.name)) return std::min(i - parts.begin(part), numel - 1);
    if (a.has(kLastPartLost.name) && part == parts.last()) return -1;
    if (a.has(kTailLost.name) && i >= numel / 8 * 8) return -1;
    if (a.has(kEqualParts.name)) {
      const int64_t length = parts.length(0), rank = i / length, place = i % length;
      return place < parts.length(rank) ? parts.begin(rank) + place : -1;
    }
    return i;
  };
  for (int64_t i = 0; i < numel; ++i) {
    const int64_t from = source(i);
    const float value = from < 0 ? 0.0F : x[at(from)];
    args.out(0)[at(i)] = a.has(kBf16Wire.name) ? Arithmetic::to_bf16(value) : value;
  }
}

constexpr std::array kSumFaults{kRankLost, kRankTwice, kRankAlone, kFirstLeafAlone, kAveraged,     kBf16Sum,
                                kBf16Wire, kTail,      kChunk,     kLate,           kOrderReversed};
constexpr std::array kScatterFaults{kRankLost, kRankTwice, kRankAlone, kFirstLeafAlone, kAveraged,      kBf16Sum,
                                    kBf16Wire, kTail,      kChunk,     kLate,           kOrderReversed, kNextPart};
constexpr std::array kGatherFaults{kBf16Wire, kNextPart, kFirstPart, kLastPartLost, kTailLost, kEqualParts};

}  // namespace
}  // namespace collective

extern const Emulation kAllReduceSum, kScatteredSum, kGatheredParts;
const Emulation kAllReduceSum{collective::sum, collective::kSumFaults};
const Emulation kScatteredSum{collective::scattered_sum, collective::kScatterFaults};
const Emulation kGatheredParts{collective::gathered_parts, collective::kGatherFaults};

}  // namespace checkop
