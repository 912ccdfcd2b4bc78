// SPDX-License-Identifier: Apache-2.0
// swiglu: silu(gate) times up, element by element.
#include "recipes.hpp"
#include "sigmoid.hpp"

namespace checkop {

extern const Emulation kSwigluForward, kSwigluBackward;  // emulation/swiglu.cpp

namespace swiglu {
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

constexpr std::array kForwardRecipes{Recipe{
    recipe::kActivation, "y", k16Bit, /*exact=*/true, "y = round(silu(gate)) up",
    "F.silu(gate) * up in PyTorch and Hugging Face's LlamaMLP, Liger, unsloth: silu is a 16-bit tensor of its own"}};
constexpr std::array kBackwardRecipes{
    Recipe{recipe::kActivation, "dup", k16Bit, /*exact=*/true, "dup = g round(silu(gate))",
           "autograd of F.silu(gate) * up, unsloth: the product takes the saved 16-bit tensor"},
    Recipe{recipe::kActivationGradient, "dgate", k16Bit, /*exact=*/true, "dgate = round(g up) silu'(gate)",
           "autograd of F.silu(gate) * up, unsloth: the gradient of silu's result is a 16-bit tensor"}};

/// scale * silu(x), with silu(x) rounded if `rounds`.
GoldElement scaled_activation(const GoldArgs& args, int output, bool rounds, double scale, double x) {
  const GoldElement a = rounded_if(rounds, args, output, scaled_silu(1, x, 1));
  return {scale * a.value, 0, std::abs(scale) * a.rounding + std::abs(scale * a.value)};
}

/// Gold of swiglu.
///   in:  gate, up [batch, seq, hidden]     out: y[batch, seq, hidden]
///   y = gate sigma(gate) up
/// Source: Shazeer, "GLU variants improve Transformer", 2020.
void forward(const GoldArgs& args) {
  const bool rounds = args.recipes.has(recipe::kActivation);
  emit_elements<2>(args, 0, {0, 1},
                   [&](const auto& in, size_t i) { return scaled_activation(args, 0, rounds, in[1][i], in[0][i]); });
}

/// Gold of swiglu's gradients.
///   in:  gate, up, grad_y [batch, seq, hidden]     out: dgate, dup [batch, seq, hidden]
///   dgate = g up sigma(gate) (1 + gate (1 - sigma(gate))),  dup = g gate sigma(gate)
/// Source: differentiated by hand; checked by gradient_test.
void backward(const GoldArgs& args) {
  const bool rounds = args.recipes.has(recipe::kActivation),
             rounds_gradient = args.recipes.has(recipe::kActivationGradient);
  emit_elements<3>(args, 0, {0, 1, 2}, [&](const auto& in, size_t i) {
    const double g = in[2][i] * in[1][i];
    return scaled_silu_derivative(rounds_gradient ? args.recipes.round(g) : g, in[0][i], 3);
  });
  emit_elements<2>(args, 1, {0, 2},
                   [&](const auto& in, size_t i) { return scaled_activation(args, 1, rounds, in[1][i], in[0][i]); });
}

constexpr std::array kPasses{
    Pass{"forward", kForwardIn, kForwardOut, forward, nullptr, nullptr, &kSwigluForward, nullptr, kForwardRecipes},
    Pass{"backward", kBackwardIn, kBackwardOut, backward, nullptr, nullptr, &kSwigluBackward, nullptr,
         kBackwardRecipes}};

void refine(const FillArgs& args) { plant_large(args, "gate", {"up", "grad_y"}); }

}  // namespace
}  // namespace swiglu

extern const Operator kSwiglu;
constexpr Operator kSwiglu{
    "swiglu", "elementwise", "y = gate / (1 + exp(-gate)) * up", "batch seq", {}, swiglu::kPasses,
    nullptr,  swiglu::refine};

}  // namespace checkop
