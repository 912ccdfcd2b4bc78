// SPDX-License-Identifier: Apache-2.0
// attention / native: CPU, fp32, one head of one batch entry at a time; keys that the mask drops are left out first.
//   s[i,j] = scale q[i] k[j]    p = softmax_j(s)    o[i] = sum_j p[i,j] v[j]
//   dp = do v^T    ds = p * (dp - rowsum(p * dp))    dq = scale ds k    dk = scale ds^T q    dv = p^T do
//   q, o, do, dq: [batch, q_heads, q_seq, D]  k, v, dk, dv: [batch, kv_heads, kv_seq, D] fp32|bf16|fp16
//   key_padding_mask: [batch, kv_seq] uint8, not 0 keeps; may be absent
//   Limits: contiguous, q_heads a multiple of kv_heads.   Expected error: chains of 67 to 68 additions, then a tree
//   over blocks of 512 or 1024 terms; one more chain over the heads of a group.
#include "native.hpp"

namespace {

using native::Extent;
using native::Refusal;

size_t size(int64_t n) { return static_cast<size_t>(n); }

struct Problem {
  const checkop_tensor &q, &k, &v;
  const uint8_t* keep;  // nullptr when absent
  int64_t batch, q_heads, kv_heads, q_seq, kv_seq, width;
  bool causal;
  float scale;

  int64_t group() const { return q_heads / kv_heads; }
  int64_t work() const { return batch * q_heads * q_seq * kv_seq * width; }
};

void check_heads(const checkop_tensor& t, const char* name, int32_t dtype, int64_t batch, int64_t heads, int64_t seq,
                 int64_t width) {
  Extent rows{"rows", batch * heads * seq}, columns{"head_dim", width};
  if (t.rank != 4) throw Refusal(CHECKOP_FAILED, std::string(name) + ": rank is not 4");
  if (t.shape[0] != batch || t.shape[1] != heads || t.shape[2] != seq)
    throw Refusal(CHECKOP_FAILED, std::string(name) + ": batch, heads or sequence differ from those of q and k");
  native::check_matrix(t, name, dtype, rows, columns);
}

Problem problem_of(const checkop_call& c) {
  const checkop_tensor &q = c.inputs[0], &k = c.inputs[1], &v = c.inputs[2], &mask = c.inputs[3];
  if (c.n_attrs != 2) throw Refusal(CHECKOP_FAILED, "expected two attributes, causal and scale");
  if (q.rank != 4 || k.rank != 4) throw Refusal(CHECKOP_FAILED, "q or k: rank is not 4");
  native::check_computed_dtype(q.dtype);
  const double scale = c.attrs[1].value;
  Problem p{q,
            k,
            v,
            static_cast<const uint8_t*>(mask.data),
            q.shape[0],
            q.shape[1],
            k.shape[1],
            q.shape[2],
            k.shape[2],
            q.shape[3],
            c.attrs[0].value != 0,
            scale < 0 ? 1.0f / std::sqrt(static_cast<float>(q.shape[3])) : static_cast<float>(scale)};
  if (p.kv_heads == 0 || p.q_heads % p.kv_heads != 0)
    throw Refusal(CHECKOP_FAILED, std::to_string(p.q_heads) + " query heads on " + std::to_string(p.kv_heads) +
                                      " key heads leave a group uneven");
  check_heads(q, "q", q.dtype, p.batch, p.q_heads, p.q_seq, p.width);
  check_heads(k, "k", q.dtype, p.batch, p.kv_heads, p.kv_seq, p.width);
  check_heads(v, "v", q.dtype, p.batch, p.kv_heads, p.kv_seq, p.width);
  Extent mask_length{"batch * kv_seq", p.batch * p.kv_seq};
  if (p.keep != nullptr) native::check_list(mask, "key_padding_mask", CHECKOP_U8, mask_length);
  return p;
}

/// Kept keys of one key head with their values, and how many of them each query sees: always the first ones.
struct Keys {
  std::vector<int64_t> index;
  std::vector<float> k, v;

  Keys(const Problem& p, int64_t b, int64_t kv_head) {
    for (int64_t j = 0; j < p.kv_seq; ++j)
      if (p.keep == nullptr || p.keep[b * p.kv_seq + j] != 0) index.push_back(j);
    k.resize(index.size() * size(p.width));
    v.resize(k.size());
    for (size_t i = 0; i < index.size(); ++i) {
      const int64_t from = ((b * p.kv_heads + kv_head) * p.kv_seq + index[i]) * p.width;
      native::load(p.k, from, p.width, &k[i * size(p.width)]);
      native::load(p.v, from, p.width, &v[i * size(p.width)]);
    }
  }
  int64_t seen_by(const Problem& p, int64_t i) const {
    const int64_t end = p.causal ? i + (p.kv_seq - p.q_seq) + 1 : p.kv_seq;
    return std::lower_bound(index.begin(), index.end(), end) - index.begin();
  }
};

/// out[columns] = sum over terms of weight[term * step] * rows[term, columns]
void weighted_sum(const float* weight, int64_t step, const float* rows, int64_t terms, int64_t columns, float* out) {
  native::VectorTree tree;
  for (int64_t first = 0; first < terms; first += native::kTerms) {
    std::vector<float> partial(size(columns));
    native::combine(weight + first * step, step, rows + first * columns, columns,
                    std::min(native::kTerms, terms - first), columns, partial.data());
    tree.add(std::move(partial));
  }
  const std::vector<float> total = tree.finish();
  std::copy(total.begin(), total.end(), out);  // nothing where there are no terms
}

/// p[0, n) of one query. A row of which every score is -inf is NaN, as the formula has it; one without keys is empty.
void probabilities(const Problem& p, const float* q, const Keys& keys, int64_t n, float* to) {
  float max = -std::numeric_limits<float>::infinity();
  for (int64_t j = 0; j < n; ++j) {
    to[j] = p.scale * native::dot(q, &keys.k[size(j * p.width)], p.width);
    max = to[j] > max ? to[j] : max;
  }
  for (int64_t j = 0; j < n; ++j) to[j] = std::exp(to[j] - max);
  const float sum = native::blocked_sum(n, [to](int64_t j) { return to[j]; });
  for (int64_t j = 0; j < n; ++j) to[j] /= sum;
}

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 4, 1);
    const Problem p = problem_of(c);
    const checkop_tensor& o = c.outputs[0];
    check_heads(o, "o", p.q.dtype, p.batch, p.q_heads, p.q_seq, p.width);
    native::parallel_for(p.batch * p.q_heads, 2 * p.work(), [&](int64_t begin, int64_t end) {
      std::vector<float> q(size(p.width)), weights(size(p.kv_seq));
      for (int64_t head = begin; head < end; ++head) {
        const Keys keys(p, head / p.q_heads, head % p.q_heads / p.group());
        for (int64_t i = 0; i < p.q_seq; ++i) {
          const int64_t at = (head * p.q_seq + i) * p.width, n = keys.seen_by(p, i);
          std::vector<float> out(size(p.width));
          native::load(p.q, at, p.width, q.data());
          probabilities(p, q.data(), keys, n, weights.data());
          weighted_sum(weights.data(), 1, keys.v.data(), n, p.width, out.data());
          native::store(o, at, p.width, out.data());
        }
      }
    });
  });
}

