// SPDX-License-Identifier: Apache-2.0
// Shared by the tensor-parallel candidates: ranks compare what each of them holds on the CPU before they exchange
// anything else. Shared by the native ones: partial results are combined in the order of the vocabulary, or of leaves.
#pragma once

#include <cstring>

#include "cpu/native.hpp"

namespace native {

/// The numbers that ranks compare before they exchange anything else. No padding: they are sent as bytes.
struct RankInfo {
  int64_t status = CHECKOP_OK;
  int64_t begin = 0, end = 0, total = 0;
  int64_t rows = -1, hidden = -1, dtype = -1, bias = 0, ignored = 0, segments = 0, order = 0;
  uint64_t ids = 0;  ///< a hash
  char message[200] = {};
};

inline uint64_t hash_of(const int64_t* ids, int64_t n) {
  uint64_t hash = 0xcbf29ce484222325;
  for (int64_t i = 0; i < n; ++i) hash = (hash ^ static_cast<uint64_t>(ids[i])) * 0x100000001b3;
  return hash;
}

/// Begins of the `n` canonical segments of a vocabulary, then the end of the last; only 0 when n is 0.
inline std::vector<int64_t> canonical_bounds(int64_t vocab, int64_t n) {
  if (n < 0 || n > vocab)
    throw Refusal(CHECKOP_FAILED,
                  "canonical_segments is " + std::to_string(n) + ", expected 0 to " + std::to_string(vocab));
  std::vector<int64_t> bounds{0};
  for (int64_t s = 0; s < n; ++s) bounds.push_back(bounds.back() + vocab / n + (s < vocab % n ? 1 : 0));
  return bounds;
}

/// The bounds of the segments that this rank holds, known without the other ranks; those of its whole part if its part
/// does not consist of segments.
inline std::vector<int64_t> own_bounds(const checkop_call& c) {
  std::vector<int64_t> own;
  for (const int64_t bound : canonical_bounds(c.shard_total, static_cast<int64_t>(attribute(c, "canonical_segments"))))
    if (bound >= c.shard_begin && bound <= c.shard_end) own.push_back(bound);
  if (own.size() > 1 && own.front() == c.shard_begin && own.back() == c.shard_end) return own;
  return {c.shard_begin, c.shard_end};
}

/// Words of messages: for what ranks divide, and for RankInfo::rows.
struct RankWords {
  const char *divided = "the vocabulary", *total = "a vocabulary of", *rows = "a row count of";
};

inline bool has_attribute(const checkop_call& c, std::string_view name) {
  return std::any_of(c.attrs, c.attrs + c.n_attrs, [&](const checkop_attr& attr) { return name == attr.name; });
}

/// One rank and its view of the others.
class Ranks {
 public:
  explicit Ranks(const checkop_call& c, const RankWords& words = {})
      : call_(c), words_(words), size_(c.world_size), comm_(c.host_comm) {
    if (size_ < 1 || c.rank < 0 || c.rank >= size_)
      throw Refusal(CHECKOP_FAILED, "rank " + std::to_string(c.rank) + " of " + std::to_string(size_));
    if (size_ > 1 && (comm_ == nullptr || comm_->rank != c.rank || comm_->world_size != size_))
      throw Refusal(CHECKOP_FAILED, "host communicator is missing or is not of this rank and world size");
  }

  /// Calls check(RankInfo&), which refuses local errors and fills in what all ranks must have in common. Returns once
  /// all ranks are known to fit together; otherwise refuses with the same message on every rank. Nobody waits for a
  /// rank that has refused.
  template <class Check>
  void agree(Check check) {
    RankInfo own;
    own.begin = call_.shard_begin, own.end = call_.shard_end, own.total = call_.shard_total;
    try {
      // Each leaf of a collective operator is a segment of its own.
      own.segments = has_attribute(call_, "order") ? call_.shard_total
                                                   : static_cast<int64_t>(attribute(call_, "canonical_segments"));
      if (has_attribute(call_, "order")) {
        own.order = static_cast<int64_t>(attribute(call_, "order"));
      } else {
        own.ignored = ignore_index(call_);
      }
      check(own);
    } catch (const OtherIntegers&) {
      throw;  // run() converts them and starts over
    } catch (const Refusal& refusal) {
      own.status = refusal.status;
      std::snprintf(own.message, sizeof(own.message), "%s", refusal.what());
    }
    std::vector<RankInfo> all(static_cast<size_t>(size_));
    all_gather(&own, all.data(), sizeof(own));
    require_fit(all);
    cut(all);
  }

