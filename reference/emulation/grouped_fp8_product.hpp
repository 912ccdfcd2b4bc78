// SPDX-License-Identifier: Apache-2.0
// Products of rows of codes with the codes of their expert as kernels compute them, and their faults: of
// grouped_fp8_block_gemm and masked_grouped_fp8_block_gemm.
#pragma once

#include "emulation/fp8_product.hpp"
#include "emulation/row_groups.hpp"

namespace checkop::emulation {

inline constexpr FaultSpec kScaleAOfGroup{"scale_a_of_group", "scales of a are counted from the first row of a group",
                                          "accuracy nonfinite"};
inline constexpr FaultSpec kScaleBOfFirstExpert{"scale_b_of_first_expert",
                                                "all rows get the scales of the first expert's b"};

inline constexpr FaultSpec kNextExpertTimes0{"next_expert_times_0",
                                             "products with the codes of the next expert are added times 0",
                                             "nonfinite",
                                             "",
                                             "",
                                             "",
                                             "extreme"};

inline constexpr std::array kFp8GroupFaults{kScaleAOfGroup, kScaleBOfFirstExpert, kNextExpertTimes0};

/// Stores the rows of the groups, each times the codes of its expert.
inline void store_fp8_rows(const EmulationArgs& args, const std::vector<Group>& groups) {
  const Arithmetic& f = args.arithmetic;
  const Matrix a = codes_of(args, 0, /*is_b=*/false), scale_a = scales_of(args, 1),
               b = codes_of(args, 2, /*is_b=*/true), scale_b = scales_of(args, 3);
  const int64_t n_dim = args.in(2).shape[1], of_scales = args.in(3).shape[1];
  for_each_part(f, groups, [&](int64_t first, int64_t end, int64_t expert) {
    const int64_t of_scale = f.has(kScaleBOfFirstExpert.name) ? 0 : expert;
    const int64_t first_scale = f.has(kScaleAOfGroup.name) ? 0 : first;
    const Matrix own_a = rows_of(a, first, end), own_b = rows_of(b, expert * n_dim, (expert + 1) * n_dim);
    const Matrix own_scale_a = rows_of(scale_a, first_scale, first_scale + end - first);
    const Matrix own_scale_b = rows_of(scale_b, of_scale * of_scales, (of_scale + 1) * of_scales);
    const int64_t next = (expert + 1) % args.in(2).shape[0];
    const Matrix next_b = f.has(kNextExpertTimes0.name) ? rows_of(b, next * n_dim, (next + 1) * n_dim) : Matrix();
    const Element element(args, own_a, own_scale_a, own_b, own_scale_b),
        of_next(args, own_a, own_scale_a, next_b, own_scale_b);
    args.parallel_for(end - first, [&](int64_t row) {
      for (int64_t column = 0; column < n_dim; ++column) {
        float value = element.at(row, column);
        if (f.has(kNextExpertTimes0.name)) value += 0 * of_next.at(row, column);
        args.out(0)[static_cast<size_t>((first + row) * n_dim + column)] = value;
      }
    });
  });
}

}  // namespace checkop::emulation
