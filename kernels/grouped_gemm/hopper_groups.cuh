// SPDX-License-Identifier: Apache-2.0
// The products of the candidates cuda-sm90 of grouped_gemm and masked_grouped_gemm.
#pragma once

#include "grouped_gemm/passes.cuh"
#include "sm90/grouped.cuh"

namespace checkop::kernels::grouped_gemm {

/// Has the interface of PortableGroups. What TMA can't read goes there.
struct HopperGroups {
  template <bool b_along_k, typename T>
  static checkop_status rows_by_matrices(Groups<T>& groups, const T* a, const T* b, int64_t inner, int64_t columns,
                                         T* out, const char*& variant) {
    if constexpr (!std::is_same_v<T, float>) {
      const Shape& shape = groups.shape();
      const int64_t lines = b_along_k ? columns : inner, length = b_along_k ? inner : columns;
      const sm90::Matrix a_matrix{a, inner, shape.rows, inner}, b_matrix{b, length, shape.experts * lines, length};
      if (sm90::has_tensor_map<T>(a_matrix) && sm90::has_tensor_map<T>(b_matrix)) {
        const sm90::GroupedProblem problem{shape.rows, shape.experts, inner, columns, false, length % 64 == 0};
        checkop_status status = CHECKOP_OK;
        const auto run = [&]<typename Config>(Config) {
          constexpr int kTileRows = Config::kM * Config::kClusterM;
          static_assert(kTileRows >= grouped_gemm::kLeastTileRows);
          variant = Config::kVariant;
          if (status = groups.list(kTileRows, out, columns, sm90::kBandRows / kTileRows); status != CHECKOP_OK)
            return cudaSuccess;
          const RowGroupList list = groups.listed();
          const sm90::RowGroups<b_along_k> products{list.tiles, list.count, lines, inner};
          return sm90::launch_grouped<Config>(products, make_operand<true>(a, inner, shape.rows),
                                              make_operand<b_along_k>(b, length, columns), a_matrix, b_matrix,
                                              list.most_tiles, out, shape.rows, groups.stream());
        };
        const cudaError_t error = with_config(problem, run);
        return status != CHECKOP_OK ? status : groups.launched(error);
      }
    }
    return PortableGroups::rows_by_matrices<b_along_k>(groups, a, b, inner, columns, out, variant);
  }

  template <typename T>
  static cudaError_t groups_by_groups(const Groups<T>& groups, const T* grad_c, const T* a, T* db,
                                      const char*& variant) {
    if constexpr (!std::is_same_v<T, float>) {
      const Shape& shape = groups.shape();
      const sm90::Matrix grad_matrix{grad_c, shape.n_dim, shape.rows, shape.n_dim},
          a_matrix{a, shape.k_dim, shape.rows, shape.k_dim};
      if (shape.experts > 0 && sm90::has_tensor_map<T>(grad_matrix) && sm90::has_tensor_map<T>(a_matrix)) {
        const sm90::GroupedProblem problem{shape.rows,  shape.experts, shape.n_dim,
                                           shape.k_dim, true,          shape.k_dim % 64 == 0};
        return with_config(problem, [&]<typename Config>(Config) {
          variant = Config::kVariant;
          const int64_t tiles_each = ceil_div(shape.n_dim, Config::kM * Config::kClusterM);
          const sm90::SumGroups products{groups.listed().groups, static_cast<uint32_t>(shape.experts),
                                         static_cast<uint32_t>(tiles_each), shape.n_dim};
          return sm90::launch_grouped<Config>(products, make_operand<false>(grad_c, shape.n_dim, shape.n_dim),
                                              make_operand<false>(a, shape.k_dim, shape.k_dim), grad_matrix, a_matrix,
                                              shape.experts * tiles_each, db, shape.experts * shape.n_dim,
                                              groups.stream());
        });
      }
    }
    return PortableGroups::groups_by_groups(groups, grad_c, a, db, variant);
  }
};

}  // namespace checkop::kernels::grouped_gemm
