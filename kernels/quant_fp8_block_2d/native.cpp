// SPDX-License-Identifier: Apache-2.0
// quant_fp8_block_2d / native: CPU; every block of 128 x 128 numbers by itself, every operation in fp32.
//   amax = max(largest |x| of a block, eps)
//   factor_first 0: scale = amax/448, with pow2 the power of two from it on;  codes = e4m3(x (1/scale))
//   factor_first 1: factor = 448/amax, with pow2 the power of two up to it, 1 for an amax of 0 or infinity;
//                   scale = 1/factor;  codes = e4m3(x factor)
//   x: [n, k] fp32|bf16|fp16   codes: [n, k] e4m3   scales: [n/128, k/128] fp32, both extents rounded up
//   codes_t: [k, n] e4m3   scales_t: [k/128, n/128] fp32, the same transposed, both optional
//   Limits: contiguous.   Expected error: none.
#include "cpu/fp8_block.hpp"

namespace {

using native::kFp8Block, native::Extent;

/// Tensors of a call; those of the transposed matrix may be null.
struct Tensors {
  explicit Tensors(const checkop_call& c) : x(c.inputs[0]), scaling(c) {
    native::check_computed_dtype(x.dtype);
    native::check_matrix(x, "x", x.dtype, n, k);
    Extent down{"rows of scales", (n.value + kFp8Block - 1) / kFp8Block};
    Extent across{"columns of scales", (k.value + kFp8Block - 1) / kFp8Block};
    native::check_matrix(c.outputs[0], "codes", CHECKOP_E4M3, n, k);
    native::check_matrix(c.outputs[1], "scales", CHECKOP_F32, down, across);
    if (c.outputs[2].data != nullptr) {
      native::check_matrix(c.outputs[2], "codes_t", CHECKOP_E4M3, k, n);
      native::check_matrix(c.outputs[3], "scales_t", CHECKOP_F32, across, down);
    }
    codes = static_cast<uint8_t*>(c.outputs[0].data), codes_t = static_cast<uint8_t*>(c.outputs[2].data);
    scales = static_cast<float*>(c.outputs[1].data), scales_t = static_cast<float*>(c.outputs[3].data);
    blocks_down = down.value, blocks_across = across.value;
  }

  /// Quantises the block of `height` rows from `top` on in block column `b`. `rows`: x from row `top` on.
  void quantize(const float* rows, int64_t top, int64_t height, int64_t b) const {
    const int64_t left = b * kFp8Block, width = std::min(kFp8Block, k.value - left), block_row = top / kFp8Block;
    float amax = 0, scale = 0;
    for (int64_t r = 0; r < height; ++r) amax = std::max(amax, native::amax(rows + r * k.value + left, width));
    const float factor = scaling.factor(amax, scale);
    scales[block_row * blocks_across + b] = scale;
    if (scales_t != nullptr) scales_t[b * blocks_down + block_row] = scale;
    for (int64_t r = 0; r < height; ++r) {
      for (int64_t i = left; i < left + width; ++i) {
        const uint8_t code = native::to_e4m3(rows[r * k.value + i] * factor);
        codes[(top + r) * k.value + i] = code;
        if (codes_t != nullptr) codes_t[i * n.value + top + r] = code;
      }
    }
  }

  const checkop_tensor& x;
  native::Fp8Scaling scaling;
  Extent n{"n_dim"}, k{"k_dim"};
  uint8_t *codes, *codes_t;
  float *scales, *scales_t;
  int64_t blocks_down, blocks_across;
};

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 1, 4);
    const Tensors t(c);
    native::parallel_for(t.blocks_down, t.n.value * t.k.value * 8, [&](int64_t begin, int64_t end) {
      std::vector<float> rows(static_cast<size_t>(kFp8Block * t.k.value));
      for (int64_t block = begin; block < end; ++block) {
        const int64_t top = block * kFp8Block, height = std::min(kFp8Block, t.n.value - top);
        native::load(t.x, top * t.k.value, height * t.k.value, rows.data());
        for (int64_t b = 0; b < t.blocks_across; ++b) t.quantize(rows.data(), top, height, b);
      }
    });
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "quant_fp8_block_2d", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
