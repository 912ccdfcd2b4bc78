// SPDX-License-Identifier: Apache-2.0
// The list of addition orders and their names.
#include "operator/model.hpp"

#include <fmt/format.h>

#include "base/parallel.hpp"

namespace checkop {

std::string to_string(const ModelOrder& order) {
  if (order.parts > 1) return fmt::format("split_k {}{}", order.parts, order.narrow ? " narrow" : "");
  return order.width == 1 ? "serial fma" : fmt::format("ascending {}", order.width);
}

std::span<const ModelOrder> all_orders(int64_t block) {
  static constexpr std::array kOfCodes{ModelOrder{32, 1}, ModelOrder{32, 2}, ModelOrder{32, 4}, ModelOrder{32, 8},
                                       ModelOrder{1, 1}};
  static constexpr std::array kOrders{
      ModelOrder{16, 1},       ModelOrder{16, 2},       ModelOrder{16, 4}, ModelOrder{16, 8}, ModelOrder{16, 2, true},
      ModelOrder{16, 4, true}, ModelOrder{16, 8, true}, ModelOrder{8, 1},  ModelOrder{1, 1},
  };
  return block == kModelledArchs[0].code_block ? std::span<const ModelOrder>(kOfCodes) : kOrders;
}

void ModelArgs::parallel_for(int64_t n, const std::function<void(int64_t)>& body) const {
  checkop::parallel_for(threads, n, body);
}

}  // namespace checkop
