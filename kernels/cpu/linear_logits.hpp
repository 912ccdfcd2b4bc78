// SPDX-License-Identifier: Apache-2.0
// Logits by chunks of the vocabulary and the products of their gradients, in fp32; no [rows, vocab] array is ever
// stored.
//   x[r,v] = sum_h hidden[r,h] W[v,h] + bias[v]     dhidden = dx W    dW = dx^T hidden    dbias = sum_r dx
#pragma once

#include "cpu/entropy.hpp"
#include "cpu/logit_transform.hpp"

namespace native::linear {

constexpr int64_t kChunk = kTerms;  // vocabulary columns at a time: the terms of one combine() of dhidden
constexpr int64_t kTile = 128;      // hidden columns in a tile of W: 256 KiB of fp32 with kChunk rows

inline size_t size(int64_t n) { return static_cast<size_t>(n); }

/// The operands of the logits.
struct LinearParams {
  const checkop_tensor& weight;
  std::vector<float> hidden32, bias32;  // bias32: empty when absent
  int64_t rows, hidden, vocab;

  /// Distance in elements from one row of a chunk to the next.
  int64_t stride() const { return std::min(kChunk, vocab); }
};

/// x[r * stride + v - first] for the `columns` vocabulary entries from `first` on.
inline void chunk_logits(const LinearParams& p, int64_t first, int64_t columns, float* x) {
  parallel_for(columns, p.rows * columns * p.hidden, [&](int64_t begin, int64_t end) {
    std::vector<float> w(size(p.hidden));
    for (int64_t v = begin; v < end; ++v) {
      load(p.weight, (first + v) * p.hidden, p.hidden, w.data());
      for (int64_t r = 0; r < p.rows; ++r) {
        const float sum = dot(&p.hidden32[size(r * p.hidden)], w.data(), p.hidden);
        x[r * p.stride() + v] = p.bias32.empty() ? sum : sum + p.bias32[size(first + v)];
      }
    }
  });
}

/// This chunk's contribution to dhidden, [rows, hidden].
inline std::vector<float> chunk_dhidden(const LinearParams& p, int64_t first, int64_t columns, const float* dz) {
  std::vector<float> partial(size(p.rows * p.hidden));
  const int64_t tiles = (p.hidden + kTile - 1) / kTile, block_stride = std::min(kTile, p.hidden);
  parallel_for(tiles, p.rows * columns * p.hidden, [&](int64_t begin, int64_t end) {
    std::vector<float> block(size(columns * block_stride));
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t h = tile * kTile, width = std::min(kTile, p.hidden - h);
      for (int64_t v = 0; v < columns; ++v)
        load(p.weight, (first + v) * p.hidden + h, width, &block[size(v * block_stride)]);
      for (int64_t r = 0; r < p.rows; ++r)
        combine(dz + r * p.stride(), 1, block.data(), block_stride, columns, width, &partial[size(r * p.hidden + h)]);
    }
  });
  return partial;
}

/// Stores the chunk's rows of dW and, if there is a bias, its elements of dbias.
inline void store_chunk_weight_gradient(const LinearParams& p, int64_t first, int64_t columns, const float* dz,
                                        const checkop_tensor& dweight, const checkop_tensor& dbias) {
  parallel_for(columns, p.rows * columns * p.hidden, [&, stride = p.stride()](int64_t begin, int64_t end) {
    for (int64_t v = begin; v < end; ++v) {
      VectorTree sum;
      for (int64_t r = 0; r < p.rows; r += kTerms) {
        std::vector<float> partial(size(p.hidden));
        combine(dz + r * stride + v, stride, &p.hidden32[size(r * p.hidden)], p.hidden, std::min(kTerms, p.rows - r),
                p.hidden, partial.data());
        sum.add(std::move(partial));
      }
      store(dweight, (first + v) * p.hidden, p.hidden, finish(sum, p.hidden).data());
      if (!p.bias32.empty()) {
        const float total = blocked_sum(p.rows, [=](int64_t r) { return dz[r * stride + v]; });
        store(dbias, first + v, 1, &total);
      }
    }
  });
}

/// Loads what both passes read more than once; zeros for rows of hidden with left_out(row), since 0 * NaN would reach
/// the weight's gradient. Shapes must have been checked.
template <class LeftOut>
LinearParams load_linear(const checkop_tensor& hidden, const checkop_tensor& weight, const checkop_tensor& bias,
                         int64_t rows, int64_t columns, int64_t vocab, const LeftOut& left_out) {
  LinearParams p{weight, load_all(hidden, rows * columns), {}, rows, columns, vocab};
  for (int64_t r = 0; r < rows; ++r)
    if (left_out(r)) std::fill_n(&p.hidden32[size(r * columns)], columns, 0.0f);
  if (bias.data != nullptr) p.bias32 = load_all(bias, vocab);
  return p;
}

/// The sums of each row over the whole vocabulary. `x`: [rows, stride], overwritten.
inline std::vector<EntropySums> entropy_sums(const LinearParams& p, const LogitTransform& transform, float* x) {
  std::vector<Tree<EntropySums, MergeEntropySums>> trees(size(p.rows));
  for (int64_t first = 0; first < p.vocab; first += kChunk) {
    const int64_t columns = std::min(kChunk, p.vocab - first);
    chunk_logits(p, first, columns, x);
    parallel_for(p.rows, 32 * p.rows * columns, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        transform(x + r * p.stride(), columns);
        trees[size(r)].add(native::entropy_sums(x + r * p.stride(), columns));
      }
    });
  }
  std::vector<EntropySums> sums;
  for (auto& tree : trees) sums.push_back(tree.finish());
  return sums;
}

/// Stores dhidden, dW and, if there is a bias, dbias in the call's outputs 0, 1 and 2. gradient(row, column, logit)
/// gives the gradient of a logit. `x`: [rows, stride], overwritten.
template <class Gradient>
void store_gradients(const LinearParams& p, float* x, const checkop_call& c, const Gradient& gradient) {
  VectorTree dhidden;
  for (int64_t first = 0; first < p.vocab; first += kChunk) {
    const int64_t columns = std::min(kChunk, p.vocab - first);
    chunk_logits(p, first, columns, x);
    parallel_for(p.rows, 16 * p.rows * columns, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        for (int64_t v = 0; v < columns; ++v) {
          float& element = x[r * p.stride() + v];
          element = gradient(r, first + v, element);
        }
    });
    dhidden.add(chunk_dhidden(p, first, columns, x));
    store_chunk_weight_gradient(p, first, columns, x, c.outputs[1], c.outputs[2]);
  }
  store(c.outputs[0], 0, p.rows * p.hidden, finish(dhidden, p.rows * p.hidden).data());
}

}  // namespace native::linear
