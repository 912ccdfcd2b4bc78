// SPDX-License-Identifier: Apache-2.0
// qk_norm_rope / cuda: a table of sines and cosines in the workspace, then a team of threads per head, portable CUDA.
//   forward   n = x i w,  i = (mean x^2 + eps)^-1/2,  w = weight + weight_offset;  x_out = n rotated as by rope
//   backward  g = grad rotated back;  dx = i (g w - x i^2 c),  c = mean(g w x)
//             dweight[h] = sum over tokens and heads of g x i      x is q or k
//   q, q_out, grad_q_out, dq: [tokens, q_heads, D]   k, k_out, grad_k_out, dk: [tokens, kv_heads, D]   weights: [D]
//   f32|f16|bf16, all the same, contiguous   positions: [tokens] i64   mrope_positions: [tokens, 3] i64, may be absent
//   Limits: D and rotary_dim even. A negative position is CHECKOP_FAILED.
//   Workspace: 512 + 8 * tokens * rotary_dim/2 bytes, and at most 8448 * D for the gradients of the weights.
//   Expected error: that of an fp32 angle (powf, reciprocal, product, the ramp of the scaling), sincosf within 2 ulp,
//   two products and a sum; chains of D/64 + 15 additions, for the weights' gradients rows/16896 + 130; one output
//   rounding. A row's bits depend only on its own values, its position and D. Sums over rows need no atomics: see
//   row_team.cuh.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "cuda/ids.cuh"
#include "cuda/row_team.cuh"

namespace checkop::kernels {
namespace {

constexpr int kThreads = 128;
constexpr int kForwardHeads = 4, kBackwardHeads = 2;    // heads of a token that a team has in flight
constexpr int kForwardBlocks = 5, kBackwardBlocks = 4;  // on an SM, whose registers they share
constexpr int kBackwardSlots = 2;
constexpr int64_t kAlign = 256;

// --- angles ----------------------------------------------------------------------------------------------------------

/// Frequencies with their scalings, and which of three positions rotates a pair: with one list of positions, always the
/// first.
struct Angles {
  int64_t pairs = 0;
  int scaling = 0;
  bool sections_interleaved = false;
  int64_t section_h = 0, section_w = 0;
  float theta = 1, factor = 1, original = 1, low = 1, high = 4, scale = 1;
  double ramp_begin = 0, ramp_width = 1;  ///< of YaRN, in pairs

  __device__ int64_t section(int64_t i) const {
    if (sections_interleaved) return i % 3 == 1 && i < 3 * section_h ? 1 : i % 3 == 2 && i < 3 * section_w ? 2 : 0;
    return i >= pairs - section_w ? 2 : i >= pairs - section_w - section_h ? 1 : 0;
  }
  __device__ float frequency(int64_t i) const {
    const float f = 1.0f / powf(theta, static_cast<float>(2 * i) / static_cast<float>(2 * pairs));
    float kept = scaling == 1 ? 0.0f : 1.0f;
    if (scaling == 2) kept = (original * f / (2.0f * std::numbers::pi_v<float>)-low) / (high - low);
    if (scaling == 3) kept = 1.0f - static_cast<float>((static_cast<double>(i) - ramp_begin) / ramp_width);
    kept = kept < 0.0f ? 0.0f : kept > 1.0f ? 1.0f : kept;
    return kept == 1.0f ? f : kept * f + (1.0f - kept) * (f / factor);
  }
};

checkop_status read_angles(const checkop_call* call, int64_t head_dim, Angles& to, bool& interleaved) {
  checkop_status status = CHECKOP_OK;
  const auto number = [&](const char* name) {
    double value = 0;
    if (status == CHECKOP_OK) status = read_attribute(call, name, value);
    return value;
  };
  const auto choice = [&](const char* name, int most) {
    const double value = number(name);
    if (status == CHECKOP_OK && !(value >= 0 && value <= most))
      status = say(call, CHECKOP_UNSUPPORTED, "attribute '%s' is %g: choices up to %d", name, value, most);
    return static_cast<int>(value);
  };
  interleaved = choice("interleaved", 1) != 0;
  to.scaling = choice("scaling", 3), to.sections_interleaved = choice("sections_interleaved", 1) != 0;
  to.section_h = static_cast<int64_t>(number("section_h")), to.section_w = static_cast<int64_t>(number("section_w"));
  to.theta = static_cast<float>(number("theta")), to.factor = static_cast<float>(number("factor"));
  to.original = static_cast<float>(number("original_length"));
  to.low = static_cast<float>(number("low_freq_factor")), to.high = static_cast<float>(number("high_freq_factor"));
  to.scale = static_cast<float>(number("attention_factor"));
  if (to.scale < 0) to.scale = to.scaling == 3 && to.factor > 1.0f ? 0.1f * std::log(to.factor) + 1.0f : 1.0f;
  const auto rotary = static_cast<int64_t>(number("rotary_dim")), rotary_dim = rotary < 0 ? head_dim : rotary;
  const auto pair_of_turns = [&](const char* beta) {
    return static_cast<double>(rotary_dim) *
           std::log(static_cast<double>(to.original) / (number(beta) * 2 * std::numbers::pi)) /
           (2 * std::log(static_cast<double>(to.theta)));
  };
  double begin = pair_of_turns("beta_fast"), end = pair_of_turns("beta_slow");
  if (number("truncate") != 0) begin = std::floor(begin), end = std::ceil(end);
  begin = std::max(begin, 0.0), end = std::min(end, static_cast<double>(rotary_dim - 1));
  to.ramp_begin = begin, to.ramp_width = begin == end ? 0.001 : end - begin;
  if (status != CHECKOP_OK) return status;
  if (rotary_dim % 2 != 0 || rotary_dim > head_dim || head_dim % 2 != 0)
    return say(call, CHECKOP_FAILED, "rotary_dim %lld of head_dim %lld: expected even numbers, the first no larger",
               static_cast<long long>(rotary_dim), static_cast<long long>(head_dim));
  to.pairs = rotary_dim / 2;
  return CHECKOP_OK;
}

/// table[t, i] = (cos a, sign * sin a), times the attention factor. `each`: positions of a token, 1 or 3. Starts early,
/// after a search of IdCheck.
__global__ void make_table(const int64_t* __restrict__ positions, int each, int64_t tokens, Angles angles, float sign,
                           float2* __restrict__ table) {
  start_dependent_kernel();
  for (int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < tokens * angles.pairs;
       at += int64_t{gridDim.x} * blockDim.x) {
    const int64_t t = at / angles.pairs, i = at % angles.pairs;
    const int64_t position = positions[t * each + (each == 3 ? angles.section(i) : 0)];
    float sine, cosine;
    sincosf(static_cast<float>(position) * angles.frequency(i), &sine, &cosine);
    table[at] = {angles.scale * cosine, sign * (angles.scale * sine)};
  }
}

// --- pairs of columns ------------------------------------------------------------------------------------------------
// A row has D/2 pairs of columns (a, b), of which the first `pairs` turn: columns i and i + pairs, or 2i and 2i + 1
// where pairs are interleaved; those that do not turn are neighbours. A thread takes a unit of kGroupColumns pairs, so
// that both columns of a pair are its own.

struct Heads {
  int64_t head_dim, pairs;
  bool interleaved, aligned;  ///< aligned: every unit of every row is two 16-byte words, a row's last one at least one
  float eps, offset;

