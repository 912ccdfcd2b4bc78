// SPDX-License-Identifier: Apache-2.0
// Philox streams; normals by inversion. The bits come from integers and FP64 + - * / sqrt alone, so they are the same
// on every machine.
#include "base/random.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/mix.hpp"
#include "base/vector_clones.hpp"

namespace checkop {
namespace {

/// Hashes every byte of both names into `state`. For given names this is a bijection of `state`, so two seeds never
/// collide.
uint64_t absorb(uint64_t state, std::string_view op, std::string_view tensor) {
  const auto step = [&state](uint64_t byte) { state = mix_bits(state + 0x9e3779b97f4a7c15u + byte); };
  for (const char letter : op) step(static_cast<unsigned char>(letter));
  step(256);  // separator, not a byte value: ("ab", "c") differs from ("a", "bc")
  for (const char letter : tensor) step(static_cast<unsigned char>(letter));
  return state;
}

struct Pair {
  uint64_t first, second;
};

/// Block `index` of a stream: the 64-bit words of elements 2*index and 2*index + 1.
inline Pair block(const Stream& stream, uint64_t index) {
  uint32_t c0 = static_cast<uint32_t>(index), c1 = static_cast<uint32_t>(index >> 32);
  uint32_t c2 = stream.counter_high[0], c3 = stream.counter_high[1];
  uint32_t k0 = stream.key[0], k1 = stream.key[1];
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xd2511f53u} * c0, p1 = uint64_t{0xcd9e8d57u} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  return {c0 | uint64_t{c1} << 32, c2 | uint64_t{c3} << 32};
}

uint64_t word(const Stream& stream, uint64_t index) {
  const Pair pair = block(stream, index / 2);
  return index % 2 == 0 ? pair.first : pair.second;
}

/// Centre of one of 2^52 equal cells of (0, 1): an odd multiple of 2^-53, so that u and 1 - u are both exact.
inline double to_uniform(uint64_t bits) {
  // 1.xxx with 52 random bits, minus (1 - 2^-53): the difference is exact.
  return std::bit_cast<double>((uint64_t{1023} << 52) | (bits >> 12)) - (1.0 - 0x1p-53);
}

inline uint64_t scale_below(uint64_t bits, uint64_t bound) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>((Wide{bits} * bound) >> 64);
}

/// c[0] + c[1] x + ... + c[7] x^7
inline double polynomial(const double (&c)[8], double x) {
  return ((((((c[7] * x + c[6]) * x + c[5]) * x + c[4]) * x + c[3]) * x + c[2]) * x + c[1]) * x + c[0];
}

// Wichura, Algorithm AS 241 (PPND16), Applied Statistics 37 (1988): three rational approximations, good to 1e-16.
constexpr double kSplit = 0.425;  // the central approximation holds for |p - 1/2| up to this
constexpr double kCentralTop[8] = {3.3871328727963666080e0,  1.3314166789178437745e+2, 1.9715909503065514427e+3,
                                   1.3731693765509461125e+4, 4.5921953931549871457e+4, 6.7265770927008700853e+4,
                                   3.3430575583588128105e+4, 2.5090809287301226727e+3};
constexpr double kCentralBottom[8] = {1.0,
                                      4.2313330701600911252e+1,
                                      6.8718700749205790830e+2,
                                      5.3941960214247511077e+3,
                                      2.1213794301586595867e+4,
                                      3.9307895800092710610e+4,
                                      2.8729085735721942674e+4,
                                      5.2264952788528545610e+3};
constexpr double kNearTop[8] = {1.42343711074968357734e0,  4.63033784615654529590e0, 5.76949722146069140550e0,
                                3.64784832476320460504e0,  1.27045825245236838258e0, 2.41780725177450611770e-1,
                                2.27238449892691845833e-2, 7.74545014278341407640e-4};
constexpr double kNearBottom[8] = {1.0,
                                   2.05319162663775882187e0,
                                   1.67638483018380384940e0,
                                   6.89767334985100004550e-1,
                                   1.48103976427480074590e-1,
                                   1.51986665636164571966e-2,
                                   5.47593808499534494600e-4,
                                   1.05075007164441684324e-9};
constexpr double kFarTop[8] = {6.65790464350110377720e0,  5.46378491116411436990e0,  1.78482653991729133580e0,
                               2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
                               2.71155556874348757815e-5, 2.01033439929228813265e-7};
