// SPDX-License-Identifier: Apache-2.0
// What a run saw of invariance and determinism, as a file that others can compare with: digests in place of tensors.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "report/report.hpp"

namespace checkop {

/// One candidate on one case. `outputs` are what it wrote first.
nlohmann::json certificate_entry(const CaseRecord& record, const std::vector<Tensor>& outputs, unsigned threads);

/// The file: canonical JSON, keys sorted, nothing that changes from run to run, with a digest over `content`.
std::string seal(const nlohmann::json& content);

/// The content of such a file. Throws InputError for a file that is no certificate, of which a byte was changed, or
/// that lacks what comparison needs.
nlohmann::json unseal(const std::string& text, const std::string& path);

struct Differences {
  std::vector<std::string> bits;         ///< what must not differ: inputs, outputs, cases that one of them lacks
  std::vector<std::string> environment;  ///< what may: device, driver, plugins, contexts
  int64_t compared = 0;                  ///< outputs
};
/// Entries are matched by pass, case and, with `by_candidate`, by candidate.
Differences compare_certificates(const nlohmann::json& a, const nlohmann::json& b, bool by_candidate);

}  // namespace checkop