  __host__ __device__ int64_t half() const { return head_dim / 2; }
  __device__ bool are_neighbours(int64_t pair) const { return interleaved || pair >= pairs; }
  __device__ int64_t column(int64_t pair, int side) const {
    return are_neighbours(pair) ? 2 * pair + side : pair + side * pairs;
  }
};

/// Pairs [first, first + kColumns) of a row, still packed; 0 beyond the row's end.
template <typename T>
struct Unit {
  static constexpr int kColumns = kGroupColumns<T>;
  Group<T> a, b;

  /// Where its first or second word lies in an aligned row.
  __device__ static int64_t word_column(int64_t first, int word, const Heads& heads) {
    return heads.are_neighbours(first) ? 2 * first + word * kColumns : first + word * heads.pairs;
  }
  /// Brings two words to shared memory, in flight if rows are aligned: then they are those of the row, zeros beyond its
  /// end, and otherwise `a` and `b` themselves.
  __device__ static void fetch(const T* __restrict__ row, int64_t first, const Heads& heads, uint4* low, uint4* high) {
    if (heads.aligned && first < heads.half()) {
      cp_async(low, row + word_column(first, 0, heads), sizeof(uint4));
      if (const int64_t second = word_column(first, 1, heads); second < heads.head_dim) {
        cp_async(high, row + second, sizeof(uint4));
      } else {
        *high = make_uint4(0, 0, 0, 0);
      }
      return;
    }
    T *const firsts = reinterpret_cast<T*>(low), *const seconds = reinterpret_cast<T*>(high);
#pragma unroll 1
    for (int i = 0; i < kColumns; ++i) {
      const bool exists = first + i < heads.half();
      firsts[i] = exists ? row[heads.column(first + i, 0)] : from_float<T>(0.0f);
      seconds[i] = exists ? row[heads.column(first + i, 1)] : from_float<T>(0.0f);
    }
  }
  /// Of what fetch() has brought.
  __device__ static Unit of_words(uint4 low, uint4 high, int64_t first, const Heads& heads) {
    if (!heads.aligned || !heads.are_neighbours(first)) return {{low}, {high}};
    Pack<T, kColumns> firsts, seconds;
    const auto lows = bit_cast<Pack<T, kColumns>>(low), highs = bit_cast<Pack<T, kColumns>>(high);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      firsts.at[i] = i < kColumns / 2 ? lows.at[2 * i % kColumns] : highs.at[2 * i % kColumns];
      seconds.at[i] = i < kColumns / 2 ? lows.at[2 * i % kColumns + 1] : highs.at[2 * i % kColumns + 1];
    }
    return {{bit_cast<uint4>(firsts)}, {bit_cast<uint4>(seconds)}};
  }
  __device__ void load(const T* __restrict__ row, int64_t first, const Heads& heads) {
    if (heads.aligned) {
      const int64_t end = first < heads.half() ? heads.head_dim : 0;
      *this = of_words(load_group(row, word_column(first, 0, heads), end, true).bits,
                       load_group(row, word_column(first, 1, heads), end, true).bits, first, heads);
      return;
    }
    Pack<T, kColumns> firsts, seconds;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const bool exists = first + i < heads.half();
      firsts.at[i] = exists ? row[heads.column(first + i, 0)] : from_float<T>(0.0f);
      seconds.at[i] = exists ? row[heads.column(first + i, 1)] : from_float<T>(0.0f);
    }
    a = {bit_cast<uint4>(firsts)}, b = {bit_cast<uint4>(seconds)};
  }
};

