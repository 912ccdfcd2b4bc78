// SPDX-License-Identifier: Apache-2.0
// Shared by the CUDA candidates: loads and stores per dtype, reductions in a fixed order, checks of a call.
//
// Checks come before any work: a call that can't be served gets a message in call->message and nothing is touched. Only
// ids are checked while the kernel runs. CHECKOP_UNSUPPORTED means "this kernel does not support that", CHECKOP_FAILED
// "the input is wrong".
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <limits>

#include "check_operator.h"

namespace checkop::kernels {

// --- arithmetic ------------------------------------------------------------------------------------------------------

__host__ __device__ constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
__host__ __device__ constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

/// Exact.
__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__half x) { return __half2float(x); }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

/// One rounding to nearest, ties to even.
template <typename T>
__device__ T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline __half from_float<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

/// n consecutive elements; if aligned, they move as 16-byte words.
template <typename T, int n>
struct alignas(16) Pack {
  static_assert(n * sizeof(T) % 16 == 0);
  T at[n];
};

/// std::bit_cast is not available in device code.
template <typename To, typename From>
__device__ To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

/// What to subtract before exp: the maximum, but 0 if every element so far is -inf, because -inf - -inf is NaN. A NaN
/// or +inf element still makes the sum NaN: fmaxf skips NaN, exp does not.
__device__ inline float exp_shift(float max) { return max == -INFINITY ? 0.0f : max; }

// --- reductions ------------------------------------------------------------------------------------------------------

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

/// Every lane gets the same bits: a butterfly adds the same pairs in every lane, and addition commutes.
__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(kAllLanes, x, offset);
  return x;
}
__device__ inline float warp_max(float x) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, offset));
  return x;
}

/// Maximum over the block, in every thread. All threads must call, with blockDim.x a multiple of 32. `shared` holds 32
/// floats for this reduction only: there is no barrier after the last read.
__device__ inline float block_max(float x, float* __restrict__ shared) {
  const unsigned lane = threadIdx.x % kWarp, n_warps = blockDim.x / kWarp;
  x = warp_max(x);
  if (lane == 0) shared[threadIdx.x / kWarp] = x;
  __syncthreads();
  return warp_max(lane < n_warps ? shared[lane] : -INFINITY);
}
__device__ inline float block_sum(float x, float* __restrict__ shared) {
  const unsigned lane = threadIdx.x % kWarp, n_warps = blockDim.x / kWarp;
  x = warp_sum(x);
  if (lane == 0) shared[threadIdx.x / kWarp] = x;
  __syncthreads();
  return warp_sum(lane < n_warps ? shared[lane] : 0.0f);
}

// --- messages --------------------------------------------------------------------------------------------------------

/// Writes the message and returns `status`.
__attribute__((format(printf, 3, 4))) inline checkop_status say(const checkop_call* call, checkop_status status,
                                                                const char* format, ...) {
  if (call->message == nullptr || call->message_bytes == 0) return status;
  va_list args;
  va_start(args, format);
  vsnprintf(call->message, call->message_bytes, format, args);
  va_end(args);
  return status;
}

inline checkop_status cuda_status(const checkop_call* call, cudaError_t error, const char* doing) {
  if (error == cudaSuccess) return CHECKOP_OK;
  return say(call, CHECKOP_FAILED, "%s: %s: %s", doing, cudaGetErrorName(error), cudaGetErrorString(error));
}

/// The last line of every launch.
inline checkop_status launch_status(const checkop_call* call, const char* doing) {
  return cuda_status(call, cudaGetLastError(), doing);
}

inline const char* dtype_name(int32_t dtype) {
  constexpr const char* kNames[] = {"fp64",  "fp32", "fp16", "bf16", "int64", "int32",
                                    "uint8", "e4m3", "e5m2", "e8m0", "e2m1x2"};
  return dtype >= CHECKOP_F64 && dtype <= CHECKOP_E2M1X2 ? kNames[dtype] : "unknown dtype";
}

// --- checks of a call ------------------------------------------------------------------------------------------------

/// Product of all extents but the last: the number of rows of a tensor with any number of batch dimensions.
inline int64_t leading_count(const checkop_tensor& t) {
  int64_t count = 1;
  for (int32_t i = 0; i + 1 < t.rank; ++i) count *= t.shape[i];
  return count;
}
inline int64_t last_extent(const checkop_tensor& t) { return t.rank > 0 ? t.shape[t.rank - 1] : 0; }

