// SPDX-License-Identifier: Apache-2.0
// all_gather: every rank gets the parts of all ranks, one behind the other.
#include <array>

#include "collective.hpp"

namespace checkop {

extern const Emulation kScatteredSum, kGatheredParts;  // emulation/collective.cpp

namespace all_gather {
namespace {

constexpr std::array kForwardIn{TensorSpec{"x", kPartOfMessage}};
constexpr std::array kForwardOut{copy_output("y", kMessage)};
constexpr std::array kBackwardIn{TensorSpec{"grad_y", kLeafMessages, Fill::upstream}};
constexpr std::array kBackwardOut{sum_output("dx", kPartOfMessage)};
constexpr std::array kRecipes{sums_by_rank("dx")};

/// Every rank has y and a gradient of it; a rank that holds several leaves has a gradient for each.
constexpr std::array kPasses{
    Pass{"forward", kForwardIn, kForwardOut, gold_of_copy, nullptr, nullptr, &kGatheredParts},
    Pass{"backward", kBackwardIn, kBackwardOut, gold_of_leaf_sum, nullptr, nullptr, &kScatteredSum, nullptr, kRecipes}};

}  // namespace
}  // namespace all_gather

extern const Operator kAllGather;
constexpr Operator kAllGather{"all_gather",
                              "elementwise",
                              "y = the parts of x of all ranks, one behind the other, on every rank",
                              "",
                              kCollectiveAttrs,
                              all_gather::kPasses,
                              validate_collective,
                              refine_gradients,
                              /*parallel_dim=*/kLeaves,
                              /*left_out=*/"",
                              kOtherMessages,
                              /*may_be_empty=*/kMessage};

}  // namespace checkop
