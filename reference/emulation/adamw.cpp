// SPDX-License-Identifier: Apache-2.0
// Emulates adamw as fused kernels compute it: every element in fp32.
#include <array>
#include <cmath>

#include "emulation/common.hpp"

namespace checkop {
namespace adamw {
namespace {

using namespace emulation;

constexpr FaultSpec kDecayInGradient{"decay_in_gradient", "weight decay is added to the gradient: Adam with L2"};
constexpr FaultSpec kDecayLeftOut{"decay_left_out", "weights do not decay"};
constexpr FaultSpec kDecayWithoutLr{"decay_without_lr", "weights decay by weight_decay, whatever lr"};
constexpr FaultSpec kNoBiasCorrection{"no_bias_correction", "m and v are not corrected for their start at 0"};
constexpr FaultSpec kStepBefore{"step_before", "bias corrections are those of the step before"};
constexpr FaultSpec kOneCorrection{"one_correction", "v is corrected as m is, by beta1"};
constexpr FaultSpec kEpsInRoot{"eps_in_root", "eps is added under the root"};
constexpr FaultSpec kEpsLeftOut{"eps_left_out", "eps is not added", "nonfinite"};
constexpr FaultSpec kOldMoment{"old_moment", "the update takes m from before this step"};
constexpr FaultSpec kRootLeftOut{"root_left_out", "the update is divided by v"};
constexpr FaultSpec kSecondMomentOfM{"second_moment_of_m", "v averages squares of m, not of the gradient"};
constexpr FaultSpec kScaleLeftOut{"scale_left_out", "gradients are not scaled", "accuracy", "", "grad_scale"};
constexpr FaultSpec kScaleOnceInV{"scale_once_in_v", "in v the gradient's square is scaled once", "accuracy", "",
                                  "grad_scale"};
constexpr FaultSpec kScaleDivides{"scale_divides", "gradients are divided by their scale", "accuracy", "",
                                  "grad_scale"};
constexpr FaultSpec kFoundInfIgnored{"found_inf_ignored", "a step is taken though found_inf says not to", "nonfinite",
                                     "", "found_inf"};
constexpr FaultSpec kMomentsOfSkipped{"moments_of_skipped", "a skipped step changes m and v", "nonfinite", "",
                                      "found_inf"};
constexpr FaultSpec kFoundInfIsOne{"found_inf_is_one", "a step is skipped if found_inf is 1, not if it is more",
                                   "nonfinite", "", "found_inf"};
constexpr FaultSpec kSkippedMultiplied{"skipped_multiplied", "a skipped step adds what it changes, multiplied by 0",
                                       "nonfinite", "", "found_inf"};
constexpr FaultSpec kAlwaysSkipped{"always_skipped", "a step is skipped where found_inf is given, even if it is 0",
                                   "accuracy", "", "found_inf"};
constexpr FaultSpec kMasterIn16Bit{"master_in_16_bit", "the step is taken from the parameters, not the master weights",
                                   "accuracy", "bf16 fp16"};
constexpr FaultSpec kParamBeforeStep{"param_before_step", "param is the rounded master of before the step"};
constexpr FaultSpec kMomentsIn16Bit{"moments_in_16_bit", "m and v are rounded to bf16"};

void forward(const EmulationArgs& args) {
  const Arithmetic& a = args.arithmetic;
  const std::vector<float> master = args.floats(0), m = args.floats(1), v = args.floats(2), grad = args.floats(3);
  const auto attr = [&](size_t i) { return static_cast<float>(args.attrs[i]); };
  const float lr = attr(0), beta1 = attr(1), beta2 = attr(2), eps = attr(3), decay = attr(4);
  const float step = attr(5) - (a.has(kStepBefore.name) ? 1.0F : 0.0F);
  const bool found = args.has(5) && (a.has(kFoundInfIsOne.name) ? args.floats(5)[0] == 1 : args.floats(5)[0] != 0);
  const bool skips = args.has(5) && (a.has(kAlwaysSkipped.name) || (found && !a.has(kFoundInfIgnored.name)));
  float scale = args.has(4) && !a.has(kScaleLeftOut.name) ? args.floats(4)[0] : 1.0F;
  if (a.has(kScaleDivides.name)) scale = 1 / scale;
  const DType dtype = args.in(3).dtype;
  const bool corrects = !a.has(kNoBiasCorrection.name);
  const float correction1 = corrects ? 1 - std::pow(beta1, step) : 1.0F;
  const float correction2 = !corrects ? 1.0F : 1 - std::pow(a.has(kOneCorrection.name) ? beta1 : beta2, step);
  const auto average = [&](float beta, float old, float value) {
    const float next = a.plan().fma ? std::fma(1 - beta, value - old, old) : beta * old + (1 - beta) * value;
    return a.has(kMomentsIn16Bit.name) ? Arithmetic::to_bf16(next) : next;
  };
  for (size_t i = 0; i < master.size(); ++i) {
    const float from = a.has(kMasterIn16Bit.name) ? stored_as(dtype, master[i]) : master[i];
    float g = grad[i] * scale;
    if (a.has(kDecayInGradient.name)) g += decay * from;
    const float of_m = average(beta1, m[i], g);
    const float square = a.has(kSecondMomentOfM.name) ? of_m * of_m : a.has(kScaleOnceInV.name) ? g * grad[i] : g * g;
    const float of_v = average(beta2, v[i], square);
    const float corrected = of_v / correction2;
    float divisor = a.has(kRootLeftOut.name) ? corrected
                    : a.has(kEpsInRoot.name) ? std::sqrt(corrected + eps)
                                             : std::sqrt(corrected);
    if (!a.has(kEpsInRoot.name) && !a.has(kEpsLeftOut.name)) divisor += eps;
    const float taken = a.has(kDecayInGradient.name) || a.has(kDecayLeftOut.name) ? 0.0F
                        : a.has(kDecayWithoutLr.name)                             ? decay
                                                                                  : lr * decay;
    const float w = from * (1 - taken) - lr * ((a.has(kOldMoment.name) ? m[i] : of_m) / correction1 / divisor);
    const bool keeps_moments = skips && !a.has(kMomentsOfSkipped.name);
    const auto kept = [&](float old, float next) { return a.has(kSkippedMultiplied.name) ? old + 0 * next : old; };
    args.out(0)[i] = skips ? kept(master[i], w) : w;
    args.out(1)[i] = keeps_moments ? kept(m[i], of_m) : of_m;
    args.out(2)[i] = keeps_moments ? kept(v[i], of_v) : of_v;
    args.out(3)[i] = skips ? kept(master[i], w) : a.has(kParamBeforeStep.name) ? master[i] : w;
  }
}

constexpr std::array kFaults{kDecayInGradient,  kDecayLeftOut,  kDecayWithoutLr,    kNoBiasCorrection, kStepBefore,
                             kOneCorrection,    kEpsInRoot,     kEpsLeftOut,        kOldMoment,        kRootLeftOut,
                             kSecondMomentOfM,  kScaleLeftOut,  kScaleOnceInV,      kScaleDivides,     kFoundInfIgnored,
                             kMomentsOfSkipped, kFoundInfIsOne, kSkippedMultiplied, kAlwaysSkipped,    kMasterIn16Bit,
                             kParamBeforeStep,  kMomentsIn16Bit};

}  // namespace
}  // namespace adamw

extern const Emulation kAdamwForward;
const Emulation kAdamwForward{adamw::forward, adamw::kFaults};

}  // namespace checkop
