// SPDX-License-Identifier: Apache-2.0
// Attention over keys in one or several tensors, concatenated: the code shared by attention, kv_cache_attention,
// varlen_attention and paged_attention. Defined in attention.cpp.
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

/// A logit of each query head that counts in the denominator alone, as a key with a value of 0 would. It is neither
/// scaled nor capped; -inf: none. And its gradient.
inline constexpr TensorSpec kSinks{"sinks", "q_heads", Fill::normal, "", {}, /*optional=*/true};
inline constexpr TensorSpec kDSinks{"dsinks", "q_heads", Fill::normal, "", {}, /*optional=*/true};

/// The rounding points of these operators.
extern const std::array<Recipe, 2> kAttentionForwardRecipes;
extern const std::array<Recipe, 5> kAttentionBackwardRecipes;

/// The passes over `parts` parts of keys, where kv_seq is the sum of their lengths:
///   in:  q[batch, q_heads, q_seq, head_dim]; for each part k[batch, kv_heads, its length, head_dim] and
///        v[batch, kv_heads, its length, v_dim]; optional key_padding_mask[batch, kv_seq], nonzero keeps; with one part
///        optional sinks[q_heads]; backward: grad_o, shaped as o, then with one part optional o and lse, which a
///        forward pass saved, and grad_lse[batch, q_heads, q_seq]
///   out: o[batch, q_heads, q_seq, v_dim]; optional lse[batch, q_heads, q_seq]     backward: dq; for each part dk, dv;
///        with sinks dsinks
/// Query head h reads key head h / (q_heads/kv_heads).
///   o_i = sum_j p_ij v_j,  p_ij = exp(t_ij - lse_i) over the kept keys of query i;  o_i = 0 without kept keys
///   t_ij = s_ij = scale q_i k_j,  or with a cap c  t_ij = c tanh(s_ij/c)
///   lse_i = log(sum_j exp(t_ij) + exp(the sink of its head)); -inf without kept keys and a sink
///   dv = p^T grad,  dt = p*(grad v^T - rowsum(grad*o) + grad_lse),  ds = dt*(1 - (t/c)^2),  dq = scale ds k,
///   dk = scale ds^T q, summed over the heads of a group;  dsink = sum_i exp(sink - lse_i) (grad_lse_i - grad_i o_i)
/// Keys that are not kept are never read; they may hold anything.
/// Source of the gradients: differentiated by hand; checked by gradient_test.
void attention_forward(const GoldArgs& args, int parts);
void attention_backward(const GoldArgs& args, int parts);

/// Products of a pass: each takes 2 head_dim operations per pair of a query and a key that `causal` and the window
/// keep, or 2 v_dim. Padding is not subtracted.
struct AttentionProducts {
  int of_head_dim, of_v_dim;

  bool operator==(const AttentionProducts&) const = default;
  double operations(int64_t head_dim, int64_t v_dim) const {
    return 2.0 * static_cast<double>(of_head_dim * head_dim + of_v_dim * v_dim);
  }
};
inline constexpr AttentionProducts kForwardProducts{1, 1};   ///< q k^T and p v
inline constexpr AttentionProducts kBackwardProducts{3, 2};  ///< q k^T again, dq and dk; grad v^T and dv
Work attention_work(const GoldArgs& args, int parts, const AttentionProducts& products);

/// Fills the keys and values that key_padding_mask drops with payloads that must not be read. `keys` and `values` name
/// the tensors of the parts, in order.
void plant_masked_keys(const FillArgs& args, const std::vector<std::string_view>& keys,
                       const std::vector<std::string_view>& values);

/// In mode extreme: three of four sinks become 100, -inf and -100.
void plant_sinks(const FillArgs& args);

/// Throws InputError when kv_heads does not divide q_heads, and for invalid attributes; the second one for those of
/// kWindowAttrs, too.
void check_attention_sizes(const CaseSizes& sizes);
void check_window_sizes(const CaseSizes& sizes);

}  // namespace checkop
