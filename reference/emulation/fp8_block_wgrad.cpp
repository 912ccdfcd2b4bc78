// SPDX-License-Identifier: Apache-2.0
// Emulates fp8_block_wgrad as kernels compute it.
#include "emulation/fp8_product.hpp"
#include "emulation/row_groups.hpp"

namespace checkop {
namespace fp8_block_wgrad {
namespace {

using namespace emulation;

constexpr FaultSpec of_wgrad(const FaultSpec& fault, std::string_view meaning) {
  FaultSpec own = fault;
  own.meaning = meaning;
  return own;
}
constexpr FaultSpec kScalesOfFirstBlocks{"scales_of_first_blocks",
                                         "an expert's scales are counted from the first column of all"};
constexpr FaultSpec kScaleOf128Rows{"scale_of_128_rows", "128 rows of x_t have the scale of the first of them"};

constexpr FaultSpec kNextExpertTimes0{"next_expert_times_0",
                                      "products of the columns of the next expert are added times 0",
                                      "nonfinite",
                                      "",
                                      "",
                                      "",
                                      "extreme"};

Matrix columns_of(const Matrix& m, int64_t first, int64_t end) {
  Matrix part = Matrix::zeros(m.rows(), end - first);
  for (int64_t r = 0; r < m.rows(); ++r) std::copy(m.row(r) + first, m.row(r) + end, part.row(r));
  return part;
}

void forward(const EmulationArgs& args) {
  const Arithmetic& f = args.arithmetic;
  const Matrix g = codes_of(args, 0, /*is_b=*/false), scale_g = scales_of(args, 1),
               x = codes_of(args, 2, /*is_b=*/true), scale_x = scales_of(args, 3);
  std::vector<Group> groups = groups_of(f, args.integers(4), g.columns);
  if (f.has(kRestCounted.name)) groups.back().end = g.columns;
  const int64_t n_dim = g.rows(), k_dim = x.rows(), size = n_dim * k_dim;
  std::vector<double> before(static_cast<size_t>(size));
  for (size_t e = 0; e < groups.size(); ++e) {
    const Group &group = groups[e], &next = groups[(e + 1) % groups.size()];
    const auto to = args.out(0).begin() + group.matrix * size;
    if (group.end == group.first) {
      if (f.has(kEmptyStale.name)) std::copy(before.begin(), before.end(), to);
      continue;
    }
    const int64_t blocks = (group.end - group.first + kBlock - 1) / kBlock;
    const int64_t block = f.has(kScalesOfFirstBlocks.name) ? 0 : group.first / kBlock;
    const Matrix own_g = columns_of(g, group.first, group.end), own_x = columns_of(x, group.first, group.end);
    const Matrix own_scale_g = columns_of(scale_g, block, block + blocks);
    Matrix own_scale_x = columns_of(scale_x, block, block + blocks);
    for (int64_t r = 0; f.has(kScaleOf128Rows.name) && r < k_dim; ++r)
      std::copy_n(own_scale_x.row(r / kBlock * kBlock), blocks, own_scale_x.row(r));
    Matrix next_g, next_x;
    if (f.has(kNextExpertTimes0.name))
      next_g = columns_of(g, next.first, next.end), next_x = columns_of(x, next.first, next.end);
    const Element element(args, own_g, own_scale_g, own_x, own_scale_x, /*rows_of_scale=*/1);
    args.parallel_for(n_dim, [&](int64_t row) {
      for (int64_t column = 0; column < k_dim; ++column) {
        const int64_t at = row * k_dim + column;
        to[at] = element.at(row, column) + (f.has(kNotReset.name) ? before[static_cast<size_t>(at)] : 0);
        if (f.has(kNextExpertTimes0.name))
          to[at] += 0 * f.dot(next_g.columns, next_g.row(row), 1, next_x.row(column), 1);
      }
    });
    std::copy_n(to, size, before.begin());
  }
}

constexpr std::array kFaults{faults::kLastKDropped,
                             faults::kBf16Accumulator,
                             faults::kPartialLost,
                             of_wgrad(kScaleALeftOut, "sums are not multiplied by the scales of grad_t"),
                             of_wgrad(kScaleBLeftOut, "sums are not multiplied by the scales of x_t"),
                             of_wgrad(kNextScaleOfA, "a block has the scale of the one after it in its row of grad_t"),
                             of_wgrad(kFirstScaleOfA, "a row of grad_t has the scale of its first block alone"),
                             of_wgrad(kScaleOfOtherRow, "a row of grad_t has the scales of the next one"),
                             of_wgrad(kScaleBTransposed, "the scales of x_t are read in the other order"),
                             of_wgrad(kScaleBOfNextColumns, "a row of x_t has the scales of the next one"),
                             kScalesAdded,
                             kScalesIn16Bit,
                             kScalesToPowers,
                             of_wgrad(kLastBlockLost, "the last block of an expert's columns is left out"),
                             kBlockTwice,
                             kNotPromoted,
                             of_wgrad(kE5m2Read, "codes of x_t are read as e5m2"),
                             kFp8SubnormalsFlushed,
                             of_wgrad(kNextColumn, "the columns of dw are those of the next row of x_t"),
                             kScalesOfFirstBlocks,
                             kScaleOf128Rows,
                             kNanCodesAs480,
                             kNanCodesAs448,
                             kNanScalesAs0,
                             kNextExpertTimes0,
                             kFirstExpertForAll,
                             kEmptyUncounted,
                             kRestCounted,
                             kEmptyStale,
                             kNotReset};

}  // namespace
}  // namespace fp8_block_wgrad

extern const Emulation kFp8BlockWgradForward;
const Emulation kFp8BlockWgradForward{fp8_block_wgrad::forward, fp8_block_wgrad::kFaults};

}  // namespace checkop
