// SPDX-License-Identifier: Apache-2.0
// gated_rms_norm: rms_norm over rows or groups of columns, and a product with silu(gate) after it or before it.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <vector>

#include "base/error.hpp"
#include "rms_norm.hpp"
#include "sigmoid.hpp"

namespace checkop {

extern const Emulation kGatedRmsNormForward, kGatedRmsNormBackward;  // emulation/gated_rms_norm.cpp

namespace gated_rms_norm {
namespace {

constexpr std::string_view kRow = "batch seq", kRowHidden = "batch seq hidden";
constexpr TensorSpec kX{"x", kRowHidden, Fill::rows}, kGate{"gate", kRowHidden}, kWeight{"weight", "hidden"};
constexpr TensorSpec kGradY{"grad_y", kRowHidden, Fill::upstream};
enum Input : int { kOfX, kOfGate, kOfWeight, kOfGrad };

constexpr std::array kForwardIn{kX, kGate, kWeight};
constexpr std::array kForwardOut{OutputSpec{{"y", kRowHidden}, Numerics::reduction, "hidden"}};
constexpr std::array kBackwardIn{kX, kGate, kWeight, kGradY};
constexpr std::array kBackwardOut{
    OutputSpec{{"dx", kRowHidden}, Numerics::reduction, "hidden"},
    OutputSpec{{"dgate", kRowHidden}, Numerics::reduction, "hidden"},
    OutputSpec{{"dweight", "hidden"}, Numerics::reduction, "hidden batch*seq"},
};

constexpr std::string_view kQwen =
    "Hugging Face Qwen3NextRMSNormGated: the product with the weight is a 16-bit tensor before the gate";
constexpr Recipe kWeightedRowOfY{recipe::kWeightedRow,          "y",  k16Bit, /*exact=*/true,
                                 "y = round(x r w) silu(gate)", kQwen};
constexpr Recipe kRowOfGradients{recipe::kNormalisedRow,
                                 "dgate dweight",
                                 k16Bit,
                                 /*exact=*/true,
                                 "dgate = g round(x r) w silu'(gate), dweight = sum_rows g silu(gate) round(x r)",
                                 "autograd of Hugging Face's Qwen3NextRMSNormGated"};
constexpr Recipe kWeightedRowOfGate{recipe::kWeightedRow,
                                    "dgate",
                                    k16Bit,
                                    /*exact=*/true,
                                    "dgate = g round(x r w) silu'(gate)",
                                    "autograd of Hugging Face's Qwen3NextRMSNormGated"};
constexpr Recipe kGatedGradientOfX{recipe::kGatedGradient,
                                   "dx dweight",
                                   k16Bit,
                                   /*exact=*/true,
                                   "dx and dweight those of rms_norm for the gradient round(g silu(gate))",
                                   "autograd of Hugging Face's Qwen3NextRMSNormGated"};
// dgate has it where the gate comes first.
constexpr Recipe kWeightedGradientOfX{recipe::kWeightedGradient,
                                      "dx dgate",
                                      k16Bit,
                                      /*exact=*/true,
                                      kGradientOfRow.formula,
                                      "autograd of Hugging Face's MambaRMSNormGated and Qwen3NextRMSNormGated"};
constexpr std::array kForwardRecipes{kRowOfY, kWeightedRowOfY};
constexpr std::array kBackwardRecipes{kGatedGradientOfX, kWeightedGradientOfX, kRowOfGradients, kWeightedRowOfGate,
                                      kTermsOfWeight};

enum Attr : size_t { kOfEps, kOfOrder, kOfGroupSize };
constexpr std::array kAttrs{
    kEps, AttrSpec{"norm_before_gate", 1, "1: norm(x) silu(gate), as Qwen3-Next; 0: norm(x silu(gate)), as Mamba 2"},
    AttrSpec{"group_size", 0, "columns that are normalised together, each group by itself; 0: all"}};

/// silu(gate)
GoldElement activation(double gate) { return scaled_silu(1, gate, 1); }

/// What the passes share: the weight, the groups, and the rows that are normalised.
struct Norm {
  const GoldArgs& args;
  const NormWeight weight;
  const int64_t hidden, group, groups, rows;
  const bool gates_later;

  explicit Norm(const GoldArgs& gold)
      : args(gold),
        weight(read_weight(args.in(kOfWeight), 0)),
        hidden(std::ssize(weight.value)),
        group(args.attrs[kOfGroupSize] == 0 ? hidden : static_cast<int64_t>(args.attrs[kOfGroupSize])),
        groups(hidden / group),
        rows(args.in(kOfX).count() / hidden),
        gates_later(args.attrs[kOfOrder] != 0) {}

