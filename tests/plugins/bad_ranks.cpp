// SPDX-License-Identifier: Apache-2.0
// tp_linear_logp by ranks of which one misbehaves: the shipped candidate, with a call that was tampered with before it
// or outputs that were after it. For four ranks.
#define check_operator_plugin native_plugin
#include "tp_linear_logp/native.cpp"
#undef check_operator_plugin

#include <csignal>
#include <cstdlib>

namespace {

constexpr size_t kWeight = 1, kIds = 2, kBias = 3;

/// A call that may be changed, and what it points to.
struct Tampered {
  explicit Tampered(const checkop_call& original)
      : call(original),
        inputs(original.inputs, original.inputs + original.n_inputs),
        outputs(original.outputs, original.outputs + original.n_outputs),
        attrs(original.attrs, original.attrs + original.n_attrs) {
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

  /// Tensors that the ranks share, of forward and of backward.
  template <class Edit>
  void each_part(Edit edit) {
    edit(inputs[kWeight]);
    if (inputs[kBias].data != nullptr) edit(inputs[kBias]);
    for (size_t i = 1; i < outputs.size(); ++i)
      if (outputs[i].data != nullptr) edit(outputs[i]);
  }

  checkop_status launch() {
    const checkop_plugin& native = *native_plugin();
    return native.kernels[call.n_outputs == 1 ? 0 : 1].launch(&call);
  }

  checkop_call call;
  std::vector<checkop_tensor> inputs, outputs;
  std::vector<checkop_attr> attrs;
  std::vector<int64_t> ids;

 private:
  std::vector<std::vector<int64_t>> shapes = [] {
    std::vector<std::vector<int64_t>> room;
    room.reserve(16);  // their addresses are kept
    return room;
  }();
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
void set_first_id(Tampered& t, int64_t id) {
  const auto* ids = static_cast<const int64_t*>(t.inputs[kIds].data);
  t.ids.assign(ids, ids + t.inputs[kIds].shape[0] * t.inputs[kIds].shape[1]);
  t.ids[0] = id;
  t.inputs[kIds].data = t.ids.data();
}
void take_other_ids(Tampered& t) { set_first_id(t, 1); }
void take_id_of_nobody(Tampered& t) { set_first_id(t, 16); }
void ignore_segments(Tampered& t) {
  for (checkop_attr& attr : t.attrs)
    if (std::strcmp(attr.name, "canonical_segments") == 0) attr.value = 0;
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
checkop_status exchange_more(const checkop_call* call) {
  auto* comm = static_cast<checkop_host_comm*>(call->comm);
  std::vector<char> received(4 * 16);
  if (comm->all_gather(comm, received.data(), received.data(), call->rank == 2 ? 16 : 8) != 0)
    return say(call, comm->error(comm));
  return CHECKOP_OK;
}

checkop_status want_host_comm(const checkop_call* call) {
  if (call->host_comm == nullptr || call->host_comm != call->comm || call->host_comm->rank != call->rank)
    return say(call, "host_comm is not comm");
  return Tampered(*call).launch();
}

float* output(const checkop_call* call, int32_t i) { return static_cast<float*>(call->outputs[i].data); }

checkop_status change_a_copy(const checkop_call* call) {
  const checkop_status status = Tampered(*call).launch();
  if (call->rank >= 2) output(call, 0)[1] = std::nextafterf(output(call, 0)[1], 0.0f);
  return status;
}
checkop_status leave_an_element(const checkop_call* call) {
  const int32_t last = call->n_outputs == 1 ? 0 : 1;
  const float before = output(call, last)[0];
  const checkop_status status = Tampered(*call).launch();
  if (call->rank == (last == 0 ? 0 : 2)) std::memcpy(output(call, last), &before, sizeof(before));
  return status;
}
checkop_status change_an_input(const checkop_call* call) {
  const checkop_status status = Tampered(*call).launch();
  if (call->rank == 3) static_cast<float*>(call->inputs[kWeight].data)[0] += 1;
  return status;
}
checkop_status write_behind(const checkop_call* call) {
  const checkop_status status = Tampered(*call).launch();
  const checkop_tensor& part = call->outputs[call->n_outputs == 1 ? 0 : 1];
  int64_t count = 1;
  for (int32_t d = 0; d < part.rank; ++d) count *= part.shape[d];
  if (call->rank == 1) static_cast<float*>(part.data)[count] = 1;
  return status;
}

using Launch = checkop_status (*)(const checkop_call*);
struct Named {
  const char* name;
  Launch launch;
};
constexpr Named kNamed[] = {
    {"gap", before<leave_gap, 1>},
    {"overlap", before<overlap, 1>},
    {"empty", before<hold_nothing, 1>},
    {"other_total", before<take_other_total, 1>},
    {"ends_early", before<end_early, 3>},
    {"other_rows", before<lose_a_row, 1>},
    {"other_dtype", before<take_other_dtype, 1>},
    {"other_ids", before<take_other_ids, 1>},
    {"id_of_nobody", before<take_id_of_nobody, -1>},
    {"ignores_segments", before<ignore_segments, -1>},
    {"refuses_early", refuse_early},
    {"throws_early", throw_early},
    {"dies", die},
    {"stalls", stall},
    {"stalls_in_the_end", stall_in_the_end},
    {"exchanges_more", exchange_more},
    {"wants_host_comm", want_host_comm},
    {"changes_a_copy", change_a_copy},
    {"leaves_an_element", leave_an_element},
    {"changes_an_input", change_an_input},
    {"writes_behind", write_behind},
};

const std::vector<checkop_kernel>& kernels() {
  static const std::vector<checkop_kernel> all = [] {
    std::vector<checkop_kernel> list;
    for (const Named& named : kNamed)
      for (const char* pass : {"forward", "backward"})
        list.push_back(
            {sizeof(checkop_kernel), named.name, "tp_linear_logp", pass, CHECKOP_CPU, 0, 0, nullptr, named.launch});
    return list;
  }();
  return all;
}

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) {
  static const checkop_plugin plugin{CHECKOP_ABI_VERSION, static_cast<int32_t>(kernels().size()), kernels().data()};
  return &plugin;
}
