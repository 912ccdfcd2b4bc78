// SPDX-License-Identifier: Apache-2.0
// The faults of `check_operator mutate` as candidates "mutant-NAME", for use from outside: one per fault and pass. A
// fault of results corrupts every output. Kernels with the rounding of a recipe are candidates "recipe-NAME", which
// declare it.
#include <algorithm>
#include <list>
#include <string>
#include <vector>

#include "mutate/behaviour_faults.hpp"
#include "mutate/gold_call.hpp"
#include "mutate/result_faults.hpp"

namespace checkop::test {
namespace {

constexpr size_t kRoom = 5120;  // faults times passes

struct Entry {
  const Operator* op;
  const Pass* pass;
  const FaultSpec* emulated = nullptr;  // exactly one of the four is set
  const ResultFault* result = nullptr;
  const BehaviourFault* behaviour = nullptr;
  const Recipe* recipe = nullptr;

  std::string name() const {
    if (recipe != nullptr) return "recipe-" + std::string(recipe->name);
    return "mutant-" + std::string(emulated != nullptr ? emulated->name
                                   : result != nullptr ? result->spec.name
                                                       : behaviour->spec.name);
  }
};

const std::vector<Entry>& entries() {
  static const std::vector<Entry> all = [] {
    std::vector<Entry> list;
    for (const Operator* op : operators()) {
      for (const Pass& pass : op->passes) {
        if (pass.emulation != nullptr)
          for (const FaultSpec& fault : pass.emulation->faults) list.push_back({op, &pass, &fault});
        for (const ResultFault& fault : result_faults()) list.push_back({op, &pass, nullptr, &fault});
        for (const BehaviourFault& fault : behaviour_faults()) list.push_back({op, &pass, nullptr, nullptr, &fault});
        for (const Recipe& recipe : pass.recipes) list.push_back({op, &pass, nullptr, nullptr, nullptr, &recipe});
      }
    }
    return list;
  }();
  return all;
}

void emulate(const Entry& entry, const checkop_call& call) {
  const Parts parts(*entry.pass, call);
  const std::vector<Tensor> inputs = inputs_of(*entry.pass, call, parts);
  std::vector<const Tensor*> present;
  for (const Tensor& tensor : inputs) present.push_back(tensor.name.empty() ? nullptr : &tensor);
  std::vector<double> attrs;
  for (int32_t i = 0; i < call.n_attrs; ++i) attrs.push_back(call.attrs[i].value);
  Values values = room_for(*entry.pass, call, parts);
  ActiveRecipes recipes;
  for (size_t i = 0; i < inputs.size() && entry.recipe != nullptr; ++i) {
    if (!entry.pass->inputs[i].dtype && present[i] != nullptr)
      recipes = ActiveRecipes({entry.recipe->name}, inputs[i].dtype, 1, {});
  }
  const Arithmetic arithmetic(Plan{Plan::Order::blocked, 512}, entry.emulated != nullptr ? entry.emulated->name : "",
                              recipes);
  entry.pass->emulation->run({present, attrs, arithmetic, values, 1, parts.bounds()});
  values = own_values(*entry.pass, call, parts, values);
  for (size_t i = 0; i < values.size(); ++i)
    if (call.outputs[i].data != nullptr) store(call.outputs[i], values[i]);
}

void spoil(const Entry& entry, const checkop_call& call) {
  Values values = gold_values(*entry.pass, call);
  for (size_t i = 0; i < values.size(); ++i) {
    const checkop_tensor& output = call.outputs[i];
    if (output.data == nullptr) continue;
    const OutputSpec& spec = entry.pass->outputs[i];
    const Shape shape(output.shape, output.shape + output.rank);
    Tensor stored("y", static_cast<DType>(output.dtype), shape);
    Result result{spec, judged_view(*entry.op, spec.tensor, shape), values[i], stored};
    if (entry.result->spoil != nullptr) entry.result->spoil(result);
    info(stored.dtype).encode(values[i].data(), stored.bytes.data(), values[i].size());
    if (entry.result->spoil_stored != nullptr) entry.result->spoil_stored(result);
    std::copy_n(stored.bytes.data(), stored.bytes.size(), static_cast<std::byte*>(output.data));
  }
}

checkop_status launch(size_t number, const checkop_call* call) {
  const Entry& entry = entries()[number];
  return answer(*call, [&] {
    if (entry.emulated != nullptr || entry.recipe != nullptr) emulate(entry, *call);
    if (entry.result != nullptr) spoil(entry, *call);
    if (entry.behaviour != nullptr) entry.behaviour->answer(*entry.op, *entry.pass, *call, 0);
  });
}

std::vector<checkop_kernel> make_kernels() {
  static constexpr auto kLaunches = numbered_launches<kRoom, launch>();
  static std::list<std::string> names;  // the ABI keeps pointers into it
  std::vector<checkop_kernel> kernels;
  for (size_t i = 0; i < entries().size(); ++i) {
    names.push_back(entries()[i].name());
    kernels.push_back({sizeof(checkop_kernel), names.back().c_str(), entries()[i].op->name.data(),
                       entries()[i].pass->name.data(), CHECKOP_CPU, 0, 0, nullptr, kLaunches[std::min(i, kRoom - 1)]});
    if (entries()[i].recipe != nullptr) kernels.back().recipes = entries()[i].recipe->name.data();
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
