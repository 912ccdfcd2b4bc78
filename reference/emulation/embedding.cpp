// SPDX-License-Identifier: Apache-2.0
// Emulates embedding as kernels compute it.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "emulation/moved_rows.hpp"
#include "recipes.hpp"

namespace checkop {
namespace embedding {
namespace {

using namespace emulation;

constexpr FaultSpec kNeighboursId{"neighbours_id", "every second token takes the id of the one before it"};
constexpr FaultSpec kIdsShifted{"ids_shifted", "a token takes the id of the one behind it"};
constexpr FaultSpec kIdsTruncated{"ids_truncated", "the highest bit of ids is lost"};
constexpr FaultSpec kShardLost{"shard_lost", "of four ranks that share the vocabulary, the last one's rows are lost"};
constexpr FaultSpec kMisalignedRows{"misaligned_rows", "rows are read one element late"};
constexpr FaultSpec kScaled{"scaled_by_root", "rows are scaled by sqrt(hidden)"};
constexpr FaultSpec kScaledWeight{kScaled.name, kScaled.meaning, "nonfinite"};  // the largest numbers overflow
// Not visible in bf16: the rows are bf16 numbers already.
constexpr FaultSpec kRounded{"rounded_to_bf16", "rows pass through bf16", "accuracy", "fp32 fp16"};
constexpr FaultSpec kCountInByte{"count_in_byte", "of the tokens with one id, those from the 256th on are lost"};
constexpr FaultSpec kDuplicatesOverwrite{"duplicates_overwrite", "of the tokens with one id, the last one remains"};
constexpr FaultSpec kDuplicatesAveraged{"duplicates_averaged", "the tokens with one id are averaged"};
constexpr FaultSpec kLastTokenLost{"last_token_lost", "the last token adds nothing"};
constexpr FaultSpec kFirstSequenceAlone{"first_sequence_alone", "tokens of other sequences than the first add nothing"};

/// The ids that the emulated kernel uses; -1: none.
std::vector<int64_t> ids_taken(const EmulationArgs& args, int64_t vocab) {
  const Arithmetic& a = args.arithmetic;
  const std::vector<int64_t> given = args.integers(0);
  const size_t ahead = a.has(kIdsShifted.name) ? 1 : 0, pair = a.has(kNeighboursId.name) ? 2 : 1;
  const int64_t present = a.has(kShardLost.name) ? 3 * vocab / 4 : vocab;
  const auto bit = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(vocab - 1)));
  const int64_t mask = a.has(kIdsTruncated.name) ? ~bit : ~int64_t{0};
  std::vector<int64_t> ids(given.size());
  for (size_t t = 0; t < ids.size(); ++t) {
    const int64_t id = label(a, given[(t / pair * pair + ahead) % given.size()], vocab) & mask;
    ids[t] = id < present ? id : -1;
  }
  return ids;
}

/// Input 1: the table's rows or their gradients.
Matrix rows_taken(const EmulationArgs& args) {
  const Arithmetic& a = args.arithmetic;
  Matrix m = matrix(args, 1);
  if (a.has(kMisalignedRows.name) && !m.values.empty())
    std::rotate(m.values.begin(), m.values.begin() + 1, m.values.end());
  m = through_kernel(a, args.in(1).dtype, std::move(m));
  const float scale = a.has(kScaled.name) ? std::sqrt(static_cast<float>(m.columns)) : 1.0F;
  const bool rounded = a.has(kRounded.name);
  for (float& x : m.values) x = scale * (rounded ? Arithmetic::to_bf16(x) : x);
  return m;
}

void forward(const EmulationArgs& args) {
  const Matrix table = rows_taken(args);
  const std::vector<int64_t> ids = ids_taken(args, table.rows());
  for (size_t t = 0; t < ids.size(); ++t)
    if (ids[t] >= 0)
      std::copy_n(table.row(ids[t]), table.columns, args.out(0).begin() + static_cast<int64_t>(t) * table.columns);
}

/// The tokens of every id, in token order.
std::vector<std::vector<int64_t>> tokens_by_id(const EmulationArgs& args, int64_t vocab) {
  const Arithmetic& a = args.arithmetic;
  const std::vector<int64_t> ids = ids_taken(args, vocab);
  auto end = static_cast<int64_t>(ids.size());
  if (a.has(kFirstSequenceAlone.name)) end = std::min(end, args.in(0).shape.back());
  if (a.has(kLastTokenLost.name)) end = std::max<int64_t>(end - 1, 0);
  const bool overwrite = a.has(kDuplicatesOverwrite.name);
  std::vector<std::vector<int64_t>> tokens(static_cast<size_t>(vocab));
  for (int64_t t = 0; t < end; ++t) {
    if (ids[static_cast<size_t>(t)] < 0) continue;
    std::vector<int64_t>& of_id = tokens[static_cast<size_t>(ids[static_cast<size_t>(t)])];
    if (overwrite) of_id.clear();
    if (of_id.size() >= 255 && a.has(kCountInByte.name)) continue;
    of_id.push_back(t);
  }
  return tokens;
}

/// The sum over these tokens in a kernel that accumulates in 16 bits, `at_once` consecutive tokens at a time.
template <class Term>
float sum_of_16_bit(const Arithmetic& a, const std::vector<int64_t>& tokens, int64_t at_once, const Term& term) {
  float sum = 0;
  for (size_t i = 0; i < tokens.size();) {
    const int64_t group = tokens[i] / at_once;
    float part = 0;
    for (; i < tokens.size() && tokens[i] / at_once == group; ++i) part += term(static_cast<int64_t>(i));
    sum = a.rounded_if(true, sum + a.rounded_if(true, part));
  }
  return sum;
}

void backward(const EmulationArgs& args) {
  const Arithmetic& a = args.arithmetic;
  const Matrix g = rows_taken(args);
  std::vector<double>& dweight = args.out(0);
  const int64_t vocab = static_cast<int64_t>(dweight.size()) / g.columns;
  const bool averaged = a.has(kDuplicatesAveraged.name);
  const int64_t at_once = a.rounds(recipe::kSumsByToken) ? 1 : a.rounds(recipe::kSumsBy32Tokens) ? 32 : 0;
  const std::vector<std::vector<int64_t>> tokens = tokens_by_id(args, vocab);
  args.parallel_for(vocab, [&](int64_t v) {
    const std::vector<int64_t>& own = tokens[static_cast<size_t>(v)];
    const auto n = std::ssize(own);
    const float scale = averaged && n > 0 ? 1 / static_cast<float>(n) : 1.0F;
    for (int64_t h = 0; h < g.columns; ++h) {
      const auto term = [&](int64_t i) { return g.row(own[static_cast<size_t>(i)])[h]; };
      dweight[static_cast<size_t>(v * g.columns + h)] =
          scale * (at_once > 0 ? sum_of_16_bit(a, own, at_once, term) : a.sum(n, term));
    }
  });
}

constexpr std::array kForwardFaults{kWrongLabel,     kNeighboursId, kIdsShifted, kIdsTruncated,      kShardLost,
                                    kMisalignedRows, kScaledWeight, kRounded,    kSubnormalsFlushed, kRangeOfHalf};
constexpr std::array kBackwardFaults{faults::kLastTileSkipped,
                                     faults::kBf16Accumulator,
                                     faults::kPartialLost,
                                     kWrongLabel,
                                     kNeighboursId,
                                     kIdsShifted,
                                     kIdsTruncated,
                                     kShardLost,
                                     kMisalignedRows,
                                     kScaled,
                                     kRounded,
                                     kDuplicatesOverwrite,
                                     kDuplicatesAveraged,
                                     kCountInByte,
                                     kLastTokenLost,
                                     kFirstSequenceAlone};

}  // namespace
}  // namespace embedding

extern const Emulation kEmbeddingForward, kEmbeddingBackward;
const Emulation kEmbeddingForward{embedding::forward, embedding::kForwardFaults};
const Emulation kEmbeddingBackward{embedding::backward, embedding::kBackwardFaults};

}  // namespace checkop