/// Gradients of one query head: stores its dq; adds to dk and dv of the kept keys.
void head_gradients(const Problem& p, const checkop_tensor& grad_o, const checkop_tensor& dq, int64_t head,
                    const Keys& keys, std::vector<float>& dk, std::vector<float>& dv) {
  const auto n_keys = static_cast<int64_t>(keys.index.size());
  const int64_t first = head * p.q_seq * p.width;
  std::vector<float> q(size(p.q_seq * p.width)), grad(q.size());
  std::vector<float> weights(size(p.q_seq * n_keys)), ds(weights.size());  // 0 behind what a query sees
  native::load(p.q, first, p.q_seq * p.width, q.data());
  native::load(grad_o, first, p.q_seq * p.width, grad.data());
  for (int64_t i = 0; i < p.q_seq; ++i) {
    const int64_t n = keys.seen_by(p, i);
    float *w = weights.data() + i * n_keys, *d = ds.data() + i * n_keys;
    probabilities(p, &q[size(i * p.width)], keys, n, w);
    for (int64_t j = 0; j < n; ++j) d[j] = native::dot(&grad[size(i * p.width)], &keys.v[size(j * p.width)], p.width);
    const float mean = native::dot(w, d, n);
    for (int64_t j = 0; j < n; ++j) d[j] = p.scale * (w[j] * (d[j] - mean));
    std::vector<float> out(size(p.width));
    weighted_sum(d, 1, keys.k.data(), n, p.width, out.data());
    native::store(dq, first + i * p.width, p.width, out.data());
  }
  std::vector<float> out(size(p.width));
  for (int64_t j = 0; j < n_keys; ++j) {
    weighted_sum(ds.data() + j, n_keys, q.data(), p.q_seq, p.width, out.data());
    for (int64_t i = 0; i < p.width; ++i) dk[size(j * p.width + i)] += out[size(i)];
    weighted_sum(weights.data() + j, n_keys, grad.data(), p.q_seq, p.width, out.data());
    for (int64_t i = 0; i < p.width; ++i) dv[size(j * p.width + i)] += out[size(i)];
  }
}

checkop_status backward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 5, 3);
    const Problem p = problem_of(c);
    const checkop_tensor &grad_o = c.inputs[4], &dq = c.outputs[0], &dk = c.outputs[1], &dv = c.outputs[2];
    check_heads(grad_o, "grad_o", p.q.dtype, p.batch, p.q_heads, p.q_seq, p.width);
    check_heads(dq, "dq", p.q.dtype, p.batch, p.q_heads, p.q_seq, p.width);
    check_heads(dk, "dk", p.q.dtype, p.batch, p.kv_heads, p.kv_seq, p.width);
    check_heads(dv, "dv", p.q.dtype, p.batch, p.kv_heads, p.kv_seq, p.width);
    native::parallel_for(p.batch * p.kv_heads, 5 * p.work(), [&](int64_t begin, int64_t end) {
      for (int64_t kv_head = begin; kv_head < end; ++kv_head) {
        const Keys keys(p, kv_head / p.kv_heads, kv_head % p.kv_heads);
        std::vector<float> kept_dk(keys.k.size()), kept_dv(keys.k.size());
        for (int64_t g = 0; g < p.group(); ++g)
          head_gradients(p, grad_o, dq, kv_head * p.group() + g, keys, kept_dk, kept_dv);
        std::vector<float> all_dk(size(p.kv_seq * p.width)), all_dv(all_dk.size());
        for (size_t i = 0; i < keys.index.size(); ++i) {
          std::copy_n(&kept_dk[i * size(p.width)], p.width, &all_dk[size(keys.index[i] * p.width)]);
          std::copy_n(&kept_dv[i * size(p.width)], p.width, &all_dv[size(keys.index[i] * p.width)]);
        }
        native::store(dk, kv_head * p.kv_seq * p.width, p.kv_seq * p.width, all_dk.data());
        native::store(dv, kv_head * p.kv_seq * p.width, p.kv_seq * p.width, all_dv.data());
      }
    });
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "attention", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
    {sizeof(checkop_kernel), "native", "attention", "backward", CHECKOP_CPU, 0, 0, nullptr, backward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
