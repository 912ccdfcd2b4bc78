// SPDX-License-Identifier: Apache-2.0
// Shared by quant_fp8_block and quant_fp8_block_2d: the scale of numbers that become e4m3 codes.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "operator/operator.hpp"
#include "quantized.hpp"

namespace checkop::fp8_block {

inline constexpr int64_t kBlock = 128;

enum Attr : size_t { kFactorFirst, kPow2, kEps, kNear };
inline constexpr std::array kAttrs{
    AttrSpec{"factor_first", 0,
             "0, as DeepGEMM: scale = amax/448, codes of x (1/scale); 1, as Transformer Engine: codes of x (448/amax)"},
    AttrSpec{"pow2", 0,
             "1: scales are powers of two, amax/448 the next one above it and 448/amax the next one below it"},
    AttrSpec{"eps", 1e-4, "the least amax of a block"},
    AttrSpec{"near", 0, "1: data without quotients near the middle of two codes, for kernels that divide roughly"}};

struct Scale {
  float stored, factor;  ///< `factor`: what elements are multiplied by

  /// The code of x, as the number that it stands for.
  double code(float x) const { return stored_in(DType::e4m3, x * factor); }
};

/// The scale of numbers of which `amax` is the largest size. Every operation is one of fp32, rounded once:
///   amax = max(amax, eps)
///   factor_first 0: scale = amax/448, with pow2 rounded up to a power of two;  code = e4m3(x (1/scale))
///   factor_first 1: factor = 448/amax, with pow2 rounded down to such a one;  scale = 1/factor;  code = e4m3(x factor)
///                   factor = 1 where amax is 0 or infinite, the largest number where it would be infinite
Scale scale_of(float amax, std::span<const double> attrs);

/// Throws InputError for attributes without a meaning; `op` is the operator's name.
void validate(const CaseSizes& sizes, std::string_view op);

/// The quantisation as plant_blocks() and move_from_middles() have to know it.
BlockData data_of(std::span<const double> attrs);

}  // namespace checkop::fp8_block
