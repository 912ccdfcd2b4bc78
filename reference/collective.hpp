// SPDX-License-Identifier: Apache-2.0
// Messages between ranks: what all_reduce, reduce_scatter and all_gather have in common. A message has `numel`
// elements. What is added has `leaves` of them, of which each rank holds some: x[leaves, numel].
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "operator/operator.hpp"
#include "recipes.hpp"

namespace checkop {

inline constexpr std::string_view kMessage = "numel", kPartOfMessage = "numel/world_size", kLeaves = "leaves",
                                  kLeafMessages = "leaves numel";

/// How leaves are added; the attribute `order` has its number.
enum class LeafOrder : int8_t {
  any = -1,
  chain = 0,  ///< from the first leaf to the last
  tree = 1,   ///< neighbours in pairs, then their sums, and so on; an odd last one goes on alone
};
LeafOrder leaf_order(std::span<const double> attrs);

inline constexpr std::array kCollectiveAttrs{AttrSpec{
    "order", 0,
    "order in which leaves are added in fp32, whatever the number of ranks: 0 from the first to the last, 1 in a tree "
    "of neighbours, and then every bit is given; -1 any order, whose bits may depend on the number of ranks"}};

/// The sum of `values` in this order, with an addition that rounds to T. `values` become partial sums.
template <class T>
T sum_of_leaves(LeafOrder order, std::vector<T>& values) {
  if (order != LeafOrder::tree) {
    for (size_t i = 1; i < values.size(); ++i) values[0] += values[i];
    return values[0];
  }
  for (size_t n = values.size(); n > 1; n = (n + 1) / 2) {
    for (size_t i = 0; i < n / 2; ++i) values[i] = values[2 * i] + values[2 * i + 1];
    if (n % 2 != 0) values[n / 2] = values[n - 1];
  }
  return values[0];
}

/// Gold of a sum over the leaves.
///   in:  input 0, [leaves, numel]       out: output 0, [numel] = sum over the leaves
/// In an order, the leaves are added in fp32 (in fp64 for fp64) and the sum is rounded once, so that every bit is
/// given: all coefficients are 0, and no other number of the dtype lies within half an ulp. In any order the sum is
/// that of FP64, a reduction whose chain is `leaves` and whose magnitude is the sum of |x|; a single leaf is copied.
void gold_of_leaf_sum(const GoldArgs& args);

/// Gold of a copy: output 0 is input 0.
void gold_of_copy(const GoldArgs& args);

inline constexpr OutputSpec sum_output(std::string_view name, std::string_view dims) {
  return {{name, dims}, Numerics::reduction, kLeaves};
}
inline constexpr OutputSpec copy_output(std::string_view name, std::string_view dims) {
  return {{name, dims}, Numerics::exact, ""};
}

/// Kernels that round to 16 bits after every addition. A sum of n leaves has n - 1 additions in any order, and the last
/// one's rounding is that of the output. Each of the n - 2 others errs by at most the unit roundoff of the dtype times
/// a partial sum, which is at most the sum of |x|.
inline constexpr Recipe sums_by_rank(std::string_view output) {
  return {recipe::kSumsByRank,
          output,
          k16Bit,
          /*exact=*/false,
          "sums of some leaves are rounded before the next one is added",
          "NCCL adds in the dtype of the message, and so at every hop of a ring or tree"};
}

/// Refuses an `order` that is not known.
void validate_collective(const CaseSizes& sizes);

/// Changes x, if it has leaves: every fourth element has leaves of very different sizes, 2^12 to 2^-12; in every second
/// of these the two largest cancel, so that even 16 bits show in which order the others were added. In another fourth
/// the last leaf is minus the others, so that almost nothing remains. Of every sixteenth all leaves are -0.
void refine_leaves(const FillArgs& args);
/// The same for grad_y, unless all of it is 1.
void refine_gradients(const FillArgs& args);

std::optional<Rearranged> longer_on_both_sides(const RearrangeArgs& args);
std::optional<Rearranged> longer_by_a_mebi(const RearrangeArgs& args);
std::optional<Rearranged> behind_17_elements(const RearrangeArgs& args);
std::optional<Rearranged> first_third(const RearrangeArgs& args);
std::optional<Rearranged> second_half(const RearrangeArgs& args);
std::optional<Rearranged> last_element(const RearrangeArgs& args);
std::optional<Rearranged> moved_by_one(const RearrangeArgs& args);
std::optional<Rearranged> in_reverse(const RearrangeArgs& args);

/// What outputs begin with: the message, or the parts that ranks have of it.
inline constexpr std::string_view kMessageDims = "numel numel/world_size";

/// Messages of other lengths, and other places for the elements of the case in them. Libraries choose their algorithm
/// at sizes from some KiB to some MiB.
inline constexpr std::array kOtherMessages{
    Rearrangement{"message", "1031 elements before it and 15361 behind it", kMessageDims, 1, longer_on_both_sides},
    Rearrangement{"message", "1048576 elements behind it", kMessageDims, 1, longer_by_a_mebi},
    Rearrangement{"message", "17 elements before it", kMessageDims, 1, behind_17_elements},
    Rearrangement{"message", "the first third alone", kMessageDims, 3, first_third},
    Rearrangement{"message", "the second half alone", kMessageDims, 2, second_half},
    Rearrangement{"message", "the last element alone", kMessageDims, 2, last_element},
    Rearrangement{"message", "elements moved by one", kMessageDims, 2, moved_by_one},
    Rearrangement{"message", "elements in reverse", kMessageDims, 2, in_reverse},
};

}  // namespace checkop
