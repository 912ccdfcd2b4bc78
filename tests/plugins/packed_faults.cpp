// SPDX-License-Identifier: Apache-2.0
// Right computations on packed sequences, groups, rows of experts and micro-batches, in float, whose sums depend on
// what else is packed or launched with them; and attention whose sums do not.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "plugins/call.hpp"
#include "plugins/split_attention.hpp"

namespace {

using namespace test_plugin;

const float* floats(const checkop_tensor& t) { return static_cast<const float*>(t.data); }

/// varlen_attention/forward, causal, where the keys have the bounds of the queries. parts(n, first, longest): the ends
/// of the parts of n keys of a sequence that begins at token `first`; the longest one has so many tokens.
template <class Parts>
checkop_status attend(const checkop_call* call, const Parts& parts) {
  const checkop_tensor &q = call->inputs[0], &k = call->inputs[1], &v = call->inputs[2], &o = call->outputs[0];
  if (call->inputs[3].dtype != CHECKOP_I32 || call->inputs[4].data != nullptr) return CHECKOP_UNSUPPORTED;
  const auto* const bounds = static_cast<const int32_t*>(call->inputs[3].data);
  const int64_t heads = q.shape[1], kv_heads = k.shape[1], width = q.shape[2],
                n_sequences = call->inputs[3].shape[0] - 1;
  std::memset(o.data, 0, static_cast<size_t>(count(o)) * sizeof(float));
  int64_t longest = 0;
  for (int64_t s = 0; s < n_sequences; ++s) longest = std::max<int64_t>(longest, bounds[s + 1] - bounds[s]);
  for (int64_t s = 0; s < n_sequences; ++s) {
    for (int64_t i = bounds[s]; i < bounds[s + 1]; ++i) {
      for (int64_t head = 0; head < heads; ++head) {
        std::vector<KeyAndValue> keys;
        for (int64_t j = bounds[s]; j <= i; ++j) {
          const int64_t at = (j * kv_heads + head * kv_heads / heads) * width;
          keys.push_back({floats(k) + at, floats(v) + at});
        }
        attend_in_parts(q, o, i * heads + head, keys, parts(std::ssize(keys), int64_t{bounds[s]}, longest));
      }
    }
  }
  return CHECKOP_OK;
}

checkop_status splits_in_sequence(const checkop_call* call) {
  return attend(call, [](int64_t n, int64_t, int64_t) { return by_eight(n); });
}

checkop_status splits_by_longest(const checkop_call* call) {
  return attend(call, [](int64_t n, int64_t, int64_t longest) { return evenly(n, 1 + longest / 8); });
}

/// Its parts begin at multiples of 8 tokens of the pack.
checkop_status splits_across_pack(const checkop_call* call) {
  return attend(call, [](int64_t n, int64_t first, int64_t) { return by_eight(n, first); });
}

/// group_norm/forward, with two rewards or more per group. Adds up the rewards of a group in as many parts as there are
/// groups.
checkop_status sums_by_groups(const checkop_call* call) {
  const checkop_tensor &rewards = call->inputs[0], &boundaries = call->inputs[1];
  if (boundaries.data == nullptr || boundaries.dtype != CHECKOP_I64) return CHECKOP_UNSUPPORTED;
  const auto* const bounds = static_cast<const int64_t*>(boundaries.data);
  const int64_t n_groups = boundaries.shape[0] - 1;
  auto* const advantages = static_cast<float*>(call->outputs[0].data);
  for (int64_t group = 0; group < n_groups; ++group) {
    const float* const x = floats(rewards) + bounds[group];
    const int64_t n = bounds[group + 1] - bounds[group];
    const auto sum = [&](const auto& term) {
      float all = 0;
      int64_t begin = 0;
      for (const int64_t end : evenly(n, n_groups)) {
        float part = 0;
        for (; begin < end; ++begin) part += term(x[begin]);
        all += part;
      }
      return all;
    };
    const float mean = sum([](float each) { return each; }) / static_cast<float>(n);
    const float squares = sum([&](float each) { return (each - mean) * (each - mean); });
    const float deviation = std::sqrt(squares / static_cast<float>(n - 1));
    for (int64_t i = 0; i < n; ++i) advantages[bounds[group] + i] = (x[i] - mean) / (deviation + 1e-6F);
  }
  return CHECKOP_OK;
}

/// masked_grouped_gemm/forward. parts(capacity, count): in how many parts the sums of the rows of an expert are added.
template <class Parts>
checkop_status multiply(const checkop_call* call, const Parts& parts) {
  const checkop_tensor &a = call->inputs[0], &b = call->inputs[1], &counts = call->inputs[2];
  if (counts.dtype != CHECKOP_I32) return CHECKOP_UNSUPPORTED;
  const int64_t capacity = a.shape[1], k_dim = a.shape[2], n_dim = b.shape[1];
  auto* to = static_cast<float*>(call->outputs[0].data);
  for (int64_t row = 0; row < a.shape[0] * capacity; ++row) {
    const int64_t expert = row / capacity, count = static_cast<const int32_t*>(counts.data)[expert];
    for (int64_t n = 0; n < n_dim; ++n) {
      float sum = 0;
      int64_t k = 0;
      for (const int64_t end : evenly(row % capacity < count ? k_dim : 0, parts(capacity, count))) {
        float part = 0;
        for (; k < end; ++k) part += floats(a)[row * k_dim + k] * floats(b)[(expert * n_dim + n) * k_dim + k];
        sum += part;
      }
      *to++ = sum;
    }
  }
  return CHECKOP_OK;
}

checkop_status splits_by_room(const checkop_call* call) {
  return multiply(call, [](int64_t capacity, int64_t) { return 1 + capacity / 8; });
}

checkop_status splits_by_count(const checkop_call* call) {
  return multiply(call, [](int64_t, int64_t count) { return 1 + count / 8; });
}

/// policy_loss/backward of PPO without clipping: takes the mean over the tokens of its own batch, and makes a share of
/// the whole batch of it.
checkop_status averages_twice(const checkop_call* call) {
  const checkop_tensor &logps = call->inputs[0], &mask = call->inputs[3], &denom = call->inputs[7];
  if (denom.data == nullptr) return CHECKOP_UNSUPPORTED;
  const auto* const kept = static_cast<const unsigned char*>(mask.data);
  const int64_t n = count(logps);
  const auto active = static_cast<float>(n - std::count(kept, kept + n, 0));
  for (int64_t i = 0; i < n; ++i) {
    float& gradient = static_cast<float*>(call->outputs[0].data)[i];
    gradient = 0;
    if (kept[i] == 0) continue;
    const float ratio = std::exp(floats(logps)[i] - floats(call->inputs[1])[i]);
    const float of_mean = -floats(call->inputs[2])[i] * ratio / active;
    gradient = floats(call->inputs[8])[0] * of_mean * (active / floats(denom)[0]);
  }
  return CHECKOP_OK;
}

template <checkop_status (*launch)(const checkop_call*)>
checkop_status of_contiguous(const checkop_call* call) {
  return checkop_all_contiguous(call) ? launch(call) : CHECKOP_UNSUPPORTED;
}

template <checkop_status (*launch)(const checkop_call*)>
constexpr checkop_kernel of(const char* name, const char* op, const char* pass) {
  return {sizeof(checkop_kernel), name, op, pass, CHECKOP_CPU, 0, 0, nullptr, of_contiguous<launch>};
}

constexpr checkop_kernel kKernels[] = {
    of<splits_in_sequence>("splits_in_sequence", "varlen_attention", "forward"),
    of<splits_by_longest>("splits_by_longest", "varlen_attention", "forward"),
    of<splits_across_pack>("splits_across_pack", "varlen_attention", "forward"),
    of<sums_by_groups>("sums_by_groups", "group_norm", "forward"),
    of<splits_by_room>("splits_by_room", "masked_grouped_gemm", "forward"),
    of<splits_by_count>("splits_by_count", "masked_grouped_gemm", "forward"),
    of<averages_twice>("averages_twice", "policy_loss", "backward"),
};
constexpr checkop_plugin kPlugin = plugin(kKernels);

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
