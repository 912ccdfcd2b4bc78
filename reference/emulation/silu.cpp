// SPDX-License-Identifier: Apache-2.0
// Emulates silu as kernels compute it.
#include <array>
#include <cmath>

#include "emulation/sigmoid.hpp"

namespace checkop {
namespace silu {
namespace {

using namespace emulation;

constexpr FaultSpec kNeighboursSigmoid{"neighbours_sigmoid", "of every two elements each has the other's sigmoid"};
constexpr FaultSpec kSubnormalsFlushed{"subnormals_flushed", "subnormal numbers become 0", "accuracy", "fp16"};
constexpr FaultSpec kOutputForInput{"output_for_input", "the derivative is taken at y, the wrong tensor saved"};
constexpr FaultSpec kUpstreamLeftOut{"upstream_left_out", "dx is the derivative, whatever grad_y"};
constexpr FaultSpec kForwardForBackward{"forward_for_backward", "grad_y is multiplied by y, not by the derivative"};

void forward(const EmulationArgs& args) {
  const Silu silu(args.arithmetic);
  std::vector<float> x = args.floats(0);
  for (float& each : x)
    if (args.arithmetic.has(kSubnormalsFlushed.name) && std::abs(each) < 0x1p-14F) each = 0;
  const bool neighbours = args.arithmetic.has(kNeighboursSigmoid.name);
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t other = std::min(i ^ 1U, x.size() - 1);
    args.out(0)[i] = neighbours ? x[i] * silu.sigmoid(x[other]) : silu(x[i]);
  }
}

void backward(const EmulationArgs& args) {
  const Silu silu(args.arithmetic);
  const std::vector<float> x = args.floats(0), g = args.floats(1);
  const bool at_output = args.arithmetic.has(kOutputForInput.name),
             no_upstream = args.arithmetic.has(kUpstreamLeftOut.name),
             forward_again = args.arithmetic.has(kForwardForBackward.name);
  for (size_t i = 0; i < x.size(); ++i) {
    const float slope = forward_again ? silu(x[i]) : silu.derivative(at_output ? silu(x[i]) : x[i]);
    args.out(0)[i] = no_upstream ? slope : g[i] * slope;
  }
}

constexpr std::array kForwardFaults{
    faults::kBf16Exponential, kExponentSign,      kBaseTwo,         kGeluSlope, kBf16Sigmoid, kSigmoidAlone,
    kNeighboursSigmoid,       kSubnormalsFlushed, kExponentialRatio};
constexpr std::array kBackwardFaults{
    faults::kBf16Exponential, kExponentSign,      kBaseTwo,        kGeluSlope,      kBf16Sigmoid,
    kDerivativeShort,         kComplementLeftOut, kDerivativeSign, kOutputForInput, kUpstreamLeftOut,
    kForwardForBackward,      kExponentialRatio};

}  // namespace
}  // namespace silu

extern const Emulation kSiluForward, kSiluBackward;
const Emulation kSiluForward{silu::forward, silu::kForwardFaults};
const Emulation kSiluBackward{silu::backward, silu::kBackwardFaults};

}  // namespace checkop
