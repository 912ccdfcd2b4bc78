// SPDX-License-Identifier: Apache-2.0
// tp_linear_logp: linear_logp with the vocabulary divided over ranks.
#include "left_out.hpp"
#include "linear_logp.hpp"
#include "tensor_parallel.hpp"

namespace checkop {
namespace tp_linear_logp {
namespace {

constexpr std::array kAttrs{kIgnoreIndex, kSegments};

}  // namespace
}  // namespace tp_linear_logp

extern const Operator kTpLinearLogp;
constexpr Operator kTpLinearLogp{
    "tp_linear_logp",
    "logprob",
    "linear_logp, each rank with its part of the vocabulary: logp and dhidden on every rank",
    "batch seq",
    tp_linear_logp::kAttrs,
    kTpLinearLogpPasses,
    validate_linear_logp,
    plant_in_linear_logp,
    /*parallel_dim=*/"vocab",
    /*left_out=*/"ignored rows"};

}  // namespace checkop
