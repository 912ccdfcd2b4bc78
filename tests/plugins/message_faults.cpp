// SPDX-License-Identifier: Apache-2.0
// Correct all_reduce, in float, whose order of addition depends on the message: of two candidates on its length or on
// an element's place in it, of one on nothing.
#include <cstring>
#include <vector>

#include "plugins/call.hpp"

namespace {

using namespace test_plugin;

/// Adds the leaves of each element in the order that order(element, numel) names: from this leaf on and around to the
/// one before it; or, for -1, from the last leaf to the first.
template <class Order>
checkop_status run(const checkop_call* call, const Order& order) {
  const checkop_tensor &x = call->inputs[0], &y = call->outputs[0];
  if (x.dtype != CHECKOP_F32 || !checkop_all_contiguous(call)) return CHECKOP_UNSUPPORTED;
  // Supports only ranks with equally many leaves.
  const int64_t own = call->shard_end - call->shard_begin, numel = y.shape[0], leaves = call->shard_total;
  if (own * call->world_size != leaves) return CHECKOP_UNSUPPORTED;
  std::vector<float> all(static_cast<size_t>(leaves * numel));
  const size_t bytes = static_cast<size_t>(own * numel) * sizeof(float);
  if (call->world_size == 1) {
    std::memcpy(all.data(), x.data, bytes);
  } else if (call->host_comm->all_gather(call->host_comm, x.data, all.data(), bytes) != 0) {
    return CHECKOP_FAILED;
  }
  for (int64_t i = 0; i < numel; ++i) {
    const int64_t first = order(i, numel);
    const auto leaf = [&](int64_t k) {
      return all[static_cast<size_t>((first < 0 ? leaves - 1 - k : (first + k) % leaves) * numel + i)];
    };
    float sum = leaf(0);
    for (int64_t k = 1; k < leaves; ++k) sum += leaf(k);
    static_cast<float*>(y.data)[i] = sum;
  }
  return CHECKOP_OK;
}

/// Not a fault.
checkop_status in_order(const checkop_call* call) {
  return run(call, [](int64_t, int64_t) { return 0; });
}

/// Another algorithm for long messages, as libraries choose it.
checkop_status order_by_length(const checkop_call* call) {
  return run(call, [](int64_t, int64_t numel) { return numel < 8192 ? 0 : -1; });
}

/// A ring: each of four chunks begins at another rank.
checkop_status order_by_chunk(const checkop_call* call) {
  return run(call, [](int64_t i, int64_t numel) { return 4 * i / numel; });
}

constexpr checkop_kernel reduce(const char* name, checkop_status (*launch)(const checkop_call*)) {
  return {sizeof(checkop_kernel), name, "all_reduce", "forward", CHECKOP_CPU, 0, 0, nullptr, launch};
}

constexpr checkop_kernel kKernels[] = {
    reduce("in_order", in_order),
    reduce("order_by_length", order_by_length),
    reduce("order_by_chunk", order_by_chunk),
};
constexpr checkop_plugin kPlugin = plugin(kKernels);

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
