// SPDX-License-Identifier: Apache-2.0
// The pass of grouped_fp8_block_gemm and masked_grouped_fp8_block_gemm, and the products of their candidates cuda.
#pragma once

#include "cuda/fp8_product.cuh"
#include "gemm/grouped_rows.cuh"

namespace checkop::kernels::grouped_fp8 {

using fp8::kBlock;
using fp8::kTile;
using grouped_gemm::Groups;
using grouped_gemm::RowLayout;
using grouped_gemm::Shape;

/// Two blocks on an SM, as in fp8_block_gemm.
template <typename T>
__global__ __launch_bounds__(fp8::kThreads, 2) void multiply(fp8::Codes<1> a, fp8::Codes<kBlock> b,
                                                             const RowTile* __restrict__ tiles, int64_t n_dim,
                                                             T* __restrict__ d) {
  const RowTile tile = tiles[blockIdx.x];
  if (tile.group < 0) return;  // the whole block
  b.codes += tile.group * n_dim * b.length, b.scales += tile.group * ceil_div(n_dim, kBlock) * b.blocks;
  fp8::multiply_tile(a, tile.row, tile.end, b, int64_t{blockIdx.y} * kTile, n_dim, 0, a.length, d);
}

constexpr int kMatrices = 2;  // the input b

template <RowLayout layout>
size_t workspace_bytes(const checkop_call* call) {
  return grouped_gemm::Layout(grouped_gemm::shape_of<layout>(call, kMatrices), kTile).bytes;
}

// Interface of the products:
//   check(call, shape)                           refuses what they don't support
//   multiply(groups, call, shape, out, variant)  lists the groups, which sets the rows of none, and enqueues the
//                                                products; sets the name of the variant that ran, if there are many

/// In fp32 units.
struct PortableProducts {
  static checkop_status check(const checkop_call* call, const Shape& shape) {
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    if (shape.rows <= kMost && shape.experts <= kMost && ceil_div(shape.n_dim, kTile) <= 65535) return CHECKOP_OK;
    return say(call, CHECKOP_UNSUPPORTED,
               "%lld rows, %lld experts and %lld columns, fewer than 2^31, 2^31 and 2^22 are supported",
               static_cast<long long>(shape.rows), static_cast<long long>(shape.experts),
               static_cast<long long>(shape.n_dim));
  }
  template <typename T>
  static checkop_status multiply(Groups<T>& groups, const checkop_call* call, const Shape& shape, T* out,
                                 const char*&) {
    if (auto status = groups.list(kTile, out, shape.n_dim)) return status;
    const RowGroupList list = groups.listed();
    const int64_t columns = ceil_div(shape.n_dim, kTile);
    if (list.most_tiles > 0 && columns > 0) {
      const checkop_tensor* const in = call->inputs;
      grouped_fp8::multiply<T><<<dim3(static_cast<unsigned>(list.most_tiles), static_cast<unsigned>(columns)),
                                 fp8::kThreads, 0, groups.stream()>>>(
          fp8::codes_of<1>(in[0], in[1]), fp8::codes_of<kBlock>(in[2], in[3]), list.tiles, shape.n_dim, out);
    }
    return groups.launched(cudaGetLastError());
  }
};

template <RowLayout layout, typename Products = PortableProducts>
checkop_status forward(const checkop_call* call) {
  CallCheck check(call);
  if (check.counts(5, 1).failed()) return check.status();
  const checkop_tensor &a = call->inputs[0], &scale_a = call->inputs[1], &b = call->inputs[2],
                       &scale_b = call->inputs[3], &d = call->outputs[0];
  check.dtype(a, "a", CHECKOP_E4M3).rank_at_least(a, "a", grouped_gemm::rank_of(layout)).contiguous(a, "a");
  check.dtype(b, "b", CHECKOP_E4M3).rank_at_least(b, "b", 3).contiguous(b, "b").float_dtype(d, "d");
  if (check.failed()) return check.status();
  const Shape shape = grouped_gemm::shape_of<layout>(call, kMatrices);
  const int64_t blocks = ceil_div(shape.k_dim, kBlock);
  const auto has_rows = [&](const checkop_tensor& t, const char* name, int64_t columns) {
    grouped_gemm::check_rows<layout>(check, shape, t, name, columns);
  };
  has_rows(a, "a", shape.k_dim);
  check.shape(b, "b", b, 0, {shape.experts, shape.n_dim, shape.k_dim}).dtype(scale_a, "scale_a", CHECKOP_F32);
  has_rows(scale_a, "scale_a", blocks);
  check.dtype(scale_b, "scale_b", CHECKOP_F32);
  check.shape(scale_b, "scale_b", scale_b, 0, {shape.experts, ceil_div(shape.n_dim, kBlock), blocks});
  check.contiguous(scale_b, "scale_b");
  grouped_gemm::check_given<layout>(check, shape, call->inputs[4]);
  has_rows(d, "d", shape.n_dim);
  if (check.workspace(workspace_bytes<layout>(call)).failed()) return check.status();
  if (auto status = fp8::check_bound_attributes(call)) return status;
  if (auto status = Products::check(call, shape)) return status;
  return with_float_type(d.dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    auto* const out = static_cast<T*>(d.data);
    Groups<T> groups(call, shape, 4);
    const char* variant = nullptr;
    if (auto status = Products::multiply(groups, call, shape, out, variant)) return status;
    if (auto status = groups.finish()) return status;
    return variant == nullptr ? CHECKOP_OK : say(call, CHECKOP_OK, "%s", variant);
  });
}

}  // namespace checkop::kernels::grouped_fp8
