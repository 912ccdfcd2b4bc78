// SPDX-License-Identifier: Apache-2.0
// What models and samplers do to logits before the softmax: a soft cap, then a temperature.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <string_view>

#include "gold_element.hpp"
#include "operator/operator.hpp"
#include "recipes.hpp"
#include "softmax.hpp"

namespace checkop {

inline constexpr AttrSpec kTemperature{"temperature", 1, "logits are divided by it, after the soft cap"};
inline constexpr AttrSpec kSoftcap{"softcap", 0, "c: logits x become c tanh(x/c) first; 0: they stay as they are"};

/// Throws InputError unless it is above 0.
void validate_temperature(double temperature);
/// Throws InputError unless attributes `temperature` and `softcap`, by index, are above 0 and at least 0.
void validate_logit_transform(const CaseSizes& sizes, size_t temperature, size_t softcap);

/// A transformed logit z and its derivative by the logit x.
struct TransformedLogit {
  GoldElement z, slope;
  double slack = 0;  ///< of z, if x was rounded; see Rounded
};

/// z = t/temperature,  t = softcap tanh(x/softcap), or x without a cap.
/// Roundings: x/softcap and the product with the cap round once, tanh errs by 2 ulp, which is 4u; with y = x/c an error
/// of y moves tanh y by y (1 - tanh^2 y) <= tanh y times its relative size. So t errs by 6u|t|. A temperature costs its
/// rounding to fp32, that of its reciprocal and that of the product. The slope is (1 - tanh^2 y)/temperature: 2 tanh^2
/// y times tanh's relative error, and one rounding each; the product of a gradient with it rounds once more. An error
/// of x itself moves z by the slope, and the slope by 2 tanh y/c times itself.
class LogitTransform {
 public:
  LogitTransform(double temperature, double softcap) : temperature_(temperature), softcap_(softcap) {}

  /// Whether gradients of logits that are off by a constant stay the same, and those of a row add up to 0.
  bool is_linear() const { return softcap_ == 0; }
  /// Whether z is not x itself.
  bool has_steps() const { return temperature_ != 1 || softcap_ != 0; }

  /// Transforms the logit x, whose sums have the coefficients `magnitude` and `rounding`.
  TransformedLogit operator()(double x, double magnitude = 0, double rounding = 0) const {
    const double of_temperature = temperature_ == 1 ? 0 : 3;
    if (softcap_ == 0) {
      const double z = x / temperature_, slope = 1 / temperature_;
      return {{z, slope * magnitude, std::isfinite(z) ? of_temperature * std::abs(z) + slope * rounding : 0},
              {slope, 0, of_temperature * slope}};
    }
    const double tanh = std::tanh(x / softcap_), z = softcap_ * tanh / temperature_;
    const double slope = (1 - tanh * tanh) / temperature_;
    const double of_slope = 2 * std::abs(tanh) / softcap_ * slope;
    return {
        {z, slope * magnitude, (kTanhUnits + 2 + of_temperature) * std::abs(z) + slope * rounding},
        {slope, of_slope * magnitude,
         (2 * (kTanhUnits + 1) + 1) * tanh * tanh / temperature_ + (2 + of_temperature) * slope + of_slope * rounding}};
  }

  /// Transforms a logit that was rounded to x and may be off by `slack`.
  TransformedLogit operator()(double x, double slack, const ActiveRecipes& recipes) const {
    TransformedLogit logit = (*this)(x);
    if (slack == 0) return logit;
    for (const double other : {x - slack, x + slack}) {
      const TransformedLogit moved = (*this)(other);
      logit.slack = std::max(logit.slack, std::abs(moved.z.value - logit.z.value));
      logit.slope.rounding =
          std::max(logit.slope.rounding,
                   moved.slope.rounding + recipes.in_units(std::abs(moved.slope.value - logit.slope.value)));
    }
    return logit;
  }

 private:
  friend class SteppedTransform;
  static constexpr double kTanhUnits = 4;
  double temperature_, softcap_;
};

/// The transform in a kernel that stores the result of every step in 16 bits, in the backward pass of autograd, too:
///   y = round(x/softcap), t = round(tanh y), c = round(softcap t); z = round(c/temperature)
///   d = round(dz); round(d/temperature); round(softcap d), round(d (1 - t^2)), d/softcap, which is the output
/// A softcap of 0 and a temperature of 1 have no steps. A division by a number may be a product with its reciprocal.
class SteppedTransform {
 public:
  SteppedTransform(const GoldArgs& args, const LogitTransform& transform) : args_(args), of_(transform) {}

