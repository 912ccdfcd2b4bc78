// SPDX-License-Identifier: Apache-2.0
// Logits, their softmax and their gradients by chunks of the vocabulary, in fp32; no [rows, vocab] array is ever
// stored. For linear_logp, and for one rank's tensor-parallel part of it.
//   z[r,v] = sum_h hidden[r,h] W[v,h] + bias[v]     m = max_v z[r,v],  s = sum_v exp(z[r,v] - m)
//   dz[r,v] = g[r] ([v = t] - exp(z[r,v] - m) / s)  dhidden = dz W    dW = dz^T hidden    dbias = sum_r dz
#pragma once

#include "cpu/linear_logp_carry.hpp"

namespace native::linear {

constexpr int64_t kChunk = kTerms;  // vocabulary columns at a time: the terms of one combine() of dhidden
constexpr int64_t kTile = 128;      // hidden columns in a tile of W: 256 KiB of fp32 with kChunk rows

inline size_t size(int64_t n) { return static_cast<size_t>(n); }

/// The inputs of both passes: columns [begin, begin + vocab) of the vocabulary.
struct LinearLogpParams {
  const checkop_tensor& weight;
  const int64_t* targets;
  const float* bias;  // nullptr when absent
  std::vector<float> hidden32, bias32;
  int64_t rows, hidden, vocab, ignored, begin = 0;

  bool left_out(int64_t row) const { return targets[row] == ignored; }
  /// Distance in elements from one row of a chunk to the next.
  int64_t stride() const { return std::min(kChunk, vocab); }
};

/// z[r * stride + v - first] for the `columns` vocabulary entries from `first` on.
inline void chunk_logits(const LinearLogpParams& p, int64_t first, int64_t columns, float* z) {
  parallel_for(columns, p.rows * columns * p.hidden, [&](int64_t begin, int64_t end) {
    std::vector<float> w(size(p.hidden));
    for (int64_t v = begin; v < end; ++v) {
      load(p.weight, (first + v) * p.hidden, p.hidden, w.data());
      for (int64_t r = 0; r < p.rows; ++r) {
        const float sum = dot(&p.hidden32[size(r * p.hidden)], w.data(), p.hidden);
        z[r * p.stride() + v] = p.bias != nullptr ? sum + p.bias[first + v] : sum;
      }
    }
  });
}

struct RowStates {
  std::vector<SumExp> sums;
  std::vector<float> target_logits;
};

/// Row states over columns [from, to) of this part of the vocabulary. A target logit is 0 where the target is not among
/// the columns.
inline RowStates row_states(const LinearLogpParams& p, int64_t from, int64_t to, float* z) {
  RowStates states{{}, std::vector<float>(size(p.rows))};
  std::vector<Tree<SumExp, MergeSumExp>> trees(size(p.rows));
  for (int64_t first = from; first < to; first += kChunk) {
    const int64_t columns = std::min(kChunk, to - first);
    chunk_logits(p, first, columns, z);
    parallel_for(p.rows, 16 * p.rows * columns, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t target = p.targets[r] - p.begin - first;
        trees[size(r)].add(sum_exp(z + r * p.stride(), columns));
        if (target >= 0 && target < columns) states.target_logits[size(r)] = z[r * p.stride() + target];
      }
    });
  }
  for (auto& tree : trees) states.sums.push_back(tree.finish());
  return states;
}

/// Replaces a chunk of logits by their gradient.
inline void chunk_gradient(const LinearLogpParams& p, const std::vector<SumExp>& sums, const float* g, int64_t first,
                           int64_t columns, float* z) {
  parallel_for(p.rows, 16 * p.rows * columns, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const SumExp& s = sums[size(r)];
      for (int64_t v = 0; v < columns; ++v) {
        float& element = z[r * p.stride() + v];
        const float probability = std::exp(element - s.shift()) / s.sum;
        element = p.begin + first + v == p.targets[r] ? g[r] * (1.0f - probability) : -g[r] * probability;
        if (p.left_out(r)) element = 0.0f;
      }
    }
  });
}

