// SPDX-License-Identifier: Apache-2.0
// Emulates pack as kernels compute it: destinations by counting, then copies.
#include <array>
#include <numeric>

#include "emulation/moved_rows.hpp"

namespace checkop {
namespace pack {
namespace {

using namespace emulation;

constexpr FaultSpec kMaskIgnored{"mask_ignored", "every row is kept", "nonfinite"};
// Accuracy, not nonfinite: gradients hold no payloads.
constexpr FaultSpec kMaskIgnoredBackward{"mask_ignored", "every row is taken to be kept"};
constexpr FaultSpec kMaskValuesAdded{"mask_values_added", "mask values are summed, so a 2 counts twice"};
constexpr FaultSpec kOnesAloneKept{"ones_alone_kept", "a row is kept where its mask is 1, not where it is not 0"};
constexpr FaultSpec kCountedWithOwnRow{"counted_with_own_row", "an inclusive sum for an exclusive one: one row late"};
constexpr FaultSpec kCountedPerSequence{"counted_per_sequence", "the count starts again with every sequence"};
constexpr FaultSpec kRowsInPlace{"rows_in_place", "rows are masked where they are, not moved"};
constexpr FaultSpec kLastRowLost{"last_row_lost", "the last row kept is not copied"};
constexpr FaultSpec kLastRowRepeated{"last_row_repeated", "rows behind the last one are not zero but that row again"};
constexpr FaultSpec kPaddedStarts{"padded_starts", "cu_seqlens has the sequences where they begin in x"};
constexpr FaultSpec kLengthsForStarts{"lengths_for_starts", "cu_seqlens has lengths, not their sums"};
constexpr FaultSpec kFirstStartLost{"first_start_lost", "cu_seqlens begins with the end of the first sequence"};
constexpr FaultSpec kDroppedGetGradient{"dropped_get_gradient",
                                        "rows not kept get the gradient of the next one that is"};

/// Destinations of the rows, and where sequences begin among them.
struct Places {
  static constexpr int64_t kNone = -1;
  std::vector<int64_t> of_row;  ///< kNone: not kept
  std::vector<int64_t> next;    ///< for every row: number of rows kept before it
  std::vector<int64_t> starts{0};
  int64_t kept = 0;

  Places(const Arithmetic& a, const std::vector<int64_t>& mask, int64_t seq) {
    const auto rows = std::ssize(mask);
    const bool all = a.has(kMaskIgnored.name), ones = a.has(kOnesAloneKept.name), values = a.has(kMaskValuesAdded.name),
               restarts = a.has(kCountedPerSequence.name), in_place = a.has(kRowsInPlace.name);
    const int64_t late = a.has(kCountedWithOwnRow.name) ? 1 : 0;
    int64_t count = 0;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t value = mask[static_cast<size_t>(row)];
      const bool keeps = all || (ones ? value == 1 : value != 0);
      if (restarts && row % seq == 0) count = 0;
      next.push_back(std::min(count + late, rows - 1));
      of_row.push_back(keeps ? (in_place ? row : next.back()) : kNone);
      if (keeps) count += values ? value : 1, kept += 1;
      if (row % seq == seq - 1) starts.push_back(count);
    }
    if (a.has(kLastRowLost.name)) lose_last();
  }

 private:
  void lose_last() {
    const auto last = std::find_if(of_row.rbegin(), of_row.rend(), [](int64_t place) { return place != kNone; });
    if (last != of_row.rend()) *last = kNone;
  }
};

void copy_row(const Matrix& from, int64_t row, std::vector<double>& to, int64_t place) {
  std::copy_n(from.row(row), from.columns, to.begin() + place * from.columns);
}

void store_starts(const Arithmetic& a, std::vector<int64_t> starts, int64_t seq, std::vector<double>& to) {
  if (a.has(kLengthsForStarts.name)) std::adjacent_difference(starts.begin(), starts.end(), starts.begin());
  if (a.has(kFirstStartLost.name)) std::copy(starts.begin() + 1, starts.end(), starts.begin());
  for (size_t i = 0; i < starts.size() && a.has(kPaddedStarts.name); ++i) starts[i] = static_cast<int64_t>(i) * seq;
  to.assign(starts.begin(), starts.end());
}

void forward(const EmulationArgs& args) {
  const Arithmetic& a = args.arithmetic;
  const Matrix x = through_kernel(a, args.in(0).dtype, matrix(args, 0));
  const int64_t seq = args.in(1).shape.back();
  const Places places(a, args.integers(1), seq);
  int64_t last = 0;
  for (int64_t row = 0; row < x.rows(); ++row) {
    const int64_t place = places.of_row[static_cast<size_t>(row)];
    if (place != Places::kNone) copy_row(x, last = row, args.out(0), place);
  }
  for (int64_t place = places.kept; place < x.rows() && a.has(kLastRowRepeated.name); ++place)
    copy_row(x, last, args.out(0), place);
  store_starts(a, places.starts, seq, args.out(1));
}

void backward(const EmulationArgs& args) {
  const Matrix g = matrix(args, 1);
  const Places places(args.arithmetic, args.integers(0), args.in(0).shape.back());
  const std::vector<int64_t>& from = args.arithmetic.has(kDroppedGetGradient.name) ? places.next : places.of_row;
  for (int64_t row = 0; row < g.rows(); ++row) {
    const int64_t place = from[static_cast<size_t>(row)];
    if (place != Places::kNone) copy_row(g, place, args.out(0), row);
  }
}

constexpr std::array kForwardFaults{kMaskIgnored,        kMaskValuesAdded,  kOnesAloneKept,  kCountedWithOwnRow,
                                    kCountedPerSequence, kRowsInPlace,      kLastRowLost,    kLastRowRepeated,
                                    kPaddedStarts,       kLengthsForStarts, kFirstStartLost, kSubnormalsFlushed,
                                    kRangeOfHalf};
constexpr std::array kBackwardFaults{kMaskIgnoredBackward, kMaskValuesAdded, kOnesAloneKept, kCountedWithOwnRow,
                                     kCountedPerSequence,  kRowsInPlace,     kLastRowLost,   kDroppedGetGradient};

}  // namespace
}  // namespace pack

extern const Emulation kPackForward, kPackBackward;
const Emulation kPackForward{pack::forward, pack::kForwardFaults};
const Emulation kPackBackward{pack::backward, pack::kBackwardFaults};

}  // namespace checkop
