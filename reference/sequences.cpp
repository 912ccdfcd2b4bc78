// SPDX-License-Identifier: Apache-2.0
// Reads and draws the bounds of packed sequences, and moves their tokens.
#include "sequences.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "base/error.hpp"
#include "identity.hpp"
#include "left_out.hpp"

namespace checkop {

SequenceBounds read_bounds(const Tensor& cu_seqlens, int64_t tokens) {
  SequenceBounds bounds(static_cast<size_t>(cu_seqlens.count()));
  decode_int(cu_seqlens.dtype, cu_seqlens.bytes.data(), bounds.data(), bounds.size());
  const auto refuse = [&](size_t i, const std::string& rule) {
    throw InputError("input '" + cu_seqlens.name + "'", fmt::format("element {} is {}, {}", i, bounds[i], rule),
                     "give bounds that start with 0, do not decrease, and end within the tokens");
  };
  if (bounds.front() != 0) refuse(0, "not 0");
  for (size_t i = 1; i < bounds.size(); ++i)
    if (bounds[i] < bounds[i - 1]) refuse(i, "below the one before it");
  if (bounds.back() > tokens) refuse(bounds.size() - 1, fmt::format("beyond the {} tokens", tokens));
  return bounds;
}

namespace {

constexpr int64_t kLong = -1;  ///< as long as the tokens allow

struct Lengths {
  int64_t queries, keys;
};
/// The kinds of sequences, in turn.
constexpr std::array<Lengths, 9> kKinds{
    {{0, 0}, {kLong, kLong}, {0, 5}, {0, 0}, {1, kLong}, {kLong, 33}, {2, kLong}, {33, 0}, {kLong, 1}}};

/// Bounds of `sequences` sequences. Each kind of sequence has its length; long sequences share the rest of `tokens`. If
/// the fixed lengths together need more than half of the tokens, they are 0.
SequenceBounds drawn(const FillArgs& args, std::string_view stream, int64_t sequences, int64_t tokens,
                     int64_t Lengths::*side) {
  std::vector<int64_t> lengths;
  int64_t left = tokens;
  double shares = 0;
  const auto share = [&](int64_t s) {
    const double drawn = args.uniform(stream, static_cast<uint64_t>(s));
    return drawn * drawn + 0.05;
  };
  for (int64_t s = 0; s < sequences; ++s) {
    int64_t length = kKinds[static_cast<size_t>(s) % kKinds.size()].*side;
    if (args.mode == InputMode::constant) length = tokens / sequences;
    if (s == sequences - 1 && shares == 0) length = kLong;
    if (length == kLong) shares += share(s);
    if (length != kLong && args.mode != InputMode::constant && left - length < tokens / 2) length = 0;
    left -= std::max<int64_t>(length, 0);
    lengths.push_back(length);
  }
  SequenceBounds bounds{0};
  int64_t given = 0;
  double so_far = 0;
  for (int64_t s = 0; s < sequences; ++s) {
    int64_t length = lengths[static_cast<size_t>(s)];
    if (length == kLong) {
      so_far += share(s);
      const auto end = so_far >= shares ? left : static_cast<int64_t>(static_cast<double>(left) * so_far / shares);
      length = end - given;
      given = end;
    }
    bounds.push_back(bounds.back() + length);
  }
  return bounds;
}

/// The tokens of `tokens` that belong to sequences.
int64_t used_tokens(const FillArgs& args, int64_t tokens) {
  if (args.ignored_every == 0) return tokens;
  if (args.ignored_every == 1) return 0;
  return tokens - (tokens + args.ignored_every) / (2 * args.ignored_every);
}

void store(const SequenceBounds& bounds, Tensor& to) {
  encode_int(to.dtype, bounds.data(), to.bytes.data(), bounds.size());
}

/// Elements of one head of a token: 1 in a tensor [tokens, heads].
int64_t width_of(const Tensor& tokens) { return tokens.shape.size() < 3 ? 1 : tokens.shape[2]; }
int64_t token_size(const Tensor& tokens) { return tokens.shape[1] * width_of(tokens); }

}  // namespace

void draw_bounds(const FillArgs& args, Tensor& queries, Tensor* keys, std::string_view of_queries,
                 std::string_view of_keys) {
  const int64_t sequences = queries.count() - 1, n_keys = args.dim(of_keys);
  const int64_t n_queries = keys == nullptr ? std::min(args.dim(of_queries), n_keys) : args.dim(of_queries);
  store(drawn(args, "sequences", sequences, used_tokens(args, n_queries), &Lengths::queries), queries);
  if (keys != nullptr)
    store(drawn(args, "sequences of keys", sequences, used_tokens(args, n_keys), &Lengths::keys), *keys);
}

void plant_rest(const FillArgs& args, Tensor& tokens, int64_t end) {
  for (int64_t token = end; token < tokens.shape[0]; ++token)
    plant_payload(args, tokens, token_size(tokens), token, payload_kind(args, static_cast<uint64_t>(token)));
}

Tensor as_batch(const Tensor& tokens, const SequenceBounds& bounds, const SequenceBatch& sequences) {
  const int64_t heads = tokens.shape[1], width = width_of(tokens), n = length_of(bounds, sequences.front());
  Tensor batch(tokens.name, tokens.dtype, {std::ssize(sequences), heads, n, width});
  const size_t bytes = static_cast<size_t>(width) * info(tokens.dtype).bytes;
  std::byte* to = batch.bytes.data();
  for (const int64_t sequence : sequences) {
    const int64_t first = bounds[static_cast<size_t>(sequence)];
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t i = 0; i < n; ++i, to += bytes)
        std::memcpy(to, tokens.bytes.data() + static_cast<size_t>((first + i) * heads + head) * bytes, bytes);
  }
  return batch;
}

