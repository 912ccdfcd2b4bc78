// SPDX-License-Identifier: Apache-2.0
// Input tensors from counter-based random numbers. Only + - * / sqrt and integers make the bits, in FP64 with one final
// rounding, so that every machine, thread count and dtype sees the same underlying data.
//
// Modes. random: by Fill. constant: every floating input is constant_value + 0.01 * its position in the pass; ids are
// token_value modulo the extent. integer: every floating input, weights included, is an integer in [-4, 4]; a product
// sum of K terms then stays within 16 K, exact in an FP32 accumulator in any order up to K = 2^20. peaked: see
// plant_targets. Upstream gradients are ones with GradMode::ones; otherwise integers in mode integer, else normals.
#include "inputs.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <thread>

#include "error.hpp"

namespace checkop {
namespace {

/// Elements drawn, scaled and rounded together: the doubles stay in the first-level cache. Even, for whole blocks.
constexpr int64_t kBuffer = 1024;
/// Elements that a thread takes at a time.
constexpr int64_t kChunk = 64 * kBuffer;
constexpr int kLargestInteger = 4;
constexpr double kPeakedFraction = 0.7;

/// Finaliser of SplitMix64 (Steele, Lea, Flood 2014; constants are Stafford's "Mix13"): a bijection.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Absorbs every byte of both names. For given names a bijection of `state`: two seeds never meet.
uint64_t absorb(uint64_t state, std::string_view op, std::string_view tensor) {
  const auto step = [&state](uint64_t byte) { state = mix(state + 0x9e3779b97f4a7c15u + byte); };
  for (const char letter : op) step(static_cast<unsigned char>(letter));
  step(256);  // no byte: ("ab", "c") and ("a", "bc") part here
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

/// The centre of one of 2^52 equal cells of (0, 1): an odd multiple of 2^-53, so that u and 1 - u are both exact.
inline double to_uniform(uint64_t bits) {
  // 1.xxx with 52 random bits, minus (1 - 2^-53): the difference is exact.
  return std::bit_cast<double>((uint64_t{1023} << 52) | (bits >> 12)) - (1.0 - 0x1p-53);
}

inline uint64_t scale_below(uint64_t bits, uint64_t bound) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>((Wide{bits} * bound) >> 64);
}

double small_integer(uint64_t bits) {
  return static_cast<double>(scale_below(bits, 2 * kLargestInteger + 1)) - kLargestInteger;
}

/// c[0] + c[1] x + ... + c[7] x^7
inline double polynomial(const double (&c)[8], double x) {
  return ((((((c[7] * x + c[6]) * x + c[5]) * x + c[4]) * x + c[3]) * x + c[2]) * x + c[1]) * x + c[0];
}

// Wichura, Algorithm AS 241 (PPND16), Applied Statistics 37 (1988): three rational approximations, good to 1e-16.
constexpr double kSplit = 0.425;  // |p - 1/2| up to which the central one holds
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

/// out[i] = convert(word of element first + i) for i < n; `first` even, out of kBuffer elements.
template <typename Convert>
inline void fill_words(const Stream& stream, int64_t first, double* __restrict out, int64_t n, Convert convert) {
  for (int64_t i = 0; i < (n + 1) / 2; ++i) {
    const Pair pair = block(stream, static_cast<uint64_t>(first / 2 + i));
    out[2 * i] = convert(pair.first);
    out[2 * i + 1] = convert(pair.second);
  }
}

/// Standard normals of elements [first, first + n); as fill_words.
void fill_normals(const Stream& stream, int64_t first, double* __restrict out, int64_t n) {
  double uniforms[kBuffer];
  fill_words(stream, first, uniforms, n, to_uniform);
  // The central formula for all, a loop of its own that vectorises; what it gets wrong, 15 %, is listed and done again.
  for (int64_t i = 0; i < n; ++i) out[i] = central_quantile(uniforms[i] - 0.5);
  int32_t tails[kBuffer];
  size_t n_tails = 0;
  for (int64_t i = 0; i < n; ++i) {
    tails[n_tails] = static_cast<int32_t>(i);
    n_tails += std::abs(uniforms[i] - 0.5) > kSplit ? 1 : 0;
  }
  for (size_t i = 0; i < n_tails; ++i) out[tails[i]] = tail_quantile(uniforms[tails[i]]);
}

/// Runs body(begin, end) over [0, n) in pieces of `piece` on `threads` threads. body must not throw.
template <typename Body>
void parallel_pieces(int64_t n, int64_t piece, unsigned threads, const Body& body) {
  std::atomic<int64_t> next = 0;
  const auto work = [&] {
    for (int64_t begin; (begin = next.fetch_add(piece)) < n;) body(begin, std::min(begin + piece, n));
  };
  const auto useful = static_cast<unsigned>(std::min<int64_t>(threads, (n + piece - 1) / piece));
  std::vector<std::jthread> helpers;
  for (unsigned i = 1; i < useful; ++i) helpers.emplace_back(work);
  work();
}

/// Fills a tensor through draw(first, buffer, n), which sets buffer[i] to element first + i, and rounds once.
template <typename Draw>
void fill(Tensor& tensor, unsigned threads, const Draw& draw) {
  const DTypeInfo& type = info(tensor.dtype);
  std::byte* const to = tensor.bytes.data();
  parallel_pieces(tensor.count(), kChunk, threads, [&](int64_t begin, int64_t end) {
    double buffer[kBuffer];
    for (int64_t first = begin; first < end; first += kBuffer) {
      const int64_t n = std::min(kBuffer, end - first);
      draw(first, buffer, n);
      type.encode(buffer, to + static_cast<size_t>(first) * type.bytes, static_cast<size_t>(n));
    }
  });
}

void fill_constant(Tensor& tensor, double value, unsigned threads) {
  fill(tensor, threads, [value](int64_t, double* out, int64_t n) { std::fill_n(out, n, value); });
}

/// Rows whose ids are set: both ends of the vocabulary, then both sides of common tile widths. -1 stands for V - 1.
constexpr int64_t kEdgeIds[] = {-1, 0, 127, 128, 255, 256, 1023, 1024, 4095, 4096};

/// ids[r] is an edge for the first rows, whatever the number of rows; an edge that V does not reach stays random.
void fill_ids(const Case& c, const Stream& stream, int64_t extent, Tensor& ids) {
  const size_t size = info(ids.dtype).bytes;
  const int64_t constant = (c.token_value % extent + extent) % extent;
  for (int64_t r = 0; r < ids.count(); ++r) {
    auto id = static_cast<int64_t>(stream.below(static_cast<uint64_t>(r), static_cast<uint64_t>(extent)));
    if (r < std::ssize(kEdgeIds) && kEdgeIds[r] < extent) id = kEdgeIds[r] < 0 ? extent - 1 : kEdgeIds[r];
    if (c.input_mode == InputMode::constant) id = constant;
    encode_int(ids.dtype, &id, ids.bytes.data() + static_cast<size_t>(r) * size, 1);
  }
}

int64_t extent_of(const Case& c, const TensorSpec& spec) {
  const auto found = c.dims.find(spec.fan_in);
  if (found == c.dims.end() || found->second < 1) {
    throw InputError(std::string(spec.name), "dimension '" + std::string(spec.fan_in) + "' has no extent ≥ 1");
  }
  return found->second;
}

void fill_tensor(const Case& c, const TensorSpec& spec, size_t position, unsigned threads, Tensor& tensor) {
  const bool upstream = spec.fill == Fill::upstream;
  const Stream stream = Stream::derive(upstream ? c.grad_seed : c.seed, c.op->name, spec.name);
  if (spec.fill == Fill::ids) return fill_ids(c, stream, extent_of(c, spec), tensor);
  if (upstream && c.grad_mode == GradMode::ones) return fill_constant(tensor, 1.0, threads);
  if (!upstream && c.input_mode == InputMode::constant) {
    return fill_constant(tensor, c.constant_value + 0.01 * static_cast<double>(position), threads);
  }
  if (c.input_mode == InputMode::integer) {
    return fill(tensor, threads,
                [&](int64_t first, double* out, int64_t n) { fill_words(stream, first, out, n, small_integer); });
  }
  const double scale = spec.fill == Fill::weight ? 1.0 / std::sqrt(static_cast<double>(extent_of(c, spec))) : 1.0;
  fill(tensor, threads, [&](int64_t first, double* out, int64_t n) {
    fill_normals(stream, first, out, n);
    for (int64_t i = 0; i < n; ++i) out[i] *= scale;
  });
}

/// Index of the present input that `wanted` picks, or nullopt.
template <typename Wanted>
std::optional<size_t> find_input(const Case& c, const Wanted& wanted) {
  for (size_t i = 0; i < c.pass->inputs.size(); ++i) {
    if (is_present(c, c.pass->inputs[i]) && wanted(c.pass->inputs[i])) return i;
  }
  return std::nullopt;
}

/// Sets row `row` of `hidden` to n + alpha * w / |w|, n its standard normals, w the stored weight row of its target,
/// with alpha so that the row's product with w is `target`. Sums run from the first column to the last.
void align_hidden(const Stream& stream, int64_t row, const Tensor& weight, int64_t id, double target, Tensor& hidden) {
  const auto columns = static_cast<size_t>(weight.shape.back());
  const size_t weight_row_bytes = columns * info(weight.dtype).bytes, row_bytes = columns * info(hidden.dtype).bytes;
  std::vector<double> w(columns), h(columns);
  info(weight.dtype).decode(weight.bytes.data() + static_cast<size_t>(id) * weight_row_bytes, w.data(), columns);
  double square = 0.0, product = 0.0;
  for (size_t i = 0; i < columns; ++i) {
    h[i] = stream.normal(static_cast<uint64_t>(row) * columns + i);
    square += w[i] * w[i];
    product += h[i] * w[i];
  }
  if (square == 0.0) return;
  for (size_t i = 0; i < columns; ++i) h[i] += (target - product) / square * w[i];
  info(hidden.dtype).encode(h.data(), hidden.bytes.data() + static_cast<size_t>(row) * row_bytes, columns);
}

/// Mode peaked: in about 70 % of the rows the target's probability becomes about 0.9.
/// The other V - 1 logits are near N(0, s), whose exponentials sum to about (V - 1) exp(s / 2), so a target logit of
/// A + s / 2 with A = log(9 (V - 1)) has odds of nine to one. Where logits are an input (s = 1) the target's is set.
/// Where they are hidden * weight^T + bias the hidden row is turned towards the target's weight row (align_hidden);
/// s = 1 + A^2 / H for the alignment's share in the other logits, plus 1 if there is a bias, whose own value at the
/// target is taken off. That holds for H well above A^2. Passes without either pair of inputs stay random.
void plant_targets(const Case& c, unsigned threads, std::vector<Tensor>& tensors) {
  const auto specs = c.pass->inputs;
  const auto ids_at = find_input(c, [](const TensorSpec& spec) { return spec.fill == Fill::ids; });
  if (!ids_at) return;
  const TensorSpec& ids_spec = specs[*ids_at];
  const int64_t vocab = extent_of(c, ids_spec);
  if (vocab < 2) return;
  const auto starts_with_ids = [&](const TensorSpec& spec, std::string_view last) {
    return spec.dims == std::string(ids_spec.dims) + " " + std::string(last);
  };
  const auto logits_at = find_input(
      c, [&](const TensorSpec& spec) { return spec.fill == Fill::logits && starts_with_ids(spec, ids_spec.fan_in); });
  const auto weight_at = find_input(c, [&](const TensorSpec& spec) {
    return spec.fill == Fill::weight && spec.dims == std::string(ids_spec.fan_in) + " " + std::string(spec.fan_in);
  });
  const auto hidden_at = find_input(c, [&](const TensorSpec& spec) {
    return weight_at && spec.fill == Fill::normal && starts_with_ids(spec, specs[*weight_at].fan_in);
  });
  const auto bias_at =
      find_input(c, [&](const TensorSpec& spec) { return spec.fill == Fill::normal && spec.dims == ids_spec.fan_in; });
  if (!logits_at && !(weight_at && hidden_at)) return;

  const Stream chosen = Stream::derive(c.seed, c.op->name, std::string(ids_spec.name) + " peaked");
  const Stream normals = Stream::derive(c.seed, c.op->name, specs[logits_at ? *logits_at : *hidden_at].name);
  const double level = natural_log(9.0 * static_cast<double>(vocab - 1));
  const Tensor& ids = tensors[*ids_at];
  const size_t id_bytes = info(ids.dtype).bytes;
  parallel_pieces(ids.count(), 16, threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (!(chosen.uniform(static_cast<uint64_t>(row)) < kPeakedFraction)) continue;
      int64_t id;
      decode_int(ids.dtype, ids.bytes.data() + static_cast<size_t>(row) * id_bytes, &id, 1);
      if (logits_at) {
        tensors[*logits_at].set(row * vocab + id, level + 0.5);
        continue;
      }
      const double spread = 1.0 + level * level / static_cast<double>(tensors[*weight_at].shape.back());
      const double target = level + 0.5 * spread + (bias_at ? 0.5 - tensors[*bias_at].at(id) : 0.0);
      align_hidden(normals, row, tensors[*weight_at], id, target, tensors[*hidden_at]);
    }
  });
}

}  // namespace

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  const Pair pair = block({key, {counter[2], counter[3]}}, counter[0] | uint64_t{counter[1]} << 32);
  return {static_cast<uint32_t>(pair.first), static_cast<uint32_t>(pair.first >> 32),
          static_cast<uint32_t>(pair.second), static_cast<uint32_t>(pair.second >> 32)};
}

/// Key and upper counter are two hashes of the same text from different starting states: 128 bits of distance.
Stream Stream::derive(uint64_t seed, std::string_view op, std::string_view tensor) {
  const uint64_t key = absorb(mix(seed), op, tensor), high = absorb(mix(~seed), op, tensor);
  return {{static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)},
          {static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32)}};
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
  // x = m * 2^e with m in [sqrt(1/2), sqrt(2)); in integers, for a branch on random bits would be mispredicted.
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

std::vector<Tensor> make_inputs(const Case& c, unsigned threads) {
  validate(c);
  std::vector<Tensor> tensors;
  for (const TensorSpec& spec : c.pass->inputs) {
    const bool present = is_present(c, spec);
    tensors.push_back(present ? Tensor(std::string(spec.name), dtype_of(c, spec), shape_of(c, spec)) : Tensor());
    if (present) fill_tensor(c, spec, tensors.size() - 1, threads, tensors.back());
  }
  if (c.input_mode == InputMode::peaked) plant_targets(c, threads, tensors);
  return tensors;
}

}  // namespace checkop
