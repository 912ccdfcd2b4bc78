// SPDX-License-Identifier: Apache-2.0
// Emulates entropy as kernels compute it.
#include "emulation/entropy.hpp"

namespace checkop {
namespace entropy {
namespace {

using namespace emulation;

/// body(row, its logits, scale) for every row that is not left out.
template <class Body>
void for_each_row(const EmulationArgs& args, const Body& body) {
  const Matrix x = matrix(args, 0);
  const LogitTransform transform{static_cast<float>(args.attrs[0]), static_cast<float>(args.attrs[1])};
  const MaskedRows rows(args, 1);
  args.parallel_for(x.rows(), [&](int64_t r) {
    if (rows.skips(r)) return;
    body(r, TransformedRow(args.arithmetic, transform, x.row(r), x.columns), rows.scale(r));
  });
}

void forward(const EmulationArgs& args) {
  for_each_row(args, [&](int64_t r, const TransformedRow& row, float scale) {
    args.out(0)[static_cast<size_t>(r)] = scale * entropy_of(args.arithmetic, row);
  });
}

void backward(const EmulationArgs& args) {
  const std::vector<float> g = args.floats(2);
  for_each_row(args, [&](int64_t r, const TransformedRow& row, float scale) {
    const std::vector<float> gradient = entropy_gradient(args.arithmetic, row, scale * g[static_cast<size_t>(r)]);
    double* const to = args.out(0).data() + r * std::ssize(gradient);
    for (size_t v = 0; v < gradient.size(); ++v) to[v] = row.by_logit(args.arithmetic, gradient[v], v);
  });
}

constexpr auto kForwardFaults = joined(kEntropyFaults, std::array{kTileOfInfinities});
constexpr auto kBackwardFaults = joined(kEntropyGradientFaults, std::array{kTileOfInfinities});

}  // namespace
}  // namespace entropy

extern const Emulation kEntropyForward, kEntropyBackward;
const Emulation kEntropyForward{entropy::forward, entropy::kForwardFaults};
const Emulation kEntropyBackward{entropy::backward, entropy::kBackwardFaults};

}  // namespace checkop
