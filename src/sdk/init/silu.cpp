// silu / @NAME@: one element after the other on the CPU, in fp32.
//   y = x / (1 + exp(-x))    x, y: [batch, seq, hidden], fp32 or bf16
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

void store(float value, float* to) { *to = value; }
void store(float value, Bf16* to) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);  // to nearest, ties to even
  to->bits = static_cast<uint16_t>(std::isnan(value) ? 0x7fc0 : rounded >> 16);
}

template <typename T>
checkop_status launch_as(const checkop_call* call) {
  const checkop_tensor& x = call->inputs[0];
  const int64_t count = x.shape[0] * x.shape[1] * x.shape[2];
  for (int64_t i = 0; i < count; ++i) {
    const float value = to_float(static_cast<const T*>(x.data)[i]);
    store(value / (1 + std::exp(-value)), static_cast<T*>(call->outputs[0].data) + i);
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
    {sizeof(checkop_kernel), "@NAME@", "silu", "forward", CHECKOP_CPU, 0, 0, nullptr, launch},
};
const checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, sizeof kKernels / sizeof kKernels[0], kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
