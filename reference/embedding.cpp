// SPDX-License-Identifier: Apache-2.0
// embedding: one table row per token; backward: the sum of the gradients of all tokens with the same id.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "gold_element.hpp"
#include "moved_rows.hpp"
#include "operator/operator.hpp"
#include "recipes.hpp"
#include "softmax.hpp"

namespace checkop {

extern const Emulation kEmbeddingForward, kEmbeddingBackward;  // emulation/embedding.cpp

namespace embedding {
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

/// The place of the lowest bit of x, which is not 0.
double lowest_bit(double x) {
  int exponent = 0;
  const auto bits = static_cast<uint64_t>(std::ldexp(std::frexp(std::abs(x), &exponent), 53));
  return std::ldexp(1.0, exponent - 53 + std::countr_zero(bits));
}

/// A sum of 16-bit numbers in fp32. If the sum of their sizes has at most 24 bits, counted down to the lowest bit of
/// any term, fp32 holds every partial sum exactly: there is no error, and no tie that a kernel could round otherwise.
class SumInFp32 {
 public:
  void add(const GoldElement& e) {
    rounding_ += e.rounding;
    if (e.value == 0) return;
    value_ += e.value, size_ += std::abs(e.value), lowest_ = std::min(lowest_, lowest_bit(e.value));
  }
  GoldElement element() const { return {value_, size_ <= std::ldexp(lowest_, 24) ? 0 : size_, rounding_}; }

 private:
  double value_ = 0, size_ = 0, lowest_ = INFINITY, rounding_ = 0;
};

/// The sum of a kernel that accumulates in 16 bits: it sums the gradients of a group of tokens in fp32, rounds this
/// sum, adds it to the 16-bit sum, and rounds again.
class SumIn16Bit {
 public:
  void add(double gradient) { group_.add(exact(gradient)); }
  /// Adds the group. The rounding of the last one is that of the output.
  void end_group(const GoldArgs& args, bool is_last) {
    GoldElement sum = group_.element();
    if (!is_empty_) {
      SumInFp32 both;
      both.add(sum_), both.add(rounded_if(true, args, 0, sum));
      sum = both.element();
    }
    sum_ = rounded_if(!is_last, args, 0, sum), is_empty_ = false, group_ = {};
  }
  const GoldElement& element() const { return sum_; }

 private:
  SumInFp32 group_;
  GoldElement sum_{0, 0, 0};
  bool is_empty_ = true;
};

/// How many tokens that follow one another are a group; 0: the sums are in fp32.
size_t tokens_of_group(const ActiveRecipes& recipes) {
  if (recipes.has(recipe::kSumsByToken)) return 1;
  return recipes.has(recipe::kSumsBy32Tokens) ? 32 : 0;
}

/// Gold of embedding's gradient.
///   in:  token_ids[batch, seq], grad_y[batch, seq, hidden]     out: dweight[vocab, hidden]
///   dweight_v = sum of grad_y over the tokens with id v, in token order; 0 for an id without tokens
/// A single gradient is only rounded to the output; it has no summation error.
/// Throws InputError for an id outside [0, vocab).
/// Source: differentiated by hand; checked by gradient_test.
void backward(const GoldArgs& args) {
  const int64_t vocab = args.output_shapes[0].front(), hidden = args.output_shapes[0].back();
  const TokensById tokens(read_ids(args.in(0), vocab), vocab);
  const size_t of_group = tokens_of_group(args.recipes);
  args.parallel_for(vocab, [&](int64_t v) {
    static thread_local std::vector<double> row, value, magnitude, rounding;
    for (auto* array : {&row, &value, &magnitude, &rounding}) array->assign(static_cast<size_t>(hidden), 0.0);
    const size_t begin = tokens.start[static_cast<size_t>(v)], end = tokens.start[static_cast<size_t>(v) + 1];
    std::vector<SumIn16Bit> sums(of_group > 0 ? row.size() : 0);
    for (size_t i = begin; i < end; ++i) {
      decode_row(args.in(1), static_cast<int64_t>(tokens.order[i]), row);
      for (size_t h = 0; h < row.size(); ++h)
        value[h] += row[h], magnitude[h] += end - begin > 1 ? std::abs(row[h]) : 0;
      for (size_t h = 0; h < sums.size(); ++h) sums[h].add(row[h]);
      const bool is_last = i + 1 == end;
      if (sums.empty() || (!is_last && tokens.order[i] / of_group == tokens.order[i + 1] / of_group)) continue;
      for (SumIn16Bit& sum : sums) sum.end_group(args, is_last);
    }
    for (size_t h = 0; h < sums.size(); ++h) {
      const GoldElement& e = sums[h].element();
      value[h] = e.value, magnitude[h] = e.magnitude, rounding[h] = e.rounding;
    }
    args.sink({0, v, 1, hidden, value.data(), magnitude.data(), rounding.data()});
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

constexpr std::array kBackwardRecipes{
    Recipe{recipe::kSumsBy32Tokens, "dweight", k16Bit, /*exact=*/true,
           "dweight_v = round(dweight_v + round(sum of the gradients of 32 tokens that follow one another)) ...",
           "PyTorch's embedding on a GPU, up to 3072 tokens"},
    Recipe{recipe::kSumsByToken, "dweight", k16Bit, /*exact=*/true, "dweight_v = round(round(g_1 + g_2) + g_3) ...",
           "PyTorch's embedding on a CPU", /*excludes=*/recipe::kSumsBy32Tokens}};

constexpr std::array kPasses{
    Pass{"forward", kForwardIn, kForwardOut, forward, nullptr, forward_work, &kEmbeddingForward},
    Pass{"backward", kBackwardIn, kBackwardOut, backward, nullptr, nullptr, &kEmbeddingBackward, nullptr,
         kBackwardRecipes}};

}  // namespace
}  // namespace embedding

extern const Operator kEmbedding;
constexpr Operator kEmbedding{"embedding",        "elementwise", "y = weight[token_ids]", embedding::kRow, {},
                              embedding::kPasses, nullptr,       embedding::refine};

}  // namespace checkop
