// SPDX-License-Identifier: Apache-2.0
// linear_logp by Hopper's wgmma, as described in cuda_sm90.cu. The weight may be one rank's part of a larger one.
#pragma once

#include "cuda/ids.cuh"
#include "linear_logp/row_list.cuh"
#include "sm90/gradient.cuh"
#include "sm90/select.cuh"

namespace checkop::kernels::linear_logp::hopper {

constexpr auto kTma = sm90::Loads::tma;
constexpr auto kDirect = sm90::Stores::direct;
// Tiles of rows by columns of the logits: a segment of columns, or two. With more warpgroups that have fewer sums each,
// more of them multiply while one adds up its exponentials.
struct Tile64x128 : sm90::KernelConfig<1, 128, 64, 0, 1, 1, kTma, kDirect> {
  static constexpr const char* kVariant = "wgmma, tile 64x128";
  static constexpr sm90::Speed kSpeed{4005, 59, 28, 0, 259};
};
struct Tile128x128Rows : sm90::KernelConfig<2, 128, 64, 0, 1, 2, kTma, kDirect> {
  static constexpr const char* kVariant = "wgmma, tile 128x128, clusters of 2 that share rows";
  static constexpr sm90::Speed kSpeed{4516, 321, 74, 0, 924};
};
struct Tile192x128Rows : sm90::KernelConfig<3, 128, 64, 0, 1, 2, kTma, kDirect> {
  static constexpr const char* kVariant = "wgmma, tile 192x128, clusters of 2 that share rows";
  static constexpr sm90::Speed kSpeed{7770, 471, 117, 0, 592};
};
struct Tile192x128Columns : sm90::KernelConfig<3, 128, 64, 0, 2, 1, kTma, kDirect> {
  static constexpr const char* kVariant = "wgmma, tile 192x128, clusters of 2 that share columns";
  static constexpr sm90::Speed kSpeed{4005, 549, 27, 0, 1};
};
struct Tile256x128Rows : sm90::KernelConfig<4, 128, 64, 0, 1, 2, kTma, kDirect> {
  static constexpr const char* kVariant = "wgmma, tile 256x128, clusters of 2 that share rows";
  static constexpr sm90::Speed kSpeed{7762, 623, 139, 0, 186};
};
struct Tile128x256Rows : sm90::KernelConfig<2, 256, 64, 4, 1, 2, kTma, kDirect> {
  static constexpr const char* kVariant = "wgmma, tile 128x256, clusters of 2 that share rows";
  static constexpr sm90::Speed kSpeed{8955, 660, 85, 0, 1513};
};
/// Tiles of the transpose, of a segment by any multiple of 32 rows. The blocks of a cluster share the rows. As many
/// stages as leave room for the shared memory of the epilogue.
template <int rows, int stages>
struct SwappedConfig : sm90::KernelConfig<2, rows, 64, stages, 2, 1, kTma, kDirect> {
  static constexpr bool kSwapsOperands = true;
};
struct Swapped96 : SwappedConfig<96, 7> {
  static constexpr const char* kVariant = "wgmma, tile 128x96 of the transpose, clusters of 2";
  static constexpr sm90::Speed kSpeed{6140, 244, 105, 0, 207};
};
struct Swapped160 : SwappedConfig<160, 5> {
  static constexpr const char* kVariant = "wgmma, tile 128x160 of the transpose, clusters of 2";
  static constexpr sm90::Speed kSpeed{4009, 482, 11, 0, 1152};
};
struct Swapped224 : SwappedConfig<224, 4> {
  static constexpr const char* kVariant = "wgmma, tile 128x224 of the transpose, clusters of 2";
  static constexpr sm90::Speed kSpeed{4114, 545, 124, 0, 2230};
};
template <typename Config>
constexpr bool swaps_operands = requires {
  Config::kSwapsOperands;
};

// For matrices that TMA can't read.
struct Unaligned : sm90::KernelConfig<1, 256, 64, 4, 1, 1, sm90::Loads::elementwise, kDirect> {
  static constexpr const char* kVariant = "wgmma, tile 64x256, unaligned: element-wise loads";
};

struct HopperWorkspaceLayout {
  int64_t rows;           ///< rows per pass over the logits
  int64_t gathered_rows;  ///< rows per pass of the forward when they are gathered first
  int64_t columns;        ///< vocabulary columns at a time when gradients are computed; 0 in the forward pass
  int64_t n_segments;
  size_t target_logit, row_gradients, exponents, kept_hidden, hidden_sums, block_sums, bias_sums;
  size_t row_list;
  size_t sums, dz;  ///< in the same memory: sums are no longer needed when dz begins
  size_t gathered;  ///< also in that memory, behind the sums of gathered_rows
  size_t bytes;
};

/// parts: parts of the vocabulary, computed one after another. keeps_sums: the sums of dhidden are kept in the
/// workspace. Sum: the result of reducing a segment. Row: the data that the gradient of a row needs.
template <typename Sum = sm90::PowerSum, typename Row = sm90::RowGradient>
HopperWorkspaceLayout workspace_layout(const LinearLogpShape& shape, bool backward, int64_t parts = 1,
                                       bool keeps_sums = true) {
  constexpr int64_t kSumBytes = int64_t{48} << 20, kRowUnit = 256;  // passes have a multiple of this many rows
  // 66 tiles of columns at 4096 rows: two waves of blocks each on 132 SMs, with little left over. Fewer where the total
  // would exceed 300 MB; but blocks of columns must not become too narrow.
  constexpr int64_t kMostGradientBytes = int64_t{132} << 20, kLeastGradientBytes = int64_t{48} << 20;
  constexpr int64_t kAllBytes = 300'000'000, kColumnUnit = 256;
  HopperWorkspaceLayout layout{};
  layout.n_segments = ceil_div(shape.vocab, sm90::kSegmentColumns);
  const int64_t of_row = layout.n_segments * static_cast<int64_t>(sizeof(Sum));
  const auto fitting = [](int64_t bytes, int64_t each, int64_t unit, int64_t all) {
    const int64_t fit = each == 0 ? all : bytes / each / unit * unit;
    return all < fit ? all : fit < unit ? unit : fit;
  };
  layout.rows = fitting(kSumBytes, of_row, kRowUnit, shape.rows);
  layout.gathered_rows = fitting(kSumBytes, of_row + shape.hidden * 2, kRowUnit, shape.rows);
  size_t end = kIdCheckBytes;
  const auto reserve = [&end](int64_t bytes) {
    const size_t start = end;
    end += static_cast<size_t>(round_up(bytes, 256));
    return start;
  };
  layout.target_logit = reserve(layout.rows * 4);
  layout.row_list = reserve(shape.rows * RowList::kRowBytes);
  if (backward) {
    layout.row_gradients = reserve(shape.rows * static_cast<int64_t>(sizeof(Row)));
    layout.exponents = reserve((layout.n_segments + parts) * shape.rows * 4);
    layout.kept_hidden = reserve(shape.rows * shape.hidden * 2);
    layout.hidden_sums = reserve(keeps_sums ? shape.rows * shape.hidden * 4 : 0);
    // The bias needs fp32 sums beside dz, one per 16 elements of dz: so dz gets 8/9 of the rest.
    const int64_t left = (kAllBytes - static_cast<int64_t>(end)) / 9 * 8;
    const int64_t bytes = std::clamp(left, kLeastGradientBytes, kMostGradientBytes);
    layout.columns = fitting(bytes, shape.rows * 2, kColumnUnit, round_up(shape.vocab, 8));
    layout.block_sums = reserve(ceil_div(shape.rows, sm90::kBlockRows) * layout.columns * 4);
    layout.bias_sums = reserve(layout.columns * 4);
  }
  const int64_t gathered_sums = round_up(layout.gathered_rows * of_row, 256);
  const int64_t others =
      backward ? shape.rows * layout.columns * 2 : gathered_sums + layout.gathered_rows * shape.hidden * 2;
  layout.sums = layout.dz = reserve(std::max(layout.rows * of_row, others));
  layout.gathered = layout.sums + static_cast<size_t>(gathered_sums);
  layout.bytes = end;
  return layout;
}

/// The memory of dweight, for use as scratch until dweight is written; null when it holds the carry.
template <typename T, typename O>
T* scratch_in(const WeightGradients<O>& to) {
  const void* const dweight = to.dweight;
  return dweight == to.weight_carry ? nullptr : reinterpret_cast<T*>(to.dweight);
}

/// Exponentials kept in the memory of dweight until it is written, by blocks of columns, [rows, ld(block)] each. They
/// lie as far back as possible, so that the part of dweight that a block writes covers no later block's exponentials.
/// There is room for at most as many rows as dweight has columns; the logits of the other rows are computed a second
/// time.
struct Kept {
  int64_t rows = 0;
  int64_t block_columns = 0, blocks = 0, last_columns = 0, end = 0;

