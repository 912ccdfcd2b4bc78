// SPDX-License-Identifier: Apache-2.0
// Attention over keys in one or several tensors, concatenated: the code shared by attention and kv_cache_attention.
// Defined in attention.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "operator/operator.hpp"

namespace checkop {

/// The attributes causal and scale, in this order; then those of attention and paged_attention, too: window_left,
/// window_right and softcap.
extern const std::array<AttrSpec, 2> kAttentionAttrs;
extern const std::array<AttrSpec, 5> kWindowAttrs;

/// The attributes of a case; the default of those that the operator lacks.
struct AttentionAttrs {
  bool causal;
  double scale;                       ///< below 0: 1/sqrt(head_dim)
  int64_t window_left, window_right;  ///< below 0: unbounded
  double softcap;                     ///< 0: off

  explicit AttentionAttrs(std::span<const double> attrs);

  struct Range {
    int64_t begin, end;
  };
  /// The keys that query i sees, padding aside: j with p - window_left <= j <= p + window_right, where p = i + (kv_seq
  /// - q_seq) is its own key. With causal no key after p.
  Range keys_of(int64_t i, int64_t q_seq, int64_t kv_seq) const;
};
/// The rounding points of both operators.
extern const std::array<Recipe, 2> kAttentionForwardRecipes;
extern const std::array<Recipe, 5> kAttentionBackwardRecipes;

/// The passes over `parts` parts of keys, where kv_seq is the sum of their lengths:
///   in:  q[batch, q_heads, q_seq, head_dim]; for each part k, v[batch, kv_heads, its length, head_dim];
///        optional key_padding_mask[batch, kv_seq], nonzero keeps; backward: grad_o[batch, q_heads, q_seq, head_dim],
///        then, if the operator has them, optional o and lse, which a forward pass saved
///   out: o, shaped as q; optional lse[batch, q_heads, q_seq]     backward: dq; for each part dk, dv
/// Query head h reads key head h / (q_heads/kv_heads).
///   o_i = sum_j p_ij v_j,  p_i = softmax over the kept keys of query i of t_ij;  o_i = 0 without kept keys
///   t_ij = s_ij = scale q_i k_j,  or with a cap c  t_ij = c tanh(s_ij/c)
///   lse_i = log of the sum of exponentials of its t; -inf without kept keys
///   dv = p^T grad,  dt = p*(grad v^T - rowsum(grad*o)),  ds = dt*(1 - (t/c)^2),  dq = scale ds k,
///   dk = scale ds^T q, summed over the heads of a group
/// Keys that are not kept are never read; they may hold anything.
/// Source of the gradients: differentiated by hand; checked by gradient_test.
void attention_forward(const GoldArgs& args, int parts);
void attention_backward(const GoldArgs& args, int parts);

/// Operations of `products` products: each takes 2 head_dim operations per pair of a query and a key that `causal` and
/// the window keep. Padding is not subtracted. The forward pass has two products, q k^T and the one with v; the
/// backward pass recomputes q k^T and has four of its own.
Work attention_work(const GoldArgs& args, int parts, int products);
inline constexpr int kForwardProducts = 2, kBackwardProducts = 5;

/// Fills the keys and values that key_padding_mask drops with payloads that must not be read. `keys` and `values` name
/// the tensors of the parts, in order.
void plant_masked_keys(const FillArgs& args, const std::vector<std::string_view>& keys,
                       const std::vector<std::string_view>& values);

/// Throws InputError when kv_heads does not divide q_heads, and for invalid attributes; the second one for those of
/// kWindowAttrs, too.
void check_attention_sizes(const CaseSizes& sizes);
void check_window_sizes(const CaseSizes& sizes);

}  // namespace checkop
