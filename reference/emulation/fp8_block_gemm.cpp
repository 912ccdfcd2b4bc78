// SPDX-License-Identifier: Apache-2.0
// Emulates fp8_block_gemm as kernels compute it.
#include "emulation/fp8_product.hpp"

namespace checkop {
namespace fp8_block_gemm {
namespace {

using namespace emulation;

void forward(const EmulationArgs& args) {
  const Matrix a = codes_of(args, 0, /*is_b=*/false), scale_a = scales_of(args, 1),
               b = codes_of(args, 2, /*is_b=*/true), scale_b = scales_of(args, 3);
  const Element element(args, a, scale_a, b, scale_b);
  args.parallel_for(a.rows(), [&](int64_t row) {
    for (int64_t column = 0; column < b.rows(); ++column)
      args.out(0)[static_cast<size_t>(row * b.rows() + column)] = element.at(row, column);
  });
}

}  // namespace
}  // namespace fp8_block_gemm

extern const Emulation kFp8BlockGemmForward;
const Emulation kFp8BlockGemmForward{fp8_block_gemm::forward, emulation::kFp8ProductFaults};

}  // namespace checkop
