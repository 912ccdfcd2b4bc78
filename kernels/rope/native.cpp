// SPDX-License-Identifier: Apache-2.0
// rope / native: CPU, fp32, from a table of sines and cosines.
//   y_low = m (x_low cos(a) - x_high sin(a)),  y_high = m (x_high cos(a) + x_low sin(a)),  a = position f
//   f = 1 / theta^(2i/R), scaled;  m = attention_factor; R = rotary_dim; columns from R on are copied
//   backward: the same with -a
//   x, y, grad_y, dx: [batch, heads, seq, D] fp32|bf16|fp16    positions: [seq] int64; batch_positions: [batch, seq],
//   mrope_positions: [batch, seq, 3] int64 or none
//   Limits: contiguous, D and R even, positions >= 0.   Expected error: that of an fp32 angle, then two products and a
//   sum. The ends of YaRN's ramp are computed in fp64.
#include "cpu/rope.hpp"

namespace {

using native::Extent;
using native::Refusal;

/// Inputs 2 and 3 are batch_positions and mrope_positions, or none.
void rotate(const checkop_call& call, const checkop_tensor& x, const char* x_name, const checkop_tensor& positions,
            const checkop_tensor& y, const char* y_name, float direction) {
  const checkop_tensor &batch_positions = call.inputs[2], &three_positions = call.inputs[3];
  if (x.rank != 4) throw Refusal(CHECKOP_FAILED, std::string(x_name) + ": expected rank 4");
  native::check_computed_dtype(x.dtype);
  const int64_t batch = x.shape[0], heads = x.shape[1];
  Extent rows{"rows"}, width{"head_dim"}, seq{"seq", x.shape[2]}, tokens{"batch * seq", batch * x.shape[2]};
  native::check_matrix(x, x_name, x.dtype, rows, width);
  native::check_list(positions, "positions", CHECKOP_I64, seq);
  const bool of_batch = batch_positions.data != nullptr, of_three = three_positions.data != nullptr;
  Extent sequences{"batch", batch}, each{"positions of a token", 3};
  if (of_batch) native::check_matrix(batch_positions, "batch_positions", CHECKOP_I64, sequences, seq);
  if (of_three) native::check_matrix(three_positions, "mrope_positions", CHECKOP_I64, tokens, each);
  native::check_matrix(y, y_name, x.dtype, rows, width);
  if (width.value % 2 != 0) throw Refusal(CHECKOP_FAILED, std::string(x_name) + ": head_dim is odd");
  const native::RopeAngles angles(call, width.value);
  if (rows.value == 0) return;

  native::check_positions(positions, "positions", seq.value);
  if (of_batch) native::check_positions(batch_positions, "batch_positions", tokens.value);
  if (of_three) native::check_positions(three_positions, "mrope_positions", 3 * tokens.value);
  const checkop_tensor& used = of_three ? three_positions : of_batch ? batch_positions : positions;
  const bool shared = !of_batch && !of_three;  // by all sequences
  const native::RopeTable table(angles, static_cast<const int64_t*>(used.data), shared ? seq.value : tokens.value,
                                of_three ? 3 : 1, direction);
  native::parallel_for(rows.value, 8 * rows.value * width.value, [&](int64_t begin, int64_t end) {
    std::vector<float> values(static_cast<size_t>(width.value));
    for (int64_t r = begin; r < end; ++r) {
      native::load(x, r * width.value, width.value, values.data());
      const int64_t token = (shared ? 0 : r / (heads * seq.value) * seq.value) + r % seq.value;
      const float* c = table.cosine.data() + token * angles.pairs();
      const float* s = table.sine.data() + token * angles.pairs();
      angles.apply(c, s, values.data());
      native::store(y, r * width.value, width.value, values.data());
    }
  });
}

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 4, 1);
    rotate(c, c.inputs[0], "x", c.inputs[1], c.outputs[0], "y", 1.0f);
  });
}

checkop_status backward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 4, 1);
    rotate(c, c.inputs[1], "grad_y", c.inputs[0], c.outputs[0], "dx", -1.0f);
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "rope", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
    {sizeof(checkop_kernel), "native", "rope", "backward", CHECKOP_CPU, 0, 0, nullptr, backward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
