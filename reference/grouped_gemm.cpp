// SPDX-License-Identifier: Apache-2.0
// grouped_gemm: successive groups of rows, each times the matrix of its expert.
#include <array>

#include "grouped_product.hpp"
#include "row_groups.hpp"

namespace checkop {

extern const Emulation kGroupedGemmForward, kGroupedGemmBackward;  // emulation/grouped_gemm.cpp

namespace grouped_gemm {
namespace {

constexpr std::string_view kRowsK = "rows k_dim", kRowsN = "rows n_dim", kExpertsNK = "experts n_dim k_dim";
constexpr TensorSpec kA{"a", kRowsK}, kB{"b", kExpertsNK}, kGradC{"grad_c", kRowsN, Fill::upstream};
constexpr TensorSpec kOffsets{"offsets", "experts+1", Fill::positions, "", DType::i32};

constexpr std::array kForwardIn{kA, kB, kOffsets};
constexpr std::array kForwardOut{OutputSpec{{"c", kRowsN}, Numerics::contraction, "k_dim", /*sampled=*/true}};
constexpr std::array kBackwardIn{kA, kB, kOffsets, kGradC};
constexpr std::array kBackwardOut{
    OutputSpec{{"da", kRowsK}, Numerics::contraction, "n_dim", /*sampled=*/true},
    OutputSpec{{"db", kExpertsNK}, Numerics::contraction, "rows", /*sampled=*/true},
};

// Expert e has the rows offsets_e <= r < offsets_(e+1); from row offsets_experts on they belong to none.
constexpr std::array kPasses{
    Pass{"forward", kForwardIn, kForwardOut, grouped_product::forward, grouped_product::check_forward,
         grouped_product::forward_work, &kGroupedGemmForward, grouped_product::model_forward,
         grouped_product::kForwardRecipes},
    Pass{"backward", kBackwardIn, kBackwardOut, grouped_product::backward, grouped_product::check_backward,
         grouped_product::backward_work, &kGroupedGemmBackward, grouped_product::model_backward,
         grouped_product::kBackwardRecipes}};

void refine(const FillArgs& args) { draw_row_groups(args, {"a", "grad_c"}); }

}  // namespace
}  // namespace grouped_gemm

extern const Operator kGroupedGemm;
constexpr Operator kGroupedGemm{"grouped_gemm",
                                "reduction",
                                "c = a b[expert]^T, expert: the one whose offsets hold the row; rows behind them: 0",
                                "",
                                {},
                                grouped_gemm::kPasses,
                                nullptr,
                                grouped_gemm::refine,
                                /*parallel_dim=*/"",
                                /*left_out=*/"rows of no expert"};

}  // namespace checkop
