// SPDX-License-Identifier: Apache-2.0
// Bench records as JSON lines and as text.
#include "report/bench_record.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

namespace checkop {
namespace {

using nlohmann::json;

/// Drops meaningless digits, because people read records too.
double rounded(double value, int digits) {
  if (value == 0 || !std::isfinite(value)) return value;
  const double scale = std::pow(10.0, digits - 1 - std::floor(std::log10(std::abs(value))));
  return std::round(value * scale) / scale;
}
constexpr int kDigits = 5;

std::string mib(double bytes) { return fmt::format("{:.4g} MiB", bytes / 1048576.0); }

std::string title(const BenchRecord& record) {
  std::string text = fmt::format("{}/{}  {} ", record.c.op->name, record.pass(), info(record.c.dtype).name);
  for (const std::string_view dim : dims_of(record.c)) {
    text += fmt::format(" {}={}", dim, record.c.dims.find(dim)->second);
  }
  for (const auto& [attr, value] : chosen_attrs(record.c)) text += fmt::format(" {}={}", attr, value);
  return text;
}

void print_row(std::FILE* out, const BenchRecord& r) {
  const bool products = r.cost.flops > 0;
  fmt::print(out, "             {:<16} {:<9} {:>10.5g} {:>10.5g} {:>10.5g} {:>8.5g} {:>7.2f} {:>8} {:>9} {:>9.5g}",
             r.candidate, r.timing, r.ms.median, r.ms.p20, r.ms.p80, r.gbps(), r.gbps() / r.copy_gbps,
             products ? fmt::format("{:.4g}", r.tflops()) : "-",
             products && r.cublas_tflops ? fmt::format("{:.2f}", r.tflops() / *r.cublas_tflops) : "-",
             r.peak_bytes / 1048576.0);
  if (!r.baseline.empty()) fmt::print(out, "  {:.3g}x {}", r.ratio, r.baseline);
  fmt::print(out, "\n");
}

}  // namespace

std::vector<BenchRecord> training_steps(const std::vector<BenchRecord>& records) {
  const auto find = [&](const BenchRecord& like, std::string_view pass, const std::string& candidate) {
    const auto is_it = [&](const BenchRecord& r) {
      return r.status == RunStatus::ok && r.c.pass->name == pass && r.c.op == like.c.op && r.c.dims == like.c.dims &&
             case_name(r.c) == case_name(like.c) && r.candidate == candidate && r.timing == like.timing;
    };
    const auto found = std::find_if(records.begin(), records.end(), is_it);
    return found == records.end() ? nullptr : &*found;
  };
  const auto sum = [](const BenchRecord& a, const BenchRecord& b) {
    return Summary{a.ms.median + b.ms.median, a.ms.p20 + b.ms.p20, a.ms.p80 + b.ms.p80};
  };
  std::vector<BenchRecord> steps;
  for (const BenchRecord& forward : records) {
    if (forward.status != RunStatus::ok || forward.c.pass->name != "forward") continue;
    const BenchRecord* backward = find(forward, "backward", forward.candidate);
    if (backward == nullptr) continue;
    BenchRecord& step = steps.emplace_back(forward);
    step.is_step = true;
    step.ms = sum(forward, *backward);
    step.repeats = std::min(forward.repeats, backward->repeats);
    step.overruled = std::max(forward.overruled, backward->overruled);
    step.cost = {forward.cost.flops + backward->cost.flops, forward.cost.bytes + backward->cost.bytes};
    step.peak_bytes = std::max(forward.peak_bytes, backward->peak_bytes);
    step.ranks.clear();  // the slowest rank of one pass may be another one than that of the other pass
    step.baseline.clear();
    if (forward.baseline.empty() || backward->baseline.empty()) continue;
    const BenchRecord* baseline_forward = find(forward, "forward", forward.baseline);
    const BenchRecord* baseline_backward = find(forward, "backward", forward.baseline);
    if (baseline_forward == nullptr || baseline_backward == nullptr) continue;
    const Summary baseline = sum(*baseline_forward, *baseline_backward);
    step.baseline = forward.baseline;
    step.ratio = baseline.median / step.ms.median;
    step.distinct = is_distinct(step.ms, baseline);
  }
  return steps;
}

std::string to_json_line(const BenchRecord& r) {
  json dims = json::object();
  for (const std::string_view dim : dims_of(r.c)) dims[std::string(dim)] = r.c.dims.find(dim)->second;
  json line{{"op", r.c.op->name},
            {"pass", r.pass()},
            {"candidate", r.candidate},
            {"status", to_string(r.status)},
            {"case", case_name(r.c)},
            {"dtype", info(r.c.dtype).name},
            {"dims", dims},
            {"run", r.run},
            {"device", r.device},
            {"kernels_digest", r.is_peer ? json() : json(r.kernels_digest)},
            {"date", r.date}};
  if (r.is_peer) line["is_peer"] = true;
  if (r.status != RunStatus::ok) {
    line["message"] = r.message;
    return line.dump(-1, ' ', false, json::error_handler_t::replace);
  }
  line["timing"] = r.timing;
  line["ms_median"] = rounded(r.ms.median, kDigits);
  line["ms_p20"] = rounded(r.ms.p20, kDigits);
  line["ms_p80"] = rounded(r.ms.p80, kDigits);
  line["repeats"] = r.repeats;
  if (r.overruled > 0) line["overruled"] = r.overruled;
  line["bytes"] = r.cost.bytes;
  line["gbps"] = rounded(r.gbps(), kDigits);
  line["copy_gbps"] = rounded(r.copy_gbps, kDigits);
  line["of_copy"] = rounded(r.gbps() / r.copy_gbps, kDigits);
  line["peak_mib"] = rounded(r.peak_bytes / 1048576.0, kDigits);
  const bool products = r.cost.flops > 0, compared = !r.baseline.empty();
  const auto set = [&](const char* key, bool known, const auto& value) { line[key] = known ? json(value) : json(); };
  set("flops", products, r.cost.flops);
  set("tflops", products, rounded(r.tflops(), kDigits));
  set("cublas_tflops", r.cublas_tflops.has_value(), rounded(r.cublas_tflops.value_or(0), kDigits));
  set("of_cublas", products && r.cublas_tflops, rounded(r.tflops() / r.cublas_tflops.value_or(1), kDigits));
  set("ratio_to", compared, r.baseline);
  set("ratio", compared, rounded(r.ratio, kDigits));
  set("distinct", compared, r.distinct);
  for (const BenchRecord::Rank& rank : r.ranks) {
    line["ranks"].push_back({{"device", rank.device},
                             {"ms_median", rounded(rank.ms_median, kDigits)},
                             {"workspace_mib", rounded(rank.workspace_bytes / 1048576.0, kDigits)}});
  }
  return line.dump();
}

void print_bench(std::FILE* out, const std::vector<BenchRecord>& records) {
  const BenchRecord& first = records.front();
  const auto timed =
      std::find_if(records.begin(), records.end(), [](const BenchRecord& r) { return r.status == RunStatus::ok; });
  fmt::print(out, "[  BENCH   ] {}", title(first));
  if (timed != records.end()) fmt::print(out, "  {}; copy {:.5g} GB/s", mib(timed->cost.bytes), timed->copy_gbps);
  fmt::print(out, "\n");
  if (timed != records.end()) {
    fmt::print(out, "             {:<16} {:<9} {:>10} {:>10} {:>10} {:>8} {:>7} {:>8} {:>9} {:>9}\n", "candidate",
               "timing", "median ms", "p20", "p80", "GB/s", "of copy", "TFLOP/s", "of cublas", "peak MiB");
  }
  for (const BenchRecord& record : records) {
    if (record.status == RunStatus::ok) {
      print_row(out, record);
    } else {
      fmt::print(out, "             {:<16} {}: {}\n", record.candidate, to_string(record.status), record.message);
    }
  }
  std::set<std::string> peers;
  for (const BenchRecord& record : records)
    if (record.is_peer) peers.insert(record.candidate);
  if (!peers.empty())
    fmt::print(out, "             timed by --peer, whose results nobody judges: {}\n", fmt::join(peers, ", "));
  for (const BenchRecord& record : records) {
    if (record.status != RunStatus::ok || record.overruled == 0) continue;
    fmt::print(out,
               "             {}: {} of {} times of {} are the judge's: its clock excludes what events in the "
               "candidate's process say\n",
               record.timing, record.overruled, record.repeats, record.candidate);
  }
  for (size_t i = 0; i < records.size(); ++i) {
    for (size_t j = i + 1; j < records.size(); ++j) {
      const BenchRecord &a = records[i], &b = records[j];
      if (a.status != RunStatus::ok || b.status != RunStatus::ok || a.timing != b.timing) continue;
      if (is_distinct(a.ms, b.ms)) continue;
      fmt::print(out, "             {}: {} and {} differ by less than the spread from p20 to p80: neither is faster\n",
                 a.timing, a.candidate, b.candidate);
    }
  }
  std::fflush(out);
}

void print_distribution(std::FILE* out, const std::vector<BenchRecord>& records) {
  constexpr size_t kWorst = 10;
  struct Sample {
    double value;
    const BenchRecord* record;
  };
  std::map<std::string, std::vector<Sample>> samples;
  const bool compared = std::any_of(records.begin(), records.end(), [](const auto& r) { return !r.baseline.empty(); });
  std::string what = "of copy";
  for (const BenchRecord& r : records) {
    if (r.status != RunStatus::ok || (compared && r.baseline.empty())) continue;
    if (compared) what = fmt::format("times as fast as {}", r.baseline);
    const std::string key = fmt::format("{}/{} {} {}", r.c.op->name, r.pass(), r.candidate, r.timing);
    samples[key].push_back({compared ? r.ratio : r.gbps() / r.copy_gbps, &r});
  }
  for (auto& [key, of_key] : samples) {
    std::stable_sort(of_key.begin(), of_key.end(), [](const auto& a, const auto& b) { return a.value < b.value; });
    double logs = 0;
    std::vector<double> values;
    for (const Sample& sample : of_key) {
      logs += std::log(sample.value);
      values.push_back(sample.value);
    }
    fmt::print(out, "[  RATES   ] {}  {} cases: geometric mean {:.3g}, 5 % quantile {:.3g} {}; the worst:\n", key,
               of_key.size(), std::exp(logs / static_cast<double>(of_key.size())), quantile(values, 0.05), what);
    for (size_t i = 0; i < std::min(kWorst, of_key.size()); ++i)
      fmt::print(out, "             {:.3g}  {}\n", of_key[i].value, case_name(of_key[i].record->c));
  }
  std::fflush(out);
}

}  // namespace checkop
