// SPDX-License-Identifier: Apache-2.0
// The passes of the "native" CPU candidates of attention (keys in one tensor) and kv_cache_attention (keys in two):
// fp32, one head of one batch entry at a time. Keys that the mask drops are removed first.
//   s[i,j] = cap(scale q[i] k[j])    p[i,j] = exp(s[i,j] - lse[i])    cap(x) = softcap tanh(x / softcap)
//   o[i] = sum_j p[i,j] v[j]
//   dp = do v^T    D = rowsum(p * dp)    ds = p * (dp - D + dlse) * cap'
//   dq = scale ds k    dk = scale ds^T q    dv = p^T do    dsinks[h] = sum_i exp(sinks[h] - lse[i]) (dlse[i] - D[i])
//   q, dq: [batch, q_heads, q_seq, D]  k, dk: [batch, kv_heads, length of the part, D] fp32|bf16|fp16
//   o, do: [batch, q_heads, q_seq, E]  v, dv: [batch, kv_heads, length of the part, E]
//   key_padding_mask: [batch, kv_seq] uint8, kv_seq the sum of the parts' lengths; nonzero keeps a key; may be absent
//   sinks: [q_heads], in the dtype of q; may be absent. dsinks is in the dtype of q, or in fp32.
//   Attributes causal and scale; window_left, window_right and softcap where the operator has them: query i sees the
//   keys from window_left before its own, i + (kv_seq - q_seq), to window_right after it, or to its own if causal.
//   lse, with one part: lse[i] = log(sum_j exp(s[i,j]) + exp(sinks[h])), [batch, q_heads, q_seq] fp32, an optional
//   output of the forward pass; -inf for a row without keys and a sink. Its gradient dlse may be absent.
//   o and lse of a forward pass, optional inputs of the backward pass, are used instead of computing them again:
//   p = exp(s - lse), D = rowsum(do * o).
//   Limits: contiguous, q_heads a multiple of kv_heads.
//   Expected error: chains of 67 to 68 additions, then a tree over blocks of 512 or 1024 terms; one more chain over the
//   heads of a group, and for dsinks over the batch.
#pragma once

#include "cpu/logit_transform.hpp"
#include "cpu/native.hpp"

namespace native::attention {

inline size_t size(int64_t n) { return static_cast<size_t>(n); }

/// Keys and values that continue the sequence where the previous part ends.
struct KvPart {
  const checkop_tensor *k, *v;
  int64_t first, seq;  // position among all keys: [first, first + seq)
};

struct AttentionParams {
  const checkop_tensor& q;
  std::vector<KvPart> parts;
  const uint8_t* keep;                                              // nullptr when absent
  int64_t batch, q_heads, kv_heads, q_seq, kv_seq, width, v_width;  // widths: head_dim and v_dim
  bool causal;
  float scale;
  const checkop_tensor* saved_o = nullptr;  // of a forward pass; nullptr when absent
  const float* saved_lse = nullptr;         // likewise
  const float* grad_lse = nullptr;          // the gradient of lse; nullptr when absent
  std::vector<float> sinks = {};            // of every query head; empty when absent
  int64_t left = -1, right = -1;            // keys before and after its own that a query sees; below 0: all
  LogitTransform cap = {};

