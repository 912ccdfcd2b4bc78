// logp / @NAME@: one row after the other on the CPU, sums in fp32.
//   logp[r] = z[r,t] - max_v z[r,v] - log(sum_v exp(z[r,v] - max)),  t = token_ids[r]; 0 if t = ignore_index
//   z: [rows, vocab], fp32 or bf16; token_ids: [rows], int64; logp: [rows], fp32
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "check_operator.h"

namespace {

/// bf16 is the upper half of a float.
struct Bf16 {
  uint16_t bits;
};

float to_float(float value) { return value; }
float to_float(Bf16 value) {
  const uint32_t bits = uint32_t{value.bits} << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

template <typename T>
float logp(const T* z, int64_t vocab, int64_t target) {
  constexpr int64_t kBlock = 512;  // short chains of additions: rounding errors grow with their length
  float max = -INFINITY, sum = 0, part = 0;
  for (int64_t v = 0; v < vocab; ++v) max = std::max(max, to_float(z[v]));
  for (int64_t v = 0; v < vocab; ++v) {
    part += std::exp(to_float(z[v]) - max);
    if (v % kBlock == kBlock - 1 || v == vocab - 1) sum += part, part = 0;
  }
  return to_float(z[target]) - max - std::log(sum);
}

template <typename T>
checkop_status launch_as(const checkop_call* call) {
  const checkop_tensor& z = call->inputs[0];
  const int64_t rows = z.shape[0] * z.shape[1], vocab = z.shape[2];
  const int64_t* ids = static_cast<const int64_t*>(call->inputs[1].data);
  const int64_t ignored = static_cast<int64_t>(call->attrs[0].value);
  float* out = static_cast<float*>(call->outputs[0].data);
  for (int64_t r = 0; r < rows; ++r) {
    // An ignored row must not be read: it may hold NaN.
    out[r] = ids[r] == ignored ? 0 : logp(static_cast<const T*>(z.data) + r * vocab, vocab, ids[r]);
  }
  return CHECKOP_OK;
}

checkop_status launch(const checkop_call* call) {
  switch (call->inputs[0].dtype) {
    case CHECKOP_F32:
      return launch_as<float>(call);
    case CHECKOP_BF16:
      return launch_as<Bf16>(call);
    default:
      return CHECKOP_UNSUPPORTED;
  }
}

const checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "@NAME@", "logp", "forward", CHECKOP_CPU, 0, 0, nullptr, launch},
};
const checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, sizeof kKernels / sizeof kKernels[0], kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
