// SPDX-License-Identifier: Apache-2.0
// grouped_fp8_block_gemm and fp8_block_wgrad: which rows and which scales belong together.
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "support/gold_helper.hpp"

namespace checkop::fp8_groups_test {
namespace {

/// Copies rows [first, first + count) of `from`, which has rows of `bytes` bytes.
void copy_rows(const Tensor& from, int64_t first, int64_t count, size_t bytes, Tensor& to) {
  std::memcpy(to.bytes.data(), from.bytes.data() + static_cast<size_t>(first) * bytes,
              static_cast<size_t>(count) * bytes);
}

TEST(GroupedFp8BlockGemm, RowsAreThoseOfFp8BlockGemmWithTheCodesAndScalesOfTheirExpert) {
  const int64_t k_dim = 300, n_dim = 140, experts = 5, blocks = 3, n_blocks = 2;
  const Case c = gold_case("grouped_fp8_block_gemm", "forward", DType::f32,
                           {{"rows", 40}, {"k_dim", k_dim}, {"n_dim", n_dim}, {"experts", experts}});
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  const std::vector<GoldOutput> gold = collect_gold(c, inputs, 1);
  int64_t compared = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const auto first = static_cast<int64_t>(inputs[4].at(e)), rows = static_cast<int64_t>(inputs[4].at(e + 1)) - first;
    if (rows == 0) continue;
    const Case own = gold_case("fp8_block_gemm", "forward", DType::f32,
                               {{"batch", 1}, {"seq", rows}, {"k_dim", k_dim}, {"n_dim", n_dim}});
    std::vector<Tensor> own_inputs = make_inputs(own, 1);
    copy_rows(inputs[0], first, rows, static_cast<size_t>(k_dim), own_inputs[0]);
    copy_rows(inputs[1], first, rows, static_cast<size_t>(blocks) * 4, own_inputs[1]);
    copy_rows(inputs[2], e * n_dim, n_dim, static_cast<size_t>(k_dim), own_inputs[2]);
    copy_rows(inputs[3], e * n_blocks, n_blocks, static_cast<size_t>(blocks) * 4, own_inputs[3]);
    const std::vector<GoldOutput> own_gold = collect_gold(own, own_inputs, 1);
    for (int64_t i = 0; i < rows * n_dim; ++i) {
      const auto to = static_cast<size_t>(i), from = static_cast<size_t>(first * n_dim + i);
      ASSERT_EQ(gold[0].value[from], own_gold[0].value[to]) << e << " " << i;
      ASSERT_EQ(gold[0].magnitude[from], own_gold[0].magnitude[to]) << e << " " << i;
      ASSERT_EQ(gold[0].rounding[from], own_gold[0].rounding[to]) << e << " " << i;
      ++compared;
    }
  }
  const auto end = static_cast<size_t>(inputs[4].at(experts)) * static_cast<size_t>(n_dim);
  EXPECT_EQ(static_cast<size_t>(compared), end);
  for (size_t i = end; i < gold[0].value.size(); ++i) EXPECT_EQ(gold[0].value[i], 0) << i;
}

TEST(Fp8BlockWgrad, EveryCodeHasTheScaleOfItsBlockOfRowsAndCountsForItsExpertAlone) {
  const int64_t rows = 500, k_dim = 3, n_dim = 2, blocks = 4;
  const Case c = gold_case("fp8_block_wgrad", "forward", DType::f32,
                           {{"rows", rows}, {"k_dim", k_dim}, {"n_dim", n_dim}, {"experts", 3}});
  std::vector<Tensor> inputs = make_inputs(c, 1);
  for (int64_t e = 0; e < 4; ++e) inputs[4].set(e, std::array{0, 256, 256, 384}[static_cast<size_t>(e)]);
  for (const int64_t r : {0, 127, 128, 255, 256, 383, 384, 499}) {
    for (int64_t i = 0; i < inputs[0].count(); ++i) inputs[0].set(i, i % rows == r ? 1.5 : 0.0);
    for (int64_t i = 0; i < inputs[2].count(); ++i) inputs[2].set(i, 2.0);
    const int64_t expert = r < 256 ? 0 : r < 384 ? 2 : -1;
    const std::vector<GoldOutput> gold = collect_gold(c, inputs, 1);
    for (int64_t i = 0; i < 3 * n_dim * k_dim; ++i) {
      const int64_t e = i / (n_dim * k_dim), n = i / k_dim % n_dim, k = i % k_dim;
      const double scale = inputs[1].at(n * blocks + r / 128) * inputs[3].at(k * blocks + r / 128);
      ASSERT_NEAR(gold[0].value[static_cast<size_t>(i)], e == expert ? 3 * scale : 0, 1e-15 * scale) << r << " " << i;
    }
  }
}

}  // namespace
}  // namespace checkop::fp8_groups_test
