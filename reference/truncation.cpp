// SPDX-License-Identifier: Apache-2.0
// Which logits of a row stay after top_k and top_p, and data that show faults in it.
#include "truncation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "softmax.hpp"

namespace checkop {
namespace {

/// Margin of generated data: sums and logits that decide which columns stay differ by this many of their errors.
constexpr double kMarginOfData = 8;
/// Growth of the sum of a set and of the sum of all, each a chain of 1024 additions with lambda 6, in units of u.
constexpr double kGrowth = 2 * 192;

double unit_of(DType dtype) { return dtype == DType::f64 ? 0x1p-53 : 0x1p-24; }

}  // namespace

std::vector<char> Kept::columns(size_t vocab) const {
  std::vector<char> stays(vocab);
  for (int64_t i = 0; i < count; ++i) stays[static_cast<size_t>(order[static_cast<size_t>(i)])] = 1;
  return stays;
}

Kept Truncation::keep(const std::vector<double>& x, std::span<const TransformedLogit> logits, double unit,
                      double margin) const {
  struct Entry {
    double logit;
    int64_t column;
  };
  const auto is_before = [](const Entry& a, const Entry& b) {
    if (a.logit > b.logit) return true;
    if (a.logit < b.logit) return false;
    if (std::isnan(a.logit) != std::isnan(b.logit)) return std::isnan(b.logit);
    return a.column < b.column;
  };
  const auto vocab = std::ssize(x);
  Kept kept;
  kept.count = top_k_ > 0 ? std::min(top_k_, vocab) : vocab;
  const int64_t sorted = std::min(vocab, kept.count + 2);
  std::vector<Entry> entries(x.size());
  for (int64_t i = 0; i < vocab; ++i) entries[static_cast<size_t>(i)] = {x[static_cast<size_t>(i)], i};
  // No two entries are equal, so that the order is the same as after sorting all.
  if (sorted < vocab) std::nth_element(entries.begin(), entries.begin() + sorted, entries.end(), is_before);
  std::sort(entries.begin(), entries.begin() + sorted, is_before);
  for (int64_t i = 0; i < sorted; ++i) kept.order.push_back(entries[static_cast<size_t>(i)].column);
  const auto column = [&](int64_t i) { return static_cast<size_t>(kept.order[static_cast<size_t>(i)]); };
  if (kept.count < vocab && x[column(kept.count - 1)] != x[column(kept.count)]) {
    const GoldElement &last = logits[column(kept.count - 1)].z, &next = logits[column(kept.count)].z;
    const double error = unit * (last.rounding + next.rounding);
    if (next.value > -INFINITY && !(last.value - next.value > margin * error)) kept.unclear = column(kept.count);
  }
  const double max = logits[column(0)].z.value;
  if (top_p_ >= 1 || !std::isfinite(max)) return kept;
  SoftmaxRow row;
  std::vector<TransformedLogit> those;
  for (int64_t i = 0; i < kept.count; ++i) those.push_back(logits[column(i)]);
  add_logits(row, those);
  const double error =
      unit * (kGrowth + 2 * (kExpUnits + kArgumentUnits * row.mean_spread() + row.mean_rounding()) + 4);
  double sum = 0;
  const auto is_close = [&] { return !(std::abs(sum / row.sum - top_p_) > margin * error); };
  for (int64_t i = 0; i < kept.count; ++i) {
    sum += std::exp(logits[column(i)].z.value - max);
    if (is_close()) kept.unclear = column(i), kept.is_unclear_of_top_p = true;
    if (sum / row.sum >= top_p_) kept.count = i + 1;
  }
  return kept;
}

std::vector<char> Truncation::columns(const std::vector<double>& x, std::span<const TransformedLogit> logits,
                                      double unit, int64_t row, int64_t target) const {
  const Kept kept = keep(x, logits, unit, 1);
  if (kept.unclear) {
    throw InputError("input 'logits'",
                     fmt::format("row {}: rounding in fp32 decides whether column {} stays", row, *kept.unclear),
                     "give another top_k or top_p, or data whose choice does not depend on rounding");
  }
  std::vector<char> stays = kept.columns(x.size());
  if (keep_target_) stays[static_cast<size_t>(target)] = 1;
  return stays;
}

void validate_truncation(const CaseSizes& sizes, size_t top_k, size_t top_p, size_t keep_target) {
  const auto& at = sizes.attrs;
  if (!(at[top_k] >= 0 && at[top_k] <= 0x1p53 && at[top_k] == std::floor(at[top_k])))
    throw InputError("--top-k", fmt::format("expected an integer >= 0, got {}", at[top_k]), "0 keeps all logits");
  if (!(at[top_p] > 0 && at[top_p] <= 1))
    throw InputError("--top-p", fmt::format("expected a number above 0, at most 1, got {}", at[top_p]),
                     "1 keeps all logits");
  if (at[keep_target] != 0 && at[keep_target] != 1)
    throw InputError("--keep-target", fmt::format("expected 0 or 1, got {}", at[keep_target]),
                     "see check_operator show logp");
}

void plant_truncation(const FillArgs& args, const LogitTransform& transform, const Truncation& truncation) {
  if (!truncation.is_active()) return;
  constexpr int kMost = 50;
  Tensor &logits = *args.find("logits"), &ids = *args.find("token_ids");
  const int64_t vocab = logits.shape.back();
  const auto ignored = static_cast<int64_t>(args.attrs[0]);
  const double unit = unit_of(logits.dtype);
  GoldArgs parallel;
  parallel.threads = args.threads;
  parallel.parallel_for(ids.count(), [&](int64_t row) {
    if (static_cast<int64_t>(ids.at(row)) == ignored) return;
    std::vector<double> x(static_cast<size_t>(vocab));
    decode_row(logits, row, x);
    std::vector<TransformedLogit> z;
    for (const double logit : x) z.push_back(transform(logit));
    const auto put = [&](int64_t column, double value) {
      logits.set(row * vocab + column, value);
      const auto at = static_cast<size_t>(column);
      x[at] = logits.at(row * vocab + column), z[at] = transform(x[at]);
    };
    const auto kept_now = [&] { return truncation.keep(x, z, unit, kMarginOfData); };
    Kept kept = kept_now();
    const bool plants = args.mode == InputMode::random;
    if (plants && row % 4 == 2) {  // equal logits at the end of the set, and after it
      const double last = x[static_cast<size_t>(kept.order[static_cast<size_t>(kept.count - 1)])];
      for (int64_t i = kept.count; i < std::min(std::ssize(kept.order), kept.count + 2); ++i)
        put(kept.order[static_cast<size_t>(i)], last);
      kept = kept_now();
    }
    for (int attempt = 0; attempt < kMost && kept.unclear; ++attempt) {
      if (kept.is_unclear_of_top_p) {
        put(kept.order[0], x[static_cast<size_t>(kept.order[0])] + 0.25 * (attempt + 1));
      } else {
        put(*kept.unclear, x[static_cast<size_t>(*kept.unclear)] - 1);
      }
      kept = kept_now();
    }
    if (!plants) return;
    const auto draw =
        static_cast<int64_t>(args.uniform("truncation", static_cast<uint64_t>(row)) * static_cast<double>(kept.count));
    const bool has_next = kept.count < std::ssize(kept.order);
    const int64_t place = row % 4 == 3               ? std::min(draw, kept.count - 1)
                          : row % 4 == 1 && has_next ? kept.count
                                                     : kept.count - 1;
    ids.set(row, static_cast<double>(kept.order[static_cast<size_t>(place)]));
  });
}

}  // namespace checkop
