// SPDX-License-Identifier: Apache-2.0
// The passes of the candidates native of grouped_gemm and masked_grouped_gemm: one product per expert, of the rows that
// it has. Both have the inputs a, b, where the rows of each expert lie, and grad_c.
#pragma once

#include <optional>

#include "cpu/expert_rows.hpp"
#include "cpu/product.hpp"

namespace native {

/// `t` from its element `first` on.
inline checkop_tensor from(const checkop_tensor& t, int64_t first) {
  checkop_tensor part = t;
  part.data = static_cast<char*>(t.data) + size(first) * (t.dtype == CHECKOP_F32 ? 4 : 2);
  return part;
}

/// The tensors that both passes have, their extents, and the rows of each expert.
struct GroupedCall {
  GroupedCall(const checkop_call& c, RowLayout layout) : a(c.inputs[0]), b(c.inputs[1]) {
    check_computed_dtype(a.dtype);
    check_matrix(a, "a", a.dtype, rows, k_dim);
    check_b(b, "b");
    of_experts.emplace(a, c.inputs[2], layout, b.shape[0], rows.value);
  }

  void check_b(const checkop_tensor& t, const char* name) {
    if (t.rank != 3) throw Refusal(CHECKOP_FAILED, std::string(name) + ": expected rank 3");
    Extent of_all{"experts * n_dim"};
    n_dim.bind(t.shape[1], name);
    check_matrix(t, name, a.dtype, of_all, k_dim);
  }

  int64_t experts() const { return of_experts->experts(); }
  int64_t first(int64_t e) const { return of_experts->first(e); }
  int64_t count(int64_t e) const { return of_experts->count(e); }
  int64_t of_matrix() const { return n_dim.value * k_dim.value; }

  std::vector<float> part(const checkop_tensor& t, int64_t e, int64_t columns) const {
    std::vector<float> values(size(count(e) * columns));
    load(t, first(e) * columns, std::ssize(values), values.data());
    return values;
  }
  /// Sets the rows of no expert, which lie behind those of each, to zero.
  void clear_rest(const checkop_tensor& t, int64_t columns) const {
    int64_t end = 0;
    const auto clear = [&](int64_t next) {
      copy_rows(t, std::vector<int64_t>(size(next - end), kNoRow), columns, from(t, end * columns));
    };
    for (int64_t e = 0; e < experts(); ++e) {
      clear(first(e));
      end = first(e) + count(e);
    }
    clear(rows.value);
  }

  const checkop_tensor &a, &b;
  Extent rows{"rows"}, k_dim{"k_dim"}, n_dim{"n_dim"};
  std::optional<ExpertRows> of_experts;
};

template <RowLayout layout>
checkop_status grouped_forward(const checkop_call* call) {
  return run(call, [](const checkop_call& args) {
    check_counts(args, 3, 1);
    GroupedCall in(args, layout);
    const checkop_tensor& c = args.outputs[0];
    check_matrix(c, "c", in.a.dtype, in.rows, in.n_dim);
    for (int64_t e = 0; e < in.experts(); ++e) {
      if (in.count(e) == 0) continue;
      multiply_by_transposed(in.part(in.a, e, in.k_dim.value), from(in.b, e * in.of_matrix()), {},
                             from(c, in.first(e) * in.n_dim.value), in.count(e), in.k_dim.value, in.n_dim.value);
    }
    in.clear_rest(c, in.n_dim.value);
  });
}

template <RowLayout layout>
checkop_status grouped_backward(const checkop_call* call) {
  return run(call, [](const checkop_call& args) {
    check_counts(args, 4, 2);
    GroupedCall in(args, layout);
    const checkop_tensor &grad = args.inputs[3], &da = args.outputs[0], &db = args.outputs[1];
    check_matrix(grad, "grad_c", in.a.dtype, in.rows, in.n_dim);
    check_matrix(da, "da", in.a.dtype, in.rows, in.k_dim);
    in.check_b(db, "db");
    if (db.shape[0] != in.experts()) throw Refusal(CHECKOP_FAILED, "db: the number of experts differs from that of b");
    for (int64_t e = 0; e < in.experts(); ++e) {
      const std::vector<float> g = in.part(grad, e, in.n_dim.value), x = in.part(in.a, e, in.k_dim.value);
      multiply_transposed(g, x, from(db, e * in.of_matrix()), in.count(e), in.n_dim.value, in.k_dim.value);
      if (in.count(e) == 0) continue;
      multiply(g, from(in.b, e * in.of_matrix()), from(da, in.first(e) * in.k_dim.value), in.count(e), in.n_dim.value,
               in.k_dim.value);
    }
    in.clear_rest(da, in.k_dim.value);
  });
}

}  // namespace native