  int64_t columns(int64_t block) const { return block + 1 < blocks ? block_columns : last_columns; }
  int64_t ld(int64_t block) const { return round_up(columns(block), 8); }
  /// Offset from the start of dweight, in elements: a multiple of 8, like ld.
  int64_t start(int64_t block) const { return end - rows * (ld(blocks - 1) + (blocks - 1 - block) * block_columns); }
};

/// width: of a row of dweight, in elements of 16 bits.
inline Kept kept_of(int64_t rows, int64_t width, int64_t vocab, int64_t block_columns) {
  // kUnit: rows of a tile. kFewest: with fewer rows, a product takes as long as reading the weights. kMost: limit of
  // the grid of kept_to_gradient().
  constexpr int64_t kUnit = 128, kFewest = 256, kMost = int64_t{1} << 18;
  if (vocab == 0 || block_columns == 0) return {};
  Kept kept;
  kept.block_columns = block_columns, kept.blocks = ceil_div(vocab, block_columns);
  kept.last_columns = vocab - (kept.blocks - 1) * block_columns;
  kept.end = vocab * width / 8 * 8;
  const int64_t capacity = (kept.end - (kept.blocks - 1) * block_columns * width) / round_up(kept.last_columns, 8);
  kept.rows = std::min({rows, width, capacity, kMost});
  if (kept.rows < rows) kept.rows = kept.rows / kUnit * kUnit;
  return kept.rows < kFewest ? Kept{} : kept;
}

/// Arguments common to both passes.
template <typename T>
struct HopperParams {
  LinearLogpShape shape;
  HopperWorkspaceLayout layout;
  const T *hidden, *weight, *bias;  ///< bias is null when absent
  const int64_t* target_ids;
  int64_t ignored;
  std::byte* workspace;
  cudaStream_t stream;
  int64_t first_id = 0;             ///< vocabulary index of the weight's first column
  size_t first_exponents = 0;       ///< workspace offset of the exponents of the weight's first segment
  float log2_scale = sm90::kLog2E;  ///< log2(e), over the temperature if there is one