/// A unit in fp32.
template <typename T>
struct Pairs {
  static constexpr int kColumns = kGroupColumns<T>;
  float a[kColumns], b[kColumns];

  Pairs() = default;
  __device__ explicit Pairs(const Unit<T>& unit) { unit.a.unpack(a), unit.b.unpack(b); }

  __device__ void store(T* __restrict__ row, int64_t first, const Heads& heads) const {
    if (first >= heads.half()) return;
    if (heads.aligned && !heads.are_neighbours(first)) {
      store_group_at_once(row, first, heads.head_dim, true, a);
      store_group_at_once(row, first + heads.pairs, heads.head_dim, true, b);
    } else if (heads.aligned) {
      float low[kColumns], high[kColumns];
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        low[i] = i % 2 == 0 ? a[i / 2] : b[i / 2];
        high[i] = i % 2 == 0 ? a[kColumns / 2 + i / 2] : b[kColumns / 2 + i / 2];
      }
      store_group_at_once(row, 2 * first, heads.head_dim, true, low);
      store_group_at_once(row, 2 * first + kColumns, heads.head_dim, true, high);
    } else {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        if (first + i >= heads.half()) break;
        row[heads.column(first + i, 0)] = from_float<T>(a[i]);
        row[heads.column(first + i, 1)] = from_float<T>(b[i]);
      }
    }
  }
};

/// The turns of a unit; pairs that do not turn keep their bits.
template <typename T>
struct Turns {
  static constexpr int kColumns = kGroupColumns<T>;
  float2 at[kColumns];
  int n;  ///< pairs of the unit that turn

  __device__ void load(const float2* __restrict__ of_token, int64_t first, const Heads& heads) {
    n = static_cast<int>(max(int64_t{0}, min(int64_t{kColumns}, heads.pairs - first)));
    if (n == kColumns && heads.pairs % 2 == 0) {
#pragma unroll
      for (int i = 0; i < kColumns; i += 2) {
        const float4 two = *reinterpret_cast<const float4*>(of_token + first + i);
        at[i] = make_float2(two.x, two.y), at[i + 1] = make_float2(two.z, two.w);
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i) at[i] = i < n ? of_token[first + i] : float2{1.0f, 0.0f};
  }
  __device__ void apply(Pairs<T>& x) const {
    if (n == kColumns) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) turn(i, x);
    } else {
#pragma unroll
      for (int i = 0; i < kColumns; ++i)
        if (i < n) turn(i, x);
    }
  }

 private:
  /// Explicit intrinsics, so that all rows round alike.
  __device__ void turn(int i, Pairs<T>& x) const {
    const float a = x.a[i], b = x.b[i];
    x.a[i] = __fmaf_rn(a, at[i].x, -__fmul_rn(b, at[i].y));
    x.b[i] = __fmaf_rn(b, at[i].x, __fmul_rn(a, at[i].y));
  }
};

template <typename T>
__device__ void load_weight(const T* __restrict__ weight, int64_t first, const Heads& heads, Pairs<T>& w) {
  Unit<T> unit;
  unit.load(weight, first, heads);
  w = Pairs<T>(unit);
#pragma unroll
  for (int i = 0; i < kGroupColumns<T>; ++i) w.a[i] += heads.offset, w.b[i] += heads.offset;
}

template <typename T>
__device__ float sum_of_squares(const Pairs<T>& x) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kGroupColumns<T>; ++i) sum += x.a[i] * x.a[i] + x.b[i] * x.b[i];
  return sum;
}
/// The sum of g w x.
template <typename T>
__device__ float sum_of_products(const Pairs<T>& g, const Pairs<T>& w, const Pairs<T>& x) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kGroupColumns<T>; ++i) sum += g.a[i] * w.a[i] * x.a[i] + g.b[i] * w.b[i] * x.b[i];
  return sum;
}
__device__ float inverse_root(float squares, const Heads& heads) {
  return rsqrtf(squares / static_cast<float>(heads.head_dim) + heads.eps);
}

