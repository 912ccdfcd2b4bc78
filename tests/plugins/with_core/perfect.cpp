// SPDX-License-Identifier: Apache-2.0
// Candidate "perfect" for every pass of every operator: the gold, rounded once. It shows that the bounds can be met. It
// knows no operator by name, so a new operator in the table is covered at once.
#include "base/error.hpp"
#include "mutate/gold_call.hpp"

namespace checkop::test {
namespace {

constexpr size_t kRoom = 128;  // passes of all operators

struct Entry {
  const Operator* op;
  const Pass* pass;
};

const std::vector<Entry>& entries() {
  static const std::vector<Entry> all = [] {
    std::vector<Entry> list;
    for (const Operator* op : operators())
      for (const Pass& pass : op->passes) list.push_back({op, &pass});
    return list;
  }();
  return all;
}

/// Declines inputs that contradict each other, as those of rows of zeros do beside what their forward pass saved.
checkop_status launch(size_t number, const checkop_call* call) {
  bool contradicts = false;
  const checkop_status status = answer(*call, [&] {
    try {
      const Values values = gold_values(*entries()[number].pass, *call);
      for (size_t i = 0; i < values.size(); ++i)
        if (call->outputs[i].data != nullptr) store(call->outputs[i], values[i]);
    } catch (const InputError&) {
      contradicts = true;
      throw;
    }
  });
  return contradicts ? CHECKOP_UNSUPPORTED : status;
}

std::vector<checkop_kernel> make_kernels() {
  static constexpr auto kLaunches = numbered_launches<kRoom, launch>();
  std::vector<checkop_kernel> kernels;
  for (size_t i = 0; i < entries().size(); ++i)  // names of operators and passes are literals, hence NUL-terminated
    kernels.push_back({sizeof(checkop_kernel), "perfect", entries()[i].op->name.data(), entries()[i].pass->name.data(),
                       CHECKOP_CPU, 0, 0, nullptr, kLaunches[std::min(i, kRoom - 1)]});
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