  template <typename U>
  U* in_workspace(size_t offset) const {
    return reinterpret_cast<U*>(workspace + offset);
  }
  const T* bias_from(int64_t column) const { return bias == nullptr ? nullptr : bias + column; }
  /// The same for part `index`: `columns` columns of the weight, from `first` on.
  HopperParams part(int64_t index, int64_t first, int64_t columns) const {
    HopperParams p = *this;
    p.first_exponents += static_cast<size_t>((first / sm90::kSegmentColumns + index) * shape.rows) * sizeof(float);
    p.weight += first * shape.hidden;
    p.bias = bias_from(first);
    p.first_id += first;
    p.shape.vocab = columns;
    p.layout.n_segments = ceil_div(columns, sm90::kSegmentColumns);
    return p;
  }
};

/// `count` is passed separately because it is copied to the host.
template <typename T>
RowList row_list_in(const HopperParams<T>& p, unsigned long long* count) {
  auto* list = p.template in_workspace<int64_t>(p.layout.row_list);
  return {list, list + p.shape.rows, reinterpret_cast<float*>(list + 2 * p.shape.rows), count};
}

/// From a call whose shapes have been checked.
template <typename T>
HopperParams<T> params_of(const checkop_call* call, const LinearLogpShape& shape, const HopperWorkspaceLayout& layout,
                          int64_t ignored) {
  return {shape,
          layout,
          static_cast<const T*>(call->inputs[0].data),
          static_cast<const T*>(call->inputs[1].data),
          static_cast<const T*>(call->inputs[3].data),
          static_cast<const int64_t*>(call->inputs[2].data),
          ignored,
          static_cast<std::byte*>(call->workspace),
          static_cast<cudaStream_t>(call->stream),
          0,
          layout.exponents};
}

/// Whether TMA can read both operands.
template <typename T, bool a_along_k, bool b_along_k>
bool are_reachable(const Operand<T, a_along_k>& a, const Operand<T, b_along_k>& b, int64_t inner) {
  return sm90::has_tensor_map<T>(sm90::matrix_of(a, inner)) && sm90::has_tensor_map<T>(sm90::matrix_of(b, inner));
}

/// Where the sums of rows from first_row on go in the workspace.
template <typename Sum, typename T>
sm90::SegmentSums<T, Sum> sums_of(const HopperParams<T>& p, int64_t first_row) {
  sm90::SegmentSums<T, Sum> to{};
  to.bias = p.bias, to.target_ids = p.target_ids + first_row, to.first_id = p.first_id;
  to.sums = p.template in_workspace<Sum>(p.layout.sums);
  to.target_logit = p.template in_workspace<float>(p.layout.target_logit);
  to.exponents = p.layout.columns > 0 ? p.template in_workspace<float>(p.first_exponents) + first_row : nullptr;
  to.ld_exponents = p.shape.rows, to.log2_scale = p.log2_scale;
  return to;
}

/// Launches the product of the logits, hidden * weight^T, by tiles of Config, and leaves of it what `sums` points to.
///   hidden: [rows, inner]   weight: [vocab, inner]
template <typename Config, typename T, typename Sum>
cudaError_t launch_sums(const sm90::SegmentSums<T, Sum>& sums, const Operand<T, true>& hidden,
                        const Operand<T, true>& weight, int64_t inner, cudaStream_t stream) {
  if constexpr (swaps_operands<Config>) {
    const sm90::SumSegmentsOfTranspose<T, Sum> out{sums};
    return sm90::launch_with_epilogue<Config>(out, weight, hidden, inner, stream);
  } else {
    const sm90::SumSegments<T, Sum> out{sums, {}, false};
    return sm90::launch_with_epilogue<Config>(out, hidden, weight, inner, stream);
  }
}

/// Computes the sums of rows [first, first + rows) and keeps their exponentials, by blocks of columns, in the memory of
/// dweight.
template <typename Sum, typename T>
cudaError_t keep_exponentials(const HopperParams<T>& p, const Kept& kept, int64_t first, int64_t rows, T* dweight) {
  const int64_t hidden = p.shape.hidden;
  const auto of_rows = make_operand<true>(p.hidden + first * hidden, hidden, rows);
  const sm90::SumSegments<T, Sum> segments{sums_of<Sum>(p, first), {}, false};
  for (int64_t block = 0; block < kept.blocks; ++block) {
    const int64_t column = block * kept.block_columns, segment = column / sm90::kSegmentColumns;
    auto of_block = segments;
    of_block.bias = p.bias_from(column), of_block.first_id += column;
    of_block.sums += segment * rows, of_block.exponents += segment * segments.ld_exponents;
    const T* destination = dweight + kept.start(block) + first * kept.ld(block);
    if (!sm90::stage_tiles<sm90::Tile128x256Columns>(of_block, destination, kept.columns(block), rows,
                                                     kept.ld(block)) ||
        !of_block.staged)
      return cudaErrorInvalidValue;
    const auto columns = make_operand<true>(p.weight + column * hidden, hidden, kept.columns(block));
    if (const auto error =
            sm90::launch_with_epilogue<sm90::Tile128x256Columns>(of_block, of_rows, columns, hidden, p.stream))
      return error;
  }
  return cudaSuccess;
}

/// How many of the call's exponentials fit into the memory of dweight. None where TMA can't read an operand; none with
/// a bias, because the bias's gradient sums values that are not rounded.
template <typename T, typename O>
Kept kept_in(const HopperParams<T>& p, const WeightGradients<O>& to) {
  const auto is_aligned = [](const T* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  const T* scratch = scratch_in<T>(to);
  if (scratch == nullptr || p.bias != nullptr || p.shape.hidden % 8 != 0 || !is_aligned(p.hidden) ||
      !is_aligned(p.weight) || !is_aligned(scratch))
    return {};
  constexpr int64_t kWide = sizeof(O) / sizeof(T);
  return kept_of(p.shape.rows, p.shape.hidden * kWide, p.shape.vocab, p.layout.columns);
}

/// The product as it is, and with its operands exchanged.
struct LogitsProblem {
  sm90::Problem plain, transposed;
};
template <typename Config>
double estimated_ns(const LogitsProblem& p) {
  return sm90::estimated_ns<Config>(swaps_operands<Config> ? p.transposed : p.plain);
}

/// finish_at(first row) returns the functor that merge_power_sums() calls with every row's sum of exponentials. Leaves
/// the exponents of segments in the workspace for gradients, and the exponentials of `kept` rows in dweight. `variant`
/// becomes the name of the configuration.
template <typename Sum = sm90::PowerSum, typename T, typename FinishAt>
cudaError_t reduce_logits(const HopperParams<T>& p, const Kept& kept, T* dweight, FinishAt&& finish_at,
                          const char*& variant) {
  int64_t rows = 0;
  for (int64_t first = 0; first < p.shape.rows; first += rows) {
    const bool keeps = first < kept.rows;
    rows = std::min((keeps ? kept.rows : p.shape.rows) - first, p.layout.rows);
    const auto sums = sums_of<Sum>(p, first);
    const auto hidden = make_operand<true>(p.hidden + first * p.shape.hidden, p.shape.hidden, rows);
    const auto weight = make_operand<true>(p.weight, p.shape.hidden, p.shape.vocab);
    const auto run = [&]<typename Config>(Config) {
      variant = Config::kVariant;
      return launch_sums<Config>(sums, hidden, weight, p.shape.hidden, p.stream);
    };
    const auto keep = [&] {
      variant = sm90::Tile128x256Columns::kVariant;
      if constexpr (std::is_same_v<T, __nv_bfloat16>) return keep_exponentials<Sum>(p, kept, first, rows, dweight);
      return cudaErrorInvalidValue;  // no gradients in fp16
    };
    const auto error =
        keeps ? keep()
        : !are_reachable(hidden, weight, p.shape.hidden)
            ? run(Unaligned{})
            : sm90::with_fastest(LogitsProblem{sm90::problem_of(hidden, weight, p.shape.hidden),
                                               sm90::problem_of(weight, hidden, p.shape.hidden)},
                                 run, Tile64x128{}, Tile128x128Rows{}, Tile192x128Rows{}, Tile192x128Columns{},
                                 Tile256x128Rows{}, Tile128x256Rows{}, Swapped96{}, Swapped160{}, Swapped224{});
    if (error != cudaSuccess) return error;
    if (const auto status = sm90::launch_merge(sums.sums, rows, p.layout.n_segments, finish_at(first), p.stream))
      return status;
  }
  return cudaGetLastError();
}

/// The same for the `count` listed rows, which are gathered for as many rows at a time as the workspace has room for.
template <typename Sum = sm90::PowerSum, typename T, typename FinishAt>
cudaError_t reduce_listed(const HopperParams<T>& p, const RowList& list, int64_t count, FinishAt&& finish_at,
                          const char*& variant) {
  auto* gathered = p.template in_workspace<T>(p.layout.gathered);
  for (int64_t first = 0; first < count; first += p.layout.gathered_rows) {
    HopperParams<T> part = p;
    part.shape.rows = std::min(count - first, p.layout.gathered_rows);
    part.hidden = gathered, part.target_ids = list.ids + first;
    launch_gather_rows(p.hidden, list, first, part.shape.rows, p.shape.hidden, p.ignored, gathered, p.stream);
    const auto finish_part_at = [&](int64_t row) { return finish_at(first + row); };
    if (const auto error = reduce_logits<Sum>(part, {}, static_cast<T*>(nullptr), finish_part_at, variant))
      return error;
  }
  return cudaGetLastError();
}

/// Computes the tiles of a * b into `out`, an epilogue that must give the same bits with every configuration.
template <typename T, typename Epilogue, bool a_along_k, bool b_along_k, typename Stage>
cudaError_t multiply(Epilogue& out, const Operand<T, a_along_k>& a, const Operand<T, b_along_k>& b, int64_t inner,
                     cudaStream_t stream, Stage&& stage) {
  const auto run = [&]<typename Config>(Config) {
    if (!stage(Config{}, out)) return cudaErrorInvalidValue;
    return sm90::launch_with_epilogue<Config>(out, a, b, inner, stream);
  };
  if (!are_reachable(a, b, inner)) return run(sm90::Unaligned{});
  return sm90::with_fastest(sm90::problem_of(a, b, inner), run, sm90::Tile128x256Columns{}, sm90::Tile128x128{},
                            sm90::Tile64x128Columns{}, sm90::Tile64x64{});
}

/// Replaces the ignored rows of hidden by zeros, in a copy that p.hidden then points to.
template <typename T>
void keep_hidden(HopperParams<T>& p) {
  auto* kept = p.template in_workspace<T>(p.layout.kept_hidden);
  launch_keep_rows(p.hidden, p.target_ids, p.ignored, p.shape.rows, p.shape.hidden, kept, p.stream);
  p.hidden = kept;
}

/// Computes dz of a block of columns into the workspace: from kept exponentials, then for the remaining rows from
/// logits that are computed again.
template <bool biased, typename Row, typename T>
cudaError_t launch_logit_gradients(const HopperParams<T>& p, const Kept& kept, const T* dweight, int64_t column,
                                   int64_t columns, int64_t offset) {
  const int64_t hidden = p.shape.hidden, ld = p.layout.columns;
  sm90::StoreGradient<T, biased, Row> gradient{};
  gradient.bias = p.bias_from(column);
  gradient.row_of = p.template in_workspace<Row>(p.layout.row_gradients);
  gradient.exponents =
      p.template in_workspace<float>(p.first_exponents) + column / sm90::kSegmentColumns * p.shape.rows;
  gradient.dz = p.template in_workspace<T>(p.layout.dz);
  gradient.ld = ld, gradient.ld_exponents = p.shape.rows, gradient.first_column = offset + column;
  gradient.log2_scale = p.log2_scale;
  gradient.block_sums = p.template in_workspace<float>(p.layout.block_sums);
  if constexpr (!biased && std::is_same_v<Row, sm90::RowGradient>) {
    if (kept.rows > 0) {
      const int64_t block = column / kept.block_columns;
      const auto* exponentials = reinterpret_cast<const uint16_t*>(dweight + kept.start(block));
      sm90::launch_kept_to_gradient(exponentials, kept.ld(block), kept.rows, columns, gradient, p.stream);
    }
  }
  const int64_t rows = p.shape.rows - kept.rows;
  if (rows == 0) return cudaGetLastError();
  gradient.row_of += kept.rows, gradient.exponents += kept.rows, gradient.dz += kept.rows * ld;
  const auto stage = [&]<typename Config>(Config, sm90::StoreGradient<T, biased, Row>& out) {
    return sm90::stage_tiles<Config>(out, gradient.dz, columns, rows, ld);
  };
  return multiply(gradient, make_operand<true>(p.hidden + kept.rows * hidden, hidden, rows),
                  make_operand<true>(p.weight + column * hidden, hidden, columns), hidden, p.stream, stage);
}

constexpr auto kNeverStaged = [](auto, auto&) { return true; };

/// dz^T * hidden for a block of columns; the accumulators begin with the carry, if there is one.
template <typename T, typename O>
cudaError_t launch_weight_gradient(const HopperParams<T>& p, const Operand<T, false>& dz,
                                   const WeightGradients<O>& to) {
  const int64_t rows = p.shape.rows, hidden = p.shape.hidden;
  const auto of_rows = make_operand<false>(p.hidden, hidden, hidden);
  if constexpr (std::is_same_v<T, O>) {
    sm90::StoreTiles<T, T> tiles{};
    tiles.c = to.dweight;
    const auto stage = [&]<typename Config>(Config, sm90::StoreTiles<T, T>& out) {
      return sm90::stage_tiles<Config>(out, to.dweight, hidden, dz.extent, hidden);
    };
    return multiply(tiles, dz, of_rows, rows, p.stream, stage);
  } else {
    sm90::ContinueSums<T> sums{to.weight_carry, to.dweight, nullptr, false};
    return multiply(sums, dz, of_rows, rows, p.stream, kNeverStaged);
  }
}

/// Sums the workspace's block sums over rows, for each column; one block sum stands for 16 rows.
template <typename T, typename O>
void launch_bias_gradient(const HopperParams<T>& p, int64_t columns, const WeightGradients<O>& to) {
  const auto* block_sums = p.template in_workspace<float>(p.layout.block_sums);
  const int64_t ld = p.layout.columns, blocks = ceil_div(p.shape.rows, sm90::kBlockRows);
  auto* sums = p.template in_workspace<float>(p.layout.bias_sums);
  if (to.bias_carry == nullptr) {
    launch_sum_columns(block_sums, ld, blocks, columns, sums, false, p.stream);
  } else {
    launch_spread(to.bias_carry, 1, columns, sums, columns, p.stream);
    launch_sum_columns_chain(block_sums, ld, blocks, columns, sums, p.stream);
  }
  launch_round_to<O>(sums, columns, 1, columns, to.dbias, p.stream);
}

/// For each block of vocabulary columns: computes dz, then the block's part of every gradient. The workspace holds the
/// Rows, whose targets are column numbers of the whole weight; this part begins at column `offset`. `to` covers this
/// part only; reduce_logits() left `kept` in its memory.
///   hidden_sums: [rows, hidden], holds the sums between blocks; with dhidden null, they are the result
template <typename Row = sm90::RowGradient, typename T, typename O>
cudaError_t launch_gradients(const HopperParams<T>& p, const Kept& kept, int64_t offset, float* hidden_sums, T* dhidden,
                             const WeightGradients<O>& to) {
  const int64_t rows = p.shape.rows, hidden = p.shape.hidden, vocab = p.shape.vocab, ld = p.layout.columns;
  auto* dz = p.template in_workspace<T>(p.layout.dz);
  const T* scratch = scratch_in<T>(to);
  for (int64_t column = 0; column < vocab; column += ld) {
    const int64_t columns = vocab - column < ld ? vocab - column : ld;
    const auto error = p.bias == nullptr ? launch_logit_gradients<false, Row>(p, kept, scratch, column, columns, offset)
                                         : launch_logit_gradients<true, Row>(p, kept, scratch, column, columns, offset);
    if (error != cudaSuccess) return error;

    const WeightGradients<O> of_block = to.from(column, hidden);
    if (const auto error = launch_weight_gradient(p, make_operand<false>(dz, ld, columns), of_block)) return error;

    sm90::ContinueSums<T> hidden_part{column == 0 ? nullptr : hidden_sums, hidden_sums, dhidden,
                                      dhidden != nullptr && column + columns == vocab};
    if (const auto error =
            multiply(hidden_part, make_operand<true>(dz, ld, rows),
                     make_operand<false>(p.weight + column * hidden, hidden, hidden), columns, p.stream, kNeverStaged))
      return error;

    if (to.dbias != nullptr) launch_bias_gradient(p, columns, of_block);
  }
  return cudaGetLastError();
}

}  // namespace checkop::kernels::linear_logp::hopper
