// SPDX-License-Identifier: Apache-2.0
// quant_fp8_block / native: CPU; every block of 128 columns by itself, every operation in fp32.
//   amax = max(largest |x| of a block, eps)
//   factor_first 0: scale = amax/448, with pow2 the power of two from it on;  codes = e4m3(x (1/scale))
//   factor_first 1: factor = 448/amax, with pow2 the power of two up to it, 1 for an amax of 0 or infinity;
//                   scale = 1/factor;  codes = e4m3(x factor)
//   codes_t, scales_t: the same of x transposed, whose columns are all tokens
//   x: [..., hidden] fp32|bf16|fp16   codes: [..., hidden] e4m3   scales: [..., hidden/128 rounded up] fp32
//   codes_t: [hidden, tokens] e4m3   scales_t: [hidden, tokens/128 rounded up] fp32, both optional
//   Limits: contiguous.   Expected error: none.
#include "cpu/fp8_block.hpp"

namespace {

using native::kFp8Block, native::Extent;

/// Stores the codes of n numbers from x on and returns their scale.
float quantize(const native::Fp8Scaling& scaling, const float* x, int64_t n, uint8_t* codes) {
  float scale = 0;
  const float factor = scaling.factor(native::amax(x, n), scale);
  for (int64_t i = 0; i < n; ++i) codes[i] = native::to_e4m3(x[i] * factor);
  return scale;
}

/// x transposed, whose outputs a call may lack.
class Transposed {
 public:
  Transposed(const checkop_call& c, int64_t tokens, int64_t columns)
      : x_(c.inputs[0]),
        codes_(static_cast<uint8_t*>(c.outputs[2].data)),
        scales_(static_cast<float*>(c.outputs[3].data)),
        tokens_(tokens),
        columns_(columns),
        blocks_((tokens + kFp8Block - 1) / kFp8Block) {
    if (codes_ == nullptr || tokens * columns == 0) return;
    Extent rows{"columns of x", columns}, of_codes{"tokens", tokens}, of_scales{"columns of scales_t", blocks_};
    native::check_matrix(c.outputs[2], "codes_t", CHECKOP_E4M3, rows, of_codes);
    native::check_matrix(c.outputs[3], "scales_t", CHECKOP_F32, rows, of_scales);
  }

  /// Every block of 128 tokens of a column by itself.
  void quantize(const native::Fp8Scaling& scaling) const {
    if (codes_ == nullptr) return;
    native::parallel_for(blocks_, tokens_ * columns_ * 8, [&](int64_t begin, int64_t end) {
      std::vector<float> x(static_cast<size_t>(kFp8Block * columns_)), column(static_cast<size_t>(kFp8Block));
      for (int64_t b = begin; b < end; ++b) {
        const int64_t first = b * kFp8Block, n = std::min(kFp8Block, tokens_ - first);
        native::load(x_, first * columns_, n * columns_, x.data());
        for (int64_t k = 0; k < columns_; ++k) {
          for (int64_t t = 0; t < n; ++t) column[static_cast<size_t>(t)] = x[static_cast<size_t>(t * columns_ + k)];
          scales_[k * blocks_ + b] = ::quantize(scaling, column.data(), n, codes_ + k * tokens_ + first);
        }
      }
    });
  }

 private:
  const checkop_tensor& x_;
  uint8_t* codes_;
  float* scales_;
  int64_t tokens_, columns_, blocks_;
};

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 1, 4);
    const native::Quantisation q(c, kFp8Block, CHECKOP_E4M3, 1, CHECKOP_F32);
    const Transposed transposed(c, q.rows.value, q.columns.value);
    const native::Fp8Scaling scaling(c);
    auto* const codes = static_cast<uint8_t*>(c.outputs[0].data);
    auto* const scales = static_cast<float*>(c.outputs[1].data);
    q.for_blocks([&](const float* x, int64_t n, int64_t row, int64_t block) {
      scales[row * q.blocks() + block] = quantize(scaling, x, n, codes + row * q.columns.value + block * kFp8Block);
    });
    transposed.quantize(scaling);
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "quant_fp8_block", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
