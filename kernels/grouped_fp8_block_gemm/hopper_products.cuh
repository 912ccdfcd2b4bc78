// SPDX-License-Identifier: Apache-2.0
// The products of the candidates cuda-sm90 of grouped_fp8_block_gemm and masked_grouped_fp8_block_gemm.
#pragma once

#include "grouped_fp8_block_gemm/pass.cuh"
#include "sm90/fp8_product.cuh"
#include "sm90/grouped.cuh"

namespace checkop::kernels::grouped_fp8 {

/// Has the interface of PortableProducts. One kernel computes the tiles of all groups.
struct HopperProducts {
  static checkop_status check(const checkop_call* call, const Shape& shape) {
    if (auto status = PortableProducts::check(call, shape)) return status;
    if (auto status = sm90::check_fp8_bound(call)) return status;
    return is_empty(shape) ? CHECKOP_OK : sm90::check_fp8_matrices(call, a_matrix(call, shape), b_matrix(call, shape));
  }

  template <typename T>
  static checkop_status multiply(Groups<T>& groups, const checkop_call* call, const Shape& shape, T* out,
                                 const char*& variant) {
    if (is_empty(shape)) return groups.list(kTile, out, shape.n_dim);
    sm90::Fp8Params<T, sm90::RowGroups<true>> p{};
    p.scale_a = static_cast<const float*>(call->inputs[1].data);
    p.scale_b = static_cast<const float*>(call->inputs[3].data);
    p.d = out, p.rows = shape.rows, p.n_dim = shape.n_dim, p.k_dim = shape.k_dim;
    p.blocks = static_cast<int>(ceil_div(shape.k_dim, kBlock));
    const sm90::GroupedProblem problem{shape.rows,  shape.experts, ceil_div(shape.k_dim, 2),
                                       shape.n_dim, false,         shape.k_dim % 128 == 0};
    checkop_status status = CHECKOP_OK;
    const cudaError_t error = sm90::with_fp8_config(problem, [&]<typename Config>(Config) {
      constexpr int kTileRows = Config::kM * Config::kClusterM;
      static_assert(kTileRows >= kTile);  // of which the workspace has room for a list
      variant = Config::kVariant;
      if (status = groups.list(kTileRows, out, shape.n_dim, sm90::kBandRows / kTileRows); status != CHECKOP_OK)
        return cudaSuccess;
      const RowGroupList list = groups.listed();
      p.products = {list.tiles, list.count, shape.n_dim, shape.k_dim};
      return sm90::launch_fp8<Config>(p, a_matrix(call, shape), b_matrix(call, shape), list.most_tiles,
                                      groups.stream());
    });
    return status != CHECKOP_OK ? status : groups.launched(error);
  }

 private:
  static bool is_empty(const Shape& shape) { return shape.rows == 0 || shape.experts == 0 || shape.n_dim == 0; }
  static sm90::Matrix a_matrix(const checkop_call* call, const Shape& shape) {
    return {call->inputs[0].data, shape.k_dim, shape.rows, shape.k_dim};
  }
  static sm90::Matrix b_matrix(const checkop_call* call, const Shape& shape) {
    return {call->inputs[2].data, shape.k_dim, shape.experts * shape.n_dim, shape.k_dim};
  }
};

}  // namespace checkop::kernels::grouped_fp8
