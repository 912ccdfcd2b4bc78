// SPDX-License-Identifier: Apache-2.0
// grouped_gemm / native: CPU, fp32 products and sums; one product per expert.
//   c[r] = a[r] b[e]^T, da[r] = grad_c[r] b[e] for offsets[e] <= r < offsets[e + 1], zero from row offsets[experts] on
//   db[e] = grad_c[rows of e]^T a[rows of e], zero for an expert without rows
//   a, da: [rows, k_dim]   b, db: [experts, n_dim, k_dim]   c, grad_c: [rows, n_dim]   one dtype for all,
//   fp32|bf16|fp16     offsets: [experts + 1] int32
//   Limits: contiguous. Offsets that decrease or leave the rows are CHECKOP_FAILED.
//   Expected error: chains of 67 to 68 additions, then a tree over blocks of 512 or 1024 terms.
#include "cpu/product.hpp"
#include "cpu/rows.hpp"

namespace {

using native::Extent;
using native::Refusal;
using native::size;

/// `t` from its element `first` on.
checkop_tensor from(const checkop_tensor& t, int64_t first) {
  checkop_tensor part = t;
  part.data = static_cast<char*>(t.data) + size(first) * (t.dtype == CHECKOP_F32 ? 4 : 2);
  return part;
}

/// The tensors that both passes have, and their extents.
struct Call {
  explicit Call(const checkop_call& c)
      : a(c.inputs[0]), b(c.inputs[1]), offsets(static_cast<const int32_t*>(c.inputs[2].data)) {
    native::check_computed_dtype(a.dtype);
    native::check_matrix(a, "a", a.dtype, rows, k_dim);
    check_b(b, "b");
    Extent bounds{"experts + 1", b.shape[0] + 1};
    native::check_vector(c.inputs[2], "offsets", CHECKOP_I32, bounds);
    native::check_offsets(offsets, experts(), rows.value, 1);
  }

  void check_b(const checkop_tensor& t, const char* name) {
    if (t.rank != 3) throw Refusal(CHECKOP_FAILED, std::string(name) + ": expected rank 3");
    Extent of_all{"experts * n_dim"};
    n_dim.bind(t.shape[1], name);
    native::check_matrix(t, name, a.dtype, of_all, k_dim);
  }

  int64_t experts() const { return b.shape[0]; }
  int64_t first(int64_t e) const { return offsets[e]; }
  int64_t count(int64_t e) const { return offsets[e + 1] - offsets[e]; }
  int64_t of_matrix() const { return n_dim.value * k_dim.value; }

  std::vector<float> part(const checkop_tensor& t, int64_t e, int64_t columns) const {
    std::vector<float> values(size(count(e) * columns));
    native::load(t, first(e) * columns, std::ssize(values), values.data());
    return values;
  }
  /// Sets the rows behind those of all experts to zero.
  void clear_rest(const checkop_tensor& t, int64_t columns) const {
    const int64_t end = first(experts());
    const std::vector<int64_t> none(size(rows.value - end), native::kNoRow);
    native::copy_rows(t, none, columns, from(t, end * columns));
  }

  const checkop_tensor &a, &b;
  const int32_t* offsets;
  Extent rows{"rows"}, k_dim{"k_dim"}, n_dim{"n_dim"};
};

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& args) {
    native::check_counts(args, 3, 1);
    Call in(args);
    const checkop_tensor& c = args.outputs[0];
    native::check_matrix(c, "c", in.a.dtype, in.rows, in.n_dim);
    for (int64_t e = 0; e < in.experts(); ++e) {
      if (in.count(e) == 0) continue;
      native::multiply_by_transposed(in.part(in.a, e, in.k_dim.value), from(in.b, e * in.of_matrix()), {},
                                     from(c, in.first(e) * in.n_dim.value), in.count(e), in.k_dim.value,
                                     in.n_dim.value);
    }
    in.clear_rest(c, in.n_dim.value);
  });
}

checkop_status backward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& args) {
    native::check_counts(args, 4, 2);
    Call in(args);
    const checkop_tensor &grad = args.inputs[3], &da = args.outputs[0], &db = args.outputs[1];
    native::check_matrix(grad, "grad_c", in.a.dtype, in.rows, in.n_dim);
    native::check_matrix(da, "da", in.a.dtype, in.rows, in.k_dim);
    in.check_b(db, "db");
    if (db.shape[0] != in.experts()) throw Refusal(CHECKOP_FAILED, "db: the number of experts differs from that of b");
    for (int64_t e = 0; e < in.experts(); ++e) {
      const std::vector<float> g = in.part(grad, e, in.n_dim.value), x = in.part(in.a, e, in.k_dim.value);
      native::multiply_transposed(g, x, from(db, e * in.of_matrix()), in.count(e), in.n_dim.value, in.k_dim.value);
      if (in.count(e) == 0) continue;
      native::multiply(g, from(in.b, e * in.of_matrix()), from(da, in.first(e) * in.k_dim.value), in.count(e),
                       in.n_dim.value, in.k_dim.value);
    }
    in.clear_rest(da, in.k_dim.value);
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "grouped_gemm", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
    {sizeof(checkop_kernel), "native", "grouped_gemm", "backward", CHECKOP_CPU, 0, 0, nullptr, backward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
