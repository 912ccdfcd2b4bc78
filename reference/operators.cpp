// SPDX-License-Identifier: Apache-2.0
// The table of operators: one line each. Self-registration would drop out of a static library silently.
#include <array>

#include "operator.hpp"

namespace checkop {

extern const Operator kLogp;        // logp.cpp
extern const Operator kLinearLogp;  // linear_logp.cpp
extern const Operator kMatmul;      // matmul.cpp
extern const Operator kRatioKl;     // ratio_kl.cpp
extern const Operator kGrpoLoss;    // grpo_loss.cpp

std::span<const Operator* const> operators() {
  static constexpr std::array<const Operator*, 5> kTable{&kLogp, &kLinearLogp, &kMatmul, &kRatioKl, &kGrpoLoss};
  return kTable;
}

}  // namespace checkop
