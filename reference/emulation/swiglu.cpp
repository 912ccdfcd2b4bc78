// SPDX-License-Identifier: Apache-2.0
// Emulates swiglu as kernels compute it.
#include <array>

#include "emulation/sigmoid.hpp"
#include "recipes.hpp"

namespace checkop {
namespace swiglu {
namespace {

using namespace emulation;

constexpr FaultSpec kGateAndUpSwapped{"gate_and_up_swapped", "gate is taken for up, and up for gate"};
constexpr FaultSpec kUpLeftOut{"up_left_out", "up is taken for 1"};
constexpr FaultSpec kUpOfFirstRow{"up_of_first_row", "up is that of the first row in every row"};
constexpr FaultSpec kBf16Activation{"bf16_activation", "silu of the gate is rounded to bf16 before the product",
                                    "accuracy", "fp32 fp16"};  // in bf16 it is a recipe
constexpr FaultSpec kGradientsSwapped{"gradients_swapped", "dgate is written to dup, and dup to dgate"};
constexpr FaultSpec kGateOverwritten{"gate_overwritten", "dup is computed from dgate, which was written over gate"};

/// Gate and up as the emulated kernel reads them.
struct Inputs {
  Matrix gate, up;

  explicit Inputs(const EmulationArgs& args) : gate(matrix(args, 0)), up(matrix(args, 1)) {
    const Arithmetic& a = args.arithmetic;
    if (a.has(kGateAndUpSwapped.name)) std::swap(gate, up);
    if (a.has(kUpLeftOut.name)) std::fill(up.values.begin(), up.values.end(), 1.0F);
    for (int64_t r = 1; a.has(kUpOfFirstRow.name) && r < up.rows(); ++r) std::copy_n(up.row(0), up.columns, up.row(r));
  }
};

/// silu(gate) as an operand of the products.
float activation(const Arithmetic& a, const Silu& silu, float gate) {
  if (a.has(kBf16Activation.name)) return Arithmetic::to_bf16(silu(gate));
  return a.rounded_if(a.rounds(recipe::kActivation), silu(gate));
}

void forward(const EmulationArgs& args) {
  const Silu silu(args.arithmetic);
  const Inputs in(args);
  for (size_t i = 0; i < in.gate.values.size(); ++i)
    args.out(0)[i] = activation(args.arithmetic, silu, in.gate.values[i]) * in.up.values[i];
}

void backward(const EmulationArgs& args) {
  const Silu silu(args.arithmetic);
  const Inputs in(args);
  const std::vector<float> g = args.floats(2);
  const Arithmetic& a = args.arithmetic;
  const bool swapped = a.has(kGradientsSwapped.name), overwritten = a.has(kGateOverwritten.name),
             rounds = a.rounds(recipe::kActivationGradient);
  std::vector<double>&dgate = args.out(swapped ? 1 : 0), &dup = args.out(swapped ? 0 : 1);
  for (size_t i = 0; i < g.size(); ++i) {
    const float gate = in.gate.values[i],
                of_gate = a.rounded_if(rounds, g[i] * in.up.values[i]) * silu.derivative(gate);
    dgate[i] = of_gate;
    dup[i] = g[i] * activation(a, silu, overwritten ? of_gate : gate);
  }
}

constexpr std::array kForwardFaults{
    faults::kBf16Exponential, kExponentSign, kBaseTwo,      kGeluSlope,      kBf16Sigmoid,     kSigmoidAlone,
    kGateAndUpSwapped,        kUpLeftOut,    kUpOfFirstRow, kBf16Activation, kExponentialRatio};
constexpr std::array kBackwardFaults{
    faults::kBf16Exponential, kExponentSign,      kBaseTwo,         kGeluSlope,        kBf16Sigmoid, kSigmoidAlone,
    kDerivativeShort,         kComplementLeftOut, kDerivativeSign,  kGateAndUpSwapped, kUpLeftOut,   kUpOfFirstRow,
    kBf16Activation,          kGradientsSwapped,  kGateOverwritten, kExponentialRatio};

}  // namespace
}  // namespace swiglu

extern const Emulation kSwigluForward, kSwigluBackward;
const Emulation kSwigluForward{swiglu::forward, swiglu::kForwardFaults};
const Emulation kSwigluBackward{swiglu::backward, swiglu::kBackwardFaults};

}  // namespace checkop
