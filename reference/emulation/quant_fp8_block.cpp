// SPDX-License-Identifier: Apache-2.0
// Emulates quant_fp8_block as kernels compute it: amax of a block, its scale, the codes of its elements.
#include <array>
#include <bit>
#include <limits>

#include "emulation/quantized.hpp"

namespace checkop {
namespace {

using namespace emulation;

constexpr FaultSpec kPowerOfLogarithm{"power_of_logarithm", "the power of two is 2^ceil(log2(scale)), in fp32",
                                      "accuracy", "fp32"};
constexpr FaultSpec kPowerOfFrexp{"power_of_frexp", "the power of two is that of frexp, which doubles powers of two"};
constexpr FaultSpec kPowerToNearest{"power_to_nearest", "the power of two is the nearest one"};
constexpr FaultSpec kPowerOtherWay{"power_other_way", "the power of two is that on the other side of the scale"};
constexpr FaultSpec kPowerLeftOut{"power_left_out", "scales are no powers of two though they should be"};
constexpr FaultSpec kEpsLeftOut{"eps_left_out", "a block of zeros gets a scale of 0", "nonfinite"};
constexpr FaultSpec kEpsAdded{"eps_added", "eps is added to amax"};
constexpr FaultSpec kScaledTo240{"scaled_to_240", "amax becomes 240, the largest number of e4m3fnuz"};
constexpr FaultSpec kDivided{"divided", "x is divided by the scale, not multiplied by its reciprocal"};
constexpr FaultSpec kRoughReciprocal{"rough_reciprocal", "the reciprocal is one unit in the last place too large"};
constexpr FaultSpec kInfiniteScaleKept{"infinite_scale_kept", "an infinite amax gives the scale that it divides to",
                                       "nonfinite"};

struct Scale {
  float stored, factor;
};

int exponent_of(float x) {
  int exponent = 0;
  return std::frexp(x, &exponent) == 0.5F ? exponent - 1 : exponent;  // ceil(log2(x))
}

/// The power of two next to x: above it, or below it.
float power(const Arithmetic& a, float x, bool above) {
  if (a.has(kPowerLeftOut.name)) return x;
  const float up = std::ldexp(1.0F, exponent_of(x)), down = up == x ? x : up / 2;
  if (a.has(kPowerOfLogarithm.name)) return std::exp2(above ? std::ceil(std::log2(x)) : std::floor(std::log2(x)));
  if (a.has(kPowerOfFrexp.name)) return up == x ? 2 * up : above ? up : down;
  if (a.has(kPowerToNearest.name)) return x < 1.5F * down ? down : up;
  return above != a.has(kPowerOtherWay.name) ? up : down;
}

Scale scale_of(const EmulationArgs& args, float amax) {
  const Arithmetic& a = args.arithmetic;
  const auto attr = [&](size_t i) { return static_cast<float>(args.attrs[i]); };
  const float eps = attr(2), largest = a.has(kScaledTo240.name) ? 240.0F : 448.0F;
  if (a.has(kEpsAdded.name)) amax += eps;
  if (!a.has(kEpsLeftOut.name)) amax = std::max(amax, eps);
  if (attr(0) == 0) {
    const float exact = amax / largest;
    const float scale = attr(1) != 0 && exact > 0 ? power(a, exact, true) : exact;
    return {scale, 1 / scale};
  }
  if ((amax == 0 && !a.has(kEpsLeftOut.name)) || (std::isinf(amax) && !a.has(kInfiniteScaleKept.name))) return {1, 1};
  const float exact = amax == 0 ? largest / amax : std::min(largest / amax, std::numeric_limits<float>::max());
  const float factor = attr(1) != 0 && std::isfinite(exact) && exact > 0 ? power(a, exact, false) : exact;
  return {1 / factor, factor};
}

void forward(const EmulationArgs& args) {
  const Blocks blocks(args, 128);
  const Arithmetic& a = args.arithmetic;
  args.parallel_for(blocks.x.rows(), [&](int64_t row) {
    for (int64_t b = 0; b < blocks.of_row; ++b) {
      const Scale own = scale_of(args, blocks.amax(row, b)),
                  used = scale_of(args, blocks.amax(row, blocks.scaled_as(b)));
      args.out(1)[blocks.place(row, b)] = a.has(kReciprocalStored.name) ? own.factor : own.stored;
      float factor = used.factor;
      if (a.has(kRoughReciprocal.name)) factor = std::nextafter(factor, std::numeric_limits<float>::infinity());
      for (int64_t i = blocks.begin(b); i < blocks.end(b); ++i) {
        const float x = blocks.x.row(row)[i];
        const float q = a.has(kDivided.name) ? x / used.stored : quotient(a, x, factor);
        args.out(0)[static_cast<size_t>(row * blocks.x.columns + i)] = e4m3(a, q);
      }
    }
  });
}

constexpr std::array kFaults =
    joined(kBlockFaults, std::array{kReciprocalStored, kSubnormalCodesFlushed, kPowerOfLogarithm, kPowerOfFrexp,
                                    kPowerToNearest, kPowerOtherWay, kPowerLeftOut, kEpsLeftOut, kEpsAdded,
                                    kScaledTo240, kDivided, kRoughReciprocal, kInfiniteScaleKept});

}  // namespace

extern const Emulation kQuantFp8BlockForward;
const Emulation kQuantFp8BlockForward{forward, kFaults};

}  // namespace checkop
