// SPDX-License-Identifier: Apache-2.0
// all_reduce: every rank gets the sum of all ranks' messages.
#include <array>

#include "collective.hpp"

namespace checkop {

extern const Emulation kAllReduceSum;  // emulation/collective.cpp

namespace all_reduce {
namespace {

constexpr std::array kForwardIn{TensorSpec{"x", kLeafMessages}};
constexpr std::array kForwardOut{sum_output("y", kMessage)};
constexpr std::array kBackwardIn{TensorSpec{"grad_y", kLeafMessages, Fill::upstream}};
constexpr std::array kBackwardOut{sum_output("dx", kMessage)};
constexpr std::array kForwardRecipes{sums_by_rank("y")};
constexpr std::array kBackwardRecipes{sums_by_rank("dx")};

/// Every rank has y and a gradient of it; a rank that holds several leaves has a gradient for each. x of every leaf
/// adds to y of every rank, so its gradient is the sum of theirs: the same for all leaves.
constexpr std::array kPasses{Pass{"forward", kForwardIn, kForwardOut, gold_of_leaf_sum, nullptr, nullptr,
                                  &kAllReduceSum, nullptr, kForwardRecipes},
                             Pass{"backward", kBackwardIn, kBackwardOut, gold_of_leaf_sum, nullptr, nullptr,
                                  &kAllReduceSum, nullptr, kBackwardRecipes}};

}  // namespace
}  // namespace all_reduce

extern const Operator kAllReduce;
constexpr Operator kAllReduce{"all_reduce",
                              "reduction",
                              "y = sum of x over the leaves of all ranks, on every rank",
                              "",
                              kCollectiveAttrs,
                              all_reduce::kPasses,
                              validate_collective,
                              refine_leaves,
                              /*parallel_dim=*/kLeaves,
                              /*left_out=*/"",
                              kOtherMessages,
                              /*may_be_empty=*/kMessage};

}  // namespace checkop
