// SPDX-License-Identifier: Apache-2.0
// grouped_gemm / cuda-sm90: Hopper's wgmma and TMA for fp16 and bf16, one persistent kernel for all experts; fp32 on
// CUDA cores.
//   c[r] = a[r] b[e]^T, da[r] = grad_c[r] b[e] for offsets[e] <= r < offsets[e + 1], zero from row offsets[experts] on
//   db[e] = grad_c[rows of e]^T a[rows of e], zero for an expert without rows
//   a, da: [rows, k_dim]   b, db: [experts, n_dim, k_dim]   c, grad_c: [rows, n_dim]   f32|f16|bf16, one dtype for all
//   offsets: [experts + 1] i32     all contiguous
//   Limits: sm_90 only; rows < 2^31. Offsets that do not start with 0, decrease or leave the rows are CHECKOP_FAILED. A
//   call that is recorded into a graph can't refuse them: the replay makes c and da NaN, and db zero.
//   fp32, empty sums and tensors that TMA can't read are computed as in the candidate cuda. TMA can't read a matrix
//   whose rows are not a multiple of 8 elements long, a tensor that does not begin at a 16-byte boundary, and more than
//   2^30 rows or columns (of b: the rows of all experts).
//   Workspace: as for the candidate cuda, 256 bytes, 8 for an expert and 16 for a tile of rows, of which there are
//   rows / 64 + experts at most.
//   Expected error: contraction class, as for the candidate cuda, and on Hopper the same bits: a chain of n/16 blocks
//   for n terms, then one rounding. The bits of a row are those of a product of this row alone with its expert's
//   matrix; those of db[e] are those of a product of the expert's rows alone, whose blocks of 16 begin with the first
//   of these rows. So they depend neither on the other experts nor on where the rows lie, nor on the configuration that
//   is chosen for the sizes: see sm90/config.cuh and sm90/grouped.cuh.
#include "grouped_gemm/passes.cuh"
#include "sm90/grouped.cuh"

namespace checkop::kernels {
namespace {

using grouped_gemm::Groups;
using grouped_gemm::PortableGroups;
using grouped_gemm::Shape;

/// The products of the candidate cuda-sm90, with the interface of PortableGroups, which computes what TMA can't read.
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
          if (status = groups.list(kTileRows, out, columns); status != CHECKOP_OK) return cudaSuccess;
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

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda-sm90", "grouped_gemm", "forward", CHECKOP_CUDA, 90, 90,
     grouped_gemm::workspace_bytes, grouped_gemm::launch_forward<HopperGroups>},
    {sizeof(checkop_kernel), "cuda-sm90", "grouped_gemm", "backward", CHECKOP_CUDA, 90, 90,
     grouped_gemm::workspace_bytes, grouped_gemm::launch_backward<HopperGroups>},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
