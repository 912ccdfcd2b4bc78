// SPDX-License-Identifier: Apache-2.0
// A run's results on invariance and determinism as a file to compare with others: digests in place of tensors.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "report/report.hpp"

namespace checkop {

/// The entry of one candidate on one case. `outputs` are those of its first launch.
nlohmann::json certificate_entry(const CaseRecord& record, const std::vector<Tensor>& outputs, unsigned threads);

/// The file: canonical JSON with sorted keys and a digest over `content`, without anything that changes between runs.
std::string seal(const nlohmann::json& content);

/// The content of a certificate file. Throws InputError if the file is no certificate, was changed, or lacks a member
/// that the comparison needs.
nlohmann::json unseal(const std::string& text, const std::string& path);

struct Differences {
  std::vector<std::string> bits;         ///< must be equal: inputs, outputs, and the set of cases
  std::vector<std::string> environment;  ///< may differ: device, driver, plugins, contexts
  int64_t compared = 0;                  ///< outputs compared
};
/// Matches entries by pass and case, and by candidate if `by_candidate`.
Differences compare_certificates(const nlohmann::json& a, const nlohmann::json& b, bool by_candidate);

}  // namespace checkop
