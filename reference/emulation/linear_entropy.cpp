// SPDX-License-Identifier: Apache-2.0
// Emulates linear_entropy as kernels compute it.
#include "emulation/entropy.hpp"
#include "emulation/linear_logits.hpp"

namespace checkop {
namespace linear_entropy {
namespace {

using namespace emulation;

constexpr int kBias = 2, kMask = 3, kGrad = 4;

/// body(row, its logits, scale) for every row that is not left out.
template <class Body>
void for_each_row(const EmulationArgs& args, const LinearProblem& p, const MaskedRows& rows, const Body& body) {
  const LogitTransform transform{static_cast<float>(args.attrs[0]), static_cast<float>(args.attrs[1])};
  args.parallel_for(p.logits.rows(), [&](int64_t r) {
    if (rows.skips(r)) return;
    body(r, TransformedRow(args.arithmetic, transform, p.logits.row(r), p.logits.columns), rows.scale(r));
  });
}

void forward(const EmulationArgs& args) {
  const MaskedRows rows(args, kMask);
  const LinearProblem p = load_linear(args, kBias, [&](int64_t r) { return rows.skips(r); });
  for_each_row(args, p, rows, [&](int64_t r, const TransformedRow& row, float scale) {
    args.out(0)[static_cast<size_t>(r)] = scale * entropy_of(args.arithmetic, row);
  });
}

void backward(const EmulationArgs& args) {
  const MaskedRows rows(args, kMask);
  const LinearProblem p = load_linear(args, kBias, [&](int64_t r) { return rows.skips(r); });
  const std::vector<float> g = args.floats(kGrad);
  Matrix dx = Matrix::zeros(p.logits.rows(), p.logits.columns);
  for_each_row(args, p, rows, [&](int64_t r, const TransformedRow& row, float scale) {
    const std::vector<float> gradient = entropy_gradient(args.arithmetic, row, scale * g[static_cast<size_t>(r)]);
    for (size_t v = 0; v < gradient.size(); ++v)
      dx.row(r)[v] = as_factor(args.arithmetic, row.by_logit(args.arithmetic, gradient[v], v));
  });
  store_linear_gradients(args, p, dx, dx, args.has(kBias));
}

constexpr auto kForwardFaults = joined(kEntropyFaults, kLinearFaults);
constexpr auto kBackwardFaults = joined(kEntropyGradientFaults, kLinearGradientFaults);

}  // namespace
}  // namespace linear_entropy

extern const Emulation kLinearEntropyForward, kLinearEntropyBackward;
const Emulation kLinearEntropyForward{linear_entropy::forward, linear_entropy::kForwardFaults};
const Emulation kLinearEntropyBackward{linear_entropy::backward, linear_entropy::kBackwardFaults, /*skips_empty=*/true};

}  // namespace checkop
