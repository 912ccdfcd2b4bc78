// SPDX-License-Identifier: Apache-2.0
// masked_grouped_gemm: the product of grouped_gemm where every expert has room for the same number of rows, of which it
// has some: the layout of decoding, where the host knows the room but not the counts. It is an operator of its own,
// because its tensors have another rank and its experts are independent rows of a batch.
#include <array>

#include "grouped_product.hpp"
#include "row_groups.hpp"

namespace checkop {

extern const Emulation kMaskedGroupedGemmForward, kMaskedGroupedGemmBackward;  // emulation/masked_grouped_gemm.cpp

namespace masked_grouped_gemm {
namespace {

constexpr std::string_view kRowsK = "experts capacity k_dim", kRowsN = "experts capacity n_dim",
                           kExpertsNK = "experts n_dim k_dim";
constexpr TensorSpec kA{"a", kRowsK}, kB{"b", kExpertsNK}, kGradC{"grad_c", kRowsN, Fill::upstream};
constexpr TensorSpec kCounts{"counts", "experts", Fill::positions, "", DType::i32};

constexpr std::array kForwardIn{kA, kB, kCounts};
constexpr std::array kForwardOut{OutputSpec{{"c", kRowsN}, Numerics::contraction, "k_dim", /*sampled=*/true}};
constexpr std::array kBackwardIn{kA, kB, kCounts, kGradC};
constexpr std::array kBackwardOut{
    OutputSpec{{"da", kRowsK}, Numerics::contraction, "n_dim", /*sampled=*/true},
    OutputSpec{{"db", kExpertsNK}, Numerics::contraction, "capacity", /*sampled=*/true},
};

// Expert e has the rows [e, i] with i < counts_e; the others are of no expert.
constexpr std::array kPasses{
    Pass{"forward", kForwardIn, kForwardOut, grouped_product::forward, grouped_product::check_forward,
         grouped_product::forward_work, &kMaskedGroupedGemmForward, grouped_product::model_forward,
         grouped_product::kForwardRecipes},
    Pass{"backward", kBackwardIn, kBackwardOut, grouped_product::backward, grouped_product::check_backward,
         grouped_product::backward_work, &kMaskedGroupedGemmBackward, grouped_product::model_backward,
         grouped_product::kBackwardRecipes}};

void refine(const FillArgs& args) { draw_row_counts(args, {"a", "grad_c"}); }

}  // namespace
}  // namespace masked_grouped_gemm

extern const Operator kMaskedGroupedGemm;
constexpr Operator kMaskedGroupedGemm{
    "masked_grouped_gemm",
    "reduction",
    "c = a b[expert]^T of the first counts[expert] rows that the expert has room for; the others: 0",
    "experts",
    {},
    masked_grouped_gemm::kPasses,
    nullptr,
    masked_grouped_gemm::refine,
    /*parallel_dim=*/"",
    /*left_out=*/"rows of no expert",
    kRooms};

}  // namespace checkop
