// SPDX-License-Identifier: Apache-2.0
// grouped_fp8_block_gemm: successive groups of rows of e4m3 codes, each times the codes of its expert, with the scales
// of fp8_block_gemm.
#include <array>

#include "fp8_product.hpp"
#include "grouped_fp8_product.hpp"
#include "row_groups.hpp"

namespace checkop {

extern const Emulation kGroupedFp8BlockGemmForward;  // emulation/grouped_fp8_block_gemm.cpp

namespace grouped_fp8_block_gemm {
namespace {

constexpr TensorSpec kA{"a", "rows k_dim", Fill::codes, "", DType::e4m3, false, /*constant=*/true};
constexpr TensorSpec kScaleA{"scale_a", "rows k_dim/128", Fill::normal, "", DType::f32, false, /*constant=*/true};
constexpr TensorSpec kB{"b", "experts n_dim k_dim", Fill::codes, "", DType::e4m3, false, /*constant=*/true};
constexpr TensorSpec kScaleB{"scale_b",        "experts n_dim/128 k_dim/128", Fill::normal, "", DType::f32, false,
                             /*constant=*/true};
constexpr TensorSpec kOffsets{"offsets", "experts+1", Fill::positions, "", DType::i32};

constexpr std::array kForwardIn{kA, kScaleA, kB, kScaleB, kOffsets};
constexpr std::array kForwardOut{
    OutputSpec{{"d", "rows n_dim"}, Numerics::contraction, "k_dim/128", /*sampled=*/true, "", /*locates_nan=*/true}};

constexpr std::array kPasses{Pass{"forward", kForwardIn, kForwardOut, grouped_fp8_product::forward,
                                  grouped_fp8_product::identities, grouped_fp8_product::work,
                                  &kGroupedFp8BlockGemmForward, grouped_fp8_product::model_forward}};

void refine(const FillArgs& args) {
  fp8_product::draw(args, "a", "scale_a", 1, /*of_rows=*/true);
  fp8_product::draw(args, "b", "scale_b", args.dim("k_dim"), /*of_rows=*/false);
  draw_row_groups(args, {"a", "scale_a"});
  grouped_fp8_product::plant_unused_experts(args, "offsets");
}

}  // namespace
}  // namespace grouped_fp8_block_gemm

extern const Operator kGroupedFp8BlockGemm;
constexpr Operator kGroupedFp8BlockGemm{
    "grouped_fp8_block_gemm",
    "reduction",
    "d = (a scale_a) (b[expert] scale_b[expert])^T, expert: the one whose offsets hold the row; rows behind them: 0",
    "",
    fp8_product::kAttrs,
    grouped_fp8_block_gemm::kPasses,
    fp8_product::validate,
    grouped_fp8_block_gemm::refine,
    /*parallel_dim=*/"",
    /*left_out=*/"rows of no expert"};

}  // namespace checkop
