// SPDX-License-Identifier: Apache-2.0
// linear_logp by Hopper's wgmma: what cuda_sm90.cu says of it, for a weight that may be one rank's part of a larger
// one.
#pragma once

#include "linear_logp/portable.cuh"
#include "sm90/gradient.cuh"
#include "sm90/select.cuh"

namespace checkop::kernels::linear_logp::hopper {

constexpr auto kEngine = sm90::Loads::copy_engine;
constexpr auto kDirect = sm90::Stores::direct;
struct ManyRows : sm90::Plan<2, 256, 64, 4, 2, 1, kEngine, kDirect> {
  static constexpr const char* kWords = "wgmma 128x256, pairs";
};
// At most 128 rows, then at most 64: reading the weights takes the time.
struct Rows128 : sm90::Plan<2, 256, 64, 4, 1, 1, kEngine, kDirect> {
  static constexpr const char* kWords = "wgmma 128x256";
};
struct Rows64 : sm90::Plan<1, 256, 64, 0, 1, 1, kEngine, kDirect> {
  static constexpr const char* kWords = "wgmma 64x256";
};
// Matrices that the copy engine can't reach.
struct Unaligned : sm90::Plan<1, 256, 64, 4, 1, 1, sm90::Loads::plain, kDirect> {
  static constexpr const char* kWords = "wgmma 64x256, element loads";
};

struct Workspace {
  int64_t rows;     ///< at a time in a pass over the logits
  int64_t columns;  ///< of the vocabulary at a time, when gradients are computed; 0 in the forward pass
  int64_t n_segments;
  size_t target_logit, row_gradients, kept_hidden, hidden_sums, block_sums, bias_sums;
  size_t sums, dz;  ///< the same place: the ones are done with before the others begin
  size_t bytes;
};

/// `keeps_sums`: the sums of dhidden wait in the workspace.
inline Workspace workspace_of(const Sizes& sizes, bool backward, bool keeps_sums = true) {
  constexpr int64_t kSumBytes = int64_t{24} << 20, kRowUnit = 256;  // rows of a pair of blocks
  // 64 tiles of columns at 4096 rows: of two waves of blocks each on 132 multiprocessors, with little left over.
  constexpr int64_t kGradientBytes = int64_t{132} << 20, kColumnUnit = 256;
  Workspace at{};
  at.n_segments = ceil_div(sizes.vocab, sm90::kSegmentColumns);
  const int64_t of_row = at.n_segments * static_cast<int64_t>(sizeof(sm90::PowerSum));
  const auto fitting = [](int64_t bytes, int64_t each, int64_t unit, int64_t all) {
    const int64_t fit = each == 0 ? all : bytes / each / unit * unit;
    return all < fit ? all : fit < unit ? unit : fit;
  };
  at.rows = fitting(kSumBytes, of_row, kRowUnit, sizes.rows);
  size_t end = kIdCheckBytes;
  const auto place = [&end](int64_t bytes) {
    const size_t start = end;
    end += static_cast<size_t>(round_up(bytes, 256));
    return start;
  };
  at.target_logit = place(at.rows * 4);
  if (backward) {
    at.columns = fitting(kGradientBytes, sizes.rows * 2, kColumnUnit, round_up(sizes.vocab, 8));
    at.row_gradients = place(sizes.rows * static_cast<int64_t>(sizeof(sm90::RowGradient)));
    at.kept_hidden = place(sizes.rows * sizes.hidden * 2);
    at.hidden_sums = place(keeps_sums && at.columns < sizes.vocab ? sizes.rows * sizes.hidden * 4 : 0);
    at.block_sums = place(ceil_div(sizes.rows, sm90::kBlockRows) * at.columns * 4);
    at.bias_sums = place(at.columns * 4);
  }
  const int64_t sum_bytes = at.rows * of_row, dz_bytes = sizes.rows * at.columns * 2;
  at.sums = at.dz = place(sum_bytes > dz_bytes ? sum_bytes : dz_bytes);
  at.bytes = end;
  return at;
}

/// What both passes work on.
template <typename T>
struct Problem {
  Sizes sizes;
  Workspace at;
  const T *hidden, *weight, *bias;  ///< bias is null when absent
  const int64_t* target_ids;
  int64_t ignored;
  std::byte* workspace;
  cudaStream_t stream;
  int64_t first_id = 0;  ///< of the weight's first column in all the vocabulary

