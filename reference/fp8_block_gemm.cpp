// SPDX-License-Identifier: Apache-2.0
// fp8_block_gemm: d = a b^T of e4m3 codes, with a scale for 128 columns of a row of a, and for 128 x 128 codes of b.
#include <array>
#include <vector>

#include "fp8_product.hpp"
#include "operator/operator.hpp"
#include "row_groups.hpp"

namespace checkop {

extern const Emulation kFp8BlockGemmForward;  // emulation/fp8_block_gemm.cpp

namespace fp8_block_gemm {
namespace {

using fp8_product::ScaledCodes;

constexpr std::string_view kRowsOfA = "batch seq k_dim", kRowsOfD = "batch seq n_dim";
constexpr TensorSpec kA{"a", kRowsOfA, Fill::codes, "", DType::e4m3, false, /*constant=*/true};
constexpr TensorSpec kScaleA{"scale_a", "batch seq k_dim/128", Fill::normal, "", DType::f32, false, /*constant=*/true};
constexpr TensorSpec kB{"b", "n_dim k_dim", Fill::codes, "", DType::e4m3, false, /*constant=*/true};
constexpr TensorSpec kScaleB{"scale_b", "n_dim/128 k_dim/128", Fill::normal, "", DType::f32, false, /*constant=*/true};
enum Input : int { kOfA, kOfScaleA, kOfB, kOfScaleB };

constexpr std::array kForwardIn{kA, kScaleA, kB, kScaleB};
constexpr std::array kForwardOut{
    OutputSpec{{"d", kRowsOfD}, Numerics::contraction, "k_dim/128", /*sampled=*/true, "", /*locates_nan=*/true}};

template <class Args>
ScaledCodes a_of(const Args& args) {
  return {args.in(kOfA), args.in(kOfScaleA), 1};
}
template <class Args>
ScaledCodes b_of(const Args& args) {
  return {args.in(kOfB), args.in(kOfScaleB), fp8_product::kBlock};
}

/// Gold of fp8_block_gemm.
///   in:  a[batch, seq, k_dim], b[n_dim, k_dim] e4m3
///        scale_a[batch, seq, k_dim/128], scale_b[n_dim/128, k_dim/128] fp32
///   out: d[batch, seq, n_dim] = sum_k (a scale_a[k/128]) (b scale_b[n/128, k/128])
void forward(const GoldArgs& args) {
  const int64_t total = args.in(kOfA).count() / args.in(kOfB).shape.back();
  fp8_product::emit_product(args, 0, 0, rows_within(args.rows(0), 0, total), a_of(args), b_of(args),
                            args.in(kOfB).shape.front());
}

void model_forward(const ModelArgs& args) {
  const int64_t total = args.in(kOfA).count() / args.in(kOfB).shape.back();
  fp8_product::model_product(args, 0, 0, total, a_of(args), b_of(args), args.in(kOfB).shape.front());
}

void identities(const IdentityArgs& args) {
  const Tensor &a = args.in(kOfA), &b = args.in(kOfB);
  fp8_product::check_product(args, 0, 0, a.count() / a.shape.back(), a_of(args), b_of(args), b.shape.front());
}

Work work(const GoldArgs& args) {
  return {2.0 * static_cast<double>(args.in(kOfA).count()) * static_cast<double>(args.in(kOfB).shape.front())};
}

constexpr std::array kPasses{
    Pass{"forward", kForwardIn, kForwardOut, forward, identities, work, &kFp8BlockGemmForward, model_forward}};

void refine(const FillArgs& args) {
  fp8_product::draw(args, "a", "scale_a", 1, /*of_rows=*/true);
  fp8_product::draw(args, "b", "scale_b", args.dim("k_dim"), /*of_rows=*/false);
}

}  // namespace
}  // namespace fp8_block_gemm

extern const Operator kFp8BlockGemm;
constexpr Operator kFp8BlockGemm{"fp8_block_gemm",
                                 "reduction",
                                 "d = (a scale_a) (b scale_b)^T, a scale for 128 columns of a, and 128 x 128 of b",
                                 "batch seq",
                                 fp8_product::kAttrs,
                                 fp8_block_gemm::kPasses,
                                 fp8_product::validate,
                                 fp8_block_gemm::refine};

}  // namespace checkop