// --- passes ----------------------------------------------------------------------------------------------------------

struct ItemPlace {
  int64_t token, head;  ///< its first head
};

/// Queries or keys. An item is some heads of a token, which share its turns; a team takes an item, whose heads are all
/// on their way to shared memory before it takes the first one.
template <typename T>
struct Side {
  const T *x, *weight, *grad;
  T* out;            ///< x_out, or dx
  float* partials;   ///< [blocks, D]; of the backward pass
  int64_t n, items;  ///< heads of a token; items
  int64_t blocks;

  __device__ int64_t chunks(int heads_of_item) const { return ceil_div(n, heads_of_item); }
  /// Divides in 32 bits: there are fewer than 2^31 items.
  __device__ ItemPlace place(int64_t item, int heads_of_item) const {
    const auto of_token = static_cast<unsigned>(chunks(heads_of_item)), at = static_cast<unsigned>(item);
    return {at / of_token, int64_t{at % of_token} * heads_of_item};
  }
};

/// Team sizes for rows of D columns: 8, 16 or 32; `is_long`: a thread has several units.
template <int team_, bool is_long_ = false>
struct TeamOf {
  static constexpr int team = team_;
  static constexpr bool is_long = is_long_;
  static constexpr int kTeams = kThreads / team;
};
template <typename T, typename F>
auto with_team(int64_t head_dim, F&& f) {
  const int64_t units = ceil_div(head_dim / 2, kGroupColumns<T>);
  if (units <= 8) return f(TeamOf<8>{});  // heads of 128 elements in 16 bits
  if (units <= 16) return f(TeamOf<16>{});
  if (units <= 32) return f(TeamOf<32>{});
  return f(TeamOf<32, true>{});
}

/// The forward pass of one head of any length: a row is read twice.
template <typename T, int team>
__device__ void turn_long_row(const T* __restrict__ x, const T* __restrict__ weight,
                              const float2* __restrict__ turns_at, const Heads& heads, bool exists,
                              T* __restrict__ out) {
  constexpr int64_t kColumns = kGroupColumns<T>, kStep = team * kColumns;
  const int64_t begin = threadIdx.x % team * kColumns;
  float squares = 0.0f;
  Unit<T> unit;
  for (int64_t first = begin; first < heads.half() && exists; first += kStep) {
    unit.load(x, first, heads);
    squares += sum_of_squares(Pairs<T>(unit));
  }
  const float scale = inverse_root(team_sum<team>(squares, 0.0f, nullptr).x, heads);
  for (int64_t first = begin; first < heads.half() && exists; first += kStep) {
    Pairs<T> w;
    Turns<T> turns;
    unit.load(x, first, heads);
    load_weight(weight, first, heads, w);
    turns.load(turns_at, first, heads);
    Pairs<T> row(unit);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) row.a[i] = row.a[i] * scale * w.a[i], row.b[i] = row.b[i] * scale * w.b[i];
    turns.apply(row);
    row.store(out, first, heads);
  }
}

/// The forward pass. Blocks: those of the queries, then those of the keys.
template <typename T, class Team>
__global__ __launch_bounds__(kThreads, kForwardBlocks) void qk_forward(const __grid_constant__ Side<T> q,
                                                                       const __grid_constant__ Side<T> k,
                                                                       const float2* __restrict__ table, Heads heads) {
  constexpr int kHeads = kForwardHeads, kColumns = kGroupColumns<T>, team = Team::team;
  __shared__ uint4 loaded[Team::is_long ? 1 : kHeads][2][kThreads];  // a thread reads only what it has copied itself
  const bool is_q = blockIdx.x < q.blocks;
  const Side<T>& side = is_q ? q : k;
  const int64_t item = (blockIdx.x - (is_q ? 0 : q.blocks)) * Team::kTeams + threadIdx.x / team;
  const bool exists = item < side.items;  // threads without an item still take part in the shuffles
  const ItemPlace place = side.place(exists ? item : 0, kHeads);
  const int64_t token = place.token, head = place.head;
  const float2* __restrict__ turns_at = table + token * heads.pairs;
  const auto offset = [&](int h) { return (token * side.n + head + h) * heads.head_dim; };
  if constexpr (Team::is_long) {
    wait_for_kernel_before();
    for (int h = 0; h < kHeads; ++h) {
      const bool has_row = exists && head + h < side.n;
      const int64_t at = has_row ? offset(h) : 0;
      turn_long_row<T, team>(side.x + at, side.weight, turns_at, heads, has_row, side.out + at);
    }
  } else {
    const int64_t first = threadIdx.x % team * kColumns;
    const T* __restrict__ x = side.x + offset(0);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (head + h < side.n)
        Unit<T>::fetch(x + h * heads.head_dim, first, heads, &loaded[h][0][threadIdx.x], &loaded[h][1][threadIdx.x]);
    }
    cp_async_commit_group();
    Pairs<T> w;
    Turns<T> turns;
    load_weight(side.weight, first, heads, w);
    wait_for_kernel_before();  // for the table; the rest is older
    turns.load(turns_at, first, heads);
    cp_async_wait_group<0>();
#pragma unroll 1
    for (int h = 0; h < kHeads; ++h) {  // teams without a head still take part in the shuffles
      const bool has_head = exists && head + h < side.n;
      Pairs<T> row(Unit<T>::of_words(loaded[h][0][threadIdx.x], loaded[h][1][threadIdx.x], first, heads));
      const float scale = inverse_root(team_sum<team>(sum_of_squares(row), 0.0f, nullptr).x, heads);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) row.a[i] = row.a[i] * scale * w.a[i], row.b[i] = row.b[i] * scale * w.b[i];
      turns.apply(row);
      if (has_head) row.store(side.out + offset(h), first, heads);
    }
  }
}

