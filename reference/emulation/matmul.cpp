// SPDX-License-Identifier: Apache-2.0
// Emulates matmul and det_gemm as kernels compute them.
#include <array>

#include "emulation/common.hpp"

namespace checkop {
namespace matmul {
namespace {

using namespace emulation;

void forward(const EmulationArgs& args) {
  const Matrix a = factor(args, 0), b = factor(args, 1);
  store(product(args, {a}, {b}), args.out(0));
}

void backward(const EmulationArgs& args) {
  const Matrix a = factor(args, 0), b = factor(args, 1), g = factor(args, 2);
  store(product(args, {g}, {b, true}), args.out(0));
  store(product(args, {a, true}, {g}), args.out(1));
}

constexpr std::array kFaults{faults::kLastKDropped, faults::kLastKTileDropped, faults::kBf16Accumulator,
                             faults::kBf16Partials, faults::kPartialLost,      faults::kTf32Factors};

}  // namespace
}  // namespace matmul

extern const Emulation kMatmulForward, kMatmulBackward;
const Emulation kMatmulForward{matmul::forward, matmul::kFaults};
const Emulation kMatmulBackward{matmul::backward, matmul::kFaults};

}  // namespace checkop
