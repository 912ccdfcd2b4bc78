// SPDX-License-Identifier: Apache-2.0
// linear_logp / native: CPU, fp32, by chunks of the vocabulary; no [rows, vocab] array is ever stored.
//   z[r,v] = sum_h hidden[r,h] W[v,h] + bias[v]     logp[r] = (z[r,t] - m) - log(s),  s = sum_v exp(z[r,v] - m)
//   dz[r,v] = g[r] ([v = t] - exp(z[r,v] - m) / s)  dhidden = dz W    dW = dz^T hidden    dbias = sum_r dz
//   hidden: [..., hidden]  W: [vocab, hidden]  bias: [vocab], fp32|bf16|fp16   target_ids: int64   logp, grad_logp:
//   fp32
//   where target_ids[r] = ignore_index: logp 0, and the row adds nothing to any gradient, whatever hidden[r] holds
//   Limits: contiguous.   Expected error: chains of 67 to 68 additions, then a tree over blocks of 512 or 1024 terms.
#include "native.hpp"

namespace {

using native::Extent;
using native::SumExp;

constexpr int64_t kChunk = native::kTerms;  // vocabulary columns at a time: the terms of one combine() of dhidden
constexpr int64_t kTile = 128;              // hidden columns a tile of W: 256 KiB of fp32 with kChunk rows

size_t size(int64_t n) { return static_cast<size_t>(n); }

struct Merge {
  SumExp operator()(const SumExp& a, const SumExp& b) const {
    const float max = std::max(a.max, b.max);
    // A chunk of nothing but -inf holds 0, or NaN where one hid among them: either is kept as it is.
    const auto rescaled = [max](const SumExp& s) {
      return std::isinf(s.max) && s.max < 0 ? s.sum : s.sum * std::exp(s.max - max);
    };
    return {max, rescaled(a) + rescaled(b)};
  }
};

/// The inputs of both passes.
struct Problem {
  const checkop_tensor& weight;
  const int64_t* targets;
  const float* bias;  // nullptr when absent
  std::vector<float> hidden32, bias32;
  int64_t rows, hidden, vocab, ignored;

  bool left_out(int64_t row) const { return targets[row] == ignored; }
};

/// z[r * kChunk + v - first] for the `columns` vocabulary entries from `first` on.
void chunk_logits(const Problem& p, int64_t first, int64_t columns, float* z) {
  native::parallel_for(columns, p.rows * columns * p.hidden, [&](int64_t begin, int64_t end) {
    std::vector<float> w(size(p.hidden));
    for (int64_t v = begin; v < end; ++v) {
      native::load(p.weight, (first + v) * p.hidden, p.hidden, w.data());
      for (int64_t r = 0; r < p.rows; ++r) {
        const float sum = native::dot(&p.hidden32[size(r * p.hidden)], w.data(), p.hidden);
        z[r * kChunk + v] = p.bias != nullptr ? sum + p.bias[first + v] : sum;
      }
    }
  });
}

struct RowStates {
  std::vector<SumExp> sums;
  std::vector<float> target_logits;
};

RowStates row_states(const Problem& p, float* z) {
  RowStates states{{}, std::vector<float>(size(p.rows))};
  std::vector<native::Tree<SumExp, Merge>> trees(size(p.rows));
  for (int64_t first = 0; first < p.vocab; first += kChunk) {
    const int64_t columns = std::min(kChunk, p.vocab - first);
    chunk_logits(p, first, columns, z);
    native::parallel_for(p.rows, 16 * p.rows * columns, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t target = p.targets[r] - first;
        trees[size(r)].add(native::sum_exp(z + r * kChunk, columns));
        if (target >= 0 && target < columns) states.target_logits[size(r)] = z[r * kChunk + target];
      }
    });
  }
  for (auto& tree : trees) states.sums.push_back(tree.finish());
  return states;
}

/// Replaces a chunk of logits by their gradient.
void chunk_gradient(const Problem& p, const std::vector<SumExp>& sums, const float* g, int64_t first, int64_t columns,
                    float* z) {
  native::parallel_for(p.rows, 16 * p.rows * columns, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const SumExp& s = sums[size(r)];
      for (int64_t v = 0; v < columns; ++v) {
        float& element = z[r * kChunk + v];
        const float probability = std::exp(element - s.shift()) / s.sum;
        element = first + v == p.targets[r] ? g[r] * (1.0f - probability) : -g[r] * probability;
        if (p.left_out(r)) element = 0.0f;
      }
    }
  });
}

/// This chunk's share of dhidden, [rows, hidden].
std::vector<float> chunk_dhidden(const Problem& p, int64_t first, int64_t columns, const float* dz) {
  std::vector<float> partial(size(p.rows * p.hidden));
  const int64_t tiles = (p.hidden + kTile - 1) / kTile;
  native::parallel_for(tiles, p.rows * columns * p.hidden, [&](int64_t begin, int64_t end) {
    std::vector<float> block(size(kChunk * kTile));
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t h = tile * kTile, width = std::min(kTile, p.hidden - h);
      for (int64_t v = 0; v < columns; ++v)
        native::load(p.weight, (first + v) * p.hidden + h, width, &block[size(v * kTile)]);
      for (int64_t r = 0; r < p.rows; ++r)
        native::combine(dz + r * kChunk, 1, block.data(), kTile, columns, width, &partial[size(r * p.hidden + h)]);
    }
  });
  return partial;
}

