// SPDX-License-Identifier: Apache-2.0
// Patterns of wrong outputs. Each pattern states how much evidence it needs to rule out chance.
#include "judge/diagnosis.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "device/buffers.hpp"

namespace checkop {
namespace {

constexpr std::array<int64_t, 5> kTiles{16, 32, 64, 128, 256};
constexpr double kMost = 0.95;   // share of the sample that must fit
constexpr size_t kFew = 8;       // fewer elements fit by chance too often
constexpr double kFarApart = 3;  // distance of two explanations, in bounds, to tell them apart
constexpr int64_t kPeriods = 3;  // times that a pattern must repeat

using Sample = std::vector<FailingElement>;

template <class Fits>
bool most(const Sample& sample, const Fits& fits) {
  const auto n = std::count_if(sample.begin(), sample.end(), fits);
  return static_cast<double>(n) >= kMost * static_cast<double>(sample.size());
}

template <class Fits>
bool all(const Sample& sample, const Fits& fits) {
  return std::all_of(sample.begin(), sample.end(), fits);
}

uint64_t stored_bits(const Suspect& s, const FailingElement& e) {
  return load_bits(s.dtype, s.got, e.row * s.view.columns + e.column);
}

std::vector<double> stored_row(const Suspect& s, int64_t row) {
  std::vector<double> values(static_cast<size_t>(s.view.columns));
  const DTypeInfo& type = info(s.dtype);
  type.decode(s.got + static_cast<size_t>(row * s.view.columns) * type.bytes, values.data(), values.size());
  return values;
}

double rounded_to(DType dtype, double x) {
  std::array<std::byte, 8> stored{};
  double value = 0;
  info(dtype).encode(&x, stored.data(), 1);
  info(dtype).decode(stored.data(), &value, 1);
  return value;
}

// --- values of the failing elements ----------------------------------------------------------------------------------

/// Looks for the poison itself: other NaNs with a payload, such as 0x7fffffff, are results that GPUs compute.
Pattern unwritten(const Suspect& s) {
  if (!info(s.dtype).is_float || !s.poisoned) return {};
  const uint64_t poison = poison_of(s.dtype).output[0];
  if (!all(s.failures.sample, [&](const auto& e) { return stored_bits(s, e) == poison; })) return {};
  return {
      fmt::format("the failing elements hold the bits that outputs are filled with before a launch, {:#x}: they "
                  "were not written",
                  poison)};
}

Pattern not_a_number(const Suspect& s) {
  if (!all(s.failures.sample, [](const auto& e) { return std::isnan(e.got); })) return {};
  return {"the failing elements are NaN"};
}

/// Whether `is` holds for every stored element of the output.
template <class Is>
bool every_stored(const Suspect& s, const Is& is) {
  for (int64_t r = 0; r < s.view.rows; ++r) {
    const std::vector<double> row = stored_row(s, r);
    if (!std::all_of(row.begin(), row.end(), is)) return false;
  }
  return true;
}

/// The output has no subnormal numbers, and the failing elements are zeros where the gold is subnormal.
Pattern flushed(const Suspect& s) {
  if (!info(s.dtype).is_float) return {};
  const double least = std::ldexp(1.0, info(s.dtype).min_exponent);
  if (!all(s.failures.sample, [&](const auto& e) { return e.got == 0 && e.gold != 0 && std::abs(e.gold) < least; }))
    return {};
  if (!every_stored(s, [&](double x) { return x == 0 || !(std::abs(x) < least); })) return {};
  return {fmt::format("subnormal numbers of {}, those below {:.3g}, are flushed to zero", info(s.dtype).name, least),
          true};
}

Pattern zeros(const Suspect& s) {
  if (!all(s.failures.sample, [](const auto& e) { return e.got == 0; })) return {};
  if (every_stored(s, [](double x) { return x == 0; })) return {"the whole output is zeros", true};
  return {"the failing elements are zeros"};
}

Pattern constant(const Suspect& s) {
  const Sample& sample = s.failures.sample;
  const double value = sample.front().got;
  const auto same = [&](double x) { return std::abs(x - sample.front().gold) <= sample.front().bound; };
  if (sample.size() < kFew || most(sample, [&](const auto& e) { return same(e.gold); })) return {};
  if (!all(sample, [&](const auto& e) { return e.got == value; })) return {};
  return {fmt::format("the failing elements all hold the same value, {:.6g}", value), true};
}

/// Whether stored row `row` holds the gold of row `other`.
bool is_gold_of(const Suspect& s, int64_t row, int64_t other) {
  const NearbyRow& gold = s.nearby.at(other);
  const std::vector<double> got = stored_row(s, row);
  size_t fits = 0;
  for (size_t i = 0; i < got.size(); ++i) fits += std::abs(got[i] - gold.value[i]) <= std::max(gold.allowed[i], 0.0);
  return static_cast<double>(fits) >= 0.99 * static_cast<double>(got.size());
}

bool fails(const Suspect& s, int64_t row) { return s.failures.by_row[static_cast<size_t>(row)] > 0; }

Pattern other_row(const Suspect& s) {
  for (const int64_t step : {-1, 1}) {
    int64_t looked_at = 0, last = -1, without = 0;
    bool every = true;
    for (const auto& [row, gold] : s.nearby) {
      // The row at the edge may hold anything, unless it is all that speaks for the pattern.
      if (!fails(s, row) || !s.nearby.contains(row + step)) {
        without += fails(s, row) && s.failures.count > 1 ? 1 : 0;
        continue;
      }
      every = every && is_gold_of(s, row, row + step);
      ++looked_at, last = row;
      if (!every) break;
    }
    if (looked_at > without && every)
      return {fmt::format("failing rows hold the gold of the row {}: row {} that of row {}",
                          step < 0 ? "before" : "after", last, last + step),
              true};
  }
  return {};
}

Pattern rows_swapped(const Suspect& s) {
  std::vector<int64_t> failing;
  for (int64_t r = 0; r < s.view.rows && failing.size() < 3; ++r) {
    if (fails(s, r)) failing.push_back(r);
  }
  if (failing.size() != 2 || !s.nearby.contains(failing[0]) || !s.nearby.contains(failing[1])) return {};
  if (!is_gold_of(s, failing[0], failing[1]) || !is_gold_of(s, failing[1], failing[0])) return {};
  return {fmt::format("rows {} and {} have changed places", failing[0], failing[1]), true};
}

/// The first and the last failing index of a direction.
std::pair<int64_t, int64_t> range_of(const std::vector<int64_t>& failed) {
  const auto is_hit = [](int64_t n) { return n > 0; };
  const auto first = std::find_if(failed.begin(), failed.end(), is_hit);
  const auto last = std::find_if(failed.rbegin(), failed.rend(), is_hit);
  return {first - failed.begin(), failed.rend() - last - 1};
}

/// Whether nearly all elements of the known rows in columns [begin, end) hold the gold at from(row, column), and some
/// rows are known. A gold that is not known fits nothing.
template <class From>
bool holds_gold_from(const Suspect& s, int64_t begin, int64_t end, const From& from) {
  int64_t fits = 0, seen = 0;
  for (const auto& [row, gold] : s.nearby) {
    if (!fails(s, row)) continue;
    const std::vector<double> got = stored_row(s, row);
    for (int64_t c = begin; c < end; ++c) {
      const auto [r, column] = from(row, c);
      const auto source = s.nearby.find(r);
      ++seen;
      if (source == s.nearby.end()) continue;
      const auto at = static_cast<size_t>(column);
      fits +=
          std::abs(got[static_cast<size_t>(c)] - source->second.value[at]) <= std::max(source->second.allowed[at], 0.0);
    }
  }
  return seen >= 2 && 100 * fits >= 99 * seen;
}

Pattern tiles_swapped(const Suspect& s) {
  const auto [first, last] = range_of(s.failures.by_column);
  std::vector<int64_t> widths(kTiles.begin(), kTiles.end());
  widths.insert(widths.begin(), {8, s.view.columns / 2});
  for (const int64_t width : widths) {
    const int64_t begin = width > 0 ? first / width * width : 0, end = begin + 2 * width;
    if (width < 1 || last < begin + width || last >= end || end > s.view.columns) continue;
    const auto from = [&](int64_t row, int64_t c) { return std::pair{row, c < begin + width ? c + width : c - width}; };
    if (holds_gold_from(s, begin, end, from))
      return {fmt::format("columns {} to {} and {} to {} have changed places", begin, begin + width - 1, begin + width,
                          end - 1),
              true};
  }
  return {};
}

Pattern transposed(const Suspect& s) {
  const auto [top, bottom] = range_of(s.failures.by_row);
  const auto [left, right] = range_of(s.failures.by_column);
  for (const int64_t size : {8, 16, 32, 64, 128}) {
    const int64_t row = top / size * size, column = left / size * size;
    if (bottom >= row + size || right >= column + size || row + size > s.view.rows || column + size > s.view.columns)
      continue;
    const auto from = [&](int64_t r, int64_t c) { return std::pair{row + (c - column), column + (r - row)}; };
    if (holds_gold_from(s, column, column + size, from))
      return {fmt::format("the block of {} x {} elements at row {}, column {} is transposed", size, size, row, column),
              true};
  }
  return {};
}

Pattern largest_alone(const Suspect& s) {
  if (s.view.columns < static_cast<int64_t>(kFew)) return {};
  int64_t rows = 0;
  for (const auto& [row, gold] : s.nearby) {
    if (!fails(s, row)) continue;
    const auto less = [](double a, double b) { return std::abs(a) < std::abs(b); };
    const auto largest = std::max_element(gold.value.begin(), gold.value.end(), less) - gold.value.begin();
    const std::vector<double> got = stored_row(s, row);
    const auto at = static_cast<size_t>(largest);
    const auto others = std::count_if(got.begin(), got.end(), [](double x) { return x != 0; });
    if (others != 1 || !(std::abs(got[at] - gold.value[at]) <= gold.allowed[at])) return {};
    ++rows;
  }
  if (rows == 0) return {};
  return {"of every failing row only the largest element is not 0", true};
}

/// Whether got = factor*gold explains the sample and got = gold does not.
bool is_factor(const Sample& sample, double factor) {
  const double apart = sample.size() < kFew ? 20 : kFarApart;
  return most(sample, [&](const FailingElement& e) {
    const double may_err = 2 * std::max(1.0, std::abs(factor)) * e.bound;  // the product may lie in the next binade
    const double least = std::min(std::abs(factor - 1), std::abs(factor)) * std::abs(e.gold);  // from 1, from 0
    return std::abs(e.got - factor * e.gold) <= may_err && least > apart * may_err;
  });
}

Pattern factor(const Suspect& s) {
  constexpr std::pair<double, const char*> kKnown[] = {{2, "2 times"},
                                                       {0.5, "1/2 of"},
                                                       {-1, "-1 times"},
                                                       {1.4426950408889634, "log2(e) times"},
                                                       {0.6931471805599453, "ln(2) times"}};
  const Sample& sample = s.failures.sample;
  for (const auto& [value, name] : kKnown) {
    if (is_factor(sample, value)) return {fmt::format("the failing elements are {} the gold", name), true};
  }
  if (sample.size() < kFew) return {};
  double product = 0, square = 0;
  for (const FailingElement& e : sample) product += e.got * e.gold, square += e.gold * e.gold;
  if (!is_factor(sample, product / square)) return {};
  return {fmt::format("the failing elements are {:.5g} times the gold", product / square), true};
}

/// A factor too near to 1 to show in single elements: the known rows, with their passing elements, are nearer to
/// factor*gold than to the gold.
Pattern small_factor(const Suspect& s) {
  constexpr double kNearer = 4;  // times, in squares
  double product = 0, square = 0, from_gold = 0, from_factor = 0;
  int64_t seen = 0;
  const auto each = [&](const auto& body) {
    for (const auto& [row, gold] : s.nearby) {
      const std::vector<double> got = stored_row(s, row);
      for (size_t i = 0; i < got.size(); ++i) {
        if (gold.allowed[i] > 0 && !body(got[i], gold.value[i], gold.allowed[i])) return false;
      }
    }
    return true;
  };
  each([&](double got, double gold, double allowed) {
    product += got / allowed * (gold / allowed), square += gold / allowed * (gold / allowed);
    return ++seen > 0;
  });
  const double by = product / square;
  const bool fits = each([&](double got, double gold, double allowed) {
    const double before = (got - gold) / allowed, after = (got - by * gold) / allowed;
    from_gold += before * before, from_factor += after * after;
    return std::abs(after) <= 2.5 * std::max(1.0, std::abs(by));
  });
  if (seen < static_cast<int64_t>(kFew) || !fits || !(std::abs(by) > 0.01) || !(from_gold > kNearer * from_factor))
    return {};
  // Two digits of its distance from 1, so that a factor never reads as 1.
  const int digits = std::max(4, 1 - static_cast<int>(std::floor(std::log10(std::abs(by - 1)))));
  return {fmt::format("it looks like {} times the gold", fmt::format("{:.{}g}", by, digits)), true};
}

Pattern truncated(const Suspect& s) {
  const Sample& sample = s.failures.sample;
  if (!info(s.dtype).is_float || sample.size() < kFew) return {};
  const bool fits = most(sample, [&](const FailingElement& e) {
    const double nearest = rounded_to(s.dtype, e.gold);
    const double step = std::abs(nearest) > std::abs(e.gold) ? 2 * half_ulp(s.dtype, e.gold) : 0;
    return e.got == nearest - std::copysign(step, e.gold) && step > 0;
  });
  if (!fits) return {};
  return {"it looks like rounding toward zero, not to nearest", true};
}

Pattern fewer_bits(const Suspect& s) {
  const Sample& sample = s.failures.sample;
  if (!info(s.dtype).is_float || sample.size() < kFew) return {};
  for (const DType narrow : {DType::bf16, DType::f16, DType::f32}) {
    if (info(narrow).precision >= info(s.dtype).precision) continue;
    const bool fits = all(sample, [&](const FailingElement& e) {
      return rounded_to(narrow, e.got) == e.got && rounded_to(narrow, e.gold) != e.gold &&
             std::abs(e.got - e.gold) <= 64 * half_ulp(narrow, e.gold);  // leaves room for a sum kept in `narrow`
    });
    if (fits) return {fmt::format("the failing elements have no more bits than {}", info(narrow).name)};
  }
  return {};
}

// --- positions of the failing elements -------------------------------------------------------------------------------

/// Failures along one dimension of the matrix.
struct Direction {
  std::string_view name;  ///< "columns"
  const std::vector<int64_t>& failed;
  std::function<bool(int64_t)> compared;