  int64_t group() const { return q_heads / kv_heads; }
  /// The sink of a query head; heads are counted over the batch.
  float sink(int64_t head) const {
    return sinks.empty() ? -std::numeric_limits<float>::infinity() : sinks[size(head % q_heads)];
  }
  int64_t work() const { return batch * q_heads * q_seq * kv_seq * std::max(width, v_width); }
};

inline void check_heads(const checkop_tensor& t, const char* name, int32_t dtype, int64_t batch, int64_t heads,
                        int64_t seq, int64_t width, const char* of_width = "head_dim") {
  Extent rows{"rows", batch * heads * seq}, columns{of_width, width};
  if (t.rank != 4) throw Refusal(CHECKOP_FAILED, std::string(name) + ": expected rank 4");
  if (t.shape[0] != batch || t.shape[1] != heads || t.shape[2] != seq)
    throw Refusal(CHECKOP_FAILED, std::string(name) + ": batch, heads or sequence differ from those of q and k");
  check_matrix(t, name, dtype, rows, columns);
}

/// The numbers of a tensor [batch, q_heads, q_seq] fp32; nullptr when absent.
inline float* check_rows(const checkop_tensor& t, const char* name, const AttentionParams& p) {
  if (t.data == nullptr) return nullptr;
  Extent rows{"batch * q_heads * q_seq", p.batch * p.q_heads * p.q_seq};
  check_list(t, name, CHECKOP_F32, rows);
  return static_cast<float*>(t.data);
}

/// Indices of the inputs behind the mask; kv_cache_attention, with two parts, has only grad_o.
struct InputsBehindMask {
  explicit InputsBehindMask(int parts)
      : sinks(parts == 1 ? 4 : -1),
        grad_o(parts == 1 ? 5 : 2 + 2 * parts),
        o(parts == 1 ? 6 : -1),
        lse(parts == 1 ? 7 : -1),
        grad_lse(parts == 1 ? 8 : -1) {}
  int sinks, grad_o, o, lse, grad_lse;  // -1: none
};

/// Inputs are q, k and v of each part, then the mask, and with one part the sinks.
inline AttentionParams params_of(const checkop_call& c, int parts) {
  const checkop_tensor &q = c.inputs[0], &mask = c.inputs[1 + 2 * parts];
  if (c.n_attrs != 2 && c.n_attrs != 5)
    throw Refusal(CHECKOP_FAILED,
                  "expected 2 attributes, causal and scale, or window_left, window_right and softcap too");
  if (q.rank != 4 || c.inputs[1].rank != 4) throw Refusal(CHECKOP_FAILED, "q or keys: expected rank 4");
  check_computed_dtype(q.dtype);
  const double scale = c.attrs[1].value;
  AttentionParams p{q,
                    {},
                    static_cast<const uint8_t*>(mask.data),
                    q.shape[0],
                    q.shape[1],
                    c.inputs[1].shape[1],
                    q.shape[2],
                    0,
                    q.shape[3],
                    c.inputs[2].rank == 4 ? c.inputs[2].shape[3] : 0,
                    c.attrs[0].value != 0,
                    scale < 0 ? 1.0f / std::sqrt(static_cast<float>(q.shape[3])) : static_cast<float>(scale)};
  if (c.n_attrs == 5) {
    p.left = static_cast<int64_t>(exact_attribute(c, "window_left"));
    p.right = static_cast<int64_t>(exact_attribute(c, "window_right"));
    p.cap.softcap = attribute(c, "softcap");
  }
  if (p.causal) p.right = 0;
  if (p.kv_heads == 0 || p.q_heads % p.kv_heads != 0)
    throw Refusal(CHECKOP_FAILED, std::to_string(p.q_heads) + " query heads: not a multiple of " +
                                      std::to_string(p.kv_heads) + " key heads");
  check_heads(q, "q", q.dtype, p.batch, p.q_heads, p.q_seq, p.width);
  for (int part = 0; part < parts; ++part) {
    const checkop_tensor &k = c.inputs[1 + 2 * part], &v = c.inputs[2 + 2 * part];
    if (k.rank != 4) throw Refusal(CHECKOP_FAILED, "keys: expected rank 4");
    check_heads(k, "keys", q.dtype, p.batch, p.kv_heads, k.shape[2], p.width);
    check_heads(v, "values", q.dtype, p.batch, p.kv_heads, k.shape[2], p.v_width, "v_dim");
    p.parts.push_back({&k, &v, p.kv_seq, k.shape[2]});
    p.kv_seq += k.shape[2];
  }
  if (parts > 1 && p.parts.back().seq != p.q_seq)
    throw Refusal(CHECKOP_FAILED, std::to_string(p.parts.back().seq) + " new keys for " + std::to_string(p.q_seq) +
                                      " queries: the causal mask needs one new key per query");
  Extent mask_length{"batch * kv_seq", p.batch * p.kv_seq};
  if (p.keep != nullptr) check_list(mask, "key_padding_mask", CHECKOP_U8, mask_length);
  if (const int of_sinks = InputsBehindMask(parts).sinks; of_sinks >= 0 && c.inputs[of_sinks].data != nullptr) {
    Extent heads{"q_heads", p.q_heads};
    check_list(c.inputs[of_sinks], "sinks", q.dtype, heads);
    p.sinks.resize(size(p.q_heads));
    load(c.inputs[of_sinks], 0, p.q_heads, p.sinks.data());
  }
  return p;
}

/// The keys that a query sees, as indices into those of a Keys.
struct Seen {
  int64_t first, n;
};

/// Kept keys and values of one key head, and which of them each query sees.
struct Keys {
  std::vector<int64_t> index;
  std::vector<float> k, v;

