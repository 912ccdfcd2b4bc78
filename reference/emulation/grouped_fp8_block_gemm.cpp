// SPDX-License-Identifier: Apache-2.0
// Emulates grouped_fp8_block_gemm as kernels compute it.
#include "emulation/grouped_fp8_product.hpp"

namespace checkop {
namespace grouped_fp8_block_gemm {
namespace {

using namespace emulation;

void forward(const EmulationArgs& args) {
  store_fp8_rows(args, groups_of(args.arithmetic, args.integers(4), args.in(0).shape[0]));
}

constexpr auto kFaults = joined(joined(kFp8ProductFaults, kRowGroupFaults), kFp8GroupFaults);

}  // namespace
}  // namespace grouped_fp8_block_gemm

extern const Emulation kGroupedFp8BlockGemmForward;
const Emulation kGroupedFp8BlockGemmForward{grouped_fp8_block_gemm::forward, grouped_fp8_block_gemm::kFaults};

}  // namespace checkop
