// SPDX-License-Identifier: Apache-2.0
// Emulates rms_norm as kernels compute it.
#include "emulation/rms_norm.hpp"

#include <array>

namespace checkop {
namespace rms_norm {
namespace {

using namespace emulation;

constexpr FaultSpec kRowMaskIgnored{"row_mask_ignored", "masked rows count in dweight", "accuracy", "", "mask"};
// Visible because masks hold 2s, which keep a row as a 1 does.
constexpr FaultSpec kMaskMultiplied{"mask_multiplied", "rows of dweight are multiplied by their mask's value",
                                    "accuracy", "", "mask"};
constexpr FaultSpec kMaskedDxZero{"masked_dx_zero", "the mask takes rows out of dx too", "accuracy", "", "mask"};

NormRows rows_of(const EmulationArgs& args) { return {args, matrix(args, 0), args.floats(1), args.attrs[0]}; }

void forward(const EmulationArgs& args) { store(normalised_rows(args, rows_of(args)), args.out(0)); }

void backward(const EmulationArgs& args) {
  const Arithmetic& a = args.arithmetic;
  const NormRows in = rows_of(args);
  const Matrix g = matrix(args, 2);
  const std::vector<int64_t> mask = args.has(3) ? args.integers(3) : std::vector<int64_t>{};
  store(row_gradients(args, in, g), args.out(0));
  for (int64_t r = 0; r < g.rows() && a.has(kMaskedDxZero.name); ++r) {
    if (mask[static_cast<size_t>(r)] == 0) std::fill_n(args.out(0).begin() + r * g.columns, g.columns, 0.0);
  }
  std::vector<int64_t> kept;
  for (int64_t r = 0; r < g.rows(); ++r) {
    if (mask.empty() || mask[static_cast<size_t>(r)] != 0 || a.has(kRowMaskIgnored.name)) kept.push_back(r);
  }
  const bool multiplied = a.has(kMaskMultiplied.name);
  args.out(1) = weight_gradient(args, in, g, kept, [&](int64_t r) {
    return multiplied ? static_cast<float>(mask[static_cast<size_t>(r)]) : 1.0F;
  });
}

constexpr auto kBackwardFaults =
    joined(kNormBackwardFaults, std::array{kRowMaskIgnored, kMaskMultiplied, kMaskedDxZero});

}  // namespace
}  // namespace rms_norm

extern const Emulation kRmsNormForward, kRmsNormBackward;
const Emulation kRmsNormForward{rms_norm::forward, emulation::kNormForwardFaults};
const Emulation kRmsNormBackward{rms_norm::backward, rms_norm::kBackwardFaults};

}  // namespace checkop
