// SPDX-License-Identifier: Apache-2.0
// varlen_attention / native: CPU; every sequence is copied and goes through attention, as cpu/attention.hpp has it.
//   inputs: q, k, v, cu_seqlens_q, cu_seqlens_k, sinks     backward: then grad_o, o, lse, grad_lse
//   outputs: o, lse     backward: dq, dk, dv, dsinks
//   q, dq: [tokens_q, q_heads, D]   k, dk: [tokens_k, kv_heads, D] fp32|bf16|fp16
//   o, grad_o: [tokens_q, q_heads, E]   v, dv: [tokens_k, kv_heads, E]
//   cu_seqlens_q, cu_seqlens_k: [seqs + 1] int32; the second may be absent: then the keys have the bounds of the
//   queries. sinks, dsinks: [q_heads], lse, grad_lse: [tokens_q, q_heads] fp32; they may be absent. Rows behind the
//   last sequence become 0, in lse -inf.
//   Limits and expected error: those of attention of one sequence; dsinks is a chain over the sequences.
#include "cpu/sequences.hpp"

namespace {

using native::Refusal;
using native::attention::bounds_of;
using native::attention::check_of_queries;
using native::attention::EntryTensor;
using native::attention::size;
using native::attention::Tokens;

constexpr int kOfSinks = 5, kOfGrad = 6, kOfO = 7, kOfLse = 8, kOfGradLse = 9;

/// Room for one number of every query head, as a tensor.
struct OfHeads {
  explicit OfHeads(std::vector<float>& values) : shape{static_cast<int64_t>(values.size())} {
    tensor = {values.data(), CHECKOP_F32, 1, shape.data(), strides.data()};
  }
  std::array<int64_t, 1> shape, strides{1};
  checkop_tensor tensor;
};

struct Call {
  explicit Call(const checkop_call& c) : q(c.inputs[0], "q"), k(c.inputs[1], "k"), v(c.inputs[2], "v") {
    native::check_computed_dtype(q.tensor.dtype);
    v.require_like(k, v.width, "v");
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
  EntryTensor room(const Tokens& like, int64_t n) const { return room(like, like.width, n); }
  EntryTensor room(const Tokens& like, int64_t width, int64_t n) const {
    return {q.tensor.dtype, like.heads, n, width};
  }

  Tokens q, k, v;
  std::vector<int64_t> of_q, of_k;
};

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 6, 2);
    const Call in(c);
    const checkop_tensor& lse = c.outputs[1];
    const bool has_lse = check_of_queries(lse, "lse", in.q);
    const Tokens to(c.outputs[0], "o");
    to.require_like(in.q, in.v.width, "o");
    in.for_sequences([&](int64_t first, int64_t n, int64_t first_key, int64_t keys) {
      EntryTensor q = in.q.entry(first, n), k = in.k.entry(first_key, keys), v = in.v.entry(first_key, keys);
      EntryTensor o = in.room(in.q, in.v.width, n), of_lse;
      if (has_lse) of_lse = EntryTensor(CHECKOP_F32, in.q.heads, n, 1);
      native::attention::run_entry(c, native::attention::forward,
                                   {q.view(), k.view(), v.view(), {}, c.inputs[kOfSinks]},
                                   {o.view(), of_lse.view_of_rows()});
      to.store(o, first, n);
      if (has_lse) of_lse.put_column(lse, first);
    });
    if (has_lse) native::attention::clear_lse_from(in.of_q.back(), lse);
    to.clear_from(in.of_q.back());
  });
}

checkop_status backward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, kOfGradLse + 1, 4);
    const Call in(c);
    const checkop_tensor &sinks = c.inputs[kOfSinks], &all_o = c.inputs[kOfO], &dsinks = c.outputs[3];
    const bool has_sinks = sinks.data != nullptr;
    check_of_queries(c.inputs[kOfLse], "lse", in.q), check_of_queries(c.inputs[kOfGradLse], "grad_lse", in.q);
    if (all_o.data != nullptr) Tokens(all_o, "o").require_like(in.q, in.v.width, "o");
    std::vector<float> of_sinks(size(in.q.heads)), sums(of_sinks.size());
    const OfHeads of_heads(of_sinks);
    const Tokens grads(c.inputs[kOfGrad], "grad_o"), to_q(c.outputs[0], "dq"), to_k(c.outputs[1], "dk"),
        to_v(c.outputs[2], "dv");
    grads.require_like(in.q, in.v.width, "grad_o"), to_q.require_like(in.q, "dq");
    to_k.require_like(in.k, "dk"), to_v.require_like(in.v, "dv");
    if (has_sinks) {
      native::Extent heads{"q_heads", in.q.heads};
      native::check_list(dsinks, "dsinks", in.q.tensor.dtype, heads);
    }
    in.for_sequences([&](int64_t first, int64_t n, int64_t first_key, int64_t keys) {
      EntryTensor q = in.q.entry(first, n), k = in.k.entry(first_key, keys), v = in.v.entry(first_key, keys);
      // Numbers of the queries; absent if they are in the call.
      const auto rows = [&](const checkop_tensor& all) {
        EntryTensor own;
        if (all.data != nullptr) own = EntryTensor(CHECKOP_F32, in.q.heads, n, 1), own.take_column(all, first);
        return own;
      };
      EntryTensor grad = grads.entry(first, n), lse = rows(c.inputs[kOfLse]), grad_lse = rows(c.inputs[kOfGradLse]), o;
      if (all_o.data != nullptr) o = Tokens(all_o, "o").entry(first, n);
      EntryTensor dq = in.room(in.q, n), dk = in.room(in.k, keys), dv = in.room(in.v, keys);
      native::attention::run_entry(
          c, native::attention::backward,
          {q.view(), k.view(), v.view(), {}, sinks, grad.view(), o.view(), lse.view_of_rows(), grad_lse.view_of_rows()},
          {dq.view(), dk.view(), dv.view(), has_sinks ? of_heads.tensor : checkop_tensor{}});
      for (size_t head = 0; head < sums.size(); ++head) sums[head] += of_sinks[head];
      to_q.store(dq, first, n), to_k.store(dk, first_key, keys), to_v.store(dv, first_key, keys);
    });
    if (has_sinks) native::store(dsinks, 0, in.q.heads, sums.data());
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
