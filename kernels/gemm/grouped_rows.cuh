// SPDX-License-Identifier: Apache-2.0
// A call whose rows belong to groups, of which only the device knows where they lie: its workspace, the list of groups
// and of their tiles, and the refusal of bad offsets and counts. Shared by grouped_gemm, masked_grouped_gemm,
// grouped_fp8_block_gemm and fp8_block_wgrad.
#pragma once

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

  /// Enqueues the list of groups and of their tiles of `tile_rows` rows. Sets the rows of `out` that no expert has to
  /// 0, or all of its rows to NaN if what is given is bad.
  checkop_status list(int tile_rows, T* out, int64_t columns) {
    if (auto status = findings_.begin()) return status;
    tile_rows_ = tile_rows;
    launch_list_row_groups(GivenGroups{given_, shape_.experts, shape_.rows, shape_.capacity, align_}, tile_rows,
                           listed(), out, columns, findings_.on_device(), stream_);
    return findings_.found();
  }
  /// What list() has listed.
  RowGroupList listed() const {
    const Layout layout(shape_, tile_rows_);
    return {in_workspace<GroupRows>(layout.groups), in_workspace<RowTile>(layout.tiles),
            in_workspace<int64_t>(layout.count), layout.most_tiles};
  }

  checkop_status launched(cudaError_t error) const { return cuda_status(call_, error, "launch grouped_gemm"); }

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
