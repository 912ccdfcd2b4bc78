// SPDX-License-Identifier: Apache-2.0
// tp_linear_logp with one misbehaving rank of four: calls a shipped candidate with a modified call. The includer
// includes the candidate's source first, with its plugin renamed to shipped_plugin.
#pragma once

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <span>
#include <stdexcept>
#include <thread>
#include <vector>

namespace {

constexpr size_t kWeight = 1, kIds = 2, kBias = 3;

/// A modifiable copy of a call and of the data that it points to.
struct Tampered {
  explicit Tampered(const checkop_call& original)
      : call(original),
        inputs(original.inputs, original.inputs + original.n_inputs),
        outputs(original.outputs, original.outputs + original.n_outputs),
        attrs(original.attrs, original.attrs + original.n_attrs) {
    shapes.reserve(inputs.size() + outputs.size());  // so that their addresses stay valid
    for (auto* tensors : {&inputs, &outputs}) {
      for (checkop_tensor& t : *tensors) {
        shapes.emplace_back(t.shape, t.shape + t.rank);
        shapes.back().push_back(0);  // never empty
        t.shape = shapes.back().data();
      }
    }
    call.inputs = inputs.data(), call.outputs = outputs.data(), call.attrs = attrs.data();
  }
  Tampered(const Tampered&) = delete;

  int64_t& extent(checkop_tensor& t, size_t dim) const { return const_cast<int64_t*>(t.shape)[dim]; }

  /// Tensors that all ranks share, of the forward and the backward pass.
  template <class Edit>
  void each_part(Edit edit) {
    edit(inputs[kWeight]);
    if (inputs[kBias].data != nullptr) edit(inputs[kBias]);
    for (size_t i = 1; i < outputs.size(); ++i)
      if (outputs[i].data != nullptr) edit(outputs[i]);
  }

  checkop_status launch() {
    const checkop_plugin& shipped = *shipped_plugin();
    return shipped.kernels[call.n_outputs == 1 ? 0 : 1].launch(&call);
  }

  checkop_call call;
  std::vector<checkop_tensor> inputs, outputs;
  std::vector<checkop_attr> attrs;
  std::vector<int64_t> ids;

 private:
  std::vector<std::vector<int64_t>> shapes;
};

checkop_status say(const checkop_call* call, const char* sentence) {
  std::snprintf(call->message, call->message_bytes, "%s", sentence);
  return CHECKOP_FAILED;
}

[[noreturn]] void sleep_for_good() {
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

template <void (*tamper)(Tampered&), int32_t rank>
checkop_status before(const checkop_call* call) {
  Tampered t(*call);
  if (rank < 0 || call->rank == rank) tamper(t);
  return t.launch();
}

void leave_gap(Tampered& t) {
  ++t.call.shard_begin;
  t.each_part([&](checkop_tensor& part) {
    part.data = static_cast<std::byte*>(part.data) + static_cast<size_t>(part.strides[0]) * sizeof(float);
    --t.extent(part, 0);
  });
}
void overlap(Tampered& t) { --t.call.shard_begin, --t.call.shard_end; }
void hold_nothing(Tampered& t) {
  t.call.shard_end = t.call.shard_begin;
  t.each_part([&](checkop_tensor& part) { t.extent(part, 0) = 0; });
}
void take_other_total(Tampered& t) { ++t.call.shard_total; }
void end_early(Tampered& t) {
  --t.call.shard_end;
  t.each_part([&](checkop_tensor& part) { --t.extent(part, 0); });
}
void lose_a_row(Tampered& t) {
  for (const size_t i : {size_t{0}, kIds, size_t{4}})
    if (i < t.inputs.size()) --t.extent(t.inputs[i], 1);
  --t.extent(t.outputs[0], 1);
}
void take_other_dtype(Tampered& t) {
  t.inputs[0].dtype = CHECKOP_F16;
  t.each_part([](checkop_tensor& part) { part.dtype = CHECKOP_F16; });
  if (t.outputs.size() > 1) t.outputs[0].dtype = CHECKOP_F16;
}
checkop_status refuse_early(const checkop_call* call) {
  return call->rank == 2 ? say(call, "no memory left") : Tampered(*call).launch();
}
checkop_status throw_early(const checkop_call* call) {
  if (call->rank == 2) throw std::runtime_error("no memory at all");
  return Tampered(*call).launch();
}
checkop_status die(const checkop_call* call) {
  if (call->rank == 2) std::raise(SIGSEGV);
  return Tampered(*call).launch();
}
checkop_status stall(const checkop_call* call) {
  if (call->rank == 2) sleep_for_good();
  return Tampered(*call).launch();
}
checkop_status stall_in_the_end(const checkop_call* call) {
  const checkop_status status = Tampered(*call).launch();
  if (call->rank == 2) sleep_for_good();
  return status;
}
using Launch = checkop_status (*)(const checkop_call*);
struct Named {
  const char* name;
  Launch launch;
};

/// Faults that occur before memory is accessed, so they work on any device.
constexpr Named kAnywhere[] = {
    {"gap", before<leave_gap, 1>},
    {"overlap", before<overlap, 1>},
    {"empty", before<hold_nothing, 1>},
    {"other_total", before<take_other_total, 1>},
    {"ends_early", before<end_early, 3>},
    {"other_rows", before<lose_a_row, 1>},
    {"other_dtype", before<take_other_dtype, 1>},
    {"refuses_early", refuse_early},
    {"throws_early", throw_early},
    {"dies", die},
    {"stalls", stall},
    {"stalls_in_the_end", stall_in_the_end},
};

std::vector<checkop_kernel> kernels_of(std::initializer_list<std::span<const Named>> lists) {
  std::vector<checkop_kernel> all;
  for (const std::span<const Named> list : lists) {
    for (const Named& named : list) {
      for (int pass = 0; pass < 2; ++pass) {
        checkop_kernel kernel = shipped_plugin()->kernels[pass];
        kernel.name = named.name, kernel.launch = named.launch;
        all.push_back(kernel);
      }
    }
  }
  return all;
}

}  // namespace
