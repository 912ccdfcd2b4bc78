// SPDX-License-Identifier: Apache-2.0
// embedding / native: CPU; rows are copied bit by bit, their gradients added in fp32 in the order of the tokens.
//   y[t] = weight[token_ids[t]]
//   dweight[v] = sum of grad_y[t] over the tokens t with token_ids[t] = v, zero if there are none
//   token_ids: [...] int64   weight, dweight: [vocab, hidden]   y, grad_y: [..., hidden] fp32|bf16|fp16, all the same
//   Limits: contiguous. Ids outside [0, vocab) are CHECKOP_FAILED.
//   Expected error: forward none; sums are chains of 64 + tokens / 64 additions, one rounding to the stored dtype.
#include <cstring>

#include "cpu/native.hpp"

namespace {

using native::Extent;

constexpr int64_t kRun = 64;  // gradients added together before their sum is added to the row's sum

size_t bytes_of(int32_t dtype) { return dtype == CHECKOP_F32 ? 4 : 2; }

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 2, 1);
    const checkop_tensor &token_ids = c.inputs[0], &weight = c.inputs[1], &y = c.outputs[0];
    Extent tokens{"tokens"}, vocab{"vocab"}, hidden{"hidden"};
    native::check_computed_dtype(weight.dtype);
    native::check_list(token_ids, "token_ids", CHECKOP_I64, tokens);
    native::check_matrix(weight, "weight", weight.dtype, vocab, hidden);
    native::check_matrix(y, "y", weight.dtype, tokens, hidden);
    native::check_ids(token_ids, "token_ids", tokens.value, vocab.value);
    const auto* ids = static_cast<const int64_t*>(token_ids.data);
    const size_t bytes = static_cast<size_t>(hidden.value) * bytes_of(weight.dtype);
    native::parallel_for(tokens.value, tokens.value * hidden.value, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t)
        std::memcpy(static_cast<char*>(y.data) + static_cast<size_t>(t) * bytes,
                    static_cast<const char*>(weight.data) + static_cast<size_t>(ids[t]) * bytes, bytes);
    });
  });
}

/// The sum of the gradients of `tokens`, first to last.
std::vector<float> sum_rows(const checkop_tensor& grad, const int64_t* tokens, int64_t n, int64_t hidden) {
  std::vector<float> total(static_cast<size_t>(hidden)), run(total.size()), row(total.size());
  for (int64_t first = 0; first < n; first += kRun) {
    std::fill(run.begin(), run.end(), 0.0f);
    for (int64_t i = first; i < std::min(first + kRun, n); ++i) {
      native::load(grad, tokens[i] * hidden, hidden, row.data());
      for (size_t h = 0; h < row.size(); ++h) run[h] += row[h];
    }
    for (size_t h = 0; h < run.size(); ++h) total[h] += run[h];
  }
  return total;
}

checkop_status backward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 2, 1);
    const checkop_tensor &token_ids = c.inputs[0], &grad = c.inputs[1], &dweight = c.outputs[0];
    Extent tokens{"tokens"}, vocab{"vocab"}, hidden{"hidden"};
    native::check_computed_dtype(grad.dtype);
    native::check_list(token_ids, "token_ids", CHECKOP_I64, tokens);
    native::check_matrix(grad, "grad_y", grad.dtype, tokens, hidden);
    native::check_matrix(dweight, "dweight", grad.dtype, vocab, hidden);
    native::check_ids(token_ids, "token_ids", tokens.value, vocab.value);
    const auto* ids = static_cast<const int64_t*>(token_ids.data);
    std::vector<int64_t> order(static_cast<size_t>(tokens.value));
    for (size_t t = 0; t < order.size(); ++t) order[t] = static_cast<int64_t>(t);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return ids[a] < ids[b]; });
    const int64_t work = (vocab.value + tokens.value) * hidden.value;
    native::parallel_for(vocab.value, work, [&](int64_t begin, int64_t end) {
      const auto first_of = [&](int64_t v) {
        return std::partition_point(order.begin(), order.end(), [&](int64_t t) { return ids[t] < v; });
      };
      auto first = first_of(begin);
      for (int64_t v = begin; v < end; ++v) {
        auto last = first;
        while (last != order.end() && ids[*last] == v) ++last;
        const std::vector<float> sum =
            sum_rows(grad, order.data() + (first - order.begin()), last - first, hidden.value);
        native::store(dweight, v * hidden.value, hidden.value, sum.data());
        first = last;
      }
    });
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "embedding", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
    {sizeof(checkop_kernel), "native", "embedding", "backward", CHECKOP_CPU, 0, 0, nullptr, backward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
