// SPDX-License-Identifier: Apache-2.0
// What samplers do to a row of logits before they draw a token: only some of the largest stay.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "logit_transform.hpp"
#include "operator/operator.hpp"

namespace checkop {

inline constexpr AttrSpec kTopK{"top_k", 0,
                                "k: of a row the k largest logits stay, of equal ones the first; 0: all of them"};
inline constexpr AttrSpec kTopP{
    "top_p", 1,
    "p: of those that top_k leaves, the fewest largest stay whose probabilities among them add up to p; 1: all"};
inline constexpr AttrSpec kKeepTarget{
    "keep_target", 0, "1: the logit of the id stays in any case; 0: where it does not stay, logp is -inf, gradients 0"};

/// Which logits of a row stay.
struct Kept {
  std::vector<int64_t> order;      ///< columns, the largest logit first: those that stay, then at least the next one
  int64_t count = 0;               ///< how many stay
  std::optional<int64_t> unclear;  ///< the column at an end of the set, if rounding decides whether it stays
  bool is_unclear_of_top_p = false;

  std::vector<char> columns(size_t vocab) const;  ///< by column, whether it stays
};

/// Columns are ranked by their logit, and columns with equal logits by their index. The transform keeps that order.
/// Then top_k and top_p: see their attributes.
class Truncation {
 public:
  Truncation() = default;
  Truncation(double top_k, double top_p, bool keep_target)
      : top_k_(static_cast<int64_t>(top_k)), top_p_(top_p), keep_target_(keep_target) {}

  bool is_active() const { return top_k_ > 0 || top_p_ < 1; }
  bool keeps_target() const { return keep_target_; }
  /// The set of logits x, which `logits` has transformed. An end of the set is clear if its two sides differ by more
  /// than `margin` times what they err by in fp32.
  Kept keep(const std::vector<double>& x, std::span<const TransformedLogit> logits, double unit, double margin) const;
  /// keep(), and the column `target` if it stays in any case. Throws InputError if an end of the set is not clear.
  std::vector<char> columns(const std::vector<double>& x, std::span<const TransformedLogit> logits, double unit,
                            int64_t row, int64_t target) const;

 private:
  int64_t top_k_ = 0;
  double top_p_ = 1;
  bool keep_target_ = false;
};

/// Throws InputError for attributes without a meaning, given by index.
void validate_truncation(const CaseSizes& sizes, size_t top_k, size_t top_p, size_t keep_target);

/// Makes every set clear. In mode `random` it plants ties at its end, and ids that are the last one in it, the first
/// one out of it, or anywhere in it.
void plant_truncation(const FillArgs& args, const LogitTransform& transform, const Truncation& truncation);

}  // namespace checkop
