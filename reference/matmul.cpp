// SPDX-License-Identifier: Apache-2.0
// matmul: c = a * b, a batch of rows times one matrix. det_gemm.cpp uses the same passes.
#include "matmul.hpp"

#include "identity.hpp"
#include "product.hpp"
#include "tensor_core.hpp"

namespace checkop {

extern const Emulation kMatmulForward, kMatmulBackward;  // emulation/matmul.cpp

namespace matmul {
namespace {

constexpr std::string_view kRowK = "batch seq k_dim", kRowN = "batch seq n_dim", kKN = "k_dim n_dim";
constexpr TensorSpec kA{"a", kRowK}, kB{"b", kKN}, kGradC{"grad_c", kRowN, Fill::upstream};

constexpr std::array kForwardIn{kA, kB};
constexpr std::array kForwardOut{OutputSpec{{"c", kRowN}, Numerics::contraction, "k_dim", /*sampled=*/true}};
constexpr std::array kBackwardIn{kA, kB, kGradC};
constexpr std::array kBackwardOut{
    OutputSpec{{"da", kRowK}, Numerics::contraction, "n_dim", /*sampled=*/true},
    OutputSpec{{"db", kKN}, Numerics::contraction, "batch*seq", /*sampled=*/true},
};

/// Views a tensor [batch, seq, x], or a matrix, as a matrix of rows.
Factor matrix(const Tensor& t, bool transposed = false) {
  return {&t, t.count() / t.shape.back(), t.shape.back(), transposed};
}

constexpr std::array kForwardRecipes{tf32_operands("c"), rounds_partials("c")};
constexpr std::array kBackwardRecipes{tf32_operands("da db"), rounds_partials("da db")};

/// Gold of matmul.
///   in:  a[batch, seq, k_dim], b[k_dim, n_dim]     out: c[batch, seq, n_dim]
///   c = a b
void forward(const GoldArgs& args) { emit_product(args, 0, matrix(args.in(0)), matrix(args.in(1))); }

/// Gold of matmul's gradients.
///   in:  a[batch, seq, k_dim], b[k_dim, n_dim], grad_c[batch, seq, n_dim]
///   out: da[batch, seq, k_dim] = grad_c b^T,  db[k_dim, n_dim] = a^T grad_c
/// Source: differentiated by hand; checked by gradient_test.
void backward(const GoldArgs& args) {
  const Tensor &a = args.in(0), &b = args.in(1), &grad = args.in(2);
  emit_product(args, 0, matrix(grad), matrix(b, true));
  emit_product(args, 1, matrix(a, true), matrix(grad));
}

void check_forward(const IdentityArgs& args) { check_product(args, 0, matrix(args.in(0)), matrix(args.in(1))); }

void check_backward(const IdentityArgs& args) {
  const Tensor &a = args.in(0), &b = args.in(1), &grad = args.in(2);
  check_product(args, 0, matrix(grad), matrix(b, true));
  check_product(args, 1, matrix(a, true), matrix(grad));
}

void model_forward(const ModelArgs& args) { emit_tensor_core_product(args, 0, matrix(args.in(0)), matrix(args.in(1))); }

void model_backward(const ModelArgs& args) {
  const Tensor &a = args.in(0), &b = args.in(1), &grad = args.in(2);
  emit_tensor_core_product(args, 0, matrix(grad), matrix(b, true));
  emit_tensor_core_product(args, 1, matrix(a, true), matrix(grad));
}

/// Operations of `products` products: 2 rows k n each.
template <int products>
Work work(const GoldArgs& args) {
  const Tensor &a = args.in(0), &b = args.in(1);
  return {2.0 * products * static_cast<double>(a.count()) * static_cast<double>(b.shape[1])};
}

}  // namespace
}  // namespace matmul

constexpr std::array<Pass, 2> kMatmulPasses{
    Pass{"forward", matmul::kForwardIn, matmul::kForwardOut, matmul::forward, matmul::check_forward, matmul::work<1>,
         &kMatmulForward, matmul::model_forward, matmul::kForwardRecipes},
    Pass{"backward", matmul::kBackwardIn, matmul::kBackwardOut, matmul::backward, matmul::check_backward,
         matmul::work<2>, &kMatmulBackward, matmul::model_backward, matmul::kBackwardRecipes}};

extern const Operator kMatmul;
constexpr Operator kMatmul{"matmul", "reduction", "c = a b", "batch seq", {}, kMatmulPasses};

}  // namespace checkop
