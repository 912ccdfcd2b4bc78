// SPDX-License-Identifier: Apache-2.0
// Emulates gated_rms_norm as kernels compute it.
#include <array>

#include "emulation/rms_norm.hpp"
#include "emulation/sigmoid.hpp"

namespace checkop {
namespace gated_rms_norm {
namespace {

using namespace emulation;

constexpr FaultSpec kOtherOrder{"other_order", "the gate is applied before the norm if asked for after it, or after"};
constexpr FaultSpec kGateLeftOut{"gate_left_out", "rows are not multiplied by silu(gate)"};
constexpr FaultSpec kGateOfFirstRow{"gate_of_first_row", "the gate is that of the first row in every row"};
constexpr FaultSpec kGroupsIgnored{"groups_ignored", "the mean of squares is that of the whole row"};
constexpr FaultSpec kWeightOfFirstGroup{"weight_of_first_group", "every group has the weights of the first"};
constexpr FaultSpec kBf16Activation{"bf16_activation", "silu of the gate is rounded to bf16 before the product"};
constexpr FaultSpec kGradientNotGated{"gradient_not_gated", "dx lacks the factor silu(gate)"};
constexpr FaultSpec kWeightGradientNotGated{"weight_gradient_not_gated", "dweight lacks the factor silu(gate)"};
constexpr FaultSpec kGateGradientOfX{"gate_gradient_of_x", "dgate has x in place of the normalised row, or without r"};
constexpr FaultSpec kGradientsSwapped{"gradients_swapped", "dx is written to dgate, and dgate to dx"};

Matrix times(Matrix a, const Matrix& b) {
  for (size_t i = 0; i < a.values.size(); ++i) a.values[i] *= b.values[i];
  return a;
}

struct Gated {
  Matrix x, gate, activation;
  Silu silu;
  bool gates_later;

  explicit Gated(const EmulationArgs& args)
      : x(matrix(args, 0)), gate(matrix(args, 1)), silu(args.arithmetic), gates_later(args.attrs[1] != 0) {
    const Arithmetic& a = args.arithmetic;
    if (a.has(kOtherOrder.name)) gates_later = !gates_later;
    for (int64_t r = 1; a.has(kGateOfFirstRow.name) && r < gate.rows(); ++r)
      std::copy_n(gate.row(0), gate.columns, gate.row(r));
    activation = gate;
    const bool left_out = a.has(kGateLeftOut.name), rounded = a.has(kBf16Activation.name);
    for (float& value : activation.values)
      value = left_out ? 1 : rounded ? Arithmetic::to_bf16(silu(value)) : silu(value);
  }
  /// The rows that are normalised; a group of columns is a row of its own.
  NormRows rows(const EmulationArgs& args) const {
    const Arithmetic& a = args.arithmetic;
    Matrix s = gates_later ? x : times(x, activation);
    if (args.attrs[2] != 0 && !a.has(kGroupsIgnored.name)) s.columns = static_cast<int64_t>(args.attrs[2]);
    std::vector<float> weight = args.floats(2);
    for (size_t h = 0; h < weight.size() && a.has(kWeightOfFirstGroup.name); ++h)
      weight[h] = weight[h % static_cast<size_t>(s.columns)];
    return {args, std::move(s), std::move(weight), args.attrs[0]};
  }
  /// The weighted rows as factors of the gate.
  Matrix weighted_rows(const EmulationArgs& args, const NormRows& in) const {
    Matrix y = normalised_rows(args, in);
    const bool rounds = gates_later && args.arithmetic.rounds(recipe::kWeightedRow);
    for (float& value : y.values) value = args.arithmetic.rounded_if(rounds, value);
    return y;
  }
};

void forward(const EmulationArgs& args) {
  const Gated gated(args);
  const Matrix y = gated.weighted_rows(args, gated.rows(args));
  store(gated.gates_later ? times(y, gated.activation) : y, args.out(0));
}

void backward(const EmulationArgs& args) {
  const Arithmetic& a = args.arithmetic;
  const Gated gated(args);
  const NormRows in = gated.rows(args);
  const Matrix grad = matrix(args, 3);
  Matrix g = gated.gates_later ? times(grad, gated.activation) : grad;
  for (float& value : g.values) value = a.rounded_if(gated.gates_later && a.rounds(recipe::kGatedGradient), value);
  g.columns = in.x.columns;
  Matrix ungated = grad;
  ungated.columns = g.columns;
  Matrix dx = row_gradients(args, in, a.has(kGradientNotGated.name) && gated.gates_later ? ungated : g);
  Matrix dgate = gated.gates_later ? times(grad, a.has(kGateGradientOfX.name) ? gated.x : gated.weighted_rows(args, in))
                                   : times(a.has(kGateGradientOfX.name) ? grad : dx, gated.x);
  for (size_t i = 0; i < dgate.values.size(); ++i) dgate.values[i] *= gated.silu.derivative(gated.gate.values[i]);
  if (!gated.gates_later && !a.has(kGradientNotGated.name)) dx = times(dx, gated.activation);
  const bool swapped = a.has(kGradientsSwapped.name);
  store(dx, args.out(swapped ? 1 : 0));
  store(dgate, args.out(swapped ? 0 : 1));
  args.out(2) = weight_gradient(args, in, a.has(kWeightGradientNotGated.name) && gated.gates_later ? ungated : g);
}

constexpr std::array kGateFaults{faults::kBf16Exponential,
                                 kExponentSign,
                                 kBaseTwo,
                                 kGeluSlope,
                                 kBf16Sigmoid,
                                 kSigmoidAlone,
                                 kOtherOrder,
                                 kGateLeftOut,
                                 kGateOfFirstRow,
                                 kBf16Activation,
                                 kGroupsIgnored,
                                 kWeightOfFirstGroup};
constexpr auto kForwardFaults = joined(kNormForwardFaults, kGateFaults);
constexpr auto kBackwardFaults =
    joined(joined(kNormBackwardFaults, kGateFaults),
           std::array{kDerivativeShort, kComplementLeftOut, kDerivativeSign, kGradientNotGated, kWeightGradientNotGated,
                      kGateGradientOfX, kGradientsSwapped});

}  // namespace
}  // namespace gated_rms_norm

extern const Emulation kGatedRmsNormForward, kGatedRmsNormBackward;
const Emulation kGatedRmsNormForward{gated_rms_norm::forward, gated_rms_norm::kForwardFaults};
const Emulation kGatedRmsNormBackward{gated_rms_norm::backward, gated_rms_norm::kBackwardFaults};

}  // namespace checkop