  /// Whether the active recipes have it, and it has steps.
  bool is_active() const { return args_.recipes.has(recipe::kTransform) && of_.has_steps(); }

  /// Transforms the logit x. The slope is that of tanh.
  TransformedLogit operator()(const GoldElement& x) const {
    TransformedLogit logit{x, exact(1)};
    if (of_.softcap_ != 0) {
      const GoldElement y = rounded(divided(x, of_.softcap_));
      const double tanh = std::tanh(y.value);
      const GoldElement t = rounded({tanh, 0, LogitTransform::kTanhUnits * std::abs(tanh) + y.rounding});
      logit.slope = exact(1) - t * t;
      logit.z = rounded(t * checkop::rounded(of_.softcap_));
    }
    if (of_.temperature_ != 1) logit.z = rounded(divided(logit.z, of_.temperature_));
    logit.slack = logit.z.rounding / args_.recipes.in_units(1), logit.z.rounding = 0;
    return logit;
  }

  /// The gradient with respect to the logit x, from dz, the gradient with respect to z.
  GoldElement by_logit(const GoldElement& dz, const TransformedLogit& logit) const {
    GoldElement d = rounded(dz);
    if (of_.temperature_ != 1) d = divided(d, of_.temperature_);
    if (of_.softcap_ == 0) return d;
    if (of_.temperature_ != 1) d = rounded(d);
    d = rounded(d * checkop::rounded(of_.softcap_));
    return divided(rounded(d * logit.slope), of_.softcap_);
  }

 private:
  GoldElement rounded(const GoldElement& e) const { return rounded_if(true, args_, 0, e); }
  static GoldElement divided(const GoldElement& e, double by) {
    const double value = e.value / by;
    return {value, e.magnitude / by, e.rounding / by + 3 * std::abs(value)};
  }

  const GoldArgs& args_;
  LogitTransform of_;
};

/// The recipe transform_in_16_bit.
constexpr Recipe transform_recipe(std::string_view outputs, std::string_view formula, std::string_view source) {
  Recipe recipe{recipe::kTransform, outputs, k16Bit, /*exact=*/true, formula, source};
  recipe.needs = "temperature softcap";
  return recipe;
}
/// The same of a pass, and of its backward pass.
constexpr Recipe rounds_transform(std::string_view outputs) {
  return transform_recipe(
      outputs, "z = round(c/temperature), c = round(softcap round(tanh(round(x/softcap))))",
      "TRL and verl divide 16-bit logits by the temperature, Hugging Face's Gemma caps them: each step is a tensor");
}
constexpr Recipe rounds_transform_gradient(std::string_view outputs) {
  return transform_recipe(
      outputs, "dx = round(round(dz)/temperature), and with a cap round(round(softcap that) (1 - t^2))/softcap",
      "autograd of 16-bit logits that are divided by the temperature or capped: each step is a tensor");
}

/// Counts the slack of a rounded logit as rounding of its z. It changes probabilities by up to exp(slack) - 1 of
/// themselves; twice the slack covers what that changes in turn.
inline TransformedLogit slack_folded(TransformedLogit logit, const ActiveRecipes& recipes) {
  logit.z.rounding += recipes.in_units(std::expm1(2 * logit.slack) / 2);
  logit.slack = 0;
  return logit;
}

/// Adds transformed logits to a row's statistics.
void add_logits(SoftmaxRow& softmax, std::span<const TransformedLogit> logits);

/// The gradient with respect to the logit x, from dz, the gradient with respect to z.
inline GoldElement by_logit(const GoldElement& dz, const TransformedLogit& logit) {
  const double slope = logit.slope.value, size = std::abs(dz.value);
  return {slope * dz.value, slope * dz.magnitude + size * logit.slope.magnitude,
          slope * dz.rounding + size * logit.slope.rounding};
}

/// The transform of logits that are inputs: in steps of 16 bits where that recipe is active.
class ActiveTransform {
 public:
  ActiveTransform(const GoldArgs& args, const LogitTransform& transform)
      : plain_(transform), stepped_(args, transform), recipes_(args.recipes), steps_(stepped_.is_active()) {}

  TransformedLogit operator()(double x) const {
    return steps_ ? slack_folded(stepped_(exact(x)), recipes_) : plain_(x);
  }
  GoldElement by_logit(const GoldElement& dz, const TransformedLogit& logit) const {
    return steps_ ? stepped_.by_logit(dz, logit) : checkop::by_logit(dz, logit);
  }

 private:
  LogitTransform plain_;
  SteppedTransform stepped_;
  const ActiveRecipes& recipes_;
  bool steps_;
};

}  // namespace checkop