constexpr double kFarBottom[8] = {1.0,
                                  5.99832206555887937690e-1,
                                  1.36929880922735805310e-1,
                                  1.48753612908506148525e-2,
                                  7.86869131145613259100e-4,
                                  1.84631831751005468180e-5,
                                  1.42151175831644588870e-7,
                                  2.04426310338993978564e-15};

inline double central_quantile(double q) {
  const double r = kSplit * kSplit - q * q;
  return q * polynomial(kCentralTop, r) / polynomial(kCentralBottom, r);
}

double tail_quantile(double p) {
  const double r = std::sqrt(-natural_log(std::min(p, 1.0 - p)));
  const double z = r <= 5.0 ? polynomial(kNearTop, r - 1.6) / polynomial(kNearBottom, r - 1.6)
                            : polynomial(kFarTop, r - 5.0) / polynomial(kFarBottom, r - 5.0);
  return std::copysign(z, p - 0.5);
}

/// out[i] = convert(word of element first + i) for i < n. `first` must be even; `out` needs room for n + 1 elements.
template <typename Convert>
inline void fill_words(const Stream& stream, int64_t first, double* __restrict out, int64_t n, Convert convert) {
  for (int64_t i = 0; i < (n + 1) / 2; ++i) {
    const Pair pair = block(stream, static_cast<uint64_t>(first / 2 + i));
    out[2 * i] = convert(pair.first);
    out[2 * i + 1] = convert(pair.second);
  }
}

CHECKOP_VECTOR_CLONES void draw_normals(const Stream& stream, int64_t first, double* __restrict out, int64_t n) {
  double uniforms[kDrawBuffer + 1];
  fill_words(stream, first, uniforms, n, to_uniform);
  // Apply the central formula to all elements: this loop vectorises. Then redo the 15 % in the tails.
  for (int64_t i = 0; i < n; ++i) out[i] = central_quantile(uniforms[i] - 0.5);
  int32_t tails[kDrawBuffer];
  size_t n_tails = 0;
  for (int64_t i = 0; i < n; ++i) {
    tails[n_tails] = static_cast<int32_t>(i);
    n_tails += std::abs(uniforms[i] - 0.5) > kSplit ? 1 : 0;
  }
  for (size_t i = 0; i < n_tails; ++i) out[tails[i]] = tail_quantile(uniforms[tails[i]]);
}

/// The latest normals at the begins of streams: checks of one operator draw the same ones for each dtype, pass and
/// size.
class LatestNormals {
 public:
  /// Whether normals from `first` on are kept.
  static bool keeps(int64_t first) { return first % kDrawBuffer == 0 && first < kMostBlocks * kDrawBuffer; }

  static void draw(const Stream& stream, int64_t first, double* out, int64_t n) {
    static auto* const sets = new std::array<Set, kSets>;  // never destroyed: other threads may draw until the end
    const uint64_t key = stream.key[0] | uint64_t{stream.key[1]} << 32;
    Set& set = (*sets)[mix_bits(key + static_cast<uint64_t>(first)) % kSets];
    const std::lock_guard lock(set.mutex);
    const auto is_it = [&](const Block& block) {
      return block.first == first && block.key == stream.key && block.counter_high == stream.counter_high;
    };
    const auto found = std::find_if(set.blocks.begin(), set.blocks.end() - 1, is_it);
    std::rotate(set.blocks.begin(), found, found + 1);
    Block& block = set.blocks.front();
    if (!is_it(block) || block.drawn < n) {
      if (!block.normals) block.normals = std::make_unique<double[]>(kDrawBuffer + 1);
      draw_normals(stream, first, block.normals.get(), n);
      block.key = stream.key, block.counter_high = stream.counter_high, block.first = first, block.drawn = n;
    }
    std::copy_n(block.normals.get(), n, out);
  }

 private:
  static constexpr int64_t kMostBlocks = 1024;  // of a stream, 8 MiB: of a larger tensor, few could be kept
  static constexpr size_t kSets = 1024;         // of four blocks of 8 KiB: 32 MiB in all

  struct Block {
    std::array<uint32_t, 2> key{}, counter_high{};
    int64_t first = 0, drawn = 0;
    std::unique_ptr<double[]> normals;
  };
  struct Set {
    std::mutex mutex;
    std::array<Block, 4> blocks;  ///< the latest first
  };
};

}  // namespace