  /// Columns of x and gate; and s, the columns that are normalised.
  void read(int64_t row, int64_t first, std::span<double> x, std::span<double> gate, const Erring& s) const {
    decode_columns(args.in(kOfX), hidden, row, first, x);
    decode_columns(args.in(kOfGate), hidden, row, first, gate);
    for (size_t h = 0; h < x.size(); ++h) {
      const GoldElement e = gates_later ? GoldElement{x[h], 0, 0} : exact(x[h]) * activation(gate[h]);
      s.value[h] = e.value, s.error[h] = e.rounding;
    }
  }
  /// Columns of g, the gradient of the weighted row, from those of grad_y, of which `g` has the values.
  void gate_gradient(int output, std::span<const double> gate, const Erring& g) const {
    const bool rounds = args.recipes.has(recipe::kGatedGradient);
    for (size_t h = 0; h < gate.size() && gates_later; ++h) {
      const GoldElement e = rounded_if(rounds, args, output, exact(g.value[h]) * activation(gate[h]));
      g.value[h] = e.value, g.error[h] = e.rounding;
    }
  }
  /// Element h of the normalised and weighted row.
  GoldElement weighted_row(int output, size_t h, const Erring& s, const Root& root) const {
    const bool rounds_row = args.recipes.has(recipe::kNormalisedRow);
    const bool rounds = args.recipes.has(recipe::kWeightedRow) && gates_later;
    const GoldElement n = rounded_if(rounds_row, args, output, normalised(s.value[h], s.error[h], root));
    return rounded_if(rounds, args, output, weighted(n, weight.value[h], weight.units));
  }
  /// body(first column, root) for each group of a row.
  template <class Body>
  void for_groups(const Erring& s, const Body& body) const {
    for (int64_t i = 0; i < groups; ++i) {
      const auto first = static_cast<size_t>(i * group);
      body(first, root_of(s.part(first, static_cast<size_t>(group)), args.attrs[kOfEps]));
    }
  }
};

struct Scratch {
  std::vector<double> x, gate, of_gate, gate_magnitude, gate_rounding;