/// dx of one unit; adds what the row adds to the weight's gradient.
template <typename T>
__device__ void gradient(const Pairs<T>& x, const Pairs<T>& g, const Pairs<T>& w, float scale, float mean, Pairs<T>& dx,
                         Pairs<T>& sums) {
  const float pull = mean * scale * scale;
#pragma unroll
  for (int i = 0; i < kGroupColumns<T>; ++i) {
    dx.a[i] = norm_gradient(x.a[i], g.a[i], w.a[i], scale, pull);
    dx.b[i] = norm_gradient(x.b[i], g.b[i], w.b[i], scale, pull);
    sums.a[i] += g.a[i] * x.a[i] * scale, sums.b[i] += g.b[i] * x.b[i] * scale;
  }
}

/// The gradients of a block's items, of heads of at most team units, and one partial row of the weight's gradient.
/// Teams take items in turn.
template <typename T, class Team>
__global__ __launch_bounds__(kThreads, kBackwardBlocks) void qk_backward(const __grid_constant__ Side<T> q,
                                                                         const __grid_constant__ Side<T> k,
                                                                         const float2* __restrict__ table, Heads heads,
                                                                         int slots) {
  constexpr int kHeads = kBackwardHeads, kColumns = kGroupColumns<T>, team = Team::team;
  __shared__ float of_team[Team::kTeams][2][team * kColumns];
  const bool is_q = blockIdx.x < q.blocks;
  const Side<T>& side = is_q ? q : k;
  const int64_t block = blockIdx.x - (is_q ? 0 : q.blocks);
  const Split split{side.items, side.blocks};
  const int64_t begin = split.first(block), end = split.first(block + 1), first = threadIdx.x % team * kColumns;
  BlockRing<4 * kHeads, kThreads> ring(slots);  // of a head: two words of x, then two of the gradient
  const auto fetch = [&](int64_t item) {
    if (item < end) {
      const ItemPlace place = side.place(item, kHeads);
      const int64_t at = (place.token * side.n + place.head) * heads.head_dim;
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        if (place.head + h >= side.n) break;
        Unit<T>::fetch(side.x + at + h * heads.head_dim, first, heads, ring.at(4 * h), ring.at(4 * h + 1));
        Unit<T>::fetch(side.grad + at + h * heads.head_dim, first, heads, ring.at(4 * h + 2), ring.at(4 * h + 3));
      }
    }
    ring.advance();
  };
  int64_t ahead = begin + threadIdx.x / team;
  for (int i = 0; i < slots; ++i, ahead += Team::kTeams) fetch(ahead);
  Pairs<T> w, sums{};
  load_weight(side.weight, first, heads, w);
  wait_for_kernel_before();  // for the table; the rest is older
  for (int64_t base = begin; base < end; base += Team::kTeams, ahead += Team::kTeams) {
    const int64_t item = base + threadIdx.x / team;
    const bool exists = item < end;  // threads without an item still take part in the shuffles
    const ItemPlace place = side.place(exists ? item : 0, kHeads);
    const int64_t at = (place.token * side.n + place.head) * heads.head_dim;
    Turns<T> turns;
    turns.load(table + place.token * heads.pairs, first, heads);
    ring.wait();
#pragma unroll 1
    for (int h = 0; h < kHeads; ++h) {
      const bool has_head = exists && place.head + h < side.n;
      const Pairs<T> x(Unit<T>::of_words(*ring.at(4 * h), *ring.at(4 * h + 1), first, heads));
      Pairs<T> g(Unit<T>::of_words(*ring.at(4 * h + 2), *ring.at(4 * h + 3), first, heads)), dx;
      turns.apply(g);
      const float2 total = team_sum<team>(sum_of_squares(x), sum_of_products(g, w, x), nullptr);
      if (!has_head) continue;
      gradient(x, g, w, inverse_root(total.x, heads), total.y / static_cast<float>(heads.head_dim), dx, sums);
      dx.store(side.out + at + h * heads.head_dim, first, heads);
    }
    fetch(ahead);
  }
  start_dependent_kernel();
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    of_team[threadIdx.x / team][0][first + i] = sums.a[i];
    of_team[threadIdx.x / team][1][first + i] = sums.b[i];
  }
  __syncthreads();
  for (int64_t at = threadIdx.x; at < heads.head_dim; at += kThreads) {
    const int64_t pair = at / 2, b = at % 2;
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < Team::kTeams; ++j) sum += of_team[j][b][pair];
    side.partials[block * heads.head_dim + heads.column(pair, static_cast<int>(b))] = sum;
  }
}

