// SPDX-License-Identifier: Apache-2.0
// Compares attention of packed sequences on Hopper, keys in rows or in pages, with attention of each sequence alone,
// bit by bit, in grids of many and of three blocks. Memory that belongs to no sequence holds NaN. Needs a Hopper GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "attention/sm90_packed.cuh"
#include "on_sm90.hpp"

namespace checkop::kernels::attention::hopper {
namespace {

/// A copy of a vector in device memory.
template <typename T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& from) : count_(from.size()) {
    EXPECT_EQ(cudaMalloc(&data_, std::max<size_t>(bytes(), 1)), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data_, from.data(), bytes(), cudaMemcpyHostToDevice), cudaSuccess);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { (void)cudaFree(data_); }
  T* data() const { return static_cast<T*>(data_); }
  std::vector<T> read() const {
    std::vector<T> host(count_);
    EXPECT_EQ(cudaMemcpy(host.data(), data_, bytes(), cudaMemcpyDeviceToHost), cudaSuccess);
    return host;
  }

 private:
  size_t bytes() const { return count_ * sizeof(T); }
  void* data_ = nullptr;
  size_t count_;
};

/// Elements are bits of bf16 or fp16; NaN in both.
using Bits = std::vector<uint16_t>;
constexpr uint16_t kNan = 0x7fff;

constexpr int kGrids[] = {1 << 30, 3};  // blocks at most: in a small grid each block computes many tiles

template <typename T>
uint16_t bits_of(float x) {
  uint16_t bits = 0;
  const auto value = static_cast<T>(x);  // from_float() exists on the device alone
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

struct Lengths {
  int queries, keys;
};

struct Problem {
  std::vector<Lengths> sequences;
  int q_heads, kv_heads;
  bool causal = true;
  int width = 0;  ///< head_dim, at most the columns of the kernel
};

/// One sequence, as attention has it: [heads, length, width].
struct Alone {
  Bits q, k, v, o;
  std::vector<float> lse;
};

std::vector<uint32_t> bits_of_floats(const std::vector<float>& from) {
  std::vector<uint32_t> bits(from.size());
  std::memcpy(bits.data(), from.data(), from.size() * sizeof(float));
  return bits;
}

AttentionParams shape_of(const Problem& problem, const Lengths& lengths) {
  AttentionParams shape{};
  shape.batch = 1, shape.q_heads = problem.q_heads, shape.kv_heads = problem.kv_heads;
  shape.q_seq = lengths.queries, shape.kv_seq = shape.first_seq = lengths.keys;
  shape.width = problem.width, shape.causal = problem.causal, shape.scale = 0.3f;
  return shape;
}

/// Computes o and lse of a sequence in a grid of at most `max_blocks` blocks.
template <int head_dim, typename T>
void attend(const Problem& problem, const Lengths& lengths, int max_blocks, Alone& one) {
  const OnDevice<uint16_t> q(one.q), k(one.k), v(one.v), o(Bits(one.q.size(), kNan));
  const OnDevice<float> lse(std::vector<float>(one.q.size() / static_cast<size_t>(problem.width), 5.0f));
  const OnDevice<char> workspace{std::vector<char>(kCounterBytes)};
  ForwardCall<T> call{};
  call.shape = shape_of(problem, lengths);
  call.q = reinterpret_cast<const T*>(q.data()), call.k = reinterpret_cast<const T*>(k.data());
  call.v = reinterpret_cast<const T*>(v.data()), call.o = reinterpret_cast<T*>(o.data()), call.lse = lse.data();
  call.workspace = reinterpret_cast<std::byte*>(workspace.data());
  call.max_blocks = max_blocks;
  EXPECT_TRUE(has_forward(call));
  EXPECT_EQ(launch_forward<ManyQueries<head_dim>>(call), cudaSuccess);
  one.o = o.read(), one.lse = lse.read();
}

/// The same rows of more columns, with zeros in the added ones.
Bits widened(const Bits& rows, int from, int to) {
  Bits wide;
  for (auto row = rows.begin(); row != rows.end(); row += from) {
    wide.insert(wide.end(), row, row + from);
    wide.insert(wide.end(), static_cast<size_t>(to - from), 0);
  }
  return wide;
}

template <int head_dim, typename T>
std::vector<Alone> attend_alone(const Problem& problem) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const auto width = static_cast<size_t>(problem.width);
  const auto fill = [&](int heads, int length) {
    Bits bits(static_cast<size_t>(heads) * static_cast<size_t>(length) * width);
    for (uint16_t& one : bits) one = bits_of<T>(normal(random));
    return bits;
  };
  std::vector<Alone> all;
  for (const Lengths& lengths : problem.sequences) {
    Alone one{fill(problem.q_heads, lengths.queries),
              fill(problem.kv_heads, lengths.keys),
              fill(problem.kv_heads, lengths.keys),
              {},
              {}};
    one.o.assign(one.q.size(), 0);
    one.lse.assign(one.q.size() / width, -INFINITY);
    if (lengths.queries > 0 && lengths.keys > 0) {
      attend<head_dim, T>(problem, lengths, kGrids[0], one);
      Alone again = one;
      attend<head_dim, T>(problem, lengths, kGrids[1], again);
      EXPECT_TRUE(again.o == one.o && bits_of_floats(again.lse) == bits_of_floats(one.lse))
          << lengths.queries << " queries, " << lengths.keys << " keys, blocks " << kGrids[1];
    }
    if (lengths.queries > 0 && lengths.keys > 0 && problem.width < head_dim) {
      const auto wide = [&](const Bits& rows) { return widened(rows, problem.width, head_dim); };
      Alone whole{wide(one.q), wide(one.k), wide(one.v), {}, {}};
      Problem as_wide = problem;
      as_wide.width = head_dim;
      attend<head_dim, T>(as_wide, lengths, kGrids[0], whole);
      EXPECT_TRUE(whole.o == wide(one.o) && bits_of_floats(whole.lse) == bits_of_floats(one.lse))
          << "rows of " << problem.width << " columns";
    }
    all.push_back(one);
  }
  return all;
}

