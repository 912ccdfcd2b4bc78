// SPDX-License-Identifier: Apache-2.0
// tp_logp: logp with the vocabulary divided over ranks.
#include "left_out.hpp"
#include "logp.hpp"
#include "tensor_parallel.hpp"

namespace checkop {
namespace tp_logp {
namespace {

constexpr std::array kAttrs{kIgnoreIndex, kSegments};

}  // namespace
}  // namespace tp_logp

extern const Operator kTpLogp;
constexpr Operator kTpLogp{"tp_logp",
                           "logprob",
                           "logp, each rank with its part of the vocabulary: logp on every rank",
                           "batch seq",
                           tp_logp::kAttrs,
                           kTpLogpPasses,
                           validate_ignore_index,
                           plant_in_logp,
                           /*parallel_dim=*/"vocab",
                           /*left_out=*/"ignored rows"};

}  // namespace checkop