/// The same for heads of any length: a block is a team, a row is read twice, and the partial row is summed in the
/// workspace, where each element belongs to one thread.
template <typename T>
__global__ __launch_bounds__(kWarp) void qk_backward_long(const __grid_constant__ Side<T> q,
                                                          const __grid_constant__ Side<T> k,
                                                          const float2* __restrict__ table, Heads heads) {
  constexpr int64_t kColumns = kGroupColumns<T>, kStep = kWarp * kColumns;
  const bool is_q = blockIdx.x < q.blocks;
  const Side<T>& side = is_q ? q : k;
  const int64_t block = blockIdx.x - (is_q ? 0 : q.blocks), begin_column = threadIdx.x * kColumns;
  const Split split{side.items, side.blocks};
  const int64_t begin = split.first(block) * kBackwardHeads, end = split.first(block + 1) * kBackwardHeads;
  float* __restrict__ partial = side.partials + block * heads.head_dim;
  const int64_t padded =
      side.chunks(kBackwardHeads) * kBackwardHeads;  // heads of a token, with those that do not exist
  bool is_first = true;
  wait_for_kernel_before();
  for (int64_t row = begin; row < end; ++row) {
    const int64_t token = row / padded, head = row % padded;
    if (head >= side.n) continue;
    const int64_t at = (token * side.n + head) * heads.head_dim;
    Unit<T> unit;
    Turns<T> turns;
    Pairs<T> x, g, w;
    const auto load = [&](int64_t first) {
      unit.load(side.x + at, first, heads), x = Pairs<T>(unit);
      unit.load(side.grad + at, first, heads), g = Pairs<T>(unit);
      load_weight(side.weight, first, heads, w);
      turns.load(table + token * heads.pairs, first, heads);
      turns.apply(g);
    };
    float squares = 0.0f, products = 0.0f;
    for (int64_t first = begin_column; first < heads.half(); first += kStep) {
      load(first);
      squares += sum_of_squares(x), products += sum_of_products(g, w, x);
    }
    const float2 total = team_sum<kWarp>(squares, products, nullptr);
    const float scale = inverse_root(total.x, heads), mean = total.y / static_cast<float>(heads.head_dim);
    for (int64_t first = begin_column; first < heads.half(); first += kStep) {
      load(first);
      Pairs<T> dx, terms{};
      gradient(x, g, w, scale, mean, dx, terms);
      dx.store(side.out + at, first, heads);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        if (first + i >= heads.half()) break;
        float &a = partial[heads.column(first + i, 0)], &b = partial[heads.column(first + i, 1)];
        a = is_first ? terms.a[i] : a + terms.a[i];
        b = is_first ? terms.b[i] : b + terms.b[i];
      }
    }
    is_first = false;
  }
}

// --- calls -----------------------------------------------------------------------------------------------------------

enum Input : int { kQ, kK, kQWeight, kKWeight, kPositions, kThreePositions, kGradQ, kGradK };

struct QkCall {
  int64_t tokens = 0, n[2] = {};  ///< heads of queries and of keys
  Heads heads{};
  Angles angles;
};

/// The shape determines the blocks, and so the order of the sums: enough to fill an H200 twice.
int64_t backward_blocks(int32_t dtype, int64_t head_dim, int64_t items) {
  constexpr int64_t kMost = 2 * kBackwardBlocks * kMultiprocessors;
  constexpr int64_t kLeastItems = 4;  // of a team, whose partial row is traffic too
  const auto teams = [](auto team) { return static_cast<int64_t>(team.is_long ? 1 : team.kTeams); };
  const int64_t of_block =
      dtype == CHECKOP_F32 ? with_team<float>(head_dim, teams) : with_team<__half>(head_dim, teams);
  return std::min(kMost, ceil_div(items, of_block * kLeastItems));
}
int64_t items_of(const QkCall& qk, int side, int heads_of_item) {
  return qk.tokens * ceil_div(qk.n[side], heads_of_item);
}

struct WorkspaceLayout {
  int64_t table, partials[2], blocks[2], bytes;

