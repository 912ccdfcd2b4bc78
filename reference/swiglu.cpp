// SPDX-License-Identifier: Apache-2.0
// swiglu: silu(gate) times up, element by element.
#include "sigmoid.hpp"

namespace checkop {

extern const Emulation kSwigluForward, kSwigluBackward;  // emulation/swiglu.cpp

namespace {

constexpr std::string_view kRowHidden = "batch seq hidden";
constexpr TensorSpec kGate{"gate", kRowHidden}, kUp{"up", kRowHidden}, kGradY{"grad_y", kRowHidden, Fill::upstream};

constexpr std::array kForwardIn{kGate, kUp};
constexpr std::array kForwardOut{OutputSpec{{"y", kRowHidden}, Numerics::pointwise, ""}};
constexpr std::array kBackwardIn{kGate, kUp, kGradY};
constexpr std::array kBackwardOut{
    OutputSpec{{"dgate", kRowHidden}, Numerics::pointwise, ""},
    OutputSpec{{"dup", kRowHidden}, Numerics::pointwise, ""},
};

/// Gold of swiglu.
///   in:  gate, up [batch, seq, hidden]     out: y[batch, seq, hidden]
///   y = gate sigma(gate) up
/// Source: Shazeer, "GLU variants improve Transformer", 2020.
void forward(const GoldArgs& args) {
  emit_elements<2>(args, 0, {0, 1}, [](const auto& in, size_t i) { return scaled_silu(in[1][i], in[0][i], 2); });
}

/// Gold of swiglu's gradients.
///   in:  gate, up, grad_y [batch, seq, hidden]     out: dgate, dup [batch, seq, hidden]
///   dgate = g up sigma(gate) (1 + gate (1 - sigma(gate))),  dup = g gate sigma(gate)
/// Source: differentiated by hand; checked by gradient_test.
void backward(const GoldArgs& args) {
  emit_elements<3>(args, 0, {0, 1, 2},
                   [](const auto& in, size_t i) { return scaled_silu_derivative(in[2][i] * in[1][i], in[0][i], 3); });
  emit_elements<2>(args, 1, {0, 2}, [](const auto& in, size_t i) { return scaled_silu(in[1][i], in[0][i], 2); });
}

constexpr std::array kPasses{Pass{"forward", kForwardIn, kForwardOut, forward, nullptr, nullptr, &kSwigluForward},
                             Pass{"backward", kBackwardIn, kBackwardOut, backward, nullptr, nullptr, &kSwigluBackward}};

}  // namespace

extern const Operator kSwiglu;
constexpr Operator kSwiglu{"swiglu", "elementwise", "y = gate / (1 + exp(-gate)) * up", "batch seq", {}, kPasses};

}  // namespace checkop