  int32_t rank() const { return call_.rank; }
  int32_t size() const { return size_; }
  int64_t begin() const { return call_.shard_begin; }
  int64_t total() const { return call_.shard_total; }
  int64_t ignored() const { return ignored_; }

  /// Refuses bad ids. Ids are the same on every rank, so all ranks refuse them or none.
  void check_target_ids(const checkop_tensor& ids, const char* name, int64_t rows) const {
    check_ids(ids, name, rows, total(), ignored_);
  }

  /// Begins of the parts whose results are combined, then the end of the last. The parts are canonical segments or, if
  /// there are none, the ranks' own parts.
  const std::vector<int64_t>& segments() const { return segments_; }
  /// This rank holds segments [first, last).
  size_t first_segment() const { return first_segment(call_.rank); }
  size_t last_segment() const { return first_segment(call_.rank + 1); }
  /// First segment of another rank; the number of segments for a rank beyond the last.
  size_t first_segment(int32_t rank) const { return first_[static_cast<size_t>(rank)]; }

  /// Calls body(segment, values) in order for all segments, with the `count` values of the rank that holds the segment;
  /// `own` has the values of this rank's segments.
  template <class T, class Body>
  void for_each_segment(const std::vector<T>& own, size_t count, Body body) const {
    size_t most = 0;
    for (size_t r = 0; r < static_cast<size_t>(size_); ++r) most = std::max(most, first_[r + 1] - first_[r]);
    for_each_rank(own, most * count, [&](size_t r, const T* values) {
      for (size_t s = first_[r]; s < first_[r + 1]; ++s) body(s, values + (s - first_[r]) * count);
    });
  }

  /// Calls body(rank, values) in order for all ranks, with the values that each rank passes as `own`, at most `most`.
  template <class T, class Body>
  void for_each_rank(const std::vector<T>& own, size_t most, Body body) const {
    std::vector<T> send(own);
    send.resize(most);
    std::vector<T> all(most * static_cast<size_t>(size_));
    all_gather(send.data(), all.data(), most * sizeof(T));
    for (size_t r = 0; r < static_cast<size_t>(size_); ++r) body(r, all.data() + r * most);
  }

 private:
  void all_gather(const void* send, void* receive, size_t bytes) const {
    if (size_ == 1 && bytes > 0) {
      std::memcpy(receive, send, bytes);
    } else if (size_ > 1 && comm_->all_gather(comm_, send, receive, bytes) != 0) {
      throw Refusal(CHECKOP_FAILED, comm_->error(comm_));
    }
  }

  [[noreturn]] static void refuse(const std::string& sentence, int64_t status = CHECKOP_FAILED) {
    throw Refusal(static_cast<checkop_status>(status), sentence);
  }

