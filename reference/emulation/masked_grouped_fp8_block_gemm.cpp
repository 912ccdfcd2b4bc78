// SPDX-License-Identifier: Apache-2.0
// Emulates masked_grouped_fp8_block_gemm as kernels compute it.
#include "emulation/grouped_fp8_product.hpp"

namespace checkop {
namespace masked_grouped_fp8_block_gemm {
namespace {

using namespace emulation;

void forward(const EmulationArgs& args) {
  store_fp8_rows(args, masked_groups(args.arithmetic, args.integers(4), args.in(0).shape[1]));
}

constexpr auto kFaults = joined(joined(kFp8ProductFaults, of_masked(kRowGroupFaults)), kFp8GroupFaults);

}  // namespace
}  // namespace masked_grouped_fp8_block_gemm

extern const Emulation kMaskedFp8BlockGemmForward;
const Emulation kMaskedFp8BlockGemmForward{masked_grouped_fp8_block_gemm::forward,
                                           masked_grouped_fp8_block_gemm::kFaults};

}  // namespace checkop