/// Runs checks in sequence. After the first failure later checks do nothing, so that the message is about the first.
class CallCheck {
 public:
  explicit CallCheck(const checkop_call* call) : call_(call) {}
  checkop_status status() const { return status_; }
  bool failed() const { return status_ != CHECKOP_OK; }

  CallCheck& counts(int32_t n_inputs, int32_t n_outputs) {
    if (!failed() && (call_->n_inputs != n_inputs || call_->n_outputs != n_outputs)) {
      status_ = say(call_, CHECKOP_FAILED, "got %d inputs and %d outputs, expected %d and %d", call_->n_inputs,
                    call_->n_outputs, n_inputs, n_outputs);
    }
    return *this;
  }

  CallCheck& rank_at_least(const checkop_tensor& t, const char* name, int32_t rank) {
    if (!failed() && t.rank < rank) {
      status_ = say(call_, CHECKOP_FAILED, "tensor '%s': rank %d, expected at least %d", name, t.rank, rank);
    }
    return *this;
  }

  /// Requires fp32, fp16 or bf16.
  CallCheck& float_dtype(const checkop_tensor& t, const char* name) {
    if (!failed() && t.dtype != CHECKOP_F32 && t.dtype != CHECKOP_F16 && t.dtype != CHECKOP_BF16) {
      status_ = say(call_, CHECKOP_UNSUPPORTED, "tensor '%s': %s is not supported; use fp32, fp16 or bf16", name,
                    dtype_name(t.dtype));
    }
    return *this;
  }

  CallCheck& dtype(const checkop_tensor& t, const char* name, int32_t expected) {
    if (!failed() && t.dtype != expected) {
      status_ = say(call_, CHECKOP_UNSUPPORTED, "tensor '%s': %s is not supported here; use %s", name,
                    dtype_name(t.dtype), dtype_name(expected));
    }
    return *this;
  }

  CallCheck& contiguous(const checkop_tensor& t, const char* name) {
    if (!failed() && !checkop_is_contiguous(&t)) {
      status_ = say(call_, CHECKOP_UNSUPPORTED, "tensor '%s': strides are not supported; make it contiguous", name);
    }
    return *this;
  }

  /// Requires the first `n_leading` extents of `like`, followed by `tail`.
  CallCheck& shape(const checkop_tensor& t, const char* name, const checkop_tensor& like, int32_t n_leading,
                   std::initializer_list<int64_t> tail) {
    if (failed()) return *this;
    const auto n_tail = static_cast<int32_t>(tail.size());
    if (t.rank != n_leading + n_tail) {
      status_ = say(call_, CHECKOP_FAILED, "tensor '%s': rank %d, expected %d", name, t.rank, n_leading + n_tail);
    }
    for (int32_t i = 0; i < t.rank && !failed(); ++i) {
      const int64_t expected = i < n_leading ? like.shape[i] : tail.begin()[i - n_leading];
      if (t.shape[i] != expected) {
        status_ = say(call_, CHECKOP_FAILED, "tensor '%s': extent %lld of dimension %d, expected %lld", name,
                      static_cast<long long>(t.shape[i]), i, static_cast<long long>(expected));
      }
    }
    return *this;
  }

  CallCheck& workspace(size_t bytes) {
    if (!failed() && (call_->workspace_bytes < bytes || (bytes > 0 && call_->workspace == nullptr))) {
      status_ = say(call_, CHECKOP_FAILED, "workspace has %zu bytes, %zu are needed", call_->workspace_bytes, bytes);
    }
    return *this;
  }

 private:
  const checkop_call* call_;
  checkop_status status_ = CHECKOP_OK;
};

/// The value of an attribute; CHECKOP_FAILED if the call lacks it.
inline checkop_status read_attribute(const checkop_call* call, const char* name, double& value) {
  for (int32_t i = 0; i < call->n_attrs; ++i) {
    if (std::strcmp(call->attrs[i].name, name) != 0) continue;
    value = call->attrs[i].value;
    return CHECKOP_OK;
  }
  return say(call, CHECKOP_FAILED, "attribute '%s' is missing", name);
}

template <typename T>
struct TypeTag {
  using type = T;
};

/// Calls f(TypeTag<T>{}) with the C++ type of a dtype accepted by float_dtype().
template <typename F>
checkop_status with_float_type(int32_t dtype, F&& f) {
  switch (dtype) {
    case CHECKOP_F32:
      return f(TypeTag<float>{});
    case CHECKOP_F16:
      return f(TypeTag<__half>{});
    default:
      return f(TypeTag<__nv_bfloat16>{});
  }
}

}  // namespace checkop::kernels
