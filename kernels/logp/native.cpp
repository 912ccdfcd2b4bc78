// SPDX-License-Identifier: Apache-2.0
// logp / native: CPU, one row at a time in fp32.
//   z = softcap tanh(logits / softcap) / temperature, or logits / temperature if softcap is 0
//   logp[r] = (z[r,t] - m) - log(s),  m = max_v z[r,v],  s = sum_v exp(z[r,v] - m)
//   dlogits[r,v] = g[r] * ([v = t] - exp(z[r,v] - m) / s) * dz/dlogits
//   logits, dlogits: [..., vocab] fp32|bf16|fp16    token_ids: [...] int64    logp, grad_logp: [...] fp32
//   top_k, top_p: only columns that stay count; of the others the gradient is 0, and their logp is -inf
//   If token_ids[r] = ignore_index: logp and gradient are 0, and the row of logits is not read.
//   Limits: contiguous.   Expected error: sums are chains of 68 + log2(vocab / 1024) additions.
#include "cpu/truncation.hpp"

namespace {

using native::Extent;

float row_logp(const float* z, int64_t vocab, int64_t token) {
  const native::SumExp s = native::sum_exp(z, vocab);
  return (z[token] - s.shift()) - std::log(s.sum);
}

/// The columns of a row that stay.
struct KeptRow {
  KeptRow(const float* x, const float* z, int64_t vocab, int64_t token, const native::Truncation& truncation)
      : columns(truncation.columns(x, z, vocab, token)) {
    for (const int64_t v : columns) kept.push_back(z[v]);
    const auto found = std::lower_bound(columns.begin(), columns.end(), token);
    if (found != columns.end() && *found == token) place = found - columns.begin();
  }

  std::vector<int64_t> columns;
  std::vector<float> kept;
  int64_t place = -1;  ///< of the token among them
};

/// logp of the token among the columns that stay.
float truncated_logp(const float* x, const float* z, int64_t vocab, int64_t token,
                     const native::Truncation& truncation) {
  const KeptRow row(x, z, vocab, token, truncation);
  return row.place < 0 ? -std::numeric_limits<float>::infinity()
                       : row_logp(row.kept.data(), std::ssize(row.kept), row.place);
}

/// Replaces the logits in `x` by the gradient of truncated_logp().
void truncated_dlogits(float* x, int64_t vocab, int64_t token, float g, const native::LogitTransform& transform,
                       const native::Truncation& truncation) {
  const std::vector<float> logits(x, x + vocab);
  std::vector<float> z = logits;
  transform(z.data(), vocab);
  const KeptRow row(logits.data(), z.data(), vocab, token, truncation);
  std::fill(x, x + vocab, 0.0f);
  if (row.place < 0) return;
  const native::SumExp s = native::sum_exp(row.kept.data(), std::ssize(row.kept));
  for (const int64_t v : row.columns) {
    const auto at = static_cast<size_t>(v);
    const float p = std::exp(z[at] - s.shift()) / s.sum;
    x[v] = (v == token ? g * (1.0f - p) : -g * p) * transform.slope(logits[at]);
  }
}

/// Replaces the logits in `x` by their gradient.
void row_dlogits(float* x, int64_t vocab, int64_t token, float g, const native::LogitTransform& transform) {
  std::vector<float> z(x, x + vocab);
  transform(z.data(), vocab);
  const native::SumExp s = native::sum_exp(z.data(), vocab);
  for (int64_t v = 0; v < vocab; ++v) {
    const float p = std::exp(z[static_cast<size_t>(v)] - s.shift()) / s.sum;
    x[v] = (v == token ? g * (1.0f - p) : -g * p) * transform.slope(x[v]);
  }
}

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 2, 1);
    const checkop_tensor &logits = c.inputs[0], &token_ids = c.inputs[1], &logp = c.outputs[0];
    Extent rows{"rows"}, vocab{"vocab"};
    native::check_computed_dtype(logits.dtype);
    native::check_matrix(logits, "logits", logits.dtype, rows, vocab);
    native::check_list(token_ids, "token_ids", CHECKOP_I64, rows);
    native::check_list(logp, "logp", CHECKOP_F32, rows);
    const int64_t ignored = native::ignore_index(c);
    const native::LogitTransform transform(c);
    const native::Truncation truncation(c);
    native::check_ids(token_ids, "token_ids", rows.value, vocab.value, ignored);

    const auto* tokens = static_cast<const int64_t*>(token_ids.data);
    auto* out = static_cast<float*>(logp.data);
    native::parallel_for(rows.value, 16 * rows.value * vocab.value, [&](int64_t begin, int64_t end) {
      std::vector<float> z(static_cast<size_t>(vocab.value));
      for (int64_t r = begin; r < end; ++r) {
        out[r] = 0.0f;
        if (tokens[r] == ignored) continue;
        native::load(logits, r * vocab.value, vocab.value, z.data());
        const std::vector<float> x = truncation.is_none() ? std::vector<float>() : z;
        transform(z.data(), vocab.value);
        out[r] = truncation.is_none() ? row_logp(z.data(), vocab.value, tokens[r])
                                      : truncated_logp(x.data(), z.data(), vocab.value, tokens[r], truncation);
      }
    });
  });
}

checkop_status backward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 3, 1);
    const checkop_tensor &logits = c.inputs[0], &token_ids = c.inputs[1], &grad_logp = c.inputs[2];
    const checkop_tensor& dlogits = c.outputs[0];
    Extent rows{"rows"}, vocab{"vocab"};
    native::check_computed_dtype(logits.dtype);
    native::check_matrix(logits, "logits", logits.dtype, rows, vocab);
    native::check_list(token_ids, "token_ids", CHECKOP_I64, rows);
    native::check_list(grad_logp, "grad_logp", CHECKOP_F32, rows);
    native::check_matrix(dlogits, "dlogits", logits.dtype, rows, vocab);
    const int64_t ignored = native::ignore_index(c);
    const native::LogitTransform transform(c);
    const native::Truncation truncation(c);
    native::check_ids(token_ids, "token_ids", rows.value, vocab.value, ignored);

    const auto* tokens = static_cast<const int64_t*>(token_ids.data);
    const auto* g = static_cast<const float*>(grad_logp.data);
    native::parallel_for(rows.value, 32 * rows.value * vocab.value, [&](int64_t begin, int64_t end) {
      std::vector<float> z(static_cast<size_t>(vocab.value));
      for (int64_t r = begin; r < end; ++r) {
        if (tokens[r] == ignored) {
          std::fill(z.begin(), z.end(), 0.0f);
        } else {
          native::load(logits, r * vocab.value, vocab.value, z.data());
          if (truncation.is_none()) {
            row_dlogits(z.data(), vocab.value, tokens[r], g[r], transform);
          } else {
            truncated_dlogits(z.data(), vocab.value, tokens[r], g[r], transform, truncation);
          }
        }
        native::store(dlogits, r * vocab.value, vocab.value, z.data());
      }
    });
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "logp", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
    {sizeof(checkop_kernel), "native", "logp", "backward", CHECKOP_CPU, 0, 0, nullptr, backward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
