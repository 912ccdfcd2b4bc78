// SPDX-License-Identifier: Apache-2.0
// silu: x times its logistic function, element by element.
#include "sigmoid.hpp"

namespace checkop {

extern const Emulation kSiluForward, kSiluBackward;  // emulation/silu.cpp

namespace silu {
namespace {

constexpr std::string_view kRowHidden = "batch seq hidden";
constexpr TensorSpec kX{"x", kRowHidden}, kGradY{"grad_y", kRowHidden, Fill::upstream};

constexpr std::array kForwardIn{kX};
constexpr std::array kForwardOut{OutputSpec{{"y", kRowHidden}, Numerics::pointwise, ""}};
constexpr std::array kBackwardIn{kX, kGradY};
constexpr std::array kBackwardOut{OutputSpec{{"dx", kRowHidden}, Numerics::pointwise, ""}};

/// Gold of silu.
///   in:  x[batch, seq, hidden]     out: y[batch, seq, hidden] = x sigma(x)
void forward(const GoldArgs& args) {
  emit_elements<1>(args, 0, {0}, [](const auto& in, size_t i) { return scaled_silu(1, in[0][i], 1); });
}

/// Gold of silu's gradient.
///   in:  x, grad_y [batch, seq, hidden]     out: dx[batch, seq, hidden] = g sigma(x) (1 + x (1 - sigma(x)))
/// Source: differentiated by hand; checked by gradient_test.
void backward(const GoldArgs& args) {
  emit_elements<2>(args, 0, {0, 1},
                   [](const auto& in, size_t i) { return scaled_silu_derivative(in[1][i], in[0][i], 2); });
}

constexpr std::array kPasses{Pass{"forward", kForwardIn, kForwardOut, forward, nullptr, nullptr, &kSiluForward},
                             Pass{"backward", kBackwardIn, kBackwardOut, backward, nullptr, nullptr, &kSiluBackward}};

/// Makes one element of every row subnormal in fp16, which is not in fp32, and another one large.
void refine(const FillArgs& args) {
  Tensor& x = *args.find("x");
  plant_large(args, "x", {});
  if (args.mode != InputMode::random || x.dtype != DType::f16) return;
  constexpr int kSubnormal = -15;
  const int64_t columns = x.shape.back();
  for (int64_t row = 0; row * columns < x.count(); ++row) {
    const int64_t at = row * columns + 5 * row % columns;
    x.set(at, std::ldexp(x.at(at), kSubnormal));
  }
}

}  // namespace
}  // namespace silu

extern const Operator kSilu;
constexpr Operator kSilu{"silu",  "elementwise", "y = x / (1 + exp(-x))", "batch seq", {}, silu::kPasses,
                         nullptr, silu::refine};

}  // namespace checkop
