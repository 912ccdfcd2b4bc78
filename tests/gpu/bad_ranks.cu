// SPDX-License-Identifier: Apache-2.0
// tp_linear_logp on GPUs with one misbehaving rank: the faults of bad_ranks.hpp.
#define check_operator_plugin shipped_plugin
#include "tp_linear_logp/nccl.cu"
#undef check_operator_plugin

#include "plugins/bad_ranks.hpp"

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) {
  static const std::vector<checkop_kernel> kernels = kernels_of({kAnywhere});
  static const checkop_plugin plugin{CHECKOP_ABI_VERSION, static_cast<int32_t>(kernels.size()), kernels.data()};
  return &plugin;
}
