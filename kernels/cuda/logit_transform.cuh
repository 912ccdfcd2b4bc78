// SPDX-License-Identifier: Apache-2.0
// A soft cap and a temperature, which change logits before the softmax.
#pragma once

#include "cuda/common.cuh"

namespace checkop::kernels {

/// Leaves logits as they are.
struct NoTransform {
  static constexpr bool keeps_infinity = true;
  __device__ float apply(float x) const { return x; }
  __device__ float slope(float) const { return 1.0f; }
};

/// z = cap tanhf(x / cap) / temperature, or x / temperature if cap is 0.
struct LogitTransform {
  static constexpr bool keeps_infinity = false;  ///< whether -inf stays -inf: a cap makes a number of it
  float reciprocal = 1.0f;                       ///< of the temperature
  float cap = 0.0f, cap_reciprocal = 0.0f;

  LogitTransform() = default;
  LogitTransform(double temperature, double softcap)
      : reciprocal(static_cast<float>(1 / temperature)),
        cap(static_cast<float>(softcap)),
        cap_reciprocal(softcap == 0 ? 0.0f : static_cast<float>(1 / softcap)) {}

  bool is_none() const { return reciprocal == 1.0f && cap == 0.0f; }
  /// `has_cap` as a template argument, where tanhf costs more than the rest.
  template <bool has_cap>
  __device__ float apply(float x) const {
    return (has_cap ? cap * tanhf(x * cap_reciprocal) : x) * reciprocal;
  }
  template <bool has_cap>
  __device__ float slope(float x) const {
    if constexpr (!has_cap) return reciprocal;
    const float tanh = tanhf(x * cap_reciprocal);
    return (1.0f - tanh * tanh) * reciprocal;
  }
  __device__ float apply(float x) const { return cap == 0.0f ? apply<false>(x) : apply<true>(x); }
  __device__ float slope(float x) const { return cap == 0.0f ? slope<false>(x) : slope<true>(x); }
};

/// The transform of a call with attributes `temperature` and `softcap`.
inline checkop_status read_transform(const checkop_call* call, LogitTransform& transform) {
  double temperature = 0, softcap = 0;
  if (auto status = read_attribute(call, "temperature", temperature)) return status;
  if (auto status = read_attribute(call, "softcap", softcap)) return status;
  transform = {temperature, softcap};
  return CHECKOP_OK;
}

/// The attributes of logp and linear_logp; rows with the id `ignored` are left out.
inline checkop_status read_attributes(const checkop_call* call, int64_t& ignored, LogitTransform& transform) {
  double index = 0;
  if (auto status = read_attribute(call, "ignore_index", index)) return status;
  ignored = static_cast<int64_t>(index);
  return read_transform(call, transform);
}

}  // namespace checkop::kernels
