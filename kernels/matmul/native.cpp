// SPDX-License-Identifier: Apache-2.0
// matmul / native: CPU, fp32 products and sums.
//   c[r,n] = sum_k a[r,k] b[k,n]     da[r,k] = sum_n g[r,n] b[k,n]     db[k,n] = sum_r a[r,k] g[r,n]
//   a, da: [..., k_dim]    b, db: [k_dim, n_dim]    c, grad_c: [..., n_dim]    fp32|bf16|fp16, one dtype for all
//   Limits: contiguous.   Expected error: chains of 67 to 68 additions, then a tree over blocks of 512 or 1024 terms.
#include "native_product.hpp"

namespace {

using native::Extent;

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& args) {
    native::check_counts(args, 2, 1);
    const checkop_tensor &a = args.inputs[0], &b = args.inputs[1], &c = args.outputs[0];
    Extent rows{"rows"}, k_dim{"k_dim"}, n_dim{"n_dim"};
    native::check_computed_dtype(a.dtype);
    native::check_matrix(a, "a", a.dtype, rows, k_dim);
    native::check_matrix(b, "b", a.dtype, k_dim, n_dim);
    native::check_matrix(c, "c", a.dtype, rows, n_dim);
    const std::vector<float> a32 = native::load_all(a, rows.value * k_dim.value);
    native::multiply(a32, b, c, rows.value, k_dim.value, n_dim.value);
  });
}

checkop_status backward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& args) {
    native::check_counts(args, 3, 2);
    const checkop_tensor &a = args.inputs[0], &b = args.inputs[1], &grad_c = args.inputs[2];
    const checkop_tensor &da = args.outputs[0], &db = args.outputs[1];
    Extent rows{"rows"}, k_dim{"k_dim"}, n_dim{"n_dim"};
    native::check_computed_dtype(a.dtype);
    native::check_matrix(a, "a", a.dtype, rows, k_dim);
    native::check_matrix(b, "b", a.dtype, k_dim, n_dim);
    native::check_matrix(grad_c, "grad_c", a.dtype, rows, n_dim);
    native::check_matrix(da, "da", a.dtype, rows, k_dim);
    native::check_matrix(db, "db", a.dtype, k_dim, n_dim);
    const std::vector<float> a32 = native::load_all(a, rows.value * k_dim.value);
    const std::vector<float> g32 = native::load_all(grad_c, rows.value * n_dim.value);
    native::multiply_by_transposed(g32, b, {}, da, rows.value, n_dim.value, k_dim.value);
    native::multiply_transposed(a32, g32, db, rows.value, k_dim.value, n_dim.value);
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "matmul", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
    {sizeof(checkop_kernel), "native", "matmul", "backward", CHECKOP_CPU, 0, 0, nullptr, backward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