  WorkspaceLayout(const QkCall& qk, int32_t dtype, bool backward) {
    table = 2 * static_cast<int64_t>(kIdCheckBytes);
    int64_t at = table + round_up(qk.tokens * qk.angles.pairs * static_cast<int64_t>(sizeof(float2)), kAlign);
    for (int side = 0; side < 2; ++side) {
      blocks[side] = backward ? backward_blocks(dtype, qk.heads.head_dim, items_of(qk, side, kBackwardHeads)) : 0;
      partials[side] = at;
      at += round_up(blocks[side] * qk.heads.head_dim * static_cast<int64_t>(sizeof(float)), kAlign);
    }
    bytes = at;
  }
};

checkop_status read_sizes(const checkop_call* call, QkCall& to) {
  const checkop_tensor &q = call->inputs[kQ], &k = call->inputs[kK];
  if (q.rank != 3 || k.rank != 3) return say(call, CHECKOP_FAILED, "tensors 'q' and 'k': expected rank 3");
  double eps = 0, offset = 0;
  if (auto status = read_attribute(call, "eps", eps)) return status;
  if (auto status = read_attribute(call, "weight_offset", offset)) return status;
  to.tokens = q.shape[0], to.n[0] = q.shape[1], to.n[1] = k.shape[1];
  bool interleaved = false;
  if (auto status = read_angles(call, q.shape[2], to.angles, interleaved)) return status;
  to.heads = {q.shape[2], to.angles.pairs, interleaved, false, static_cast<float>(eps), static_cast<float>(offset)};
  return CHECKOP_OK;
}

size_t workspace_bytes(const checkop_call* call, bool backward) {
  QkCall qk;
  if (call->n_inputs < 2 || read_sizes(call, qk) != CHECKOP_OK) return 0;  // launch() reports the error
  return static_cast<size_t>(WorkspaceLayout(qk, call->inputs[kQ].dtype, backward).bytes);
}
size_t forward_bytes(const checkop_call* call) { return workspace_bytes(call, false); }
size_t backward_bytes(const checkop_call* call) { return workspace_bytes(call, true); }

checkop_status check_call(const checkop_call* call, bool backward, QkCall& to) {
  CallCheck check(call);
  if (check.counts(backward ? 8 : 6, backward ? 4 : 2).failed()) return check.status();
  if (auto status = read_sizes(call, to)) return status;
  const checkop_tensor &q = call->inputs[kQ], &k = call->inputs[kK];
  check.float_dtype(q, "q").contiguous(q, "q").dtype(k, "k", q.dtype).shape(k, "k", q, 1, {to.n[1], to.heads.head_dim});
  check.contiguous(k, "k");
  const auto like = [&](const checkop_tensor& t, const char* name, const checkop_tensor& x) {
    check.dtype(t, name, q.dtype).shape(t, name, x, 3, {}).contiguous(t, name);
  };
  const auto weight = [&](const checkop_tensor& t, const char* name) {
    check.dtype(t, name, q.dtype).shape(t, name, q, 0, {to.heads.head_dim}).contiguous(t, name);
  };
  weight(call->inputs[kQWeight], "q_weight"), weight(call->inputs[kKWeight], "k_weight");
  const checkop_tensor &positions = call->inputs[kPositions], &three = call->inputs[kThreePositions];
  check.dtype(positions, "positions", CHECKOP_I64).shape(positions, "positions", q, 1, {});
  check.contiguous(positions, "positions");
  if (three.data != nullptr) {
    check.dtype(three, "mrope_positions", CHECKOP_I64).shape(three, "mrope_positions", q, 1, {3});
    check.contiguous(three, "mrope_positions");
  }
  if (backward) {
    like(call->inputs[kGradQ], "grad_q_out", q), like(call->inputs[kGradK], "grad_k_out", k);
    like(call->outputs[0], "dq", q), like(call->outputs[1], "dk", k);
    weight(call->outputs[2], "dq_weight"), weight(call->outputs[3], "dk_weight");
  } else {
    like(call->outputs[0], "q_out", q), like(call->outputs[1], "k_out", k);
  }
  if (check.failed()) return check.status();
  if (items_of(to, 0, 1) + items_of(to, 1, 1) > std::numeric_limits<int32_t>::max()) {  // more than there are blocks
    return say(call, CHECKOP_UNSUPPORTED, "%lld tokens with %lld + %lld heads: at most 2147483647 rows are supported",
               static_cast<long long>(to.tokens), static_cast<long long>(to.n[0]), static_cast<long long>(to.n[1]));
  }
  return check.workspace(workspace_bytes(call, backward)).status();
}

