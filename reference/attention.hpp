// SPDX-License-Identifier: Apache-2.0
// Attention over keys that lie in one tensor or in several, each going on where the one before it ends; defined in
// attention.cpp. What attention and kv_cache_attention share.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "operator/operator.hpp"

namespace checkop {

/// causal and scale, in this order.
extern const std::array<AttrSpec, 2> kAttentionAttrs;

/// The passes over `parts` stretches of keys. With kv_seq the sum of their lengths:
///   in:  q[batch, q_heads, q_seq, head_dim]; of each part k, v[batch, kv_heads, its length, head_dim];
///        key_padding_mask[batch, kv_seq] optional, not 0 keeps; backward, grad_o[batch, q_heads, q_seq, head_dim]
///   out: o, shaped as q     backward: dq; of each part dk, dv
/// Query head h reads key head h / (q_heads/kv_heads).
///   o_i = sum_j p_ij v_j,  p_i = softmax over the keys that query i keeps of scale q_i k_j;  0 where it keeps none
///   dv = p^T grad,  ds = p*(grad v^T - rowsum(grad*o)),  dq = scale ds k,  dk = scale ds^T q, summed over the heads of
///   a group
/// Keys that are not kept are not read, whatever they hold.
/// Source of the gradients: differentiated by hand; checked by gradient_test.
void attention_forward(const GoldArgs& args, int parts);
void attention_backward(const GoldArgs& args, int parts);

/// `products` of 2 head_dim operations for each pair of a query and a key that `causal` keeps; padding is not looked
/// at. The forward pass has two, q k^T and the product with v; the backward pass needs q k^T again and has four of its
/// own.
Work attention_work(const GoldArgs& args, int parts, int products);
inline constexpr int kForwardProducts = 2, kBackwardProducts = 5;

/// Gives the keys and values that key_padding_mask drops content that must not be read. `keys` and `values` name the
/// tensors of the parts, in order.
void plant_masked_keys(const FillArgs& args, const std::vector<std::string_view>& keys,
                       const std::vector<std::string_view>& values);

/// Throws InputError for heads that leave a group uneven and for attributes that are no attributes of attention.
void check_attention_sizes(const CaseSizes& sizes);

}  // namespace checkop