/// Stores the chunk's rows of dW and, where `dbias` has data, its elements of dbias.
void store_chunk_weight_gradient(const Problem& p, int64_t first, int64_t columns, const float* dz,
                                 const checkop_tensor& dweight, const checkop_tensor& dbias) {
  native::parallel_for(columns, p.rows * columns * p.hidden, [&](int64_t begin, int64_t end) {
    for (int64_t v = begin; v < end; ++v) {
      native::VectorTree sum;
      for (int64_t r = 0; r < p.rows; r += native::kTerms) {
        std::vector<float> partial(size(p.hidden));
        native::combine(dz + r * kChunk + v, kChunk, &p.hidden32[size(r * p.hidden)], p.hidden,
                        std::min(native::kTerms, p.rows - r), p.hidden, partial.data());
        sum.add(std::move(partial));
      }
      native::store(dweight, (first + v) * p.hidden, p.hidden, native::finish(sum, p.hidden).data());
      if (dbias.data != nullptr) {
        const float total = native::blocked_sum(p.rows, [=](int64_t r) { return dz[r * kChunk + v]; });
        native::store(dbias, first + v, 1, &total);
      }
    }
  });
}

/// Checks the inputs that both passes have.
void check_inputs(const checkop_call& c, Extent& rows, Extent& hidden, Extent& vocab) {
  const int32_t dtype = c.inputs[0].dtype;
  native::check_computed_dtype(dtype);
  native::check_matrix(c.inputs[0], "hidden", dtype, rows, hidden);
  native::check_matrix(c.inputs[1], "lm_head_weight", dtype, vocab, hidden);
  native::check_list(c.inputs[2], "target_ids", CHECKOP_I64, rows);
  if (c.inputs[3].data != nullptr) native::check_list(c.inputs[3], "bias", dtype, vocab);
}

/// Checks the ids, which only a call whose shapes were found right has, and converts what is read more than once.
Problem load_problem(const checkop_call& c, int64_t rows, int64_t hidden, int64_t vocab) {
  const int64_t ignored = native::ignore_index(c);
  native::check_ids(c.inputs[2], "target_ids", rows, vocab, ignored);
  Problem p{c.inputs[1], static_cast<const int64_t*>(c.inputs[2].data), nullptr, {}, {}, rows, hidden, vocab, ignored};
  p.hidden32 = native::load_all(c.inputs[0], rows * hidden);
  for (int64_t r = 0; r < rows; ++r)  // zeros in its place: 0 * NaN would reach the weight's gradient
    if (p.left_out(r)) std::fill_n(&p.hidden32[size(r * hidden)], hidden, 0.0f);
  if (c.inputs[3].data != nullptr) {
    p.bias32 = native::load_all(c.inputs[3], vocab);
    p.bias = p.bias32.data();
  }
  return p;
}

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 4, 1);
    Extent rows{"rows"}, hidden{"hidden"}, vocab{"vocab"};
    check_inputs(c, rows, hidden, vocab);
    native::check_list(c.outputs[0], "logp", CHECKOP_F32, rows);

    const Problem p = load_problem(c, rows.value, hidden.value, vocab.value);
    std::vector<float> z(size(p.rows * kChunk));
    const RowStates states = row_states(p, z.data());
    auto* logp = static_cast<float*>(c.outputs[0].data);
    for (int64_t r = 0; r < p.rows; ++r) {
      const SumExp& s = states.sums[size(r)];
      logp[r] = p.left_out(r) ? 0.0f : (states.target_logits[size(r)] - s.shift()) - std::log(s.sum);
    }
  });
}

checkop_status backward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 5, 3);
    Extent rows{"rows"}, hidden{"hidden"}, vocab{"vocab"};
    check_inputs(c, rows, hidden, vocab);
    const int32_t dtype = c.inputs[0].dtype;
    native::check_list(c.inputs[4], "grad_logp", CHECKOP_F32, rows);
    native::check_matrix(c.outputs[0], "dhidden", dtype, rows, hidden);
    native::check_matrix(c.outputs[1], "dlm_head_weight", dtype, vocab, hidden);
    if (c.inputs[3].data != nullptr) native::check_list(c.outputs[2], "dbias", dtype, vocab);

    const Problem p = load_problem(c, rows.value, hidden.value, vocab.value);
    const auto* g = static_cast<const float*>(c.inputs[4].data);
    std::vector<float> z(size(p.rows * kChunk));
    const RowStates states = row_states(p, z.data());
    native::VectorTree dhidden;
    for (int64_t first = 0; first < p.vocab; first += kChunk) {
      const int64_t columns = std::min(kChunk, p.vocab - first);
      chunk_logits(p, first, columns, z.data());
      chunk_gradient(p, states.sums, g, first, columns, z.data());
      dhidden.add(chunk_dhidden(p, first, columns, z.data()));
      store_chunk_weight_gradient(p, first, columns, z.data(), c.outputs[1], c.outputs[2]);
    }
    native::store(c.outputs[0], 0, p.rows * p.hidden, dhidden.finish().data());
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "linear_logp", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
    {sizeof(checkop_kernel), "native", "linear_logp", "backward", CHECKOP_CPU, 0, 0, nullptr, backward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
