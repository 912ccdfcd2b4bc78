// SPDX-License-Identifier: Apache-2.0
// One proof for every pass and dtype of a run.
#include "commands/proofs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include "parallel.hpp"
#include "shards.hpp"

namespace checkop {
namespace {

std::string key_of(const Case& c) { return fmt::format("{}/{}/{}", c.op->name, c.pass->name, case_name(c)); }

}  // namespace

Proofs::Proofs(const std::vector<Check>& checks, const GivenInputs& given, unsigned threads) {
  // Other numbers of ranks are launched for some cases only: those have a proof of their own.
  std::map<std::tuple<const Operator*, const Pass*, DType, bool>, std::vector<const Case*>> groups;
  std::set<std::string> known, here;
  for (const Check& check : checks) {
    if (check.here) here.insert(key_of(check.c));
  }
  bool on_gpu = true;  // all of them: the same case is a proof for every candidate
  for (const Check& check : checks) {
    const Case& c = check.c;
    on_gpu &= check.candidate.device != "cpu";
    if (!check.candidate.has_kernel || !known.insert(key_of(c)).second) continue;
    if (given.origins(c).empty()) {
      groups[{c.op, c.pass, c.dtype, compares_ranks(c)}].push_back(&c);
    } else if (here.contains(key_of(c))) {
      entries_[key_of(c)] = {c, sensitivity_of(c, given.make(c, threads), threads, kThoroughWork)};
    }
  }
  const auto is_here = [&](const Case* c) { return here.contains(key_of(*c)); };
  std::vector<const std::vector<const Case*>*> wanted;
  for (const auto& [key, cases] : groups) {
    if (std::any_of(cases.begin(), cases.end(), is_here)) wanted.push_back(&cases);
  }
  // Some at a time, since parts of each keep one thread busy.
  const unsigned of_each = std::min(threads, 2u), at_once = std::max(1u, threads / of_each);
  std::vector<Proof> proofs(wanted.size());
  parallel_for(at_once, std::ssize(wanted), [&](int64_t i) {
    proofs[static_cast<size_t>(i)] = find_proof(*wanted[static_cast<size_t>(i)], of_each, on_gpu);
  });
  std::vector<std::pair<const Case*, Entry*>> others;
  for (size_t g = 0; g < wanted.size(); ++g) {
    for (size_t i = 0; i < wanted[g]->size(); ++i) {
      const Case* const c = (*wanted[g])[i];
      if (!is_here(c)) continue;
      Entry& entry = entries_[key_of(*c)];
      if (i == proofs[g].index) {
        entry = {proofs[g].c, std::move(proofs[g].sensitivity)};
      } else {
        others.emplace_back(c, &entry);
      }
    }
  }
  parallel_for(at_once, std::ssize(others), [&](int64_t i) {
    const auto& [c, entry] = others[static_cast<size_t>(i)];
    *entry = {*c, own_sensitivity_of(*c, of_each)};
  });
}

const Proofs::Entry* Proofs::find(const Case& c) const {
  const auto found = entries_.find(key_of(c));
  return found == entries_.end() ? nullptr : &found->second;
}

void count_compared(const Case& c, const std::vector<Context>& contexts, const RunResult& run,
                    std::vector<Sensitivity>& sensitivity) {
  std::map<Axis, std::set<int64_t>> rows;
  for (size_t k = 0; k < contexts.size() && k < run.contexts.size(); ++k) {
    if (!is_of_rows(contexts[k].axis) || contexts[k].piece_rows > 0 || !run.contexts[k].supported) continue;
    for (const int64_t row : contexts[k].rows) {
      if (row > 0) rows[contexts[k].axis].insert(row);
    }
  }
  int64_t fewest = rows.empty() ? 0 : std::numeric_limits<int64_t>::max();
  for (const auto& [axis, of_axis] : rows) fewest = std::min<int64_t>(fewest, std::ssize(of_axis));
  for (size_t i = 0; i < sensitivity.size(); ++i) {
    const TensorSpec& spec = c.pass->outputs[i].tensor;
    if (sensitivity[i].state == Sensitivity::State::not_applicable) continue;
    sensitivity[i].compared = fewest * matrix_view(*c.op, spec, shape_of(c, spec)).columns;
  }
}

}  // namespace checkop
