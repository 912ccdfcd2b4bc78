// SPDX-License-Identifier: Apache-2.0
// Shared by the CPU candidates named "native": argument checks, element conversion, sums in a fixed order, threads.
// Independent of the checker's own code, so that a mistake there cannot repeat itself here.
//
// run() copies inputs that are not contiguous. So "Limits: contiguous" in a candidate's header is a limit of its
// outputs.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "check_operator.h"

namespace native {

// --- refusing a call -------------------------------------------------------------------------------------------------

/// Ends a launch with a status and a message; run() returns them through the ABI.
struct Refusal : std::runtime_error {
  Refusal(checkop_status why, const std::string& sentence) : std::runtime_error(sentence), status(why) {}
  checkop_status status;
};

/// Refuses an input of int32 where a kernel reads int64, or the reverse.
struct OtherIntegers : Refusal {
  OtherIntegers(const std::string& sentence, const void* of, int32_t dtype)
      : Refusal(CHECKOP_UNSUPPORTED, sentence), data(of), wanted(dtype) {}
  const void* data;
  int32_t wanted;
};

/// Calls launch(*call), with copies of the inputs that are not contiguous or have other integers than it reads. No
/// exception crosses the ABI.
checkop_status run(const checkop_call* call, const std::function<void(const checkop_call&)>& launch);

const char* dtype_name(int32_t dtype);

/// An extent. The first tensor that has it sets the value, and every other must match.
struct Extent {
  const char* name;
  int64_t value = -1;

  void bind(int64_t found, const char* tensor);
};

void check_counts(const checkop_call& call, int32_t inputs, int32_t outputs);
void check_computed_dtype(int32_t dtype);

/// Checks `t` viewed as [rows, columns]: leading extents multiply into rows.
void check_matrix(const checkop_tensor& t, const char* name, int32_t dtype, Extent& rows, Extent& columns);

/// Checks `t` as a list of `length` elements of any rank.
void check_list(const checkop_tensor& t, const char* name, int32_t dtype, Extent& length);

/// Checks `t` as a list of rank 1.
void check_vector(const checkop_tensor& t, const char* name, int32_t dtype, Extent& length);

/// The value of an attribute. Throws Refusal if the call lacks it.
double exact_attribute(const checkop_call& c, std::string_view name);
float attribute(const checkop_call& c, std::string_view name);

/// Checks that `t` is one fp32 element.
float* scalar(const checkop_tensor& t, const char* name);

/// Rows with this id are ignored.
int64_t ignore_index(const checkop_call& call);

/// Refuses ids outside [0, vocab) other than `except`. The default, 0, is inside and so changes nothing.
void check_ids(const checkop_tensor& t, const char* name, int64_t count, int64_t vocab, int64_t except = 0);

// --- elements --------------------------------------------------------------------------------------------------------
// The 16-bit types stay integers: g++ 12 at -O2 removes a round trip through a float that was rounded by bit
// arithmetic.

inline float from_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

inline uint16_t to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  // Rounding could turn a NaN with a small payload into infinity
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>(is_nan ? (bits >> 16) | 0x40u : rounded);
}

inline float from_fp16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16, rest = bits & 0x7fffu;
  if (rest < 0x400u) {  // subnormal: a multiple of 2^-24, exact in fp32
    const float magnitude = static_cast<float>(rest) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t exponent_shift = rest >= 0x7c00u ? (255u - 31u) << 23 : (127u - 15u) << 23;
  return std::bit_cast<float>(sign | ((rest << 13) + exponent_shift));
}