void emit_sequence(const GoldArgs& args, const GoldRows& block, int64_t heads, const SequenceBounds& bounds,
                   const SequenceBatch& sequences) {
  const int64_t sequence = sequences[static_cast<size_t>(block.first_row)];
  const int64_t first = bounds[static_cast<size_t>(sequence)], n = length_of(bounds, sequence);
  if (n == 0) return;
  const int64_t columns = block.n_rows * block.columns / n, width = columns / heads;
  std::array<std::vector<double>, 5> moved;
  size_t next = 0;
  const auto by_token = [&](const double* from) -> const double* {
    std::vector<double>& to = moved[next++];
    if (from == nullptr) return nullptr;
    to.resize(static_cast<size_t>(n * columns));
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t i = 0; i < n; ++i)
        std::copy_n(from + (head * n + i) * width, width, to.begin() + i * columns + head * width);
    return to.data();
  };
  args.sink({block.output, first, n, columns, by_token(block.value), by_token(block.magnitude),
             by_token(block.rounding), by_token(block.spread), by_token(block.deviation)});
}

void SinkGradients::take(int64_t sequence, const GoldRows& rows) {
  const auto copy = [&](const double* from) {
    return from == nullptr ? std::vector<double>() : std::vector<double>(from, from + rows.n_rows * rows.columns);
  };
  of_sequences_[static_cast<size_t>(sequence)] = {copy(rows.value), copy(rows.magnitude), copy(rows.rounding),
                                                  copy(rows.spread), copy(rows.deviation)};
}

void SinkGradients::emit(const GoldArgs& args, int output, int64_t heads) const {
  std::vector<double> value(static_cast<size_t>(heads)), magnitude(value), rounding(value), spread(value),
      variance(value);
  for (const OfSequence& one : of_sequences_) {
    for (size_t i = 0; i < one.value.size(); ++i) {
      value[i] += one.value[i], magnitude[i] += one.magnitude[i], rounding[i] += one.rounding[i];
      if (one.spread.empty()) continue;
      spread[i] += one.spread[i], variance[i] += one.deviation[i] * one.deviation[i];
    }
  }
  for (double& x : variance) x = std::sqrt(x);
  args.sink({output, 0, 1, heads, value.data(), magnitude.data(), rounding.data(), spread.data(), variance.data()});
}

void for_sequences(const GoldArgs& args, const SequenceBounds& queries, const SequenceBounds& keys,
                   const std::function<void(const SequenceBatch&, unsigned)>& body) {
  constexpr int64_t kManyPairs = 1 << 12;
  constexpr size_t kMostOfABatch = 64;
  std::vector<SequenceBatch> batches;
  std::map<std::pair<int64_t, int64_t>, size_t> open;  // by lengths: the batch that the next such sequence joins
  for (int64_t s = 0; s + 1 < std::ssize(queries); ++s) {
    const std::pair lengths{length_of(queries, s), length_of(keys, s)};
    if (lengths.first * lengths.second >= kManyPairs) {
      body({s}, args.threads);
    } else if (lengths.first > 0 || lengths.second > 0) {
      const auto [found, is_new] = open.try_emplace(lengths, batches.size());
      if (!is_new && batches[found->second].size() == kMostOfABatch) found->second = batches.size();
      if (found->second == batches.size()) batches.emplace_back();
      batches[found->second].push_back(s);
    }
  }
  args.parallel_for(std::ssize(batches), [&](int64_t i) { body(batches[static_cast<size_t>(i)], 1); });
}

double kept_pairs(const SequenceBounds& queries, const SequenceBounds& keys, const AttentionAttrs& attrs) {
  double pairs = 0;
  for (int64_t s = 0; s + 1 < std::ssize(queries); ++s) {
    const int64_t n = length_of(queries, s), all = length_of(keys, s);
    for (int64_t i = 0; i < n; ++i) {
      const AttentionAttrs::Range seen = attrs.keys_of(i, n, all);
      pairs += static_cast<double>(seen.end - seen.begin);
    }
  }
  return pairs;
}

double rest_bytes(const Tensor& tokens, int64_t end) {
  const double of_token = static_cast<double>(token_size(tokens)) * static_cast<double>(info(tokens.dtype).bytes);
  return static_cast<double>(tokens.shape[0] - end) * of_token;
}

void check_rest(const IdentityArgs& args, int index, int64_t end) {
  std::vector<char> active(static_cast<size_t>(args.out(index)->shape.front()));
  std::fill_n(active.begin(), end, 1);
  check_zero_rows(args, index, active);
}

}  // namespace checkop