  Keys(const AttentionParams& p, int64_t b, int64_t kv_head) {
    for (int64_t j = 0; j < p.kv_seq; ++j)
      if (p.keep == nullptr || p.keep[b * p.kv_seq + j] != 0) index.push_back(j);
    k.resize(index.size() * size(p.width));
    v.resize(index.size() * size(p.v_width));
    auto part = p.parts.begin();
    for (size_t i = 0; i < index.size(); ++i) {
      while (index[i] >= part->first + part->seq) ++part;
      const int64_t row = (b * p.kv_heads + kv_head) * part->seq + index[i] - part->first;
      load(*part->k, row * p.width, p.width, &k[i * size(p.width)]);
      load(*part->v, row * p.v_width, p.v_width, &v[i * size(p.v_width)]);
    }
  }
  Seen seen_by(const AttentionParams& p, int64_t i) const {
    const int64_t own = i + (p.kv_seq - p.q_seq);
    const int64_t first = p.left < 0 ? 0 : index_of(own - p.left);
    const int64_t end = p.right < 0 ? static_cast<int64_t>(index.size()) : index_of(own + p.right + 1);
    return {first, std::max<int64_t>(end - first, 0)};
  }
  int64_t index_of(int64_t key) const { return std::lower_bound(index.begin(), index.end(), key) - index.begin(); }
};

/// out[columns] = sum over terms of weight[term * step] * rows[term, columns]
inline void weighted_sum(const float* weight, int64_t step, const float* rows, int64_t terms, int64_t columns,
                         float* out) {
  if (terms <= kTerms) {  // a tree takes longer to make than most sums
    if (terms > 0) combine(weight, step, rows, columns, terms, columns, out);
    return;
  }
  VectorTree tree;
  for (int64_t first = 0; first < terms; first += kTerms) {
    std::vector<float> partial(size(columns));
    combine(weight + first * step, step, rows + first * columns, columns, std::min(kTerms, terms - first), columns,
            partial.data());
    tree.add(std::move(partial));
  }
  const std::vector<float> total = tree.finish();
  std::copy(total.begin(), total.end(), out);
}

/// p[0, seen.n) of one query; returns its lse. A row whose scores are all -inf is NaN, as the formula gives; a row
/// without keys is empty. `sink`: that of the query's head, -inf for none. `saved`: the lse of a forward pass, or null.
/// `slope`: the derivative of the cap at each score, or null.
inline float probabilities(const AttentionParams& p, const float* q, const Keys& keys, const Seen& seen, float sink,
                           float* to, const float* saved = nullptr, float* slope = nullptr) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  float max = sink;
  const int64_t n = seen.n;
  for (int64_t j = 0; j < n; ++j) {
    const float score = p.scale * dot(q, &keys.k[size((seen.first + j) * p.width)], p.width);
    to[j] = p.cap(score);
    if (slope != nullptr) slope[j] = p.cap.slope(score);
    max = to[j] > max ? to[j] : max;
  }
  if (saved != nullptr) {
    for (int64_t j = 0; j < n; ++j) to[j] = std::exp(to[j] - *saved);
    return *saved;
  }
  for (int64_t j = 0; j < n; ++j) to[j] = std::exp(to[j] - max);
  const float of_keys = blocked_sum(n, [to](int64_t j) { return to[j]; });
  const float sum = sink == kNone ? of_keys : of_keys + std::exp(sink - max);
  for (int64_t j = 0; j < n; ++j) to[j] /= sum;
  return n == 0 ? max : max + std::log(sum);
}

