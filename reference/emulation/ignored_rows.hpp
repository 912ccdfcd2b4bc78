// SPDX-License-Identifier: Apache-2.0
// Rows whose id is ignore_index, which logp and linear_logp leave out, and the faults in their handling.
#pragma once

#include "emulation/common.hpp"

namespace checkop::emulation {

inline constexpr FaultSpec kIgnoredRowCounted{
    "ignored_row_counted", "an ignored row is computed, with an id that matches no column", "nonfinite"};
inline constexpr FaultSpec kIgnoredAsIdZero{
    "ignored_as_id_zero", "an ignored row is computed, its id clamped into the vocabulary", "nonfinite"};
inline constexpr FaultSpec kIgnoredRowMultiplied{"ignored_row_multiplied",
                                                 "an ignored row is computed, then multiplied by 0", "nonfinite"};

/// How the emulated kernel treats a row.
struct TakenRow {
  bool skipped = false;  ///< the result stays 0
  int64_t id = -1;       ///< -1: no column
  float scale = 1;       ///< factor of the row's results
};

inline TakenRow take_row(const Arithmetic& arithmetic, int64_t id, int64_t ignore_index, int64_t vocab) {
  if (id != ignore_index) return {false, label(arithmetic, id, vocab), 1};
  if (arithmetic.has(kIgnoredRowCounted.name)) return {false, -1, 1};
  if (arithmetic.has(kIgnoredAsIdZero.name)) return {false, 0, 1};
  if (arithmetic.has(kIgnoredRowMultiplied.name)) return {false, 0, 0};
  return {true, -1, 0};
}

}  // namespace checkop::emulation
