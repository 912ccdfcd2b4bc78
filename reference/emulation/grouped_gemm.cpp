// SPDX-License-Identifier: Apache-2.0
// Emulates grouped_gemm as kernels compute it.
#include "emulation/grouped_product.hpp"

namespace checkop {
namespace grouped_gemm {
namespace {

using namespace emulation;

std::vector<Group> successive_groups(const EmulationArgs& args) {
  return groups_of(args.arithmetic, args.integers(2), args.in(0).shape[0]);
}

void forward(const EmulationArgs& args) {
  store_rows(args, successive_groups(args), factor(args, 0), factor(args, 1), true, args.out(0));
}

void backward(const EmulationArgs& args) {
  const std::vector<Group> groups = successive_groups(args);
  const Matrix g = factor(args, 3);
  store_rows(args, groups, g, factor(args, 1), false, args.out(0));
  store_sums(args, groups, g, factor(args, 0), args.out(1));
}

}  // namespace
}  // namespace grouped_gemm

extern const Emulation kGroupedGemmForward, kGroupedGemmBackward;
const Emulation kGroupedGemmForward{grouped_gemm::forward, emulation::kGroupedForwardFaults};
const Emulation kGroupedGemmBackward{grouped_gemm::backward, emulation::kGroupedBackwardFaults};

}  // namespace checkop