  explicit Scratch(int64_t hidden) {
    for (auto* array : {&x, &gate, &of_gate, &gate_magnitude, &gate_rounding})
      array->resize(static_cast<size_t>(hidden));
  }
};

/// Gold of gated_rms_norm.
///   in:  x, gate [batch, seq, hidden], weight[hidden]     out: y[batch, seq, hidden]
///   y = x r w a,  a = gate sigma(gate),  r = (mean x^2 + eps)^-1/2, the mean over each group of columns;
///   y = s r w,  s = x a,  r = (mean s^2 + eps)^-1/2,  if norm_before_gate is 0
/// Source: Dao & Gu, "Transformers are SSMs", 2024 (mamba_ssm/ops/triton/layernorm_gated.py).
void forward(const GoldArgs& args) {
  const Norm norm(args);
  args.parallel_for(norm.rows, [&](int64_t row) {
    NormScratch& s = norm_scratch(norm.hidden);
    Scratch more(norm.hidden);
    norm.read(row, 0, more.x, more.gate, s.row());
    norm.for_groups(s.row(), [&](size_t first, const Root& root) {
      for (size_t h = first; h < first + static_cast<size_t>(norm.group); ++h) {
        const GoldElement e = norm.weighted_row(0, h, s.row(), root);
        s.set(h, norm.gates_later ? e * activation(more.gate[h]) : e);
      }
    });
    args.sink({0, row, 1, norm.hidden, s.value.data(), s.magnitude.data(), s.rounding.data()});
  });
}

/// Emits dx and dgate, and sets `roots`, of all groups of all rows.
void emit_row_gradients(const GoldArgs& args, const Norm& norm, std::vector<Root>& roots) {
  const bool rounds = args.recipes.has(recipe::kWeightedGradient);
  args.parallel_for(norm.rows, [&](int64_t row) {
    NormScratch& s = norm_scratch(norm.hidden);
    Scratch more(norm.hidden);
    norm.read(row, 0, more.x, more.gate, s.row());
    decode_row(args.in(kOfGrad), row, s.g);
    const std::vector<double> grad = s.g;
    norm.gate_gradient(0, more.gate, s.gradient());
    norm.for_groups(s.row(), [&](size_t first, const Root& root) {
      roots[static_cast<size_t>(row * norm.groups) + first / static_cast<size_t>(norm.group)] = root;
      const Erring of_group = s.row().part(first, static_cast<size_t>(norm.group)),
                   g = s.gradient().part(first, static_cast<size_t>(norm.group));
      weigh(args, 0, rounds, norm.weight, first, g);
      gradient_of_row(of_group, g, root, [&](size_t column, const GoldElement& of_s) {
        const size_t h = first + column;
        const GoldElement slope = scaled_silu_derivative(1, more.gate[h], 1);
        const GoldElement of_activation =
            norm.gates_later ? exact(grad[h]) * norm.weighted_row(1, h, s.row(), root) : exact(more.x[h]) * of_s;
        const GoldElement dgate = of_activation * slope;
        s.set(h, norm.gates_later ? of_s : of_s * activation(more.gate[h]));
        more.of_gate[h] = dgate.value, more.gate_magnitude[h] = dgate.magnitude, more.gate_rounding[h] = dgate.rounding;
      });
    });
    args.sink({0, row, 1, norm.hidden, s.value.data(), s.magnitude.data(), s.rounding.data()});
    args.sink({1, row, 1, norm.hidden, more.of_gate.data(), more.gate_magnitude.data(), more.gate_rounding.data()});
  });
}

/// Gold of gated_rms_norm's gradients.
///   in:  x, gate [batch, seq, hidden], weight[hidden], grad_y[batch, seq, hidden]
///   out: dx, dgate [batch, seq, hidden], dweight[hidden]
///   with G = grad_y a:  dx = r G w - x r^3 mean(G w x),  dgate = grad_y x r w a',  dweight = sum over rows of G x r;
///   with ds = r grad_y w - s r^3 mean(grad_y w s), if norm_before_gate is 0:
///     dx = ds a,  dgate = ds x a',  dweight = sum over rows of grad_y s r
///   a' = sigma(gate) (1 + gate (1 - sigma(gate)))
/// Source: differentiated by hand; checked by gradient_test.
void backward(const GoldArgs& args) {
  const Norm norm(args);
  std::vector<Root> roots(static_cast<size_t>(norm.rows * norm.groups));
  emit_row_gradients(args, norm, roots);
  const auto read = [&](int64_t row, int64_t first, const Erring& s, const Erring& g) {
    std::array<double, kColumnBlock> x, gate;
    const std::span of_gate = std::span(gate).first(s.value.size());
    norm.read(row, first, std::span(x).first(s.value.size()), of_gate, s);
    decode_columns(args.in(kOfGrad), norm.hidden, row, first, g.value);
    norm.gate_gradient(2, of_gate, g);
    return true;
  };
  emit_weight_gradient(args, 2, norm.hidden, norm.rows, read, [&](int64_t row, int64_t column) -> const Root& {
    return roots[static_cast<size_t>(row * norm.groups + column / norm.group)];
  });
}

void validate(const CaseSizes& sizes) {
  validate_eps(sizes, kOfEps);
  const auto refuse = [&](const char* flag, const std::string& expected, Attr attr) {
    throw InputError(flag, fmt::format("expected {}, got {}", expected, sizes.attrs[attr]),
                     std::string(kAttrs[attr].meaning));
  };
  if (const double order = sizes.attrs[kOfOrder]; order != 0 && order != 1)
    refuse("--norm-before-gate", "0 or 1", kOfOrder);
  const double group = sizes.attrs[kOfGroupSize];
  const auto hidden = static_cast<double>(sizes.dim("hidden"));
  if (!(group >= 0 && group <= hidden) || (group != 0 && std::fmod(hidden, group) != 0) || group != std::floor(group))
    refuse("--group-size", fmt::format("0 or a divisor of hidden {}", hidden), kOfGroupSize);
}

constexpr std::array kPasses{Pass{"forward", kForwardIn, kForwardOut, forward, nullptr, nullptr, &kGatedRmsNormForward,
                                  nullptr, kForwardRecipes},
                             Pass{"backward", kBackwardIn, kBackwardOut, backward, nullptr, nullptr,
                                  &kGatedRmsNormBackward, nullptr, kBackwardRecipes}};

}  // namespace
}  // namespace gated_rms_norm

extern const Operator kGatedRmsNorm;
constexpr Operator kGatedRmsNorm{
    "gated_rms_norm",
    "reduction",
    "y = norm(x) weight silu(gate), or norm(x silu(gate)) weight if norm_before_gate is 0, "
    "norm(x) = x / sqrt(mean x^2 + eps) over groups of columns",
    gated_rms_norm::kRow,
    gated_rms_norm::kAttrs,
    gated_rms_norm::kPasses,
    gated_rms_norm::validate};

}  // namespace checkop
