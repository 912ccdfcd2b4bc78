// SPDX-License-Identifier: Apache-2.0
// Draws cases of random sizes; draws again when sizes do not fit together.
#include "case/random_cases.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "base/random.hpp"

namespace checkop {
namespace {

constexpr int kMostDraws = 10000;    // most draws for one case
constexpr int64_t kMostSize = 8192;  // largest extent
constexpr int64_t kMostBytes = int64_t{64} << 20;
constexpr uint64_t kSeeds = uint64_t{1} << 31;

InputError too_large() {
  return {"--random-cases", "the given sizes are too large for random cases", "give fewer or smaller ones"};
}

/// Throws InputError if the operator refuses the sizes. Some operators refuse most draws, so they are asked before the
/// sweep is expanded.
void require_fit(const Sweep& one) {
  if (one.op->validate == nullptr) return;
  for (const auto& [dim, sizes] : one.dims)
    if (sizes.front() < 1) return;  // left to validate(): row dimensions may be 0
  std::vector<double> attrs;
  for (const AttrSpec& attr : one.op->attrs) {
    const auto given = one.attrs.find(attr.name);
    attrs.push_back(given == one.attrs.end() ? attr.fallback : given->second);
  }
  const auto size = [&](std::string_view dim) {
    const auto found = one.dims.find(dim);
    return found == one.dims.end() ? default_size(dim) : found->second.front();
  };
  const auto is_there = [&](std::string_view name) {
    const std::vector<std::string_view> known = optionals_of(*one.passes.front());
    return one.optionals.front().contains(name) && std::find(known.begin(), known.end(), name) != known.end();
  };
  one.op->validate({size, attrs, is_there});
}

class Draw {
 public:
  Draw(const Sweep& sweep, uint64_t seed)
      : sweep_(sweep), dims_(dims_of(*sweep.op)), stream_(Stream::derive(seed, sweep.op->name, "cases")) {
    const auto drawn = std::count_if(dims_.begin(), dims_.end(), [&](std::string_view dim) { return is_drawn(dim); });
    // The average is half of this, so that the product of all extents stays near its limit.
    const double most =
        2 * std::log2(static_cast<double>(kMostSpanned)) / static_cast<double>(std::max<int64_t>(drawn, 1));
    digits_ = std::min(std::log2(static_cast<double>(kMostSize)), most);
  }

  /// Draws a sweep of one case; the case may turn out invalid.
  Sweep one() {
    Sweep one = sweep_;
    one.passes = {any_of(sweep_.passes)};
    one.dtypes = {any_of(sweep_.dtypes)};
    one.optionals = {any_of(sweep_.optionals)};
    for (auto& [dim, values] : one.dims) values = {any_of(values)};
    int64_t spanned = 1;
    std::vector<int64_t> sizes;
    for (const std::string_view dim : dims_) {
      if (is_drawn(dim) && !usual_size_of(dim).empty() && below(2) == 0) continue;
      if (is_drawn(dim)) {
        // Repeat a size now and then: some operators need equal sizes, and some kernels confuse two dimensions.
        sizes.push_back(!sizes.empty() && below(4) == 0 ? any_of(sizes) : size());
        one.dims[std::string(dim)] = {sizes.back()};
      }
      const auto found = one.dims.find(dim);
      const int64_t extent = found == one.dims.end() ? 1 : found->second.front();
      if (extent > kMostSpanned / spanned) throw too_large();
      spanned *= std::max<int64_t>(1, extent);
    }
    one.data.seed = below(kSeeds);
    one.data.grad_seed = below(kSeeds);
    return one;
  }

 private:
  /// The number of ranks depends on the machine, so it is never drawn.
  bool is_drawn(std::string_view dim) const { return dim != kWorldSize && !sweep_.dims.contains(dim); }

  uint64_t below(uint64_t bound) { return stream_.below(next_++, bound); }

  template <class T>
  const T& any_of(const std::vector<T>& values) {
    return values.at(below(values.size()));
  }

  int64_t size() {
    const double digits = digits_ * stream_.uniform(next_++);
    const auto size = static_cast<int64_t>(std::exp2(digits));
    const int64_t step = int64_t{8} << below(6);
    const auto beside = static_cast<int64_t>(below(4)) / 2 + static_cast<int64_t>(below(2)) - 1;  // -1 to 1, often 0
    if (below(2) == 0 || size < step) return size;
    return std::max<int64_t>(1, size / step * step + beside);
  }

