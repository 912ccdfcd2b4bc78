// SPDX-License-Identifier: Apache-2.0
// qk_norm_rope / native: CPU, one head at a time in fp32.
//   n = x i w,  i = 1 / sqrt(mean x^2 + eps),  w = weight + weight_offset;  x_out = n rotated as by rope, x = q or k
//   g = grad rotated back;  dx = i (g w - x i^2 c),  c = mean(g w x);  dweight = sum over tokens and heads of g x i
//   q, dq, q_out, grad_q_out: [tokens, q_heads, D]  k, k_out, grad_k_out, dk: [tokens, kv_heads, D]  weights: [D],
//   fp32|bf16|fp16, all the same    positions: [tokens] int64, mrope_positions: [tokens, 3] int64 or none
//   Limits: contiguous, D and rotary_dim even, positions >= 0.   Expected error: that of an fp32 angle; sums of a head
//   are chains of at most 68 additions, those of the weights' gradients of 64 + log2(rows / 64).
#include "cpu/rms_norm.hpp"
#include "cpu/rope.hpp"

namespace {

using native::Extent;
using native::Refusal;

/// What queries and keys share.
struct Common {
  int32_t dtype;
  Extent tokens{"tokens"}, head_dim{"head_dim"};
  float eps, offset;

  explicit Common(const checkop_call& c)
      : dtype(c.inputs[0].dtype), eps(native::attribute(c, "eps")), offset(native::attribute(c, "weight_offset")) {
    native::check_computed_dtype(dtype);
  }
};

/// Queries or keys: a tensor [tokens, heads, D] and its weight.
struct Heads {
  const checkop_tensor& x;
  int64_t rows = 0, heads = 0;
  std::vector<float> weight;

  Heads(Common& common, const checkop_tensor& tensor, const char* name, const checkop_tensor& of_columns,
        const char* weight_name)
      : x(tensor) {
    if (x.rank != 3) throw Refusal(CHECKOP_FAILED, std::string(name) + ": expected rank 3");
    common.tokens.bind(x.shape[0], name);
    heads = x.shape[1], rows = x.shape[0] * heads;
    check(common, x, name);
    native::check_list(of_columns, weight_name, common.dtype, common.head_dim);
    weight = native::load_all(of_columns, common.head_dim.value);
    for (float& w : weight) w += common.offset;
  }
  /// Checks another tensor of the same shape.
  void check(Common& common, const checkop_tensor& t, const char* name) const {
    Extent same{"tokens * heads", rows};
    if (t.rank != 3 || t.shape[1] != heads)
      throw Refusal(CHECKOP_FAILED, std::string(name) + ": expected the heads of x");
    native::check_matrix(t, name, common.dtype, same, common.head_dim);
  }
};

/// Checks the positions and makes the table of turns.
native::RopeTable table_of(const checkop_call& c, const native::RopeAngles& angles, Common& common, float direction) {
  const checkop_tensor &positions = c.inputs[4], &three = c.inputs[5];
  Extent each{"positions of a token", 3};
  native::check_list(positions, "positions", CHECKOP_I64, common.tokens);
  native::check_positions(positions, "positions", common.tokens.value);
  const bool has_three = three.data != nullptr;
  if (has_three) {
    native::check_matrix(three, "mrope_positions", CHECKOP_I64, common.tokens, each);
    native::check_positions(three, "mrope_positions", 3 * common.tokens.value);
  }
  const checkop_tensor& used = has_three ? three : positions;
  return {angles, static_cast<const int64_t*>(used.data), common.tokens.value, has_three ? 3 : 1, direction};
}

void turn(const native::RopeAngles& angles, const native::RopeTable& table, int64_t token, float* row) {
  angles.apply(table.cosine.data() + token * angles.pairs(), table.sine.data() + token * angles.pairs(), row);
}

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 6, 2);
    Common common(c);
    const Heads sides[] = {{common, c.inputs[0], "q", c.inputs[2], "q_weight"},
                           {common, c.inputs[1], "k", c.inputs[3], "k_weight"}};
    sides[0].check(common, c.outputs[0], "q_out"), sides[1].check(common, c.outputs[1], "k_out");
    const int64_t n = common.head_dim.value;
    const native::RopeAngles angles(c, n);
    const native::RopeTable table = table_of(c, angles, common, 1.0f);
    for (int side = 0; side < 2; ++side) {
      const Heads& in = sides[side];
      native::parallel_for(in.rows, 12 * in.rows * n, [&](int64_t begin, int64_t end) {
        std::vector<float> row(static_cast<size_t>(n));
        for (int64_t r = begin; r < end; ++r) {
          native::load(in.x, r * n, n, row.data());
          const float scale = native::inverse_rms(row.data(), n, common.eps);
          for (size_t h = 0; h < row.size(); ++h) row[h] = row[h] * scale * in.weight[h];
          turn(angles, table, r / in.heads, row.data());
          native::store(c.outputs[side], r * n, n, row.data());
        }
      });
    }
  });
}

