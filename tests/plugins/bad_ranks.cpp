// SPDX-License-Identifier: Apache-2.0
// tp_linear_logp on the CPU with one misbehaving rank: the faults of bad_ranks.hpp, and faults in the host's memory.
#define check_operator_plugin shipped_plugin
#include "tp_linear_logp/native.cpp"
#undef check_operator_plugin

#include "plugins/bad_ranks.hpp"

namespace {

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

constexpr Named kOnTheHost[] = {
    {"other_ids", before<take_other_ids, 1>},
    {"id_of_nobody", before<take_id_of_nobody, -1>},
    {"ignores_segments", before<ignore_segments, -1>},
    {"exchanges_more", exchange_more},
    {"wants_host_comm", want_host_comm},
    {"changes_a_copy", change_a_copy},
    {"leaves_an_element", leave_an_element},
    {"changes_an_input", change_an_input},
    {"writes_behind", write_behind},
};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) {
  static const std::vector<checkop_kernel> kernels = kernels_of({kAnywhere, kOnTheHost});
  static const checkop_plugin plugin{CHECKOP_ABI_VERSION, static_cast<int32_t>(kernels.size()), kernels.data()};
  return &plugin;
}
