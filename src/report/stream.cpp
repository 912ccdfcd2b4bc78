// SPDX-License-Identifier: Apache-2.0
// Writes the report of a run under way by appending to a file.
#include "report/stream.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

namespace checkop {
namespace {

using nlohmann::json;

/// {"a":1} -> "a":1, without the braces, to insert into another object.
std::string members(const json& object) {
  const std::string text = dump_json(object);
  return text.substr(1, text.size() - 2);
}

}  // namespace

ReportStream::ReportStream(const std::string& path, const Report& report) : path_(path) {
  if (!is_replaceable(path)) {
    if (std::filesystem::is_directory(path)) fail_to_write(path, "cannot be opened", EISDIR);
    if (access(path.c_str(), W_OK) != 0) fail_to_write(path, "cannot be opened", errno);
    return;
  }
  DeviceInfo none;
  none.kind = none.name = "none";
  device_ = device_json(none);
  file_ = std::make_unique<GrowingFile>(path);
  file_->publish(fmt::format("{{{},\n\"candidates\":[", members(run_json(report))), tail(report));
}

void ReportStream::add(const Report& report, const CaseRecord& record) {
  if (!file_) return;
  const json as_json = case_json(record);
  const std::pair<std::string, std::string> candidate{record.candidate, record.c.op->name};
  std::string text;
  if (candidates_.empty() || candidate != candidate_) {
    if (!candidates_.empty()) text = end_of_candidate() + ",";
    text += fmt::format("\n{{{},\"cases\":[\n", members(candidate_json(record)));
    totals_ = {};
    candidate_ = candidate;
  } else {
    text = ",\n";
  }
  text += dump_json(as_json);
  totals_.add(as_json);
  if (!totals_.passed) failed_.insert(candidate);
  if (candidates_.empty() || (record.device.kind == "cuda" && device_["kind"] != "cuda"))
    device_ = device_json(record.device);
  candidates_.insert(candidate);
  file_->publish(text, tail(report));
}

std::string ReportStream::end_of_candidate() const { return fmt::format("\n],{}}}", members(totals_.json())); }

std::string ReportStream::tail(const Report& report) const {
  const auto n = std::ssize(candidates_);
  json end = totals_json(n, n - std::ssize(failed_));
  end.update(json{
      {"complete", false},
      {"passed", false},
      {"exit_code", exit_code_of(report)},
      {"device", device_},
      {"volatile",
       {{"started", report.started}, {"host", report.host}, {"wall_ms", report.wall_ms}, {"timings", json::array()}}}});
  return fmt::format("{}\n],\n{}}}\n", candidates_.empty() ? "" : end_of_candidate(), members(end));
}

void ReportStream::finish(const std::string& json) { write_file(path_, json); }

}  // namespace checkop
