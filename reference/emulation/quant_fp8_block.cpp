// SPDX-License-Identifier: Apache-2.0
// Emulates quant_fp8_block and quant_fp8_block_2d as kernels compute them: amax of a block, its scale, its codes.
#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <utility>
#include <vector>

#include "emulation/quantized.hpp"

namespace checkop {
namespace quant_fp8_block {
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
constexpr FaultSpec kTransposedOfRows{"transposed_of_rows", "codes_t are the codes of rows, with the scales of rows",
                                      "accuracy", "", "codes_t"};
constexpr FaultSpec kTransposedOfCodes{"transposed_of_codes", "codes_t are those of the decoded codes, not of x",
                                       "accuracy", "", "codes_t"};
constexpr FaultSpec kTransposedBySequence{"transposed_by_sequence",
                                          "blocks of codes_t end with a sequence; the scale is that of the last one",
                                          "accuracy", "", "codes_t"};
constexpr FaultSpec kScalesNotTransposed{"scales_not_transposed", "scales_t are stored as scales are", "accuracy", "",
                                         "codes_t"};
constexpr FaultSpec kCodesNotTransposed{"codes_not_transposed", "codes_t are stored as codes are", "accuracy", "",
                                        "codes_t"};
constexpr FaultSpec kAmaxOfFirstRows{"amax_of_first_rows", "the amax of a block leaves out its last 64 rows"};
constexpr FaultSpec kScaleOfRow{"scale_of_row", "the codes of a row have the amax of this row's part"};
constexpr FaultSpec kRowsInBlockBefore{"rows_in_block_before",
                                       "the rows after the last whole block count in the block before"};
constexpr FaultSpec kBlockAbove{"block_above", "codes are those of the scale of the block above"};

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

/// x as a code with the scale `used`.
float code_of(const Arithmetic& a, float x, const Scale& used) {
  float factor = used.factor;
  if (a.has(kRoughReciprocal.name)) factor = std::nextafter(factor, std::numeric_limits<float>::infinity());
  return e4m3(a, a.has(kDivided.name) ? x / used.stored : quotient(a, x, factor));
}

float stored_scale(const Arithmetic& a, const Scale& scale) {
  return a.has(kReciprocalStored.name) ? scale.factor : scale.stored;
}

/// Every row of blocks.x by itself: its codes and the scales of its blocks.
void quantize_rows(const EmulationArgs& args, const Blocks& blocks, std::vector<double>& codes,
                   std::vector<double>& scales) {
  const Arithmetic& a = args.arithmetic;
  args.parallel_for(blocks.x.rows(), [&](int64_t row) {
    for (int64_t b = 0; b < blocks.of_row; ++b) {
      const Scale own = scale_of(args, blocks.amax(row, b)),
                  used = scale_of(args, blocks.amax(row, blocks.scaled_as(b)));
      scales[blocks.place(row, b)] = stored_scale(a, own);
      for (int64_t i = blocks.begin(b); i < blocks.end(b); ++i)
        codes[static_cast<size_t>(row * blocks.x.columns + i)] = code_of(a, blocks.x.row(row)[i], used);
    }
  });
}

/// The same of x transposed, whose columns are tokens.
void quantize_transposed(const EmulationArgs& args, const Blocks& rows) {
  const Arithmetic& a = args.arithmetic;
  std::vector<double>&codes = args.out(2), &scales = args.out(3);
  Matrix x = transposed(rows.x);
  if (a.has(kTransposedOfCodes.name)) {
    for (int64_t c = 0; c < x.rows(); ++c)
      for (int64_t t = 0; t < x.columns; ++t) {
        const Scale scale = scale_of(args, rows.amax(t, c / rows.width));
        x.row(c)[t] = stored_as(DType::e4m3, x.row(c)[t] * scale.factor) * scale.stored;
      }
  }
  const Blocks blocks(a, std::move(x), rows.width);
  quantize_rows(args, blocks, codes, scales);
  const int64_t tokens = blocks.x.columns, seq = args.in(0).shape[args.in(0).shape.size() - 2];
  const auto place = [&](int64_t c, int64_t t) { return static_cast<size_t>(c * tokens + t); };
  for (int64_t c = 0; c < blocks.x.rows(); ++c) {
    for (int64_t t = 0; t < tokens; ++t) {
      const float value = blocks.x.row(c)[t];
      if (a.has(kTransposedOfRows.name))
        codes[place(c, t)] = code_of(a, value, scale_of(args, rows.amax(t, c / rows.width)));
      if (!a.has(kTransposedBySequence.name)) continue;
      const int64_t block = t / rows.width, sequence = t / seq;
      const int64_t first = std::max(blocks.begin(block), sequence * seq);
      const Scale scale = scale_of(args, blocks.amax_of(c, first, std::min(blocks.end(block), (sequence + 1) * seq)));
      codes[place(c, t)] = code_of(a, value, scale);
      scales[blocks.place(c, block)] = stored_scale(a, scale);
    }
  }
  if (a.has(kCodesNotTransposed.name)) codes = args.out(0);
}

void forward(const EmulationArgs& args) {
  const Blocks blocks(args, 128);
  quantize_rows(args, blocks, args.out(0), args.out(1));
  if (!args.out(2).empty()) quantize_transposed(args, blocks);
}

/// Blocks of 128 x 128 numbers.
struct Squares {
  explicit Squares(const EmulationArgs& args)
      : a(args.arithmetic), rows(args, 128), of_column((rows.x.rows() + 127) / 128) {}

