// SPDX-License-Identifier: Apache-2.0
// attention_merge_state / native: CPU, one head of one token at a time in fp32.
//   lse = m + log s,  m = max_p lse_p,  s = sum_p exp(lse_p - m)     o = sum_p w_p o_p,  w_p = exp(lse_p - m) / s
//   dpart_o = w_p do     dpart_lse = w_p (do o_p - do o + dlse)
//   part_o, dpart_o: [tokens, parts, heads, D]   o, do: [tokens, heads, D] fp32|bf16|fp16
//   part_lse, dpart_lse: [tokens, parts, heads]   lse, dlse: [tokens, heads] fp32; these two may be absent
//   A part whose lse is -inf is not read; its gradients are 0. Without any part o is 0, lse -inf.
//   Limits: contiguous.   Expected error: chains of `parts` additions; dot products as native::dot().
#include "cpu/native.hpp"

namespace {

using native::Extent;
using native::Refusal;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Call {
  explicit Call(const checkop_call& c) : part_o(c.inputs[0]) {
    if (part_o.rank != 4) throw Refusal(CHECKOP_FAILED, "part_o: expected rank 4");
    native::check_computed_dtype(part_o.dtype);
    tokens = part_o.shape[0], parts = part_o.shape[1], heads = part_o.shape[2], width = part_o.shape[3];
    check_rows(part_o, "part_o", tokens * parts * heads);
    part_lse = check_numbers(c.inputs[1], "part_lse", tokens * parts * heads);
  }
  void check_rows(const checkop_tensor& t, const char* name, int64_t n) const {
    Extent rows{"rows", n}, columns{"head_dim", width};
    native::check_matrix(t, name, part_o.dtype, rows, columns);
  }
  /// The numbers of heads; nullptr where they are absent.
  static float* check_numbers(const checkop_tensor& t, const char* name, int64_t n) {
    if (t.data == nullptr) return nullptr;
    Extent rows{"rows", n};
    native::check_list(t, name, CHECKOP_F32, rows);
    return static_cast<float*>(t.data);
  }
  int64_t work() const { return 8 * tokens * parts * heads * width; }

  const checkop_tensor& part_o;
  int64_t tokens, parts, heads, width;
  const float* part_lse;
};

/// The parts of one head that have keys.
struct Head {
  Head(const Call& c, int64_t token, int64_t head) : width(static_cast<size_t>(c.width)) {
    float max = -kInfinity, sum = 0;
    for (int64_t p = 0; p < c.parts; ++p) {
      const int64_t row = (token * c.parts + p) * c.heads + head;
      if (c.part_lse[row] == -kInfinity) continue;
      rows.push_back(row), w.push_back(c.part_lse[row]);
      max = w.back() > max ? w.back() : max;
    }
    for (float& each : w) each = std::exp(each - max), sum += each;
    for (float& each : w) each /= sum;
    if (!rows.empty()) lse = max + std::log(sum);
    o.resize(rows.size() * width), merged.resize(width);
    for (size_t i = 0; i < rows.size(); ++i) {
      native::load(c.part_o, rows[i] * c.width, c.width, part(i));
      for (size_t d = 0; d < width; ++d) merged[d] += w[i] * part(i)[d];
    }
  }
  float* part(size_t i) { return o.data() + i * width; }

  size_t width;
  std::vector<int64_t> rows;
  std::vector<float> w, o, merged;
  float lse = -kInfinity;
};

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 2, 2);
    const Call in(c);
    in.check_rows(c.outputs[0], "o", in.tokens * in.heads);
    float* const lse = Call::check_numbers(c.outputs[1], "lse", in.tokens * in.heads);
    native::parallel_for(in.tokens, in.work(), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin * in.heads; row < end * in.heads; ++row) {
        const Head head(in, row / in.heads, row % in.heads);
        native::store(c.outputs[0], row * in.width, in.width, head.merged.data());
        if (lse != nullptr) lse[row] = head.lse;
      }
    });
  });
}

checkop_status backward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 4, 2);
    const Call in(c);
    in.check_rows(c.inputs[2], "grad_o", in.tokens * in.heads);
    const float* const grad_lse = Call::check_numbers(c.inputs[3], "grad_lse", in.tokens * in.heads);
    in.check_rows(c.outputs[0], "dpart_o", in.tokens * in.parts * in.heads);
    float* const dlse = Call::check_numbers(c.outputs[1], "dpart_lse", in.tokens * in.parts * in.heads);
    native::parallel_for(in.tokens, in.work(), [&](int64_t begin, int64_t end) {
      std::vector<float> g(static_cast<size_t>(in.width)), dx(g);
      for (int64_t row = begin * in.heads; row < end * in.heads; ++row) {
        Head head(in, row / in.heads, row % in.heads);
        native::load(c.inputs[2], row * in.width, in.width, g.data());
        const float mean = native::dot(g.data(), head.merged.data(), in.width);
        const float of_lse = grad_lse == nullptr ? 0 : grad_lse[row];
        size_t next = 0;
        for (int64_t p = 0; p < in.parts; ++p) {
          const int64_t at = (row / in.heads * in.parts + p) * in.heads + row % in.heads;
          const bool has_keys = next < head.rows.size() && head.rows[next] == at;
          const float w = has_keys ? head.w[next] : 0;
          dlse[at] = has_keys ? w * (native::dot(g.data(), head.part(next), in.width) - mean + of_lse) : 0;
          for (size_t d = 0; d < g.size(); ++d) dx[d] = has_keys ? w * g[d] : 0;
          native::store(c.outputs[0], at * in.width, in.width, dx.data());
          if (has_keys) ++next;
        }
      }
    });
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "attention_merge_state", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
    {sizeof(checkop_kernel), "native", "attention_merge_state", "backward", CHECKOP_CPU, 0, 0, nullptr, backward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
