// SPDX-License-Identifier: Apache-2.0
// Groups of rows as kernels see them, and the faults in telling them apart.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "emulation/common.hpp"

namespace checkop::emulation {

inline constexpr int64_t kGroupTile = 8;  // rows

inline constexpr FaultSpec kGroupSpills{"tile_spills",
                                        "the last tile of a group writes over the first rows of the next"};
inline constexpr FaultSpec kPartialTileLost{"partial_tile_lost",
                                            "rows behind the last whole tile of a group are not computed"};
inline constexpr FaultSpec kPreviousExpert{"previous_expert", "the first row of a group gets the expert before it"};
inline constexpr FaultSpec kFirstExpertForAll{"first_expert_for_all", "all rows get the first expert"};
inline constexpr FaultSpec kEmptyUncounted{"empty_uncounted",
                                           "experts without rows are passed over, and later ones move up"};
inline constexpr FaultSpec kNoExpertComputed{"rest_computed", "rows of no expert get the last one", "nonfinite"};
inline constexpr FaultSpec kRestCounted{"rest_counted", "rows of no expert count in the last one's gradient",
                                        "nonfinite"};
inline constexpr FaultSpec kEmptyStale{"empty_stale",
                                       "an expert without rows keeps what lay in its gradient: another's"};
inline constexpr FaultSpec kNotReset{"not_reset", "an expert's gradient begins with that of the one before"};

inline constexpr FaultSpec kCountOfNext{"count_of_next", "an expert has as many rows as the next one", "nonfinite"};
inline constexpr FaultSpec kLastRowLost{"last_row_lost", "the last row of an expert is left out"};

/// Faults of results by row.
inline constexpr std::array kRowGroupFaults{kGroupSpills,       kPartialTileLost, kPreviousExpert,
                                            kFirstExpertForAll, kEmptyUncounted,  kNoExpertComputed};

/// The rows of one expert as the emulated kernel sees them, and the matrix that it takes.
struct Group {
  int64_t first, end, expert, matrix;
  int64_t rest_end;   ///< of the rows of no expert that follow
  int64_t spill_end;  ///< of the rows that its last tile can write over
};

/// Gives the groups their matrices.
inline std::vector<Group> with_matrices(const Arithmetic& a, std::vector<Group> groups) {
  int64_t filled = 0;
  for (Group& group : groups) {
    if (a.has(kFirstExpertForAll.name)) group.matrix = 0;
    if (a.has(kEmptyUncounted.name)) group.matrix = filled;
    if (group.end > group.first) ++filled;
  }
  return groups;
}

/// Successive groups. `rows`: of all groups, and of no expert.
inline std::vector<Group> groups_of(const Arithmetic& a, const std::vector<int64_t>& offsets, int64_t rows) {
  std::vector<Group> groups;
  for (int64_t e = 0; e + 1 < std::ssize(offsets); ++e) {
    const int64_t end = offsets[static_cast<size_t>(e) + 1];
    groups.push_back({offsets[static_cast<size_t>(e)], end, e, e, end, offsets.back()});
  }
  groups.back().rest_end = rows;
  return with_matrices(a, groups);
}

/// Groups that have the first counts[e] rows of a room of `capacity` rows each.
inline std::vector<Group> masked_groups(const Arithmetic& a, const std::vector<int64_t>& counts, int64_t capacity) {
  const int64_t experts = std::ssize(counts);
  std::vector<Group> groups;
  for (int64_t e = 0; e < experts; ++e) {
    int64_t count = counts[static_cast<size_t>(a.has(kCountOfNext.name) ? (e + 1) % experts : e)];
    if (a.has(kLastRowLost.name)) count = std::max<int64_t>(0, count - 1);
    groups.push_back({e * capacity, e * capacity + count, e, e, (e + 1) * capacity, experts * capacity});
  }
  return with_matrices(a, groups);
}

/// Faults of groups in the words of masked ones, and what only these have.
template <size_t n>
constexpr std::array<FaultSpec, n + 2> of_masked(std::array<FaultSpec, n> faults) {
  for (FaultSpec& fault : faults) {
    if (fault.name == kGroupSpills.name) {
      fault.meaning = "the last tile of an expert writes over the rows behind its count";
      fault.kind = "nonfinite";  // of what lies behind the count in a
    }
    if (fault.name == kNoExpertComputed.name) fault.meaning = "rows behind an expert's count are computed";
    if (fault.name == kRestCounted.name) fault.meaning = "rows behind an expert's count are summed up in its gradient";
    if (fault.name == "rest_multiplied")
      fault.meaning = "rows behind an expert's count are multiplied by 0 and summed up";
  }
  return joined(faults, std::array{kCountOfNext, kLastRowLost});
}

/// Calls put(first, end, matrix) for the rows of every group, in the order in which the emulated kernel writes them.
template <class Put>
void for_each_part(const Arithmetic& a, const std::vector<Group>& groups, const Put& put) {
  for (const Group& group : groups) {
    const int64_t whole = group.first + (group.end - group.first) / kGroupTile * kGroupTile;
    put(group.first, a.has(kPartialTileLost.name) ? whole : group.end, group.matrix);
    if (a.has(kNoExpertComputed.name) && group.rest_end > group.end) put(group.end, group.rest_end, group.matrix);
    if (a.has(kPreviousExpert.name) && group.expert > 0 && group.end > group.first)
      put(group.first, group.first + 1, group.matrix - 1);
  }
  for (const Group& group : groups) {
    const int64_t tiles_end = group.first + (group.end - group.first + kGroupTile - 1) / kGroupTile * kGroupTile;
    if (a.has(kGroupSpills.name)) put(group.end, std::min(tiles_end, group.spill_end), group.matrix);
  }
}

inline Matrix rows_of(const Matrix& m, int64_t first, int64_t end) {
  return {{m.values.begin() + first * m.columns, m.values.begin() + end * m.columns}, m.columns};
}

}  // namespace checkop::emulation