  const Sweep& sweep_;
  std::vector<std::string_view> dims_;
  Stream stream_;
  uint64_t next_ = 0;
  double digits_ = 0;
};

class ModelDraw {
 public:
  ModelDraw(const Sweep& sweep, uint64_t seed)
      : sweep_(sweep), stream_(Stream::derive(seed, sweep.op->name, "model cases")) {}

  /// Draws a sweep of one case; the case may turn out invalid.
  Sweep one() {
    Sweep one = sweep_;
    one.passes = {any_of(sweep_.passes)};
    one.dtypes = {any_of(sweep_.dtypes)};
    one.optionals = {any_of(sweep_.optionals)};
    for (auto& [dim, values] : one.dims) values = {any_of(values)};
    one.presets = {any_of(sweep_.presets)};
    const bool changes = below(4) == 0;
    for (auto [dim, size] : one.presets.front().dims) {
      constexpr int64_t kStep = 8;
      const double factor = 0.75 + stream_.uniform(next_++) / 2;
      if (changes && size > 1)
        size = std::max(kStep, static_cast<int64_t>(factor * static_cast<double>(size)) / kStep * kStep);
      one.dims.try_emplace(dim, std::vector{size});
    }
    const double digits = std::log2(static_cast<double>(kMostSize)) * stream_.uniform(next_++);
    if (const auto dims = dims_of(*sweep_.op); std::count(dims.begin(), dims.end(), "q_seq") > 0) draw_sequences(one);
    const std::vector<std::string_view> of_rows = split_dims(sweep_.op->row_dims);
    for (const std::string_view dim : of_rows) {
      const int64_t rows = dim == of_rows.back() ? static_cast<int64_t>(std::exp2(digits)) : 1;
      one.dims.try_emplace(std::string(dim), std::vector{rows});
    }
    one.data.seed = below(kSeeds);
    one.data.grad_seed = below(kSeeds);
    return one;
  }

 private:
  /// A few sequences with as many keys as queries, as in prefill.
  void draw_sequences(Sweep& one) {
    constexpr double kFewest = 6;  // binary digits
    constexpr int64_t kMostTokens = 2 * kMostSize;
    const double most = std::log2(static_cast<double>(kMostSize));
    const auto length = static_cast<int64_t>(std::exp2(kFewest + (most - kFewest) * stream_.uniform(next_++)));
    const int64_t n =
        1 + static_cast<int64_t>(below(static_cast<uint64_t>(std::min<int64_t>(8, kMostTokens / length))));
    for (const std::string dim : {"q_seq", "kv_seq"}) one.dims.try_emplace(dim, std::vector{length});
    one.dims.try_emplace("batch", std::vector{n});
  }

  uint64_t below(uint64_t bound) { return stream_.below(next_++, bound); }

  template <class T>
  const T& any_of(const std::vector<T>& values) {
    return values.at(below(values.size()));
  }

  const Sweep& sweep_;
  Stream stream_;
  uint64_t next_ = 0;
};

/// Appends `count` cases that `draw` makes, and draws again when sizes do not fit together.
template <class Draws>
void draw_valid(Draws&& draw, int64_t count, int64_t most_bytes, std::vector<Case>& cases) {
  int failed = 0;
  for (int64_t made = 0; made < count;) {
    try {
      std::vector<Case> one;
      const Sweep drawn = draw.one();
      require_fit(drawn);
      expand(drawn, one);
      if (tensor_bytes(one.front()) > most_bytes) throw too_large();
      cases.push_back(std::move(one.front()));
      ++made, failed = 0;
    } catch (const InputError&) {
      if (++failed == kMostDraws) throw;
    }
  }
}

}  // namespace

void draw_cases(const Sweep& sweep, int64_t count, uint64_t seed, std::vector<Case>& cases) {
  draw_valid(Draw(sweep, seed), count, kMostBytes, cases);
}

void draw_model_cases(const Sweep& sweep, int64_t count, uint64_t seed, std::vector<Case>& cases) {
  draw_valid(ModelDraw(sweep, seed), count, kMostModelBytes, cases);
}

}  // namespace checkop
