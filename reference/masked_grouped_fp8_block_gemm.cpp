// SPDX-License-Identifier: Apache-2.0
// masked_grouped_fp8_block_gemm: the product of grouped_fp8_block_gemm in the layout of masked_grouped_gemm.
#include <array>

#include "fp8_product.hpp"
#include "grouped_fp8_product.hpp"
#include "row_groups.hpp"

namespace checkop {

extern const Emulation kMaskedFp8BlockGemmForward;  // emulation/masked_grouped_fp8_block_gemm.cpp

namespace masked_grouped_fp8_block_gemm {
namespace {

constexpr TensorSpec kA{"a", "experts capacity k_dim", Fill::codes, "", DType::e4m3, false, /*constant=*/true};
constexpr TensorSpec kScaleA{"scale_a",        "experts capacity k_dim/128", Fill::normal, "", DType::f32, false,
                             /*constant=*/true};
constexpr TensorSpec kB{"b", "experts n_dim k_dim", Fill::codes, "", DType::e4m3, false, /*constant=*/true};
constexpr TensorSpec kScaleB{"scale_b",        "experts n_dim/128 k_dim/128", Fill::normal, "", DType::f32, false,
                             /*constant=*/true};
constexpr TensorSpec kCounts{"counts", "experts", Fill::positions, "", DType::i32};

constexpr std::array kForwardIn{kA, kScaleA, kB, kScaleB, kCounts};
constexpr std::array kForwardOut{OutputSpec{
    {"d", "experts capacity n_dim"}, Numerics::contraction, "k_dim/128", /*sampled=*/true, "", /*locates_nan=*/true}};

constexpr std::array kPasses{Pass{"forward", kForwardIn, kForwardOut, grouped_fp8_product::forward,
                                  grouped_fp8_product::identities, grouped_fp8_product::work,
                                  &kMaskedFp8BlockGemmForward, grouped_fp8_product::model_forward}};

void refine(const FillArgs& args) {
  fp8_product::draw(args, "a", "scale_a", 1, /*of_rows=*/true);
  fp8_product::draw(args, "b", "scale_b", args.dim("k_dim"), /*of_rows=*/false);
  draw_row_counts(args, {"a", "scale_a"});
  grouped_fp8_product::plant_unused_experts(args, "counts");
}

}  // namespace
}  // namespace masked_grouped_fp8_block_gemm

extern const Operator kMaskedFp8BlockGemm;
constexpr Operator kMaskedFp8BlockGemm{
    "masked_grouped_fp8_block_gemm",
    "reduction",
    "d = (a scale_a) (b[expert] scale_b[expert])^T of the first counts[expert] rows that the expert has room for; the "
    "others: 0",
    "experts",
    fp8_product::kAttrs,
    masked_grouped_fp8_block_gemm::kPasses,
    fp8_product::validate,
    masked_grouped_fp8_block_gemm::refine,
    /*parallel_dim=*/"",
    /*left_out=*/"rows of no expert",
    kRooms};

}  // namespace checkop