  /// Refuses unless all ranks got the same call, none has refused it, and their parts tile the vocabulary.
  void require_fit(const std::vector<RankInfo>& all) const {
    for (size_t r = 0; r < all.size(); ++r) {
      if (all[r].status == CHECKOP_OK) continue;
      const std::string words(all[r].message, strnlen(all[r].message, sizeof(all[r].message)));
      refuse((size_ == 1 ? "" : "rank " + std::to_string(r) + ": ") + words, all[r].status);
    }
    const auto same = [&](const char* what, auto member) {
      for (size_t r = 1; r < all.size(); ++r) {
        if (all[r].*member == all[0].*member) continue;
        refuse("rank " + std::to_string(r) + " has " + what + " " + std::to_string(all[r].*member) + ", rank 0 has " +
               std::to_string(all[0].*member));
      }
    };
    for (size_t r = 1; r < all.size(); ++r) {
      if (all[r].dtype == all[0].dtype) continue;
      refuse("rank " + std::to_string(r) + " has dtype " + dtype_name(static_cast<int32_t>(all[r].dtype)) +
             ", rank 0 has " + dtype_name(static_cast<int32_t>(all[0].dtype)));
    }
    same(words_.total, &RankInfo::total);
    same(words_.rows, &RankInfo::rows);
    same("a hidden size of", &RankInfo::hidden);
    same("a bias count of", &RankInfo::bias);
    same("an ignore_index of", &RankInfo::ignored);
    same("a canonical segment count of", &RankInfo::segments);
    same("an order of", &RankInfo::order);
    int64_t expected = 0;
    for (size_t r = 0; r < all.size(); ++r) {
      const std::string part = "rank " + std::to_string(r) + " holds [" + std::to_string(all[r].begin) + ", " +
                               std::to_string(all[r].end) + ") of " + words_.divided;
      if (all[r].end <= all[r].begin) refuse(part + ", which is empty");
      if (all[r].begin > expected)
        refuse(part + ": no rank holds [" + std::to_string(expected) + ", " + std::to_string(all[r].begin) + ")");
      if (all[r].begin < expected) refuse(part + ", which overlaps the part of the rank before it");
      expected = all[r].end;
    }
    if (expected != all[0].total)
      refuse("the ranks hold [0, " + std::to_string(expected) + ") of " + words_.total + " " +
             std::to_string(all[0].total));
    same("target ids with hash", &RankInfo::ids);  // last: a rank that holds nothing has not looked at its ids
  }

  /// Sets the segments, from parts that tile the vocabulary.
  void cut(const std::vector<RankInfo>& all) {
    const int64_t n = all[0].segments;
    ignored_ = all[0].ignored;
    segments_ = canonical_bounds(all[0].total, n);
    for (size_t r = 0; n == 0 && r < all.size(); ++r) segments_.push_back(all[r].end);
    first_ = {0};
    for (size_t r = 0; r < all.size(); ++r) {
      const auto end = std::find(segments_.begin(), segments_.end(), all[r].end);
      if (end == segments_.end()) {
        refuse("rank " + std::to_string(r) + " ends at " + std::to_string(all[r].end) +
                   ", which is not the end of a canonical segment",
               CHECKOP_UNSUPPORTED);
      }
      first_.push_back(static_cast<size_t>(end - segments_.begin()));
    }
  }

  const checkop_call& call_;
  RankWords words_;
  int32_t size_;
  checkop_host_comm* comm_;
  int64_t ignored_ = 0;
  std::vector<int64_t> segments_;
  std::vector<size_t> first_;  ///< first segment of every rank, then the number of segments
};

/// A row's softmax over one segment, and the target's logit if the segment holds it.
struct SegmentStats {
  float max = -std::numeric_limits<float>::infinity(), sum = 0.0f, target = 0.0f;
};

/// Softmax of rows over the whole vocabulary.
struct Combined {
  std::vector<SumExp> sums;
  std::vector<float> targets;
};

/// Combines the segments' statistics in the order of the vocabulary; `own`: those of this rank, [segment][row].
inline Combined combine_stats(const Ranks& ranks, const std::vector<SegmentStats>& own, const int64_t* ids,
                              int64_t rows) {
  Combined all{std::vector<SumExp>(static_cast<size_t>(rows)), std::vector<float>(static_cast<size_t>(rows))};
  const std::vector<int64_t>& bounds = ranks.segments();
  ranks.for_each_segment(own, static_cast<size_t>(rows), [&](size_t s, const SegmentStats* parts) {
    for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
      const SumExp part{parts[r].max, parts[r].sum};
      all.sums[r] = s == 0 ? part : MergeSumExp{}(all.sums[r], part);
      if (ids[r] >= bounds[s] && ids[r] < bounds[s + 1]) all.targets[r] = parts[r].target;
    }
  });
  return all;
}

}  // namespace native
