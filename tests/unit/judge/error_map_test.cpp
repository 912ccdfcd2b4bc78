// SPDX-License-Identifier: Apache-2.0
// The error map of an output: the histogram counts every element once, the grid shows positions.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "judge/error_map.hpp"
#include "support/compare_helper.hpp"

namespace checkop::error_map_test {
namespace {

using compare_test::compare;
using compare_test::gate;
using compare_test::Matrix;
using compare_test::tolerance;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

int64_t counted(const ErrorMap& map) { return std::accumulate(map.histogram.begin(), map.histogram.end(), int64_t{0}); }

TEST(ErrorMap, CapitalsFailAndTheRestPasses) {
  EXPECT_EQ(error_level(-1), ' ');
  EXPECT_EQ(error_level(0), '.');
  EXPECT_EQ(error_level(1e-300), '0');
  EXPECT_EQ(error_level(std::exp2(-11.9)), '0');
  EXPECT_EQ(error_level(std::exp2(-11.5)), '1');
  EXPECT_EQ(error_level(0.5), 'w');
  EXPECT_EQ(error_level(1), 'z');
  EXPECT_EQ(error_level(std::nextafter(1.0, 2.0)), 'A');
  EXPECT_EQ(error_level(2), 'A');
  EXPECT_EQ(error_level(2.1), 'B');
  EXPECT_EQ(error_level(std::exp2(26)), 'Z');
  EXPECT_EQ(error_level(1e8), '!');
  EXPECT_EQ(error_level(1e300), '!');
  EXPECT_EQ(error_level(kInfinity), '!');
}

TEST(ErrorMap, CellsArePowersOfTwoAndAtMost64ASide) {
  const auto map_of = [](int64_t rows, int64_t columns) {
    return compare(DType::f32, Matrix(rows, columns), {tolerance(1, 0)}).map;
  };
  const ErrorMap small = map_of(3, 64);
  EXPECT_EQ(small.cells.size(), 3u);
  EXPECT_EQ(small.cells[0], std::string(64, '.'));
  const ErrorMap wide = map_of(65, 4097);
  EXPECT_EQ(wide.rows_per_cell, 2);
  EXPECT_EQ(wide.columns_per_cell, 128);
  EXPECT_EQ(wide.cells.size(), 33u);
  EXPECT_EQ(wide.cells[0].size(), 33u);
}

TEST(ErrorMap, AnErrorStandsInItsCell) {
  Matrix m(130, 1000);  // cells of 4 x 16
  m.got[7 * 1000 + 21] = 0.5;
  m.got[129 * 1000 + 999] = 4;
  const ErrorMap map = compare(DType::f32, m, {tolerance(1, 0)}).map;
  for (size_t r = 0; r < map.cells.size(); ++r) {
    for (size_t c = 0; c < map.cells[r].size(); ++c) {
      const char expected = r == 1 && c == 1 ? 'w' : r == 32 && c == 62 ? 'B' : '.';
      EXPECT_EQ(map.cells[r][c], expected) << r << " " << c;
    }
  }
}

TEST(ErrorMap, HistogramCountsEveryElementOnceByTheBinadeOfItsRatio) {
  Matrix m(5, 700);
  for (size_t i = 0; i < m.got.size(); ++i) m.got[i] = i % 3 == 0 ? 0 : i % 3 == 1 ? 0.3 : 0.75;
  m.got[10] = 3, m.got[11] = kInfinity, m.got[12] = std::nan("");
  const ErrorMap map = compare(DType::f64, m, {tolerance(1, 0)}).map;
  EXPECT_EQ(counted(map), 3500);
  EXPECT_EQ(map.histogram[0], 1167 - 1);                       // no error; one of them was element 12
  EXPECT_EQ(map.histogram[-1 - ErrorMap::kLowest], 1167 - 1);  // [1/4, 1/2)
  EXPECT_EQ(map.histogram[0 - ErrorMap::kLowest], 1166 - 1);   // [1/2, 1)
  EXPECT_EQ(map.histogram[2 - ErrorMap::kLowest], 1);          // [2, 4)
  EXPECT_EQ(map.histogram.back(), 2);
}

TEST(ErrorMap, TheWorstOfSeveralGatesCounts) {
  Matrix m(2, 600);
  for (double& got : m.got) got = 0.26;
  for (double& gold : m.gold) gold = 0.2;
  const ErrorMap map = compare(DType::f64, m, {tolerance(1, 0), tolerance(0, 0.5), tolerance(0.2, 0)}).map;
  EXPECT_EQ(map.histogram[0 - ErrorMap::kLowest], 1200) << "0.06 of 0.1";
  EXPECT_EQ(map.cells[0][0], 'x');
}

TEST(ErrorMap, UlpsAndBitsHaveOneToo) {
  Matrix m(1, 600);
  for (size_t i = 0; i < m.got.size(); ++i) m.got[i] = m.gold[i] = 1;
  m.got[599] = 1 + 3 * std::ldexp(1.0, -23);
  const ErrorMap ulps = compare(DType::f32, m, {gate(Metric::ulp, 4)}).map;
  EXPECT_EQ(ulps.histogram[0], 599);
  EXPECT_EQ(ulps.histogram[0 - ErrorMap::kLowest], 1) << "3 of 4";
  const ErrorMap bits = compare(DType::f32, m, {gate(Metric::bits)}).map;
  EXPECT_EQ(bits.histogram.back(), 1);
  EXPECT_EQ(bits.cells[0].back(), '!');
  EXPECT_EQ(bits.cells[0].front(), '.');
}

TEST(ErrorMap, FastAndSlowLoopsAgree) {
  // The first block of a row goes through the slow loop, later blocks through the fast one unless one fails.
  Matrix m(3, 2048);
  for (size_t i = 0; i < m.got.size(); ++i) m.got[i] = static_cast<double>(i * 2654435761u % 1000) / 1001;
  const ErrorMap fast = compare(DType::f64, m, {tolerance(1, 0)}).map;
  std::array<int64_t, ErrorMap::kBins> expected{};
  for (const double got : m.got) {
    const int bin = got == 0 ? 0 : std::ilogb(got) - ErrorMap::kLowest + 1;
    ++expected[static_cast<size_t>(std::clamp(bin, 0, ErrorMap::kBins - 1))];
  }
  EXPECT_EQ(fast.histogram, expected);
  for (size_t c = 0; c < 64; ++c) {
    for (size_t r = 0; r < 3; ++r) {
      double largest = 0;
      for (size_t i = 0; i < 32; ++i) largest = std::max(largest, m.got[r * 2048 + c * 32 + i]);
      EXPECT_EQ(fast.cells[r][c], error_level(largest)) << r << " " << c;
    }
  }
}

TEST(ErrorMap, RowsThatWereNotComparedAreBlank) {
  Tensor tensor("y", DType::f32, {4, 2});
  RowSet rows;
  rows.all = false;
  rows.chosen = {1, 3};
  OutputComparison comparison(DType::f32, tensor.bytes.data(), {4, 2}, {{tolerance(1, 0)}, false, "test"}, 1, rows);
  const double zeros[2]{};
  for (const int64_t r : {3, 1}) comparison.add({0, r, 1, 2, zeros, zeros, zeros});
  EXPECT_EQ(comparison.finish().map.cells, (std::vector<std::string>{"  ", "..", "  ", ".."}));
}

TEST(ErrorMap, WithoutAGateOfElementsThereIsNone) {
  EXPECT_TRUE(compare(DType::f32, Matrix(2, 2), {gate(Metric::rel_l2)}).map.empty());
  EXPECT_TRUE(compare(DType::f32, Matrix(0, 4), {tolerance(1, 0)}).map.empty());
}

}  // namespace
}  // namespace checkop::error_map_test