  int64_t extent() const { return std::ssize(failed); }
  bool fails(int64_t i) const { return failed[static_cast<size_t>(i)] > 0; }
};

/// "only in columns 100 to 199, the last 100", "only in column 199, the last one". Needs nearly all of them to fail,
/// and for a single column or row several elements.
std::string last_of(const Direction& axis, int64_t first) {
  const int64_t n = axis.extent() - first;
  int64_t hit = 0, compared = 0;
  for (int64_t i = first; i < axis.extent(); ++i) hit += axis.fails(i), compared += axis.compared(i);
  if (2 * n > axis.extent() || !axis.fails(axis.extent() - 1) || 10 * hit < 9 * compared) return "";
  if (n > 1) return fmt::format("only in {} {} to {}, the last {}", axis.name, first, axis.extent() - 1, n);
  if (axis.failed.back() < kPeriods) return "";
  return fmt::format("only in {} {}, the last one", axis.name.substr(0, axis.name.size() - 1), first);
}

/// "only in columns 1024 to 1030, behind the last whole tile of 128". Needs two failing columns, and half of the tail.
std::string tail(const Direction& axis) {
  int64_t first = 0, hit = 0, behind = 0;
  while (!axis.fails(first)) ++first;
  int64_t start = 0, width = 0;
  for (const int64_t tile : kTiles) {
    const int64_t last_tile = (axis.extent() - 1) / tile * tile;
    if (last_tile <= first && last_tile >= start && last_tile > 0) start = last_tile, width = tile;
  }
  if (start == 0) return last_of(axis, first);
  for (int64_t i = start; i < axis.extent(); ++i) hit += axis.fails(i), behind += axis.compared(i);
  if (hit < 2 || 2 * hit < behind) return last_of(axis, first);
  const char* what = axis.extent() % width == 0 ? "the last tile" : "behind the last whole tile";
  return fmt::format("only in {} {} to {}, {} of {}", axis.name, start, axis.extent() - 1, what, width);
}

/// "0", "32 to 63": the set residues as at most three ranges; "" if there are more.
std::string ranges_of(const std::vector<bool>& hit) {
  std::vector<std::string> ranges;
  for (size_t i = 0; i < hit.size(); ++i) {
    if (!hit[i]) continue;
    size_t end = i;
    while (end + 1 < hit.size() && hit[end + 1]) ++end;
    ranges.push_back(end == i ? fmt::format("{}", i) : fmt::format("{} to {}", i, end));
    i = end;
  }
  return ranges.size() > 3 ? "" : fmt::format("{}", fmt::join(ranges, ", "));
}

/// "only in columns that are 63 modulo 64". Needs three quarters of such columns to fail, in three tiles or more.
std::string periodic(const Direction& axis) {
  double best = 0;
  std::string found;
  for (const int64_t tile : kTiles) {
    std::vector<bool> hit(static_cast<size_t>(tile));
    int64_t failing = 0, eligible = 0;
    for (int64_t i = 0; i < axis.extent(); ++i) {
      if (axis.fails(i)) hit[static_cast<size_t>(i % tile)] = true, ++failing;
    }
    for (int64_t i = 0; i < axis.extent(); ++i) eligible += hit[static_cast<size_t>(i % tile)] && axis.compared(i);
    const int64_t residues = std::count(hit.begin(), hit.end(), true);
    if (2 * residues > tile || failing < kPeriods * residues || 4 * failing < 3 * eligible) continue;
    const double sharpness = static_cast<double>(tile) / static_cast<double>(residues);
    const std::string ranges = ranges_of(hit);
    if (sharpness <= best || ranges.empty()) continue;
    best = sharpness;
    found = fmt::format("only in {} that are {} modulo {}", axis.name, ranges, tile);
  }
  return found;
}

std::string masked(const Suspect& s) {
  for (const MaskOf& mask : s.masks) {
    if (!all(s.failures.sample, [&](const auto& e) { return mask.is_zero(e.row, e.column); })) continue;
    const auto rows = s.failures.by_row.size() -
                      static_cast<size_t>(std::count(s.failures.by_row.begin(), s.failures.by_row.end(), 0));
    if (rows < static_cast<size_t>(kPeriods)) continue;  // a quarter of the rows is masked, so fewer would be chance
    bool keeps = false;                                  // an all-zero mask says nothing
    for (int64_t i = 0; i < s.rows.count(s.view.rows) && !keeps; ++i) {
      for (int64_t c = 0; c < s.view.columns && !keeps; ++c) keeps = !mask.is_zero(s.rows.at(i), c);
    }
    if (keeps) return fmt::format("only where {} is 0", mask.name);
  }
  return "";
}

/// "only where q_heads is 3": all failing elements have one index of a dimension, and a good part of the elements with
/// it fail. Ignores the last dimension, and extents of one or two, where this happens by chance.
std::string one_index(const Suspect& s) {
  if (const auto [first, last] = range_of(s.failures.by_row); first == last) return "";
  int64_t stride = 1;
  for (const auto& [name, extent] : s.dims) stride *= extent;
  for (size_t d = 0; d + 1 < s.dims.size(); ++d) {
    const std::string_view name = s.dims[d].first;
    const int64_t extent = s.dims[d].second;
    stride /= extent;
    const auto index_of = [&](const FailingElement& e) {
      return (e.row * s.view.columns + e.column) / stride % extent;
    };
    const int64_t index = index_of(s.failures.sample.front());
    const int64_t with_index = s.view.rows * s.view.columns / extent;
    if (extent < kPeriods || s.failures.count < static_cast<int64_t>(kFew) || 10 * s.failures.count < with_index ||
        !all(s.failures.sample, [&](const auto& e) { return index_of(e) == index; }))
      continue;
    return fmt::format("only where {} is {} of 0 to {}", name, index, extent - 1);
  }
  return "";
}

}  // namespace

std::vector<int64_t> rows_to_compare(const FailureSummary& failures, int64_t total) {
  std::vector<int64_t> failing, rows;
  for (int64_t r = 0; r < std::ssize(failures.by_row); ++r) {
    if (failures.by_row[static_cast<size_t>(r)] > 0) failing.push_back(r);
  }
  if (failing.empty()) return {};
  for (const int64_t r : {failing.front(), failing[failing.size() / 2], failing.back()}) {
    for (const int64_t near : {r - 1, r, r + 1}) {
      if (near >= 0 && near < total) rows.push_back(near);
    }
  }
  rows.insert(rows.end(), {0, total - 1});
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

Pattern diagnose(const Suspect& s) {
  if (s.failures.sample.empty()) return {};
  std::vector<std::string> parts;
  bool complete = false;
  const bool one = s.failures.count == 1 && s.view.rows * s.view.columns > 1;
  for (const auto& pattern : {unwritten, not_a_number, flushed, largest_alone, zeros, constant, rows_swapped, other_row,
                              tiles_swapped, transposed, factor, truncated, small_factor, fewer_bits}) {
    if (!parts.empty()) break;
    Pattern found = pattern(s);
    if (found.text.empty()) continue;
    parts.push_back(std::move(found.text)), complete = found.complete;
  }
  if (one) {
    const FailingElement& e = s.failures.sample.front();
    parts.insert(parts.begin(), fmt::format("one element alone fails, in row {}, column {}", e.row, e.column));
    return {fmt::format("{}", fmt::join(parts, ": ")), complete};
  }
  const Direction columns{"columns", s.failures.by_column, [](int64_t) { return true; }};
  const Direction rows{"rows", s.failures.by_row, [&s](int64_t r) { return s.rows.has(r); }};
  for (const Direction* axis : {&columns, &rows}) {
    std::string found = tail(*axis);
    if (found.empty()) found = periodic(*axis);
    if (!found.empty()) parts.push_back(std::move(found));
  }
  if (std::string found = masked(s); !found.empty()) parts.push_back(std::move(found));
  if (std::string found = one_index(s); !found.empty()) parts.push_back(std::move(found));
  if (!parts.empty() && parts.front().starts_with("only")) parts.front().insert(0, "it fails ");
  return {fmt::format("{}", fmt::join(parts, ", ")), complete};
}

}  // namespace checkop
