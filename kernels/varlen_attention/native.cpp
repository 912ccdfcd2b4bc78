// SPDX-License-Identifier: Apache-2.0
// varlen_attention / native: CPU; every sequence is copied and goes through attention, as cpu/attention.hpp has it.
//   inputs: q, k, v, cu_seqlens_q, cu_seqlens_k     backward: then grad_o     outputs: o     backward: dq, dk, dv
//   q, o, grad_o, dq: [tokens_q, q_heads, D]   k, v, dk, dv: [tokens_k, kv_heads, D] fp32|bf16|fp16
//   cu_seqlens_q, cu_seqlens_k: [seqs + 1] int32; the second may be absent: then the keys have the bounds of the
//   queries Rows behind the last sequence become 0.   Limits and expected error: those of attention of one sequence.
#include "cpu/sequences.hpp"

namespace {

using native::Refusal;
using native::attention::bounds_of;
using native::attention::EntryTensor;
using native::attention::Tokens;

struct Call {
  explicit Call(const checkop_call& c) : q(c.inputs[0], "q"), k(c.inputs[1], "k"), v(c.inputs[2], "v") {
    native::check_computed_dtype(q.tensor.dtype);
    v.require_like(k, "v");
    if (k.tensor.dtype != q.tensor.dtype || k.width != q.width)
      throw Refusal(CHECKOP_FAILED, "k: dtype or head_dim differ from those of q");
    const bool shared = c.inputs[4].data == nullptr;
    of_q = bounds_of(c.inputs[3], "cu_seqlens_q", shared ? std::min(q.count, k.count) : q.count);
    of_k = shared ? of_q : bounds_of(c.inputs[4], "cu_seqlens_k", k.count);
    if (of_k.size() != of_q.size()) throw Refusal(CHECKOP_FAILED, "cu_seqlens_k: another number of sequences");
  }

  /// Calls body(first query, queries, first key, keys) for every sequence.
  template <class Body>
  void for_sequences(const Body& body) const {
    for (size_t s = 0; s + 1 < of_q.size(); ++s) body(of_q[s], of_q[s + 1] - of_q[s], of_k[s], of_k[s + 1] - of_k[s]);
  }
  EntryTensor room(const Tokens& like, int64_t n) const { return {q.tensor.dtype, like.heads, n, like.width}; }

  Tokens q, k, v;
  std::vector<int64_t> of_q, of_k;
};

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 5, 1);
    const Call in(c);
    const Tokens to(c.outputs[0], "o");
    to.require_like(in.q, "o");
    in.for_sequences([&](int64_t first, int64_t n, int64_t first_key, int64_t keys) {
      EntryTensor q = in.q.entry(first, n), k = in.k.entry(first_key, keys), v = in.v.entry(first_key, keys), no_mask;
      EntryTensor o = in.room(in.q, n), no_lse;
      native::attention::run_entry(c, native::attention::forward, {&q, &k, &v, &no_mask}, {&o, &no_lse});
      to.store(o, first, n);
    });
    to.clear_from(in.of_q.back());
  });
}

checkop_status backward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 6, 3);
    const Call in(c);
    const Tokens grads(c.inputs[5], "grad_o"), to_q(c.outputs[0], "dq"), to_k(c.outputs[1], "dk"),
        to_v(c.outputs[2], "dv");
    grads.require_like(in.q, "grad_o"), to_q.require_like(in.q, "dq");
    to_k.require_like(in.k, "dk"), to_v.require_like(in.k, "dv");
    in.for_sequences([&](int64_t first, int64_t n, int64_t first_key, int64_t keys) {
      EntryTensor q = in.q.entry(first, n), k = in.k.entry(first_key, keys), v = in.v.entry(first_key, keys), no_mask;
      EntryTensor grad = grads.entry(first, n), no_o, no_lse;
      EntryTensor dq = in.room(in.q, n), dk = in.room(in.k, keys), dv = in.room(in.k, keys);
      native::attention::run_entry(c, native::attention::backward, {&q, &k, &v, &no_mask, &grad, &no_o, &no_lse},
                                   {&dq, &dk, &dv});
      to_q.store(dq, first, n), to_k.store(dk, first_key, keys), to_v.store(dv, first_key, keys);
    });
    to_q.clear_from(in.of_q.back()), to_k.clear_from(in.of_k.back()), to_v.clear_from(in.of_k.back());
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "varlen_attention", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
    {sizeof(checkop_kernel), "native", "varlen_attention", "backward", CHECKOP_CPU, 0, 0, nullptr, backward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
