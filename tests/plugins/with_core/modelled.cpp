// SPDX-License-Identifier: Apache-2.0
// Candidates that compute like tensor cores, for every pass that has a model, in the dtypes that it has:
//   ascending  the order that the shipped kernels promise
//   one_ulp    the same except for the last bit of one element
//   others     an order of all_orders(), named with underscores: split_k_2, serial_fma
#include "mutate/gold_call.hpp"
#include "operator/model.hpp"

namespace checkop::test {
namespace {

constexpr size_t kRoom = 160;

struct Entry {
  std::string name;
  const Operator* op;
  const Pass* pass;
  ModelOrder order;
  bool one_ulp;
};

const std::vector<Entry>& entries() {
  static const std::vector<Entry> all = [] {
    std::vector<Entry> list;
    for (const Operator* op : operators())
      for (const Pass& pass : op->passes) {
        if (pass.model == nullptr) continue;
        const int64_t block = kModelledArchs[0].block_of(pass);
        list.push_back({"ascending", op, &pass, {block}, false});
        list.push_back({"one_ulp", op, &pass, {block}, true});
        for (const ModelOrder& order : all_orders(block)) {
          std::string name = to_string(order);
          std::replace(name.begin(), name.end(), ' ', '_');
          list.push_back({name, op, &pass, order, false});
        }
      }
    return list;
  }();
  return all;
}

/// Outputs without a model, such as the gradient of a bias, get the gold.
checkop_status launch(size_t number, const checkop_call* call) {
  const Entry& entry = entries()[number];
  if (!has_model(*entry.pass, entry.pass->outputs[0], static_cast<DType>(call->outputs[0].dtype))) {
    std::snprintf(call->message, call->message_bytes, "there is no model of this dtype");
    return CHECKOP_UNSUPPORTED;
  }
  return answer(*call, [&] {
    const std::vector<Tensor> inputs = inputs_of(*entry.pass, *call);
    std::vector<const Tensor*> present;
    for (const Tensor& tensor : inputs) present.push_back(tensor.name.empty() ? nullptr : &tensor);
    Values values = gold_values(*entry.pass, *call);
    const std::vector<RowSet> all(entry.pass->outputs.size());
    entry.pass->model({present, all, entry.order, /*threads=*/1, [&](int output, int64_t row, const float* from) {
                         const checkop_tensor& t = call->outputs[output];
                         const int64_t columns = t.shape[t.rank - 1];
                         std::copy_n(from, columns, values[static_cast<size_t>(output)].begin() + row * columns);
                       }});
    for (size_t i = 0; i < values.size(); ++i)
      if (call->outputs[i].data != nullptr) store(call->outputs[i], values[i]);
    if (entry.one_ulp) {
      const checkop_tensor& t = call->outputs[0];
      const size_t at = count_of(t) / 2 * info(static_cast<DType>(t.dtype)).bytes;
      static_cast<uint8_t*>(t.data)[at] ^= 1;
    }
  });
}

std::vector<checkop_kernel> make_kernels() {
  static constexpr auto kLaunches = numbered_launches<kRoom, launch>();
  std::vector<checkop_kernel> kernels;
  for (size_t i = 0; i < entries().size(); ++i)  // names of operators and passes are literals, hence NUL-terminated
    kernels.push_back({sizeof(checkop_kernel), entries()[i].name.c_str(), entries()[i].op->name.data(),
                       entries()[i].pass->name.data(), CHECKOP_CPU, 0, 0, nullptr, kLaunches[std::min(i, kRoom - 1)]});
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