  template <typename U>
  U* in_workspace(size_t offset) const {
    return reinterpret_cast<U*>(workspace + offset);
  }
  const T* bias_from(int64_t column) const { return bias == nullptr ? nullptr : bias + column; }
  /// The problem of `columns` of the weight's, `first` and those that follow.
  Problem part(int64_t first, int64_t columns) const {
    Problem p = *this;
    p.weight += first * sizes.hidden;
    p.bias = bias_from(first);
    p.first_id += first;
    p.sizes.vocab = columns;
    p.at.n_segments = ceil_div(columns, sm90::kSegmentColumns);
    return p;
  }
};

/// Of a call whose shapes were checked.
template <typename T>
Problem<T> problem_of(const checkop_call* call, const Sizes& sizes, const Workspace& at, int64_t ignored) {
  return {sizes,
          at,
          static_cast<const T*>(call->inputs[0].data),
          static_cast<const T*>(call->inputs[1].data),
          static_cast<const T*>(call->inputs[3].data),
          static_cast<const int64_t*>(call->inputs[2].data),
          ignored,
          static_cast<std::byte*>(call->workspace),
          static_cast<cudaStream_t>(call->stream)};
}

/// Whether the copy engine reaches both factors.
template <typename T, bool a_along_k, bool b_along_k>
bool are_reachable(const Factor<T, a_along_k>& a, const Factor<T, b_along_k>& b, int64_t inner) {
  return sm90::has_tensor_map<T>(sm90::matrix_of(a, inner)) && sm90::has_tensor_map<T>(sm90::matrix_of(b, inner));
}

/// finish_at(first row) is called with every row's sum of exponentials, as merge_power_sums() does. `words`: the plan.
template <typename T, typename FinishAt>
cudaError_t reduce_logits(const Problem<T>& p, FinishAt&& finish_at, const char*& words) {
  for (int64_t first = 0; first < p.sizes.rows; first += p.at.rows) {
    const int64_t rows = p.sizes.rows - first < p.at.rows ? p.sizes.rows - first : p.at.rows;
    const auto hidden = make_factor<true>(p.hidden + first * p.sizes.hidden, p.sizes.hidden, rows);
    const auto weight = make_factor<true>(p.weight, p.sizes.hidden, p.sizes.vocab);
    const sm90::SumSegments<T> segments{p.bias, p.target_ids + first, p.first_id,
                                        p.template in_workspace<sm90::PowerSum>(p.at.sums),
                                        p.template in_workspace<float>(p.at.target_logit)};
    const auto run = [&]<typename P>(P) {
      words = P::kWords;
      return sm90::launch_into<P>(segments, hidden, weight, p.sizes.hidden, p.stream);
    };
    const auto error = !are_reachable(hidden, weight, p.sizes.hidden) ? run(Unaligned{})
                       : rows <= 64                                   ? run(Rows64{})
                       : rows <= 128                                  ? run(Rows128{})
                                                                      : run(ManyRows{});
    if (error != cudaSuccess) return error;
    sm90::launch_merge(segments.sums, rows, p.at.n_segments, finish_at(first), p.stream);
  }
  return cudaGetLastError();
}

/// The tiles of a * b into `out`, which may be of any epilogue that has the same bits with every plan.
template <typename T, typename Epilogue, bool a_along_k, bool b_along_k, typename Stage>
cudaError_t multiply(Epilogue& out, const Factor<T, a_along_k>& a, const Factor<T, b_along_k>& b, int64_t inner,
                     cudaStream_t stream, Stage&& stage) {
  const auto run = [&]<typename P>(P) {
    if (!stage(P{}, out)) return cudaErrorInvalidValue;
    return sm90::launch_into<P>(out, a, b, inner, stream);
  };
  if (!are_reachable(a, b, inner)) return run(sm90::Unaligned{});
  return sm90::with_fastest(a.extent, b.extent, run, sm90::Large{}, sm90::Square{}, sm90::Low{}, sm90::Small{});
}

/// Rows of hidden that are left out become zeros, in a copy that p.hidden is from here on.
template <typename T>
void keep_hidden(Problem<T>& p) {
  auto* kept = p.template in_workspace<T>(p.at.kept_hidden);
  launch_keep_rows(p.hidden, p.target_ids, p.ignored, p.sizes.rows, p.sizes.hidden, kept, p.stream);
  p.hidden = kept;
}

/// By blocks of columns of the vocabulary: dz of the block, then its part of every gradient. The logits are computed a
/// second time; stored, they would be [rows, vocab]. Rows' gradients are in the workspace, their targets relative to
/// the weight of which this is the part that begins `offset` columns on; dweight and dbias are this part's.
///   hidden_sums: [rows, hidden], where sums wait between blocks; with dhidden null, they are the result
template <typename T>
cudaError_t launch_gradients(const Problem<T>& p, int64_t offset, float* hidden_sums, T* dhidden, T* dweight,
                             T* dbias) {
  const int64_t rows = p.sizes.rows, hidden = p.sizes.hidden, vocab = p.sizes.vocab, ld = p.at.columns;
  const auto* row_of = p.template in_workspace<sm90::RowGradient>(p.at.row_gradients);
  auto* dz = p.template in_workspace<T>(p.at.dz);
  auto* block_sums = p.template in_workspace<float>(p.at.block_sums);
  auto* bias_sums = p.template in_workspace<float>(p.at.bias_sums);
  const auto never_staged = [](auto, auto&) { return true; };
  for (int64_t column = 0; column < vocab; column += ld) {
    const int64_t columns = vocab - column < ld ? vocab - column : ld;
    sm90::StoreGradient<T> gradient{};
    gradient.bias = p.bias_from(column);
    gradient.row_of = row_of, gradient.dz = dz, gradient.ld = ld, gradient.first_column = offset + column;
    gradient.block_sums = dbias == nullptr ? nullptr : block_sums;
    const auto stage = [&]<typename P>(P, sm90::StoreGradient<T>& out) {
      return sm90::stage_tiles<P>(out, dz, columns, rows, ld);
    };
    if (const auto error =
            multiply(gradient, make_factor<true>(p.hidden, hidden, rows),
                     make_factor<true>(p.weight + column * hidden, hidden, columns), hidden, p.stream, stage))
      return error;

    sm90::StoreTiles<T, T> weight_part{};
    weight_part.c = dweight + column * hidden;
    const auto stage_weight = [&]<typename P>(P, sm90::StoreTiles<T, T>& out) {
      return sm90::stage_tiles<P>(out, weight_part.c, hidden, columns, hidden);
    };
    if (const auto error = multiply(weight_part, make_factor<false>(dz, ld, columns),
                                    make_factor<false>(p.hidden, hidden, hidden), rows, p.stream, stage_weight))
      return error;

    sm90::ContinueSums<T> hidden_part{hidden_sums, dhidden, column == 0,
                                      dhidden != nullptr && column + columns == vocab};
    if (const auto error =
            multiply(hidden_part, make_factor<true>(dz, ld, rows),
                     make_factor<false>(p.weight + column * hidden, hidden, hidden), columns, p.stream, never_staged))
      return error;

    if (dbias == nullptr) continue;
    launch_sum_columns(block_sums, ld, ceil_div(rows, sm90::kBlockRows), columns, bias_sums, false, p.stream);
    launch_round_to<T>(bias_sums, columns, 1, columns, dbias + column, p.stream);
  }
  return cudaGetLastError();
}

}  // namespace checkop::kernels::linear_logp::hopper
