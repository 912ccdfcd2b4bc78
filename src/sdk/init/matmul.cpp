// matmul / @NAME@: one row after the other on the CPU, sums in fp32.
//   c[r,n] = sum_k a[r,k] * b[k,n]    a: [rows, k_dim], b: [k_dim, n_dim], c: [rows, n_dim], fp32 or bf16
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

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
  constexpr int64_t kBlock = 64;  // short chains of additions: rounding errors grow with their length
  const int64_t* shape = call->inputs[0].shape;
  const int64_t rows = shape[0] * shape[1], depth = shape[2], columns = call->inputs[1].shape[1];
  const T* a = static_cast<const T*>(call->inputs[0].data);
  const T* b = static_cast<const T*>(call->inputs[1].data);
  T* c = static_cast<T*>(call->outputs[0].data);
  std::vector<float> sum(static_cast<size_t>(columns)), part(sum.size());
  for (int64_t r = 0; r < rows; ++r, a += depth, c += columns) {
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (int64_t first = 0; first < depth; first += kBlock) {
      std::fill(part.begin(), part.end(), 0.0f);
      for (int64_t k = first; k < std::min(first + kBlock, depth); ++k) {
        for (size_t n = 0; n < part.size(); ++n)
          part[n] += to_float(a[k]) * to_float(b[k * columns + static_cast<int64_t>(n)]);
      }
      for (size_t n = 0; n < sum.size(); ++n) sum[n] += part[n];
    }
    for (size_t n = 0; n < sum.size(); ++n) store(sum[n], &c[n]);
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
    {sizeof(checkop_kernel), "@NAME@", "matmul", "forward", CHECKOP_CPU, 0, 0, nullptr, launch},
};
const checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, sizeof kKernels / sizeof kKernels[0], kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
