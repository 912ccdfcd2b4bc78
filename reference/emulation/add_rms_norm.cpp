// SPDX-License-Identifier: Apache-2.0
// Emulates add_rms_norm as kernels compute it.
#include <array>

#include "emulation/rms_norm.hpp"
#include "recipes.hpp"

namespace checkop {
namespace add_rms_norm {
namespace {

using namespace emulation;

constexpr FaultSpec kSumTruncated{"sum_truncated", "the sum is truncated to 16 bits, not rounded", "accuracy",
                                  "bf16 fp16"};
constexpr FaultSpec kSumNotRounded{"sum_not_rounded", "the sum is normalised before it is rounded, whatever round_sum",
                                   "accuracy", "bf16 fp16"};
constexpr FaultSpec kSumRounded{"sum_rounded", "the sum is rounded before it is normalised, whatever round_sum",
                                "accuracy", "bf16 fp16"};
constexpr FaultSpec kResidualLeftOut{"residual_left_out", "x is normalised without the residual"};
constexpr FaultSpec kResidualNotUpdated{"residual_not_updated", "residual_out is the residual, without x"};
constexpr FaultSpec kResidualNormalised{"residual_normalised", "residual_out is y"};
constexpr FaultSpec kOffsetLeftOut{"offset_left_out", "the weight's offset is not added"};
constexpr FaultSpec kOffsetInBf16{"offset_in_bf16", "the weight and its offset are added in bf16"};
constexpr FaultSpec kUpstreamDropped{"upstream_dropped", "dx lacks the gradient of residual_out"};
constexpr FaultSpec kUpstreamNormalised{"upstream_normalised",
                                        "the gradient of residual_out is put through the normalisation"};

/// The stored sums, and those that are normalised.
struct Sums {
  Matrix stored, normalised;

  explicit Sums(const EmulationArgs& args) : stored(matrix(args, 0)), normalised(stored) {
    const Arithmetic& a = args.arithmetic;
    const Tensor& x = args.in(0);
    const std::vector<float> residual = args.floats(1);
    const bool truncates = a.has(kSumTruncated.name), normalises_x = a.has(kResidualLeftOut.name);
    const bool rounds = (args.attrs[1] != 0 && !a.has(kSumNotRounded.name)) || a.has(kSumRounded.name);
    for (size_t i = 0; i < residual.size(); ++i) {
      const float sum = stored.values[i] + residual[i];
      float& result = stored.values[i] = stored_as(x.dtype, sum);
      if (truncates && std::abs(result) > std::abs(sum)) result = towards_zero(x.dtype, result);
      if (!normalises_x) normalised.values[i] = rounds ? result : sum;
    }
  }

 private:
  /// The neighbour of a stored number of 16 bits that is nearer to 0.
  static float towards_zero(DType dtype, float stored) {
    const double step = half_ulp(dtype, std::nextafter(std::abs(stored), 0.0F));
    return static_cast<float>(stored - std::copysign(2 * step, stored));
  }
};

NormRows rows_of(const EmulationArgs& args, const Sums& sums) {
  const Arithmetic& a = args.arithmetic;
  std::vector<float> weight = args.floats(2);
  const float offset = a.has(kOffsetLeftOut.name) ? 0 : static_cast<float>(args.attrs[2]);
  for (float& w : weight) w = a.has(kOffsetInBf16.name) ? Arithmetic::to_bf16(w + offset) : w + offset;
  return {args, sums.normalised, weight, args.attrs[0]};
}

void forward(const EmulationArgs& args) {
  const Arithmetic& a = args.arithmetic;
  const Sums sums(args);
  const Matrix y = normalised_rows(args, rows_of(args, sums));
  store(y, args.out(0));
  store(a.has(kResidualNotUpdated.name)   ? matrix(args, 1)
        : a.has(kResidualNormalised.name) ? y
                                          : sums.stored,
        args.out(1));
}

void backward(const EmulationArgs& args) {
  const Arithmetic& a = args.arithmetic;
  const NormRows in = rows_of(args, Sums(args));
  const Matrix of_y = matrix(args, 3), of_sum = matrix(args, 4);
  const bool dropped = a.has(kUpstreamDropped.name), normalised = a.has(kUpstreamNormalised.name);
  Matrix g = of_y;
  for (size_t i = 0; i < g.values.size() && normalised; ++i) g.values[i] += of_sum.values[i];
  Matrix dx = row_gradients(args, in, g);
  for (float& x : dx.values) x = a.rounded_if(a.rounds(recipe::kRowGradient), x);
  for (size_t i = 0; i < g.values.size() && !dropped && !normalised; ++i) dx.values[i] += of_sum.values[i];
  store(dx, args.out(0));
  args.out(1) = weight_gradient(args, in, of_y);
}

constexpr auto kForwardFaults =
    joined(kNormForwardFaults, std::array{kSumTruncated, kSumNotRounded, kSumRounded, kResidualLeftOut,
                                          kResidualNotUpdated, kResidualNormalised, kOffsetLeftOut, kOffsetInBf16});
constexpr auto kBackwardFaults =
    joined(kNormBackwardFaults, std::array{kSumTruncated, kSumNotRounded, kSumRounded, kResidualLeftOut, kOffsetLeftOut,
                                           kOffsetInBf16, kUpstreamDropped, kUpstreamNormalised});

}  // namespace
}  // namespace add_rms_norm

extern const Emulation kAddRmsNormForward, kAddRmsNormBackward;
const Emulation kAddRmsNormForward{add_rms_norm::forward, add_rms_norm::kForwardFaults};
const Emulation kAddRmsNormBackward{add_rms_norm::backward, add_rms_norm::kBackwardFaults};

}  // namespace checkop
