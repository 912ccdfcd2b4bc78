// rms_norm / @NAME@: one row after the other on the CPU, sums in fp32.
//   y[r,h] = x[r,h] * weight[h] / sqrt(mean_h x[r,h]^2 + eps)    x, y: [rows, hidden], weight: [hidden], fp32 or bf16
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
float mean_square(const T* x, int64_t hidden) {
  constexpr int64_t kBlock = 64;  // short chains of additions: rounding errors grow with their length
  float sum = 0, part = 0;
  for (int64_t h = 0; h < hidden; ++h) {
    part += to_float(x[h]) * to_float(x[h]);
    if (h % kBlock == kBlock - 1 || h == hidden - 1) sum += part, part = 0;
  }
  return sum / static_cast<float>(hidden);
}

template <typename T>
checkop_status launch_as(const checkop_call* call) {
  const checkop_tensor& shape = call->inputs[0];
  const int64_t rows = shape.shape[0] * shape.shape[1], hidden = shape.shape[2];
  const T* x = static_cast<const T*>(call->inputs[0].data);
  const T* weight = static_cast<const T*>(call->inputs[1].data);
  T* y = static_cast<T*>(call->outputs[0].data);
  const float eps = static_cast<float>(call->attrs[0].value);
  for (int64_t r = 0; r < rows; ++r, x += hidden, y += hidden) {
    const float scale = 1 / std::sqrt(mean_square(x, hidden) + eps);
    for (int64_t h = 0; h < hidden; ++h) store(to_float(x[h]) * scale * to_float(weight[h]), &y[h]);
  }
  return CHECKOP_OK;
}

checkop_status launch(const checkop_call* call) {
  if (!checkop_all_contiguous(call)) return CHECKOP_UNSUPPORTED;
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
    {sizeof(checkop_kernel), "@NAME@", "rms_norm", "forward", CHECKOP_CPU, 0, 0, nullptr, launch},
};
const checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, sizeof kKernels / sizeof kKernels[0], kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
