// SPDX-License-Identifier: Apache-2.0
// reduce_scatter: every rank gets its part of the sum of all ranks' messages.
#include <array>

#include "collective.hpp"

namespace checkop {

extern const Emulation kScatteredSum, kGatheredParts;  // emulation/collective.cpp

namespace reduce_scatter {
namespace {

constexpr std::array kForwardIn{TensorSpec{"x", kLeafMessages}};
constexpr std::array kForwardOut{sum_output("y", kPartOfMessage)};
constexpr std::array kBackwardIn{TensorSpec{"grad_y", kPartOfMessage, Fill::upstream}};
constexpr std::array kBackwardOut{copy_output("dx", kMessage)};
constexpr std::array kRecipes{sums_by_rank("y")};

/// x of every leaf adds to all parts of y, so its gradient is their gradients together: the same for all leaves.
constexpr std::array kPasses{
    Pass{"forward", kForwardIn, kForwardOut, gold_of_leaf_sum, nullptr, nullptr, &kScatteredSum, nullptr, kRecipes},
    Pass{"backward", kBackwardIn, kBackwardOut, gold_of_copy, nullptr, nullptr, &kGatheredParts}};

}  // namespace
}  // namespace reduce_scatter

extern const Operator kReduceScatter;
constexpr Operator kReduceScatter{"reduce_scatter",
                                  "reduction",
                                  "y = sum of x over the leaves of all ranks, on every rank its part",
                                  "",
                                  kCollectiveAttrs,
                                  reduce_scatter::kPasses,
                                  validate_collective,
                                  refine_leaves,
                                  /*parallel_dim=*/kLeaves,
                                  /*left_out=*/"",
                                  kOtherMessages,
                                  /*may_be_empty=*/kMessage};

}  // namespace checkop
