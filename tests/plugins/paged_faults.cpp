// SPDX-License-Identifier: Apache-2.0
// Correct attention over pages, in float, whose keys are added up in parts. Of three candidates the parts, or their
// order, depend on what they must not depend on; of one they begin at fixed keys.
#include <algorithm>
#include <cstring>
#include <vector>

#include "plugins/call.hpp"
#include "plugins/split_attention.hpp"

namespace {

using namespace test_plugin;

/// One launch of paged_attention/forward, causal.
struct Launch {
  explicit Launch(const checkop_call* call)
      : q(call->inputs[0]), k(call->inputs[1]), v(call->inputs[2]), o(call->outputs[0]), lse(call->outputs[1]) {
    bounds = integers(call->inputs[3]), table = integers(call->inputs[4]), lengths = integers(call->inputs[5]);
    sequences = call->inputs[5].shape[0], max_pages = call->inputs[4].shape[1];
    for (int64_t s = 0; s < sequences; ++s) most_queries = std::max<int64_t>(most_queries, bounds[s + 1] - bounds[s]);
  }

  /// split(keys): the ends of the parts. order(slots): the order in which a query's keys are added.
  template <class Split, class Order>
  checkop_status run(const Split& split, const Order& order) const {
    const int64_t heads = q.shape[1], group = heads / k.shape[2];
    std::memset(o.data, 0, static_cast<size_t>(count(o)) * sizeof(float));
    if (lse.data != nullptr) std::fill_n(static_cast<float*>(lse.data), count(lse), -INFINITY);
    for (int64_t s = 0; s < sequences; ++s) {
      const int64_t n = bounds[s + 1] - bounds[s];
      for (int64_t row = 0; row < n * heads; ++row) {
        std::vector<int64_t> slots;
        for (int64_t j = 0; j <= row / heads + lengths[s] - n; ++j)
          slots.push_back(int64_t{table[s * max_pages + j / k.shape[1]]} * k.shape[1] + j % k.shape[1]);
        order(slots);
        const int64_t at = bounds[s] * heads + row;
        attend(at, row % heads / group, slots, split(static_cast<int64_t>(slots.size())));
      }
    }
    return CHECKOP_OK;
  }

  checkop_tensor q, k, v, o, lse;
  const int32_t *bounds, *table, *lengths;
  int64_t sequences, max_pages, most_queries = 0;

 private:
  static const int32_t* integers(const checkop_tensor& t) { return static_cast<const int32_t*>(t.data); }
  const float* row(const checkop_tensor& cache, int64_t slot, int64_t head) const {
    return static_cast<const float*>(cache.data) + (slot * cache.shape[2] + head) * cache.shape[3];
  }
  /// The row of o of query and head `at`.
  void attend(int64_t at, int64_t head, const std::vector<int64_t>& slots, const std::vector<int64_t>& ends) const {
    std::vector<KeyAndValue> keys;
    for (const int64_t slot : slots) keys.push_back({row(k, slot, head), row(v, slot, head)});
    if (keys.empty()) return;
    const float total = attend_in_parts(q, o, at, keys, ends);
    if (lse.data != nullptr) static_cast<float*>(lse.data)[at] = total;
  }
};

const auto kAsTheyCome = [](std::vector<int64_t>&) {};

/// Not a fault: parts begin at multiples of 8 keys.
checkop_status fixed_split(const checkop_call* call) {
  return Launch(call).run([](int64_t n) { return by_eight(n); }, kAsTheyCome);
}

checkop_status splits_by_batch(const checkop_call* call) {
  const Launch launch(call);
  const int64_t parts = std::max<int64_t>(1, 32 / std::max<int64_t>(1, launch.sequences));
  return launch.run([&](int64_t n) { return evenly(n, parts); }, kAsTheyCome);
}

checkop_status splits_by_queries(const checkop_call* call) {
  const Launch launch(call);
  return launch.run([&](int64_t n) { return evenly(n, launch.most_queries > 1 ? 1 : 4); }, kAsTheyCome);
}

/// Adds the keys in the order in which they lie in memory.
checkop_status adds_by_address(const checkop_call* call) {
  return Launch(call).run([](int64_t n) { return evenly(n, 1); },
                          [](std::vector<int64_t>& slots) { std::sort(slots.begin(), slots.end()); });
}

/// Takes contiguous tensors and int32 tables alone.
template <checkop_status (*launch)(const checkop_call*)>
checkop_status of_contiguous(const checkop_call* call) {
  for (const int i : {3, 4, 5})
    if (call->inputs[i].dtype != CHECKOP_I32) return CHECKOP_UNSUPPORTED;
  return checkop_all_contiguous(call) ? launch(call) : CHECKOP_UNSUPPORTED;
}

constexpr checkop_kernel paged(const char* name, checkop_status (*launch)(const checkop_call*)) {
  return {sizeof(checkop_kernel), name, "paged_attention", "forward", CHECKOP_CPU, 0, 0, nullptr, launch};
}

constexpr checkop_kernel kKernels[] = {
    paged("fixed_split", of_contiguous<fixed_split>),
    paged("splits_by_batch", of_contiguous<splits_by_batch>),
    paged("splits_by_queries", of_contiguous<splits_by_queries>),
    paged("adds_by_address", of_contiguous<adds_by_address>),
};
constexpr checkop_plugin kPlugin = plugin(kKernels);

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