  float amax(int64_t block_row, int64_t block) const {
    if (a.has(kAmaxOfRow.name)) return amax_of(block_row, 0, rows.of_row);
    return amax_of(block_row, block, block + 1);
  }
  float amax_of(int64_t block_row, int64_t first, int64_t last) const {
    int64_t begin = block_row * 128, end = std::min(begin + 128, rows.x.rows());
    if (a.has(kRowsInBlockBefore.name) && block_row + 2 == of_column && rows.x.rows() % 128 != 0) end = rows.x.rows();
    if (a.has(kAmaxOfFirstRows.name)) end = std::min(end, begin + 64);
    float largest = 0;
    for (int64_t r = begin; r < end; ++r)
      for (int64_t b = first; b < last; ++b) {
        const float own = rows.amax_of(r, rows.begin(b), rows.end(b));
        if (std::isnan(own)) return own;
        largest = std::max(largest, own);
      }
    return largest;
  }

  const Arithmetic& a;
  Blocks rows;
  int64_t of_column;
};

void forward_2d(const EmulationArgs& args) {
  const Squares squares(args);
  const Arithmetic& a = args.arithmetic;
  const Matrix& x = squares.rows.x;
  const int64_t n = x.rows(), k = x.columns, across = squares.rows.of_row, down = squares.of_column;
  const bool has_transposed = !args.out(2).empty();
  args.parallel_for(down, [&](int64_t block_row) {
    for (int64_t b = 0; b < across; ++b) {
      const Scale own = scale_of(args, squares.amax(block_row, b));
      Scale used = scale_of(args, squares.amax(block_row, squares.rows.scaled_as(b)));
      if (a.has(kBlockAbove.name) && block_row > 0) used = scale_of(args, squares.amax(block_row - 1, b));
      const auto of_rows = static_cast<size_t>(block_row * across + b),
                 of_columns = static_cast<size_t>(b * down + block_row);
      args.out(1)[a.has(kScalesTransposed.name) ? of_columns : of_rows] = stored_scale(a, own);
      if (has_transposed) args.out(3)[a.has(kScalesNotTransposed.name) ? of_rows : of_columns] = stored_scale(a, own);
      for (int64_t r = block_row * 128; r < std::min(n, block_row * 128 + 128); ++r) {
        if (a.has(kScaleOfRow.name))
          used = scale_of(args, squares.rows.amax_of(r, squares.rows.begin(b), squares.rows.end(b)));
        for (int64_t c = squares.rows.begin(b); c < squares.rows.end(b); ++c) {
          const float code = code_of(a, x.row(r)[c], used);
          args.out(0)[static_cast<size_t>(r * k + c)] = code;
          if (has_transposed)
            args.out(2)[static_cast<size_t>(a.has(kCodesNotTransposed.name) ? r * k + c : c * n + r)] = code;
        }
      }
    }
  });
}

constexpr std::array kScaleFaults{kReciprocalStored, kNanSaturated,    kAmaxIsNan,        kSubnormalCodesFlushed,
                                  kPowerOfLogarithm, kPowerOfFrexp,    kPowerToNearest,   kPowerOtherWay,
                                  kPowerLeftOut,     kEpsLeftOut,      kEpsAdded,         kScaledTo240,
                                  kDivided,          kRoughReciprocal, kInfiniteScaleKept};
constexpr std::array kFaults =
    joined(joined(kBlockFaults, kScaleFaults),
           std::array{kTransposedOfRows, kTransposedOfCodes, kTransposedBySequence, kCodesNotTransposed});
constexpr std::array k2dFaults =
    joined(std::array{kAmaxWithoutSign, kAmaxOfRow, kScalesTransposed, kNeighbourScale, kQuotientIn16Bit,
                      kCodesTruncated, kTiesAwayFromZero, kTiesTowardZero, kAmaxOfFirstRows, kScaleOfRow,
                      kRowsInBlockBefore, kBlockAbove, kScalesNotTransposed, kCodesNotTransposed},
           kScaleFaults);

}  // namespace
}  // namespace quant_fp8_block

extern const Emulation kQuantFp8BlockForward, kQuantFp8Block2dForward;
const Emulation kQuantFp8BlockForward{quant_fp8_block::forward, quant_fp8_block::kFaults};
const Emulation kQuantFp8Block2dForward{quant_fp8_block::forward_2d, quant_fp8_block::k2dFaults};

}  // namespace checkop
