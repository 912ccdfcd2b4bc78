// SPDX-License-Identifier: Apache-2.0
// Certificates: content, digest, comparison.
#include "report/certificate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.hpp"
#include "base/text.hpp"
#include "base/version.hpp"
#include "report/bit_checks.hpp"
#include "report/json.hpp"
#include "tensor/digest.hpp"

namespace checkop {
namespace {

using Json = nlohmann::json;  // an ordered map: keys come out sorted

constexpr const char* kFormat = "check_operator/certificate-1";

std::string digest_of(const Json& content) { return fnv1a_hex(dump_json(content)); }

/// Entries by the key that matches them.
std::map<std::string, const Json*> entries_of(const Json& content, bool by_candidate) {
  std::map<std::string, const Json*> entries;
  for (const Json& entry : content.at("entries")) {
    const auto text = [&](const char* key) { return entry.at(key).get<std::string>(); };
    entries[fmt::format("{}/{} {}{}{}", text("op"), text("pass"), text("case"), by_candidate ? " " : "",
                        by_candidate ? text("candidate") : "")] = &entry;
  }
  return entries;
}

/// Adds "device: multiprocessors: 132 and 114" for every member that differs.
void compare_members(const std::string& where, const Json& a, const Json& b, std::vector<std::string>& lines) {
  for (const auto& [key, value] : a.items()) {
    if (b.contains(key) && b.at(key) == value) continue;
    lines.push_back(fmt::format("{}: {}: {} and {}", where, key, dump_json(value),
                                b.contains(key) ? dump_json(b.at(key)) : "nothing"));
  }
}

/// "row_stride: 624 elements in 3 contexts, 3 of them unsupported"; "nothing" if the axis is absent.
std::string describe_axis(const Json& axes, const std::string& name) {
  for (const Json& axis : axes) {
    if (axis.at("axis") != name) continue;
    return fmt::format("{} elements in {} contexts, {} of them unsupported", axis.at("compared").get<int64_t>(),
                       axis.at("contexts").get<int64_t>(), axis.at("unsupported").get<int64_t>());
  }
  return "nothing";
}

/// Adds a line for each axis that was checked to a different extent; neither side is wrong.
void compare_bits(const std::string& name, const Json& a, const Json& b, std::vector<std::string>& lines) {
  std::set<std::string> told;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
    const Json &ours = a[i].at("axes"), &theirs = b[i].at("axes");
    for (const Json* axes : {&ours, &theirs}) {
      for (const Json& axis : *axes) {
        const std::string axis_name = axis.at("axis").get<std::string>();
        const std::string what = fmt::format("{}: {}: {}", name, a[i].at("name").get<std::string>(), axis_name);
        const std::string left = describe_axis(ours, axis_name), right = describe_axis(theirs, axis_name);
        if (left != right && told.insert(what).second)
          lines.push_back(fmt::format("{}: {}; and {}", what, left, right));
      }
    }
    if (a[i].at("sensitivity") != b[i].at("sensitivity")) {
      lines.push_back(fmt::format("{}: {}: sensitivity: {} and {}", name, a[i].at("name").get<std::string>(),
                                  dump_json(a[i].at("sensitivity")), dump_json(b[i].at("sensitivity"))));
    }
  }
}

void compare_entries(const std::string& name, const Json& a, const Json& b, Differences& found) {
  if (a.at("inputs") != b.at("inputs")) {
    found.bits.push_back(fmt::format("{}: the inputs are others", name));
    return;
  }
  const Json &ours = a.at("outputs"), &theirs = b.at("outputs");
  if (ours.size() != theirs.size()) {
    found.bits.push_back(fmt::format("{}: {} outputs and {}", name, ours.size(), theirs.size()));
    return;
  }
  for (size_t i = 0; i < ours.size(); ++i) {
    ++found.compared;
    if (ours[i].at("digest") == theirs[i].at("digest")) continue;
    found.bits.push_back(fmt::format("{}: output {} has other bits: digests {} and {}", name,
                                     ours[i].at("name").get<std::string>(), ours[i].at("digest").get<std::string>(),
                                     theirs[i].at("digest").get<std::string>()));
  }
  for (const char* key : {"candidate", "plugin", "variants", "rows_case"}) {
    if (a.at(key) == b.at(key)) continue;
    found.environment.push_back(
        fmt::format("{}: {}: {} and {}", name, key, dump_json(a.at(key)), dump_json(b.at(key))));
  }
  compare_bits(name, a.at("bits"), b.at("bits"), found.environment);
}

}  // namespace

Json certificate_entry(const CaseRecord& record, const std::vector<Tensor>& outputs, unsigned threads) {
  Json digests = Json::array();
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].name.empty()) continue;
    std::vector<Tensor> one;
    one.emplace_back(outputs[i].name, outputs[i].dtype, outputs[i].shape);
    std::copy_n(outputs[i].bytes.data(), outputs[i].bytes.size(), one[0].bytes.data());
    digests.push_back({{"name", outputs[i].name}, {"digest", tensor_digest(one, threads)}});
  }
  return {{"op", record.c.op->name},       {"pass", record.c.pass->name},
          {"case", case_name(record.c)},   {"flags", case_flags(record.c)},
          {"candidate", record.candidate}, {"plugin", record.plugin_digest},
          {"inputs", record.data_hash},    {"outputs", digests},
          {"variants", variants(record)},  {"rows_case", case_name(record.run.rows_case.value_or(record.c))},
          {"bits", bit_checks(record)}};
}

std::string seal(const Json& content) {
  return dump_json({{"format", kFormat}, {"content", content}, {"digest", digest_of(content)}}, 1) + "\n";
}

Json unseal(const std::string& text, const std::string& path) {
  const auto refuse = [&](const std::string& what) {
    throw InputError(path, what, "give a file that 'check_operator certify --out' wrote, as it was written");
  };
  const Json file = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!file.is_object() || file.value("format", Json()) != Json(kFormat)) refuse("is no certificate");
  if (!file.contains("content") || !file.contains("digest") || file.at("digest") != Json(digest_of(file.at("content"))))
    refuse("its digest is not that of its content: it was changed");
  const Json& content = file.at("content");
  if (seal(content) != text) refuse("it was changed: its bytes are not those of its content");
  try {
    content.at("device").at("kind").get<std::string>();
    compare_certificates(content, content, true);
    for (const Json& entry : content.at("entries")) entry.at("flags").get<std::string>();
  } catch (const Json::exception& e) {
    refuse(fmt::format("lacks what a certificate has: {}", e.what()));
  }
  return content;
}

Differences compare_certificates(const Json& a, const Json& b, bool by_candidate) {
  Differences found;
  compare_members("device", a.at("device"), b.at("device"), found.environment);
  compare_members("version", {{"version", a.at("version")}}, {{"version", b.at("version")}}, found.environment);
  const auto ours = entries_of(a, by_candidate), theirs = entries_of(b, by_candidate);
  for (const auto& [name, entry] : ours) {
    const auto other = theirs.find(name);
    if (other == theirs.end()) {
      found.bits.push_back(fmt::format("{}: only in the first", name));
    } else {
      compare_entries(name, *entry, *other->second, found);
    }
  }
  for (const auto& [name, entry] : theirs) {
    if (!ours.contains(name)) found.bits.push_back(fmt::format("{}: only in the second", name));
  }
  return found;
}

}  // namespace checkop