inline uint16_t to_fp16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), sign = (bits >> 16) & 0x8000u, rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);   // NaN
  if (rest >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and more round to infinity
  if (rest < 0x38800000u) {
    // Subnormal: 0.5 has fp32 spacing 2^-24, so the addition itself rounds to the fp16 grid, ties to even.
    const float shifted = std::bit_cast<float>(rest) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  return static_cast<uint16_t>(sign | ((rest - (112u << 23) + 0xfffu + ((rest >> 13) & 1u)) >> 13));
}

/// Elements [first, first + n) of `t` as fp32.
void load(const checkop_tensor& t, int64_t first, int64_t n, float* __restrict__ to);

/// Elements [first, first + n) of `t`, each with one rounding to nearest, ties to even.
void store(const checkop_tensor& t, int64_t first, int64_t n, const float* __restrict__ from);

std::vector<float> load_all(const checkop_tensor& t, int64_t n);

// --- sums whose order depends only on the number of terms ------------------------------------------------------------

/// Merges values in a binary tree, the earlier value on the left.
template <class T, class Merge>
class Tree {
 public:
  void add(T value) {
    size_t level = 0;
    for (; ((count_ >> level) & 1u) != 0; ++level) value = Merge{}(std::move(levels_[level]), std::move(value));
    if constexpr (!kIsNumber) {
      if (level == levels_.size()) levels_.emplace_back();
    }
    levels_[level] = std::move(value);
    ++count_;
  }
  /// The result; T{} when nothing was added.
  T finish() {
    T total{};
    bool first = true;
    for (size_t level = 0; (count_ >> level) != 0; ++level) {
      if (((count_ >> level) & 1u) == 0) continue;
      total = first ? std::move(levels_[level]) : Merge{}(std::move(levels_[level]), std::move(total));
      first = false;
    }
    return total;
  }

 private:
  static constexpr bool kIsNumber = std::is_arithmetic_v<T>;
  // Of anything but numbers only as many as there were: trees for each row would fill pages with empty levels.
  std::conditional_t<kIsNumber, std::array<T, 48>, std::vector<T>> levels_{};
  uint64_t count_ = 0;
};

using VectorTree = Tree<std::vector<float>, decltype([](std::vector<float> a, const std::vector<float>& b) {
                          for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
                          return a;
                        })>;

/// The sum of `n`-element vectors in a tree; zeros when nothing was added.
inline std::vector<float> finish(VectorTree& tree, int64_t n) {
  std::vector<float> total = tree.finish();
  total.resize(static_cast<size_t>(n));
  return total;
}

constexpr int64_t kLanes = 16;       // interleaved partial sums: what four SSE or two AVX registers hold
constexpr int64_t kSumBlock = 1024;  // terms per block: a chain of 1024 / 16 + 4 additions, then the tree over blocks

/// Sum of term(i), i in [begin, end): kSumBlock terms at most.
template <class Term>
float sum_of_block(int64_t begin, int64_t end, const Term& term) {
  std::array<float, kLanes> lane{};
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes)
    for (int64_t j = 0; j < kLanes; ++j) lane[static_cast<size_t>(j)] += term(i + j);
  for (size_t j = 0; i < end; ++i, ++j) lane[j] += term(i);
  // One loop for each width: compilers unroll loops whose ends they know.
  static_assert(kLanes == 16);
  for (size_t j = 0; j < 8; ++j) lane[j] += lane[j + 8];
  for (size_t j = 0; j < 4; ++j) lane[j] += lane[j + 4];
  return (lane[0] + lane[2]) + (lane[1] + lane[3]);
}

/// Sum of term(i), i in [0, n).
template <class Term>
float blocked_sum(int64_t n, Term term) {
  if (n <= kSumBlock) return sum_of_block(0, n, term);  // a tree takes longer to make than most sums
  Tree<float, std::plus<float>> blocks;
  for (int64_t begin = 0; begin < n; begin += kSumBlock)
    blocks.add(sum_of_block(begin, std::min(begin + kSumBlock, n), term));
  return blocks.finish();
}

float dot(const float* x, const float* y, int64_t n);

constexpr int64_t kTerms = 512;  // terms of one combine(): a chain of 512 / 8 + 3 additions

/// out[j] = sum_i a[i * a_step] * b[i * b_row + j],  i in [0, terms), terms <= kTerms,  j in [0, columns).
void combine(const float* __restrict__ a, int64_t a_step, const float* __restrict__ b, int64_t b_row, int64_t terms,
             int64_t columns, float* __restrict__ out);

/// Sum of exp(z - max), and the maximum; max = -inf and sum = 0 when every z is -inf.
struct SumExp {
  float max = -std::numeric_limits<float>::infinity(), sum = 0.0f;

  float shift() const { return std::isinf(max) && max < 0 ? 0.0f : max; }  // -inf - -inf would be NaN
};

/// Merges the sums of two sets of logits, the earlier on the left.
struct MergeSumExp {
  SumExp operator()(const SumExp& a, const SumExp& b) const {
    const float max = std::max(a.max, b.max);
    // A set of only -inf has sum 0, or NaN if it contained one: either is kept as it is.
    const auto rescaled = [max](const SumExp& s) {
      return std::isinf(s.max) && s.max < 0 ? s.sum : s.sum * std::exp(s.max - max);
    };
    return {max, rescaled(a) + rescaled(b)};
  }
};

SumExp sum_exp(const float* z, int64_t n);

// --- threads ---------------------------------------------------------------------------------------------------------

/// Calls body(begin, end) over a split of [0, n). Every index is computed independently, so the split cannot change
/// bits. `work` is the total number of multiply-adds: little work runs on this thread, since starting a thread costs as
/// much as about 10^5 of them.
void parallel_for(int64_t n, int64_t work, const std::function<void(int64_t, int64_t)>& body);

}  // namespace native
