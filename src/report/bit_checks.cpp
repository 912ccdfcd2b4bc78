// SPDX-License-Identifier: Apache-2.0
// The part of the JSON report on bit comparisons.
#include "report/bit_checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

namespace checkop {
namespace {

using Json = nlohmann::json;

/// The first differing index and its bits are included only if bits differ.
Json bits(const BitDifference& difference) {
  Json json = {{"compared", difference.compared}, {"different", difference.different}};
  if (difference.different == 0) return json;
  json["first_index"] = difference.first_index;
  json["bits"] = {fmt::format("{:#x}", difference.a_bits), fmt::format("{:#x}", difference.b_bits)};
  return json;
}

/// The effect of each axis on output `index`. Lists the contexts that changed bits, at most three per axis.
Json axes(const CaseRecord& record, size_t index) {
  constexpr size_t kMostTold = 3;
  const TensorSpec& spec = record.c.pass->outputs[index].tensor;
  Json list = Json::array();
  for (const Axis axis : all_axes()) {
    int64_t contexts = 0, unsupported = 0, compared = 0, different = 0, row_zero = 0;
    Json broken = Json::array();
    std::string why;
    for (size_t k = 0; k < record.run.contexts.size(); ++k) {
      const ContextRun& context = record.run.contexts[k];
      const ContextBits& found = record.run.outputs[index].contexts[k];
      if (context.axis != axis || (context.supported && found.bits.compared + found.row_zero_different == 0)) continue;
      ++contexts;
      unsupported += context.supported ? 0 : 1;
      if (why.empty()) why = context.message;
      compared += found.bits.compared, different += found.bits.different, row_zero += found.row_zero_different;
      if (found.bits.different == 0 || broken.size() == kMostTold) continue;
      Json entry = bits(found.bits);
      entry["what"] = context.what;
      const Case& place = is_of_invariance(axis) && record.run.rows_case ? *record.run.rows_case : record.c;
      entry["coordinates"] = unravel(shape_of(place, spec), found.bits.first_index);
      const auto ulps = ulp_distance(dtype_of(record.c, spec), found.bits.a_bits, found.bits.b_bits);
      entry["ulp"] = ulps ? Json(*ulps) : Json(nullptr);
      broken.push_back(entry);
    }
    if (contexts == 0) continue;
    list.push_back({{"axis", to_string(axis)},
                    {"contexts", contexts},
                    {"unsupported", unsupported},
                    {"why_unsupported", why},
                    {"compared", compared},
                    {"different", different},
                    {"row_0_different", row_zero},
                    {"broken", broken}});
  }
  return list;
}

std::string_view to_string(Sensitivity::State state) {
  switch (state) {
    case Sensitivity::State::measured:
      return "measured";
    case Sensitivity::State::not_applicable:
      return "not applicable";
    case Sensitivity::State::not_measured:
      return "not measured";
  }
  return "?";
}

Json sensitivity(const Sensitivity& found) {
  const bool measured = found.state == Sensitivity::State::measured;
  return {{"state", to_string(found.state)},
          {"why", found.why},
          {"emulated", found.elements},
          {"changed", found.changed},
          {"compared", found.compared},
          {"share", measured ? Json(found.share()) : Json(nullptr)},
          {"unseen", measured ? Json(found.unseen()) : Json(nullptr)},
          {"proves", found.proves()}};
}

/// Row counts whose rows had the bits of the full batch in every launch ("same"), and the others ("different").
Json rows(const CaseRecord& record, size_t index) {
  std::vector<int64_t> same, different;
  for (size_t k = 0; k < record.run.contexts.size(); ++k) {
    const ContextRun& context = record.run.contexts[k];
    const ContextBits& found = record.run.outputs[index].contexts[k];
    if (context.axis != Axis::batch || found.bits.compared == 0) continue;
    (found.bits.different > 0 ? different : same).push_back(context.rows);
  }
  std::erase_if(same, [&](int64_t n) { return std::find(different.begin(), different.end(), n) != different.end(); });
  return {{"same", intervals(std::move(same))}, {"different", intervals(std::move(different))}};
}

}  // namespace

std::string intervals(std::vector<int64_t> numbers) {
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    if (!text.empty()) text += ", ";
    text += end - i == 1 ? fmt::format("{}", numbers[i]) : fmt::format("{}-{}", numbers[i], numbers[end - 1]);
    i = end;
  }
  return text;
}

Json variants(const CaseRecord& record) {
  std::map<std::string, std::vector<int64_t>> by_message;
  if (record.run.status == RunStatus::ok) by_message[record.run.message].push_back(row_count(record.c));
  for (const ContextRun& context : record.run.contexts) {
    if (context.supported) by_message[context.message].push_back(context.rows);
  }
  Json list = Json::array();
  for (const auto& [message, numbers] : by_message) {
    list.push_back({{"variant", message}, {"rows", intervals(numbers)}});
  }
  return list;
}

Json bit_checks(const CaseRecord& record) {
  Json list = Json::array();
  for (size_t i = 0; i < record.run.outputs.size(); ++i) {
    const TensorSpec& spec = record.c.pass->outputs[i].tensor;
    if (!is_present(record.c, spec)) continue;
    const OutputRun& run = record.run.outputs[i];
    list.push_back({{"name", spec.name},
                    {"repeat", bits(run.repeat)},
                    {"axes", axes(record, i)},
                    {"rows", rows(record, i)},
                    {"sensitivity", i < record.sensitivity.size() ? sensitivity(record.sensitivity[i]) : Json(nullptr)},
                    {"smallest_rows", run.smallest_rows}});
  }
  return list;
}

}  // namespace checkop
