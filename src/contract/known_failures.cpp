// SPDX-License-Identifier: Apache-2.0
// Reads the failures that a contract expects.
#include "contract/reader.hpp"

namespace checkop {
namespace {

KnownEntry read_entry(const JsonValue& json) {
  json.allow_keys({"match", "expect", "kinds", "reason", "owner", "issue", "expires"});
  KnownEntry entry;
  KnownFailure& failure = entry.failure;
  failure.path = json.path();
  const JsonValue match = json.at("match");
  match.allow_keys({"op", "pass", "dtype", "arch", "candidate", "case"});
  if (const auto key = match.find("op")) entry.match.op = key->one_of("operator", operator_names());
  if (const auto key = match.find("pass")) entry.match.pass = key->one_of("pass", {"forward", "backward"});
  if (const auto key = match.find("dtype")) read_dtypes(*key, entry.match);
  if (const auto key = match.find("case")) entry.cases = key->sentence();
  read_subject(match, entry.match);
  if (entry.match.op.empty() && entry.match.candidate.empty())
    match.fail("an operator or a candidate", R"(add "op" or "candidate"; not every check is expected to fail)");
  json.at("expect").one_of("expectation", {"fail"});
  if (const auto kinds = json.find("kinds")) {
    for (const JsonValue& kind : kinds->items()) failure.kinds.push_back(kind.one_of("kind", known_kinds()));
    if (failure.kinds.empty()) kinds->fail("a kind of failure", "remove the key to expect any of them");
  } else {
    failure.kinds = known_kinds();
  }
  entry.grant = read_grant(json);
  failure.reason = entry.grant.reason;
  failure.owner = entry.grant.owner;
  failure.expires = entry.grant.expires ? to_string(*entry.grant.expires) : "never";
  if (const auto issue = json.find("issue")) failure.issue = issue->sentence();
  return entry;
}

}  // namespace

std::vector<KnownEntry> read_known(const JsonValue& list) {
  std::vector<KnownEntry> all;
  for (const JsonValue& item : list.items()) all.push_back(read_entry(item));
  return all;
}

}  // namespace checkop