void store_gradients(const Heads& in, const checkop_tensor& grad, const native::RopeAngles& angles,
                     const native::RopeTable& table, const Common& common, const checkop_tensor& dx,
                     const checkop_tensor& dweight) {
  const int64_t n = common.head_dim.value;
  std::vector<float> scales(static_cast<size_t>(in.rows));
  native::parallel_for(in.rows, 16 * in.rows * n, [&](int64_t begin, int64_t end) {
    std::vector<float> x(static_cast<size_t>(n)), g(x.size());
    for (int64_t r = begin; r < end; ++r) {
      native::load(in.x, r * n, n, x.data());
      native::load(grad, r * n, n, g.data());
      turn(angles, table, r / in.heads, g.data());
      const float scale = scales[static_cast<size_t>(r)] = native::inverse_rms(x.data(), n, common.eps);
      for (size_t h = 0; h < g.size(); ++h) g[h] *= in.weight[h];
      native::normalised_row_gradient(x.data(), scale, n, g.data());
      native::store(dx, r * n, n, g.data());
    }
  });
  native::store_row_sums(dweight, in.rows, n, [&](int64_t r, int64_t begin, int64_t, auto& sum) {
    thread_local std::vector<float> x, g;
    x.resize(static_cast<size_t>(n)), g.resize(x.size());
    native::load(in.x, r * n, n, x.data());
    native::load(grad, r * n, n, g.data());
    turn(angles, table, r / in.heads, g.data());
    for (size_t i = 0, h = static_cast<size_t>(begin); i < sum.size(); ++i, ++h)
      sum[i] += g[h] * x[h] * scales[static_cast<size_t>(r)];
  });
}

checkop_status backward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 8, 4);
    Common common(c);
    const Heads q(common, c.inputs[0], "q", c.inputs[2], "q_weight"),
        k(common, c.inputs[1], "k", c.inputs[3], "k_weight");
    q.check(common, c.inputs[6], "grad_q_out"), k.check(common, c.inputs[7], "grad_k_out");
    q.check(common, c.outputs[0], "dq"), k.check(common, c.outputs[1], "dk");
    native::check_list(c.outputs[2], "dq_weight", common.dtype, common.head_dim);
    native::check_list(c.outputs[3], "dk_weight", common.dtype, common.head_dim);
    const native::RopeAngles angles(c, common.head_dim.value);
    const native::RopeTable table = table_of(c, angles, common, -1.0f);
    store_gradients(q, c.inputs[6], angles, table, common, c.outputs[0], c.outputs[2]);
    store_gradients(k, c.inputs[7], angles, table, common, c.outputs[1], c.outputs[3]);
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "qk_norm_rope", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
    {sizeof(checkop_kernel), "native", "qk_norm_rope", "backward", CHECKOP_CPU, 0, 0, nullptr, backward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
