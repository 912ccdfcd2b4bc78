// SPDX-License-Identifier: Apache-2.0
// matmul: c = a * b, the product of a batch of rows with one matrix; det_gemm.cpp shares its passes.
#include "matmul.hpp"

#include "product.hpp"

namespace checkop {
namespace {

constexpr std::string_view kRowK = "batch seq k_dim", kRowN = "batch seq n_dim", kKN = "k_dim n_dim";
constexpr TensorSpec kA{"a", kRowK}, kB{"b", kKN}, kGradC{"grad_c", kRowN, Fill::upstream};

constexpr std::array kForwardIn{kA, kB};
constexpr std::array kForwardOut{OutputSpec{{"c", kRowN}, Numerics::contraction, "k_dim"}};
constexpr std::array kBackwardIn{kA, kB, kGradC};
constexpr std::array kBackwardOut{
    OutputSpec{{"da", kRowK}, Numerics::contraction, "n_dim"},
    OutputSpec{{"db", kKN}, Numerics::contraction, "batch*seq"},
};

/// a, c and their gradients as matrices of rows.
int64_t rows_of(const Tensor& per_row) { return per_row.count() / per_row.shape.back(); }

/// Gold of matmul.
///   in:  a[batch, seq, k_dim], b[k_dim, n_dim]     out: c[batch, seq, n_dim]
///   c = a b
void forward(const GoldArgs& args) {
  const Tensor &a = args.in(0), &b = args.in(1);
  emit_product(args, 0, {&a, rows_of(a), a.shape.back()}, {&b, b.shape[0], b.shape[1]});
}

/// Gold of matmul's gradients.
///   in:  a[batch, seq, k_dim], b[k_dim, n_dim], grad_c[batch, seq, n_dim]
///   out: da[batch, seq, k_dim] = grad_c b^T,  db[k_dim, n_dim] = a^T grad_c
/// Source: differentiated by hand; checked by gradient_test.
void backward(const GoldArgs& args) {
  const Tensor &a = args.in(0), &b = args.in(1), &grad = args.in(2);
  const int64_t rows = rows_of(a);
  emit_product(args, 0, {&grad, rows, grad.shape.back()}, {&b, b.shape[0], b.shape[1], true});
  emit_product(args, 1, {&a, rows, a.shape.back(), true}, {&grad, rows, grad.shape.back()});
}

}  // namespace

constexpr std::array<Pass, 2> kMatmulPasses{Pass{"forward", kForwardIn, kForwardOut, forward},
                                            Pass{"backward", kBackwardIn, kBackwardOut, backward}};

extern const Operator kMatmul;
constexpr Operator kMatmul{"matmul", "reduction", "c = a b", "batch seq", {}, kMatmulPasses};

}  // namespace checkop
