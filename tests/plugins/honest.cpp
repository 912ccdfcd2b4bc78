// SPDX-License-Identifier: Apache-2.0
// Candidates without a defect, including unusual but permitted behaviour.
#include <initializer_list>

#include "plugins/matmul.hpp"

namespace {

using namespace test_plugin;

checkop_status uses_workspace(const checkop_call* call) {
  if (call->workspace_bytes != 100) return CHECKOP_FAILED;
  std::memset(call->workspace, 0, call->workspace_bytes);
  return multiply(call);
}

checkop_status names_variant(const checkop_call* call) {
  say(call, "plain loops");
  return multiply(call);
}

checkop_status unsupported(const checkop_call* call) {
  say(call, "k_dim must be a multiple of 64");
  return CHECKOP_UNSUPPORTED;
}

/// Requires an even number of rows, so its rows can't all be computed alone.
checkop_status even_rows(const checkop_call* call) {
  return rows(call->outputs[0]) % 2 == 0 ? multiply(call) : CHECKOP_UNSUPPORTED;
}

/// Writes 1 to logp if the optional bias, or its absence, was passed correctly; otherwise 0.
checkop_status tells_bias(const checkop_call* call) {
  const checkop_tensor& bias = call->inputs[3];
  const bool present = bias.data != nullptr && bias.rank == 1 && bias.shape[0] == call->inputs[1].shape[0];
  const bool absent = bias.data == nullptr && bias.rank == 0;
  if (present == absent) return CHECKOP_FAILED;
  for (int64_t i = 0; i < count(call->outputs[0]); ++i) static_cast<float*>(call->outputs[0].data)[i] = present ? 1 : 0;
  return CHECKOP_OK;
}

/// Writes 1 to every gradient; dbias must be present exactly when bias is.
checkop_status tells_dbias(const checkop_call* call) {
  if ((call->inputs[3].data == nullptr) != (call->outputs[2].data == nullptr)) return CHECKOP_FAILED;
  for (int32_t i = 0; i < call->n_outputs; ++i) {
    if (call->outputs[i].data == nullptr) continue;
    for (int64_t j = 0; j < count(call->outputs[i]); ++j) static_cast<float*>(call->outputs[i].data)[j] = 1;
  }
  return CHECKOP_OK;
}

/// Fails unless the call is as the header specifies.
checkop_status inspects_call(const checkop_call* call) {
  const checkop_tensor& a = call->inputs[0];
  bool good = call->struct_size == sizeof(checkop_call) && call->n_inputs == 2 && call->n_outputs == 1 &&
              call->n_attrs == 0 && call->stream == nullptr && call->world_size == 1 && call->comm == nullptr &&
              call->message_bytes == 512 && a.rank == 3 && a.strides[2] == 1 && a.strides[1] == a.shape[2] &&
              a.strides[0] == a.shape[1] * a.shape[2];
  for (const void* data : {a.data, call->inputs[1].data, call->outputs[0].data}) {
    good &= reinterpret_cast<uintptr_t>(data) % 256 == 0;
  }
  return good ? multiply(call) : CHECKOP_FAILED;
}

constexpr checkop_kernel kKernels[] = {
    kernel("honest", multiply),
    kernel("uses_workspace", uses_workspace, [](const checkop_call*) -> size_t { return 100; }),
    kernel("names_variant", names_variant),
    kernel("unsupported", unsupported),
    kernel("even_rows", even_rows),
    kernel("inspects_call", inspects_call),
    {sizeof(checkop_kernel), "tells_bias", "linear_logp", "forward", CHECKOP_CPU, 0, 0, nullptr, tells_bias},
    {sizeof(checkop_kernel), "tells_bias", "linear_logp", "backward", CHECKOP_CPU, 0, 0, nullptr, tells_dbias},
    {sizeof(checkop_kernel), "for_gpus", "matmul", "forward", CHECKOP_CUDA, 90, 90, nullptr, multiply},
};
constexpr checkop_plugin kPlugin = plugin(kKernels);

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