inline checkop_status forward(const checkop_call* call, int parts) {
  return run(call, [parts](const checkop_call& c) {
    check_counts(c, (parts == 1 ? 3 : 2) + 2 * parts, parts == 1 ? 2 : 1);
    const AttentionParams p = params_of(c, parts);
    const checkop_tensor& o = c.outputs[0];
    check_heads(o, "o", p.q.dtype, p.batch, p.q_heads, p.q_seq, p.v_width, "v_dim");
    float* const lse = parts == 1 ? check_rows(c.outputs[1], "lse", p) : nullptr;
    parallel_for(p.batch * p.q_heads, 2 * p.work(), [&](int64_t begin, int64_t end) {
      std::vector<float> q(size(p.width)), weights(size(p.kv_seq));
      for (int64_t head = begin; head < end; ++head) {
        const Keys keys(p, head / p.q_heads, head % p.q_heads / p.group());
        for (int64_t i = 0; i < p.q_seq; ++i) {
          const int64_t row = head * p.q_seq + i;
          const Seen seen = keys.seen_by(p, i);
          std::vector<float> out(size(p.v_width));
          load(p.q, row * p.width, p.width, q.data());
          const float of_row = probabilities(p, q.data(), keys, seen, p.sink(head), weights.data());
          if (lse != nullptr) lse[row] = of_row;
          weighted_sum(weights.data(), 1, keys.v.data() + seen.first * p.v_width, seen.n, p.v_width, out.data());
          store(o, row * p.v_width, p.v_width, out.data());
        }
      }
    });
  });
}

/// Computes the gradients of one query head: stores its dq, adds to dk and dv of the kept keys. Returns the gradient of
/// the head's sink.
inline float head_gradients(const AttentionParams& p, const checkop_tensor& grad_o, const checkop_tensor& dq,
                            int64_t head, const Keys& keys, std::vector<float>& dk, std::vector<float>& dv) {
  if (p.q_seq == 0) return 0;
  const auto n_keys = static_cast<int64_t>(keys.index.size());
  const int64_t first = head * p.q_seq * p.width, n_grad = p.q_seq * p.v_width, v_width = p.v_width;
  std::vector<float> q(size(p.q_seq * p.width)), grad(size(n_grad)), o(p.saved_o == nullptr ? 0 : grad.size());
  std::vector<float> weights(size(p.q_seq * n_keys)), ds(weights.size());  // 0 beside the keys that a query sees
  std::vector<float> slope(size(n_keys)), of_sink(size(p.q_seq));
  load(p.q, first, p.q_seq * p.width, q.data());
  load(grad_o, head * n_grad, n_grad, grad.data());
  if (p.saved_o != nullptr) load(*p.saved_o, head * n_grad, n_grad, o.data());
  for (int64_t i = 0; i < p.q_seq; ++i) {
    const Seen seen = keys.seen_by(p, i);
    const int64_t n = seen.n, at = i * n_keys + seen.first;
    float *w = weights.data() + at, *d = ds.data() + at;
    const float* const lse = p.saved_lse == nullptr ? nullptr : p.saved_lse + head * p.q_seq + i;
    const float of_row = probabilities(p, &q[size(i * p.width)], keys, seen, p.sink(head), w, lse, slope.data());
    for (int64_t j = 0; j < n; ++j)
      d[j] = dot(&grad[size(i * v_width)], &keys.v[size((seen.first + j) * v_width)], v_width);
    const float of_lse = p.grad_lse == nullptr ? 0 : p.grad_lse[head * p.q_seq + i];
    const float row_sum = o.empty() ? dot(w, d, n) : dot(&grad[size(i * v_width)], &o[size(i * v_width)], v_width);
    const float mean = row_sum - of_lse;
    if (p.sink(head) != -std::numeric_limits<float>::infinity())
      of_sink[size(i)] = std::exp(p.sink(head) - of_row) * -mean;
    for (int64_t j = 0; j < n; ++j) d[j] = p.scale * (w[j] * (d[j] - mean) * slope[size(j)]);
    std::vector<float> out(size(p.width));
    weighted_sum(d, 1, keys.k.data() + seen.first * p.width, n, p.width, out.data());
    store(dq, first + i * p.width, p.width, out.data());
  }
  std::vector<float> out(size(std::max(p.width, v_width)));
  for (int64_t j = 0; j < n_keys; ++j) {
    weighted_sum(ds.data() + j, n_keys, q.data(), p.q_seq, p.width, out.data());
    for (int64_t i = 0; i < p.width; ++i) dk[size(j * p.width + i)] += out[size(i)];
    weighted_sum(weights.data() + j, n_keys, grad.data(), p.q_seq, v_width, out.data());
    for (int64_t i = 0; i < v_width; ++i) dv[size(j * v_width + i)] += out[size(i)];
  }
  return blocked_sum(p.q_seq, [&](int64_t i) { return of_sink[size(i)]; });
}

