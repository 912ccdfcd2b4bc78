// SPDX-License-Identifier: Apache-2.0
// The mutants as candidates: one per row of the table and pass where it applies.
#include <list>

#include "faults.hpp"

namespace checkop::test {
namespace {

constexpr size_t kRoom = 1024;  // mutants times passes

struct Entry {
  const Mutant* mutant;
  const Operator* op;
  const Pass* pass;
};

const std::vector<Entry>& entries() {
  static const std::vector<Entry> all = [] {
    std::vector<Entry> list;
    for (const Mutant& mutant : kMutants)
      for (const Operator* op : operators())
        for (const Pass& pass : op->passes)
          if (applies(mutant, *op, pass)) list.push_back({&mutant, op, &pass});
    return list;
  }();
  return all;
}

checkop_status launch(size_t number, const checkop_call* call) {
  const Entry& entry = entries()[number];
  return answer(*call, [&] { answer_with_fault(entry.mutant->fault, *entry.op, *entry.pass, *call); });
}

std::vector<checkop_kernel> make_kernels() {
  static constexpr auto kLaunches = numbered_launches<kRoom, launch>();
  static std::list<std::string> names;  // the ABI keeps pointers into it
  std::vector<checkop_kernel> kernels;
  for (size_t i = 0; i < entries().size(); ++i) {
    names.push_back(candidate_name(*entries()[i].mutant));
    kernels.push_back({sizeof(checkop_kernel), names.back().c_str(), entries()[i].op->name.data(),
                       entries()[i].pass->name.data(), CHECKOP_CPU, 0, 0, nullptr, kLaunches[std::min(i, kRoom - 1)]});
  }
  return kernels;
}

}  // namespace
}  // namespace checkop::test

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) {
  using namespace checkop::test;
  static const std::vector<checkop_kernel> kernels = make_kernels();
  static checkop_plugin plugin;
  return checkop::plugin_of(plugin, kernels, kRoom);
}
