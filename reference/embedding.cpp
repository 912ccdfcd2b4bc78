// SPDX-License-Identifier: Apache-2.0
// embedding: one table row per token; backward: the sum of the gradients of all tokens with the same id.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "moved_rows.hpp"
#include "operator/operator.hpp"
#include "softmax.hpp"

namespace checkop {

extern const Emulation kEmbeddingForward, kEmbeddingBackward;  // emulation/embedding.cpp

namespace {

constexpr std::string_view kRow = "batch seq", kRowHidden = "batch seq hidden", kTable = "vocab hidden";
constexpr TensorSpec kTokenIds{"token_ids", kRow, Fill::ids, "vocab", DType::i64}, kWeight{"weight", kTable};
constexpr TensorSpec kGradY{"grad_y", kRowHidden, Fill::upstream};

constexpr std::array kForwardIn{kTokenIds, kWeight};
constexpr std::array kForwardOut{OutputSpec{{"y", kRowHidden}, Numerics::exact, ""}};
// No weight: only its extents matter to the gradient.
constexpr std::array kBackwardIn{kTokenIds, kGradY};
constexpr std::array kBackwardOut{OutputSpec{{"dweight", kTable}, Numerics::reduction, "batch*seq"}};

/// Gold of embedding.
///   in:  token_ids[batch, seq], weight[vocab, hidden]     out: y[batch, seq, hidden] = weight[token_ids]
/// Throws InputError for an id outside [0, vocab).
void forward(const GoldArgs& args) {
  const Tensor& weight = args.in(1);
  emit_moved_rows(args, 0, weight, read_ids(args.in(0), weight.shape.front()));
}

/// Tokens sorted by id: the tokens of id v are order[start[v]], ..., order[start[v + 1] - 1], ascending.
struct TokensById {
  TokensById(const std::vector<int64_t>& ids, int64_t vocab)
      : start(static_cast<size_t>(vocab) + 1), order(ids.size()) {
    for (const int64_t id : ids) ++start[static_cast<size_t>(id) + 1];
    for (size_t v = 1; v < start.size(); ++v) start[v] += start[v - 1];
    std::vector<size_t> next(start.begin(), start.end() - 1);
    for (size_t token = 0; token < ids.size(); ++token) order[next[static_cast<size_t>(ids[token])]++] = token;
  }
  std::vector<size_t> start, order;
};

/// Gold of embedding's gradient.
///   in:  token_ids[batch, seq], grad_y[batch, seq, hidden]     out: dweight[vocab, hidden]
///   dweight_v = sum of grad_y over the tokens with id v, in token order; 0 for an id without tokens
/// A single gradient is only rounded to the output; it has no summation error.
/// Throws InputError for an id outside [0, vocab).
/// Source: differentiated by hand; checked by gradient_test.
void backward(const GoldArgs& args) {
  const int64_t vocab = args.output_shapes[0].front(), hidden = args.output_shapes[0].back();
  const TokensById tokens(read_ids(args.in(0), vocab), vocab);
  const std::vector<double> none(static_cast<size_t>(hidden));
  args.parallel_for(vocab, [&](int64_t v) {
    static thread_local std::vector<double> row, value, magnitude;
    for (auto* array : {&row, &value, &magnitude}) array->assign(static_cast<size_t>(hidden), 0.0);
    const size_t begin = tokens.start[static_cast<size_t>(v)], end = tokens.start[static_cast<size_t>(v) + 1];
    for (size_t i = begin; i < end; ++i) {
      decode_row(args.in(1), static_cast<int64_t>(tokens.order[i]), row);
      for (size_t h = 0; h < row.size(); ++h) value[h] += row[h], magnitude[h] += std::abs(row[h]);
    }
    args.sink({0, v, 1, hidden, value.data(), end - begin > 1 ? magnitude.data() : none.data(), none.data()});
  });
}

/// Table rows that no id selects are not read.
Work forward_work(const GoldArgs& args) {
  const Tensor& weight = args.in(1);
  std::vector<int64_t> ids = read_ids(args.in(0), weight.shape.front());
  std::sort(ids.begin(), ids.end());
  const auto distinct = std::unique(ids.begin(), ids.end()) - ids.begin();
  const double row_bytes = static_cast<double>(weight.shape.back()) * static_cast<double>(info(weight.dtype).bytes);
  return {0, static_cast<double>(weight.shape.front() - distinct) * row_bytes};
}

void refine(const FillArgs& args) {
  if (Tensor* const weight = args.find("weight"); weight != nullptr) plant_whole_range(args, *weight);
}

constexpr std::array kPasses{
    Pass{"forward", kForwardIn, kForwardOut, forward, nullptr, forward_work, &kEmbeddingForward},
    Pass{"backward", kBackwardIn, kBackwardOut, backward, nullptr, nullptr, &kEmbeddingBackward}};

}  // namespace

extern const Operator kEmbedding;
constexpr Operator kEmbedding{"embedding", "elementwise", "y = weight[token_ids]", kRow, {}, kPasses, nullptr, refine};

}  // namespace checkop