/// The gradients of the sinks: those of every batch entry's heads, added in order.
inline void store_sink_gradients(const AttentionParams& p, const std::vector<float>& of_heads,
                                 const checkop_tensor& to) {
  std::vector<float> sums(size(p.q_heads));
  for (size_t i = 0; i < of_heads.size(); ++i) sums[i % sums.size()] += of_heads[i];
  store(to, 0, p.q_heads, sums.data());
}

/// Outputs are dq, then dk and dv of each part.
inline checkop_status backward(const checkop_call* call, int parts) {
  return run(call, [parts](const checkop_call& c) {
    const InputsBehindMask in(parts);
    check_counts(c, (parts == 1 ? 7 : 3) + 2 * parts, (parts == 1 ? 2 : 1) + 2 * parts);
    AttentionParams p = params_of(c, parts);
    const checkop_tensor &grad_o = c.inputs[in.grad_o], &dq = c.outputs[0];
    check_heads(grad_o, "grad_o", p.q.dtype, p.batch, p.q_heads, p.q_seq, p.v_width, "v_dim");
    check_heads(dq, "dq", p.q.dtype, p.batch, p.q_heads, p.q_seq, p.width);
    if (parts == 1 && c.inputs[in.o].data != nullptr) {
      check_heads(c.inputs[in.o], "o", p.q.dtype, p.batch, p.q_heads, p.q_seq, p.v_width, "v_dim");
      p.saved_o = &c.inputs[in.o];
    }
    if (parts == 1) p.saved_lse = check_rows(c.inputs[in.lse], "lse", p);
    if (parts == 1) p.grad_lse = check_rows(c.inputs[in.grad_lse], "grad_lse", p);
    for (int part = 0; part < parts; ++part) {
      const int64_t seq = p.parts[size(part)].seq;
      check_heads(c.outputs[1 + 2 * part], "dk", p.q.dtype, p.batch, p.kv_heads, seq, p.width);
      check_heads(c.outputs[2 + 2 * part], "dv", p.q.dtype, p.batch, p.kv_heads, seq, p.v_width, "v_dim");
    }
    if (!p.sinks.empty()) {
      const checkop_tensor& dsinks = c.outputs[3];
      Extent heads{"q_heads", p.q_heads};
      check_list(dsinks, "dsinks", dsinks.dtype == CHECKOP_F32 ? CHECKOP_F32 : p.q.dtype, heads);
    }
    std::vector<float> of_sinks(size(p.batch * p.q_heads));
    parallel_for(p.batch * p.kv_heads, 5 * p.work(), [&](int64_t begin, int64_t end) {
      for (int64_t kv_head = begin; kv_head < end; ++kv_head) {
        const Keys keys(p, kv_head / p.kv_heads, kv_head % p.kv_heads);
        std::vector<float> kept_dk(keys.k.size()), kept_dv(keys.v.size());
        for (int64_t head = kv_head * p.group(); head < (kv_head + 1) * p.group(); ++head)
          of_sinks[size(head)] = head_gradients(p, grad_o, dq, head, keys, kept_dk, kept_dv);
        std::vector<float> all_dk(size(p.kv_seq * p.width)), all_dv(size(p.kv_seq * p.v_width));
        for (size_t i = 0; i < keys.index.size(); ++i) {
          std::copy_n(&kept_dk[i * size(p.width)], p.width, &all_dk[size(keys.index[i] * p.width)]);
          std::copy_n(&kept_dv[i * size(p.v_width)], p.v_width, &all_dv[size(keys.index[i] * p.v_width)]);
        }
        for (int part = 0; part < parts; ++part) {
          const int64_t first = p.parts[size(part)].first, seq = p.parts[size(part)].seq;
          const int64_t n = seq * p.width, v_n = seq * p.v_width;
          store(c.outputs[1 + 2 * part], kv_head * n, n, &all_dk[size(first * p.width)]);
          store(c.outputs[2 + 2 * part], kv_head * v_n, v_n, &all_dv[size(first * p.v_width)]);
        }
      }
    });
    if (!p.sinks.empty()) store_sink_gradients(p, of_sinks, c.outputs[3]);
  });
}

}  // namespace native::attention
