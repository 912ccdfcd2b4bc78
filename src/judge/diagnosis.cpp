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

/// Only the poison itself says so: other NaNs with a payload, 0x7fffffff among them, are what GPUs compute.
std::string unwritten(const Suspect& s) {
  if (!info(s.dtype).is_float || !s.poisoned) return "";
  const uint64_t poison = poison_of(s.dtype).output[0];
  if (!all(s.failures.sample, [&](const auto& e) { return stored_bits(s, e) == poison; })) return "";
  return fmt::format(
      "the failing elements hold the bits that outputs are filled with before a launch, {:#x}: they were "
      "not written",
      poison);
}

std::string zeros(const Suspect& s) {
  if (!all(s.failures.sample, [](const auto& e) { return e.got == 0; })) return "";
  for (int64_t r = 0; r < s.view.rows; ++r) {
    const std::vector<double> row = stored_row(s, r);
    if (std::any_of(row.begin(), row.end(), [](double x) { return x != 0; })) return "the failing elements are zeros";
  }
  return "the whole output is zeros";
}

std::string constant(const Suspect& s) {
  const Sample& sample = s.failures.sample;
  const double value = sample.front().got;
  const auto same = [&](double x) { return std::abs(x - sample.front().gold) <= sample.front().bound; };
  if (sample.size() < kFew || most(sample, [&](const auto& e) { return same(e.gold); })) return "";
  if (!all(sample, [&](const auto& e) { return e.got == value; })) return "";
  return fmt::format("the failing elements all hold the same value, {:.6g}", value);
}

/// Whether stored row `row` holds the gold of row `other`.
bool is_gold_of(const Suspect& s, int64_t row, int64_t other) {
  const NearbyRow& gold = s.nearby.at(other);
  const std::vector<double> got = stored_row(s, row);
  size_t fits = 0;
  for (size_t i = 0; i < got.size(); ++i) fits += std::abs(got[i] - gold.value[i]) <= std::max(gold.allowed[i], 0.0);
  return static_cast<double>(fits) >= 0.99 * static_cast<double>(got.size());
}

std::string other_row(const Suspect& s) {
  for (const int64_t step : {-1, 1}) {
    int64_t looked_at = 0, last = -1;
    bool every = true;
    for (const auto& [row, gold] : s.nearby) {
      if (s.failures.by_row[static_cast<size_t>(row)] == 0 || !s.nearby.contains(row + step)) continue;
      every = every && is_gold_of(s, row, row + step);
      ++looked_at, last = row;
    }
    if (looked_at > 0 && every)
      return fmt::format("failing rows hold the gold of the row {}: row {} that of row {}",
                         step < 0 ? "before" : "after", last, last + step);
  }
  return "";
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

std::string factor(const Suspect& s) {
  constexpr std::pair<double, const char*> kKnown[] = {{2, "2 times"},
                                                       {0.5, "1/2 of"},
                                                       {-1, "-1 times"},
                                                       {1.4426950408889634, "log2(e) times"},
                                                       {0.6931471805599453, "ln(2) times"}};
  const Sample& sample = s.failures.sample;
  for (const auto& [value, name] : kKnown) {
    if (is_factor(sample, value)) return fmt::format("the failing elements are {} the gold", name);
  }
  if (sample.size() < kFew) return "";
  double product = 0, square = 0;
  for (const FailingElement& e : sample) product += e.got * e.gold, square += e.gold * e.gold;
  if (!is_factor(sample, product / square)) return "";
  return fmt::format("the failing elements are {:.5g} times the gold", product / square);
}

std::string truncated(const Suspect& s) {
  const Sample& sample = s.failures.sample;
  if (!info(s.dtype).is_float || sample.size() < kFew) return "";
  const bool fits = most(sample, [&](const FailingElement& e) {
    const double nearest = rounded_to(s.dtype, e.gold);
    const double step = std::abs(nearest) > std::abs(e.gold) ? 2 * half_ulp(s.dtype, e.gold) : 0;
    return e.got == nearest - std::copysign(step, e.gold) && step > 0;
  });
  return fits ? "the failing elements are rounded toward zero, not to nearest" : "";
}

std::string fewer_bits(const Suspect& s) {
  const Sample& sample = s.failures.sample;
  if (!info(s.dtype).is_float || sample.size() < kFew) return "";
  for (const DType narrow : {DType::bf16, DType::f16, DType::f32}) {
    if (info(narrow).precision >= info(s.dtype).precision) continue;
    const bool fits = all(sample, [&](const FailingElement& e) {
      return rounded_to(narrow, e.got) == e.got && rounded_to(narrow, e.gold) != e.gold &&
             std::abs(e.got - e.gold) <= 64 * half_ulp(narrow, e.gold);  // leaves room for a sum kept in `narrow`
    });
    if (fits) return fmt::format("the failing elements have no more bits than {}", info(narrow).name);
  }
  return "";
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

/// "only in columns 1024 to 1030, behind the last whole tile of 128". Needs two failing columns, and half of the tail.
std::string tail(const Direction& axis) {
  int64_t first = 0, hit = 0, behind = 0;
  while (!axis.fails(first)) ++first;
  int64_t start = 0, width = 0;
  for (const int64_t tile : kTiles) {
    const int64_t last_tile = (axis.extent() - 1) / tile * tile;
    if (last_tile <= first && last_tile >= start && last_tile > 0) start = last_tile, width = tile;
  }
  if (start == 0) return "";
  for (int64_t i = start; i < axis.extent(); ++i) hit += axis.fails(i), behind += axis.compared(i);
  if (hit < 2 || 2 * hit < behind) return "";
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
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

std::string diagnose(const Suspect& s) {
  if (s.failures.sample.empty()) return "";
  std::vector<std::string> parts;
  for (const auto& pattern : {unwritten, zeros, constant, other_row, factor, truncated, fewer_bits}) {
    if (!parts.empty()) break;
    if (std::string found = pattern(s); !found.empty()) parts.push_back(std::move(found));
  }
  const Direction columns{"columns", s.failures.by_column, [](int64_t) { return true; }};
  const Direction rows{"rows", s.failures.by_row, [&s](int64_t r) { return s.rows.has(r); }};
  for (const Direction* axis : {&columns, &rows}) {
    std::string found = tail(*axis);
    if (found.empty()) found = periodic(*axis);
    if (!found.empty()) parts.push_back(std::move(found));
  }
  if (std::string found = masked(s); !found.empty()) parts.push_back(std::move(found));
  if (!parts.empty() && parts.front().starts_with("only")) parts.front().insert(0, "it fails ");
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace checkop
