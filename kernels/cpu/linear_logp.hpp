// SPDX-License-Identifier: Apache-2.0
// Log-probabilities and their gradients by chunks of the vocabulary, in fp32. For linear_logp, and for one rank's
// tensor-parallel part of it.
//   z[r,v] of logits x as in cpu/logit_transform.hpp     m = max_v z[r,v],  s = sum_v exp(z[r,v] - m)
//   dx[r,v] = g[r] ([v = t] - exp(z[r,v] - m) / s) dz/dx
#pragma once

#include "cpu/linear_logits.hpp"
#include "cpu/linear_logp_carry.hpp"

namespace native::linear {

/// The inputs of both passes: columns [begin, begin + vocab) of the vocabulary.
struct LinearLogpParams : LinearParams {
  const int64_t* targets;
  int64_t ignored, begin = 0;
  LogitTransform transform = {};

  bool left_out(int64_t row) const { return targets[row] == ignored; }
};

struct RowStates {
  std::vector<SumExp> sums;
  std::vector<float> target_logits;
};

/// Row states over columns [from, to) of this part of the vocabulary. The target logit is 0 if the target is in none of
/// these columns.
inline RowStates row_states(const LinearLogpParams& p, int64_t from, int64_t to, float* z) {
  RowStates states{{}, std::vector<float>(size(p.rows))};
  std::vector<Tree<SumExp, MergeSumExp>> trees(size(p.rows));
  for (int64_t first = from; first < to; first += kChunk) {
    const int64_t columns = std::min(kChunk, to - first);
    chunk_logits(p, first, columns, z);
    parallel_for(p.rows, 16 * p.rows * columns, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t target = p.targets[r] - p.begin - first;
        p.transform(z + r * p.stride(), columns);
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
                           int64_t columns, float* x) {
  parallel_for(p.rows, 16 * p.rows * columns, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const SumExp& s = sums[size(r)];
      for (int64_t v = 0; v < columns; ++v) {
        float& element = x[r * p.stride() + v];
        const float probability = std::exp(p.transform(element) - s.shift()) / s.sum;
        const float dz = p.begin + first + v == p.targets[r] ? g[r] * (1.0f - probability) : -g[r] * probability;
        element = p.left_out(r) ? 0.0f : dz * p.transform.slope(element);
      }
    }
  });
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
      if (!p.bias32.empty()) load(c.inputs[kBiasCarry], first + v, 1, &bias_sum);
      for (int64_t r = 0; r < p.rows; r += kCarryRows) {
        const int64_t terms = std::min(kCarryRows, p.rows - r);
        const float* const column = dz + r * stride + v;
        combine(column, stride, &p.hidden32[size(r * p.hidden)], p.hidden, terms, p.hidden, partial.data());
        for (size_t h = 0; h < sum.size(); ++h) sum[h] += partial[h];
        bias_sum += blocked_sum(terms, [=](int64_t i) { return column[i * stride]; });
      }
      store(c.outputs[1], (first + v) * p.hidden, p.hidden, sum.data());
      if (!p.bias32.empty()) store(c.outputs[2], first + v, 1, &bias_sum);
    }
  });
}

/// Stores the chunk's rows of dW and, if there is a bias, its elements of dbias. Adds the carries if the call has them.
inline void store_chunk_weight_gradient(const LinearLogpParams& p, int64_t first, int64_t columns, const float* dz,
                                        const checkop_call& c) {
  if (is_carried(c)) return carry_chunk_weight_gradient(p, first, columns, dz, c);
  store_chunk_weight_gradient(p, first, columns, dz, c.outputs[1], c.outputs[2]);
}

/// The parameters of a call whose shapes and ids have been checked.
inline LinearLogpParams load_params(const checkop_call& c, int64_t rows, int64_t hidden, int64_t vocab, int64_t ignored,
                                    int64_t begin = 0) {
  const auto* targets = static_cast<const int64_t*>(c.inputs[2].data);
  return {load_linear(c.inputs[0], c.inputs[1], c.inputs[3], rows, hidden, vocab,
                      [=](int64_t r) { return targets[r] == ignored; }),
          targets, ignored, begin};
}

}  // namespace native::linear