/// Copies line `from` of every head of `alone` to row `to` of a tensor [rows, heads, width].
void copy_row(const Bits& alone, int heads, int length, int from, int width, Bits& tensor, int64_t to) {
  for (int head = 0; head < heads; ++head) {
    std::copy_n(alone.begin() + (int64_t{head} * length + from) * width, width,
                tensor.begin() + (to * heads + head) * width);
  }
}

constexpr int kRest = 37;  // rows behind the last sequence

/// Computes the sequences packed, with keys in pages of this size or, with 0, in rows. Expects the bits that they have
/// alone.
template <typename Config, typename T>
void expect_same_bits(const Problem& problem, const std::vector<Alone>& alone, int page_size, int max_blocks) {
  const int width = problem.width;
  const int n = static_cast<int>(problem.sequences.size());
  std::vector<int32_t> q_bounds{0}, k_bounds{0}, lengths;
  int most_keys = 0;
  for (const Lengths& one : problem.sequences) {
    q_bounds.push_back(q_bounds.back() + one.queries), k_bounds.push_back(k_bounds.back() + one.keys);
    lengths.push_back(one.keys), most_keys = std::max(most_keys, one.keys);
  }
  const int page = std::max(page_size, 1), max_pages = (most_keys + page - 1) / page + 2;
  int n_pages = 3;
  for (const int32_t keys : lengths) n_pages += (keys + page - 1) / page;
  std::vector<int32_t> order(static_cast<size_t>(n_pages));
  for (int i = 0; i < n_pages; ++i) order[static_cast<size_t>(i)] = i;
  std::shuffle(order.begin(), order.end(), std::mt19937(3));
  std::vector<int32_t> table(static_cast<size_t>(n * max_pages), std::numeric_limits<int32_t>::max());
  const int64_t tokens = q_bounds.back() + kRest;
  const int64_t rows = page_size == 0 ? k_bounds.back() + kRest : int64_t{n_pages} * page;
  Bits q(static_cast<size_t>(tokens * problem.q_heads * width), kNan);
  Bits k(static_cast<size_t>(rows * problem.kv_heads * width), kNan), v = k;
  for (int s = 0, next = 0; s < n; ++s) {
    const Lengths& one = problem.sequences[static_cast<size_t>(s)];
    const Alone& data = alone[static_cast<size_t>(s)];
    for (int i = 0; i < one.queries; ++i) {
      copy_row(data.q, problem.q_heads, one.queries, i, width, q, q_bounds[static_cast<size_t>(s)] + i);
    }
    for (int j = 0; j < one.keys; ++j) {
      int64_t row = k_bounds[static_cast<size_t>(s)] + j;
      if (page_size > 0) {
        int32_t& entry = table[static_cast<size_t>(s * max_pages + j / page)];
        if (j % page == 0) entry = order[static_cast<size_t>(next++)];
        row = int64_t{entry} * page + j % page;
      }
      copy_row(data.k, problem.kv_heads, one.keys, j, width, k, row);
      copy_row(data.v, problem.kv_heads, one.keys, j, width, v, row);
    }
  }
  const OnDevice<uint16_t> on_q(q), on_k(k), on_v(v), on_o(Bits(q.size(), 0x1234));
  const OnDevice<float> on_lse(std::vector<float>(static_cast<size_t>(tokens * problem.q_heads), 5.0f));
  const OnDevice<int32_t> on_q_bounds(q_bounds), on_k_bounds(k_bounds), on_lengths(lengths), on_table(table);
  const OnDevice<char> workspace{std::vector<char>(packed_workspace_bytes(tokens, n), 0x55)};
  PackedCall<T> call{};
  call.shape = shape_of(problem, {0, 0});
  call.sequences = {on_q_bounds.data(),
                    page_size == 0 ? on_k_bounds.data() : nullptr,
                    on_lengths.data(),
                    n,
                    tokens,
                    most_keys / kKeys + 1,
                    problem.causal};
  call.q = reinterpret_cast<const T*>(on_q.data()), call.k = reinterpret_cast<const T*>(on_k.data());
  call.v = reinterpret_cast<const T*>(on_v.data()), call.rows = rows;
  call.table = on_table.data(), call.max_pages = max_pages, call.page_size = page_size;
  call.o = reinterpret_cast<T*>(on_o.data()), call.lse = on_lse.data();
  call.workspace = reinterpret_cast<std::byte*>(workspace.data());
  call.max_blocks = max_blocks;
  ASSERT_TRUE(has_packed(call));
  const cudaError_t error = launch_packed<Config>(call);
  ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);

  Bits expected(q.size(), 0);
  std::vector<float> expected_lse(static_cast<size_t>(tokens * problem.q_heads), -INFINITY);
  for (int s = 0; s < n; ++s) {
    const Lengths& one = problem.sequences[static_cast<size_t>(s)];
    for (int i = 0; i < one.queries; ++i) {
      const int64_t row = q_bounds[static_cast<size_t>(s)] + i;
      copy_row(alone[static_cast<size_t>(s)].o, problem.q_heads, one.queries, i, width, expected, row);
      for (int head = 0; head < problem.q_heads; ++head) {
        expected_lse[static_cast<size_t>(row * problem.q_heads + head)] =
            alone[static_cast<size_t>(s)].lse[static_cast<size_t>(head * one.queries + i)];
      }
    }
  }
  const Bits o = on_o.read();
  const auto at = std::mismatch(o.begin(), o.end(), expected.begin()).first - o.begin();
  EXPECT_TRUE(o == expected) << "page size " << page_size << ", consumers " << Config::kConsumers << ", blocks "
                             << max_blocks << ", causal " << problem.causal << ": row " << at / width / problem.q_heads
                             << " head " << at / width % problem.q_heads << " column " << at % width;
  EXPECT_TRUE(bits_of_floats(on_lse.read()) == bits_of_floats(expected_lse))
      << "lse, page size " << page_size << ", consumers " << Config::kConsumers;
}

