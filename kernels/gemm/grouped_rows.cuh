// SPDX-License-Identifier: Apache-2.0
// A call whose rows belong to groups, of which only the device knows where they lie: its workspace, the list of groups
// and of their tiles, and the refusal of bad offsets and counts. Shared by grouped_gemm, masked_grouped_gemm,
// grouped_fp8_block_gemm, masked_grouped_fp8_block_gemm and fp8_block_wgrad.
#pragma once

#include <string>

#include "cuda/findings.cuh"
#include "gemm/row_groups.cuh"

namespace checkop::kernels::grouped_gemm {

/// How the rows of experts lie in tensors of rows.
enum class RowLayout {
  successive,  ///< [rows, columns], with offsets [experts + 1]
  masked,      ///< [experts, capacity, columns], with counts [experts]
};

struct Shape {
  int64_t rows = 0, experts = 0, k_dim = 0, n_dim = 0;
  int64_t capacity = kSuccessive;  ///< of an expert, if the groups are masked; `rows` are then those of all room
};

/// The rank of a tensor of rows.
constexpr int rank_of(RowLayout layout) { return layout == RowLayout::masked ? 3 : 2; }

/// The shape as far as the tensors give it: input 0 has the rows of k_dim columns, input `matrices` has [experts,
/// n_dim, k_dim]. Zeros for tensors that are refused.
template <RowLayout layout>
Shape shape_of(const checkop_call* call, int matrices) {
  if (call->n_inputs <= matrices || call->inputs[0].rank != rank_of(layout) || call->inputs[matrices].rank != 3)
    return {};
  const checkop_tensor &a = call->inputs[0], &b = call->inputs[matrices];
  if constexpr (layout == RowLayout::masked)
    return {b.shape[0] * a.shape[1], b.shape[0], a.shape[2], b.shape[1], a.shape[1]};
  return {a.shape[0], b.shape[0], a.shape[1], b.shape[1]};
}

/// Requires the extents of a contiguous tensor of rows.
template <RowLayout layout>
void check_rows(CallCheck& check, const Shape& shape, const checkop_tensor& t, const char* name, int64_t columns) {
  if constexpr (layout == RowLayout::masked) {
    check.shape(t, name, t, 0, {shape.experts, shape.capacity, columns});
  } else {
    check.shape(t, name, t, 0, {shape.rows, columns});
  }
  check.contiguous(t, name);
}
/// Requires the dtype and the extent of the offsets or counts; Groups looks at what they hold.
template <RowLayout layout>
void check_given(CallCheck& check, const Shape& shape, const checkop_tensor& given) {
  constexpr bool kMasked = layout == RowLayout::masked;
  constexpr const char* kName = kMasked ? "counts" : "offsets";
  check.dtype(given, kName, CHECKOP_I32).shape(given, kName, given, 0, {kMasked ? shape.experts : shape.experts + 1});
  check.contiguous(given, kName);
}

/// Byte offsets into the workspace, each a multiple of 256.
struct Layout {
  int64_t most_tiles;
  size_t groups, count, tiles, bytes;

  Layout(const Shape& shape, int tile_rows) : most_tiles(most_row_tiles(shape.rows, shape.experts, tile_rows)) {
    const auto padded = [](int64_t bytes) { return static_cast<size_t>(round_up(bytes, 256)); };
    groups = kFindingsBytes;
    count = groups + padded(shape.experts * static_cast<int64_t>(sizeof(GroupRows)));
    tiles = count + 256;
    bytes = tiles + padded(most_tiles * static_cast<int64_t>(sizeof(RowTile)));
  }
};

/// The smallest tiles, which are the most.
constexpr int kLeastTileRows = 64;

/// A call whose tensors have been checked, and what its kernels share.
template <typename T>
class Groups {
 public:
  /// `given`: the index of the input with the offsets, or with the counts of masked groups. `align`: what offsets are
  /// multiples of.
  Groups(const checkop_call* call, const Shape& shape, int given, int align = 1)
      : call_(call), shape_(shape), align_(align), given_(static_cast<const int32_t*>(call->inputs[given].data)) {}

  const Shape& shape() const { return shape_; }
  cudaStream_t stream() const { return stream_; }

  /// Enqueues the list of groups and of their tiles of `tile_rows` rows, in bands of about `band_tiles`. Sets the rows
  /// of `out` that no expert has to 0, or all of its rows to NaN if what is given is bad.
  checkop_status list(int tile_rows, T* out, int64_t columns, int band_tiles = 1) {
    if (auto status = findings_.begin()) return status;
    tile_rows_ = tile_rows;
    launch_list_row_groups(GivenGroups{given_, shape_.experts, shape_.rows, shape_.capacity, align_}, tile_rows,
                           band_tiles, listed(), out, columns, findings_.on_device(), stream_);
    return findings_.found();
  }
  /// What list() has listed.
  RowGroupList listed() const {
    const Layout layout(shape_, tile_rows_);
    return {in_workspace<GroupRows>(layout.groups), in_workspace<RowTile>(layout.tiles),
            in_workspace<int64_t>(layout.count), layout.most_tiles};
  }

  /// What became of a launch of the operator's products.
  checkop_status launched(cudaError_t error) const {
    if (error == cudaSuccess) return CHECKOP_OK;
    return cuda_status(call_, error, (std::string("launch ") + call_->kernel->op).c_str());
  }

  /// Waits for the list, and refuses bad offsets or counts. A call that is recorded into a graph has no list to wait
  /// for.
  checkop_status finish() {
    cudaStreamCaptureStatus captures = cudaStreamCaptureStatusNone;
    if (auto status =
            cuda_status(call_, cudaStreamIsCapturing(stream_, &captures), "ask whether a graph is being recorded"))
      return status;
    if (captures != cudaStreamCaptureStatusNone) return CHECKOP_OK;
    if (auto status = findings_.wait()) return status;
    const unsigned long long bad = findings_[0];
    if (bad == kNothingFound) return CHECKOP_OK;
    int32_t element = 0;
    if (auto status = findings_.read(&element, given_ + bad, sizeof(element))) return status;
    if (shape_.capacity != kSuccessive)
      return say(call_, CHECKOP_FAILED, "input 'counts': element %llu is %d, outside [0, %lld]", bad, element,
                 static_cast<long long>(shape_.capacity));
    return say(call_, CHECKOP_FAILED,
               "input 'offsets': element %llu is %d: offsets start with 0, do not decrease%s and end "
               "within the %lld rows",
               bad, element, align_ == 1 ? "" : ", are multiples of 128", static_cast<long long>(shape_.rows));
  }

 private:
  template <typename U>
  U* in_workspace(size_t offset) const {
    return reinterpret_cast<U*>(static_cast<std::byte*>(call_->workspace) + offset);
  }

  const checkop_call* call_;
  Shape shape_;
  int align_, tile_rows_ = kLeastTileRows;
  const int32_t* given_;
  cudaStream_t stream_ = static_cast<cudaStream_t>(call_->stream);
  Findings<1> findings_{call_, call_->workspace, stream_};
};

}  // namespace checkop::kernels::grouped_gemm