void Stream::normals(int64_t first, double* out, int64_t n) const {
  if (LatestNormals::keeps(first)) return LatestNormals::draw(*this, first, out, n);
  draw_normals(*this, first, out, n);
}

void Stream::integers(int64_t first, double* __restrict out, int64_t n, int64_t largest) const {
  const auto values = static_cast<uint64_t>(2 * largest + 1);
  fill_words(*this, first, out, n, [&](uint64_t bits) {
    return static_cast<double>(scale_below(bits, values)) - static_cast<double>(largest);
  });
}

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  const Pair pair = block({key, {counter[2], counter[3]}}, counter[0] | uint64_t{counter[1]} << 32);
  return {static_cast<uint32_t>(pair.first), static_cast<uint32_t>(pair.first >> 32),
          static_cast<uint32_t>(pair.second), static_cast<uint32_t>(pair.second >> 32)};
}

/// Key and upper counter are two hashes of the same names from different starting states: 128 bits in all.
Stream Stream::derive(uint64_t seed, std::string_view op, std::string_view tensor) {
  // Callers that draw number by number ask for the same few streams again and again, so the latest ones are kept.
  struct Known {
    uint64_t seed = 0;
    std::string op, tensor;
    std::optional<Stream> stream;
  };
  static thread_local std::array<Known, 4> latest;
  static thread_local size_t oldest = 0;
  for (const Known& known : latest)
    if (known.stream && known.seed == seed && known.tensor == tensor && known.op == op) return *known.stream;
  const uint64_t key = absorb(mix_bits(seed), op, tensor), high = absorb(mix_bits(~seed), op, tensor);
  const Stream stream{{static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)},
                      {static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32)}};
  latest[std::exchange(oldest, (oldest + 1) % latest.size())] = {seed, std::string(op), std::string(tensor), stream};
  return stream;
}

double Stream::normal(uint64_t index) const { return normal_quantile(uniform(index)); }

double Stream::uniform(uint64_t index) const { return to_uniform(word(*this, index)); }

uint64_t Stream::below(uint64_t index, uint64_t bound) const { return scale_below(word(*this, index), bound); }

double natural_log(double x) {
  constexpr double kLn2High = 0x1.62e42fefa38p-1, kLn2Low = 0x1.ef35793c7673p-45;  // 42 bits: e * high is exact
  int e = 0;
  if (x < 0x1p-1022) {
    x *= 0x1p54;
    e = -54;
  }
  // x = m * 2^e with m in [sqrt(1/2), sqrt(2)). Integer arithmetic, because a branch on random bits would be
  // mispredicted.
  constexpr int64_t kSqrtHalfBits = 0x3fe6a09e667f3bcd;
  const int64_t bits = std::bit_cast<int64_t>(x), shift = (bits - kSqrtHalfBits) >> 52;
  e += static_cast<int>(shift);
  const double m = std::bit_cast<double>(bits - shift * (int64_t{1} << 52));
  // With f = m - 1 and s = f / (2 + f): log m = 2 atanh s = f - s (f - 2 (s^2/3 + s^4/5 + ...)); |s| < 0.172, so that
  // the first omitted term is below 2^-58 of the result.
  const double f = m - 1.0, s = f / (2.0 + f), z = s * s;
  // Two interleaved chains, in z^2, for speed.
  const double zz = z * z;
  const double odd = (((1 / 19.0 * zz + 1 / 15.0) * zz + 1 / 11.0) * zz + 1 / 7.0) * zz + 1 / 3.0;
  const double even = (((1 / 21.0 * zz + 1 / 17.0) * zz + 1 / 13.0) * zz + 1 / 9.0) * zz + 1 / 5.0;
  const double series = odd + z * even;
  const double exponent = e;
  return exponent * kLn2High + (f - (s * (f - 2.0 * z * series) - exponent * kLn2Low));
}

double normal_quantile(double p) {
  const double q = p - 0.5;
  if (std::abs(q) <= kSplit) return central_quantile(q);
  if (p > 0.0 && p < 1.0) return tail_quantile(p);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return p == 0.0 ? -kInfinity : p == 1.0 ? kInfinity : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace checkop