/// Long and short sequences, ones without queries, ones without keys, more queries than keys.
const std::vector<Lengths> kMixed = {{0, 0},   {1, 1}, {130, 130}, {1, 300},   {17, 500},  {64, 64},
                                     {0, 5},   {5, 0}, {200, 120}, {129, 257}, {300, 300}, {2, 128},
                                     {3, 127}, {0, 0}, {400, 700}, {1, 129}};

std::vector<Lengths> decoding(int queries) {
  std::vector<Lengths> sequences;
  for (int s = 0; s < 40; ++s) sequences.push_back({s % 11 == 5 ? 0 : queries, s * s * 37 % 900});
  return sequences;
}

template <int head_dim, typename T>
void expect_same_bits(int width) {
  constexpr int kMany = head_dim == 128 ? 2 : 3, kStages = head_dim == 128 ? 2 : 4, kMore = head_dim == 128 ? 3 : 6;
  const std::vector<Problem> problems = {{kMixed, 4, 2},       {kMixed, 2, 2, false}, {kMixed, 14, 2},
                                         {decoding(1), 8, 2},  {decoding(1), 16, 1},  {decoding(3), 8, 2, false},
                                         {{{700, 900}}, 2, 1}, {{{1000, 150}}, 4, 2}, {{{0, 0}, {0, 0}}, 2, 1}};
  for (Problem problem : problems) {
    problem.width = width;
    const std::vector<Alone> alone = attend_alone<head_dim, T>(problem);
    for (const int max_blocks : kGrids) {
      expect_same_bits<AttentionConfig<head_dim, kMany, kStages, Source::rows>, T>(problem, alone, 0, max_blocks);
      for (const int page_size : {8, 16, 24, 256}) {
        expect_same_bits<AttentionConfig<head_dim, kMany, kStages, Source::pages>, T>(problem, alone, page_size,
                                                                                      max_blocks);
        expect_same_bits<AttentionConfig<head_dim, 1, kMore, Source::pages>, T>(problem, alone, page_size, max_blocks);
      }
      for (const int page_size : {1, 3, 16}) {
        expect_same_bits<AttentionConfig<head_dim, 1, kMore, Source::any_pages>, T>(problem, alone, page_size,
                                                                                    max_blocks);
      }
    }
  }
}

using Sm90Attention = OnSm90;

TEST_F(Sm90Attention, PackedSequencesHaveTheBitsOfEachAlone) {
  expect_same_bits<128, __nv_bfloat16>(128);
  expect_same_bits<64, __half>(64);
}

TEST_F(Sm90Attention, NarrowRowsHaveTheBitsOfRowsWithZerosBehindThem) {
  expect_same_bits<128, __half>(72);
  expect_same_bits<64, __nv_bfloat16>(8);
}

}  // namespace
}  // namespace checkop::kernels::attention::hopper