/// This chunk's contribution to dhidden, [rows, hidden].
inline std::vector<float> chunk_dhidden(const LinearLogpParams& p, int64_t first, int64_t columns, const float* dz) {
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

// Rows whose sum is added to a carry at once: a batch may be cut at multiples of this
constexpr int64_t kCarryRows = 16;

/// store_chunk_weight_gradient() for a call with carries: the carry, then the sums of kCarryRows rows each, in order.
inline void carry_chunk_weight_gradient(const LinearLogpParams& p, int64_t first, int64_t columns, const float* dz,
                                        const checkop_call& c) {
  parallel_for(columns, p.rows * columns * p.hidden, [&, stride = p.stride()](int64_t begin, int64_t end) {
    std::vector<float> sum(size(p.hidden)), partial(size(p.hidden));
    for (int64_t v = begin; v < end; ++v) {
      float bias_sum = 0.0f;
      load(c.inputs[kWeightCarry], (first + v) * p.hidden, p.hidden, sum.data());
      if (p.bias != nullptr) load(c.inputs[kBiasCarry], first + v, 1, &bias_sum);
      for (int64_t r = 0; r < p.rows; r += kCarryRows) {
        const int64_t terms = std::min(kCarryRows, p.rows - r);
        const float* const column = dz + r * stride + v;
        combine(column, stride, &p.hidden32[size(r * p.hidden)], p.hidden, terms, p.hidden, partial.data());
        for (size_t h = 0; h < sum.size(); ++h) sum[h] += partial[h];
        bias_sum += blocked_sum(terms, [=](int64_t i) { return column[i * stride]; });
      }
      store(c.outputs[1], (first + v) * p.hidden, p.hidden, sum.data());
      if (p.bias != nullptr) store(c.outputs[2], first + v, 1, &bias_sum);
    }
  });
}

/// Stores the chunk's rows of dW and, if there is a bias, its elements of dbias.
inline void store_chunk_weight_gradient(const LinearLogpParams& p, int64_t first, int64_t columns, const float* dz,
                                        const checkop_call& c) {
  if (is_carried(c)) return carry_chunk_weight_gradient(p, first, columns, dz, c);
  parallel_for(columns, p.rows * columns * p.hidden, [&, stride = p.stride()](int64_t begin, int64_t end) {
    for (int64_t v = begin; v < end; ++v) {
      VectorTree sum;
      for (int64_t r = 0; r < p.rows; r += kTerms) {
        std::vector<float> partial(size(p.hidden));
        combine(dz + r * stride + v, stride, &p.hidden32[size(r * p.hidden)], p.hidden, std::min(kTerms, p.rows - r),
                p.hidden, partial.data());
        sum.add(std::move(partial));
      }
      store(c.outputs[1], (first + v) * p.hidden, p.hidden, finish(sum, p.hidden).data());
      if (p.bias != nullptr) {
        const float total = blocked_sum(p.rows, [=](int64_t r) { return dz[r * stride + v]; });
        store(c.outputs[2], first + v, 1, &total);
      }
    }
  });
}

/// Loads what both passes read more than once. Shapes and ids must have been checked.
inline LinearLogpParams load_params(const checkop_call& c, int64_t rows, int64_t hidden, int64_t vocab, int64_t ignored,
                                    int64_t begin = 0) {
  LinearLogpParams p{
      c.inputs[1], static_cast<const int64_t*>(c.inputs[2].data), nullptr, {}, {}, rows, hidden, vocab, ignored, begin};
  p.hidden32 = load_all(c.inputs[0], rows * hidden);
  for (int64_t r = 0; r < rows; ++r)  // zeros instead: 0 * NaN would reach the weight's gradient
    if (p.left_out(r)) std::fill_n(&p.hidden32[size(r * hidden)], hidden, 0.0f);
  if (c.inputs[3].data != nullptr) {
    p.bias32 = load_all(c.inputs[3], vocab);
    p.bias = p.bias32.data();
  }
  return p;
}

}  // namespace native::linear