template <typename T>
checkop_status launch_passes(const checkop_call* call, QkCall qk, const WorkspaceLayout& layout, bool backward) {
  auto* stream = static_cast<cudaStream_t>(call->stream);
  auto* workspace = static_cast<char*>(call->workspace);
  const auto* table = reinterpret_cast<const float2*>(workspace + layout.table);
  Side<T> sides[2];
  bool& aligned = qk.heads.aligned;
  aligned =
      qk.heads.head_dim % kGroupColumns<T> == 0 && (qk.heads.interleaved || qk.heads.pairs % kGroupColumns<T> == 0);
  for (int s = 0; s < 2; ++s) {
    sides[s] = {static_cast<const T*>(call->inputs[kQ + s].data),
                static_cast<const T*>(call->inputs[kQWeight + s].data),
                backward ? static_cast<const T*>(call->inputs[kGradQ + s].data) : nullptr,
                static_cast<T*>(call->outputs[s].data),
                reinterpret_cast<float*>(workspace + layout.partials[s]),
                qk.n[s],
                items_of(qk, s, backward ? kBackwardHeads : kForwardHeads),
                layout.blocks[s]};
    aligned = aligned && is_aligned(sides[s].x) && is_aligned(sides[s].weight) && is_aligned(sides[s].grad) &&
              is_aligned(sides[s].out);
  }
  cudaError_t error = cudaSuccess;
  with_team<T>(qk.heads.head_dim, [&]<typename Team>(Team) {
    if (!backward)
      for (Side<T>& side : sides) side.blocks = ceil_div(side.items, Team::kTeams);
    const auto blocks = static_cast<unsigned>(sides[0].blocks + sides[1].blocks);
    if (blocks == 0) return;
    if (!backward) {
      error = launch_dependent(qk_forward<T, Team>, blocks, kThreads, stream, sides[0], sides[1], table, qk.heads);
    } else if constexpr (Team::is_long) {
      error = launch_dependent(qk_backward_long<T>, blocks, kWarp, stream, sides[0], sides[1], table, qk.heads);
    } else {
      error = launch_with_ring<4 * kBackwardHeads, true>(qk_backward<T, Team>, blocks, kThreads, kBackwardSlots, stream,
                                                         sides[0], sides[1], table, qk.heads);
    }
  });
  if (auto status = cuda_status(call, error, "launch qk_norm_rope")) return status;
  for (int s = 0; s < 2 && backward; ++s) {
    error = launch_fold(sides[s].partials, sides[s].blocks, qk.heads.head_dim,
                        static_cast<T*>(call->outputs[2 + s].data), stream);
    if (auto status = cuda_status(call, error, "launch qk_norm_rope sums of the weights' gradients")) return status;
  }
  return CHECKOP_OK;
}

checkop_status launch(const checkop_call* call, bool backward) {
  constexpr int kTableThreads = 256;                      // any size fills the GPU: no shared memory, few registers
  constexpr int64_t kMostBlocks = 16 * kMultiprocessors;  // the kernel strides over the rest
  QkCall qk;
  if (auto status = check_call(call, backward, qk)) return status;
  if (qk.heads.head_dim == 0) return CHECKOP_OK;
  auto* stream = static_cast<cudaStream_t>(call->stream);
  const WorkspaceLayout layout(qk, call->inputs[kQ].dtype, backward);
  auto* workspace = static_cast<char*>(call->workspace);
  const auto passes = [&] {
    return with_float_type(call->inputs[kQ].dtype, [&]<typename Tag>(Tag) {
      return launch_passes<typename Tag::type>(call, qk, layout, backward);
    });
  };
  if (qk.tokens == 0) return passes();  // the gradients of the weights are 0
  const auto* positions = static_cast<const int64_t*>(call->inputs[kPositions].data);
  const auto* three = static_cast<const int64_t*>(call->inputs[kThreePositions].data);
  constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
  IdCheck check_one(call, positions, qk.tokens, kAny, "positions", workspace, stream);
  IdCheck check_three(call, three, 3 * qk.tokens, kAny, "mrope_positions", workspace + kIdCheckBytes, stream);
  if (auto status = check_one.begin()) return status;
  if (three != nullptr)
    if (auto status = check_three.begin()) return status;
  if (qk.angles.pairs > 0) {
    const int64_t blocks = std::min(kMostBlocks, ceil_div(qk.tokens * qk.angles.pairs, kTableThreads));
    const Launch table{dim3(static_cast<unsigned>(blocks)), dim3(kTableThreads), stream, 0, 1, /*starts_early=*/true};
    const auto error =
        launch_kernel(make_table, table, three != nullptr ? three : positions, three != nullptr ? 3 : 1, qk.tokens,
                      qk.angles, backward ? -1.0f : 1.0f, reinterpret_cast<float2*>(workspace + layout.table));
    if (auto status = cuda_status(call, error, "launch qk_norm_rope table")) return status;
  }
  if (auto status = passes()) return status;
  if (auto status = check_one.finish()) return status;
  return three != nullptr ? check_three.finish() : CHECKOP_OK;
}

checkop_status launch_forward(const checkop_call* call) { return launch(call, false); }
checkop_status launch_backward(const checkop_call* call) { return launch(call, true); }

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "qk_norm_rope", "forward", CHECKOP_CUDA, 80, 0, forward_bytes, launch_forward},
    {sizeof(checkop_kernel), "cuda", "qk_norm_rope", "backward", CHECKOP_CUDA, 80, 0, backward_bytes, launch_backward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
