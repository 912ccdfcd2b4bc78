// SPDX-License-Identifier: Apache-2.0
// kv_cache_attention: attention of new queries over the keys of a cache, followed by the new keys.
#include <fmt/format.h>

#include <array>

#include "attention.hpp"
#include "base/error.hpp"

namespace checkop {

extern const Emulation kKvCacheAttentionForward, kKvCacheAttentionBackward;  // emulation/kv_cache_attention.cpp

namespace kv_cache_attention {
namespace {

constexpr std::string_view kQueries = "batch q_heads q_seq head_dim", kCached = "batch kv_heads cache_seq head_dim",
                           kNew = "batch kv_heads new_seq head_dim", kOutputs = "batch q_heads q_seq v_dim",
                           kCachedValues = "batch kv_heads cache_seq v_dim",
                           kNewValues = "batch kv_heads new_seq v_dim";
constexpr TensorSpec kQ{"q", kQueries, Fill::query}, kKCache{"k_cache", kCached, Fill::key},
    kVCache{"v_cache", kCachedValues};
constexpr TensorSpec kKNew{"k_new", kNew, Fill::key}, kVNew{"v_new", kNewValues};
constexpr TensorSpec kMask{"key_padding_mask", "batch cache_seq+new_seq", Fill::mask, "", DType::u8, /*optional=*/true};

constexpr std::string_view kPerQuery = "head_dim cache_seq+new_seq", kQGradient = "head_dim v_dim cache_seq+new_seq",
                           kPerKey = "head_dim v_dim cache_seq+new_seq q_heads*q_seq",
                           kPerValue = "head_dim cache_seq+new_seq q_heads*q_seq";
constexpr std::array kForwardIn{kQ, kKCache, kVCache, kKNew, kVNew, kMask};
constexpr std::array kForwardOut{OutputSpec{{"o", kOutputs}, Numerics::contraction, kPerQuery}};
constexpr std::array kBackwardIn{
    kQ, kKCache, kVCache, kKNew, kVNew, kMask, TensorSpec{"grad_o", kOutputs, Fill::upstream}};
constexpr std::array kBackwardOut{
    OutputSpec{{"dq", kQueries}, Numerics::contraction, kQGradient},
    OutputSpec{{"dk_cache", kCached}, Numerics::contraction, kPerKey},
    OutputSpec{{"dv_cache", kCachedValues}, Numerics::contraction, kPerValue},
    OutputSpec{{"dk_new", kNew}, Numerics::contraction, kPerKey},
    OutputSpec{{"dv_new", kNewValues}, Numerics::contraction, kPerValue},
};

/// Gold of kv_cache_attention: attention with k, v = k_cache, v_cache followed by k_new, v_new, where kv_seq =
/// cache_seq + new_seq. Query i is as far from the end as new key i, so `causal` keeps key j <= cache_seq + i: the
/// whole cache, and the new keys up to key i.
void forward(const GoldArgs& args) { attention_forward(args, 2); }
void backward(const GoldArgs& args) { attention_backward(args, 2); }

void check_sizes(const CaseSizes& sizes) {
  check_attention_sizes(sizes);
  const int64_t q_seq = sizes.dim("q_seq"), new_seq = sizes.dim("new_seq");
  if (q_seq != new_seq) {
    throw InputError("--new-seq",
                     fmt::format("{} new keys for {} queries put the causal mask at a wrong offset", new_seq, q_seq),
                     "give as many as --q-seq; older keys belong to --cache-seq");
  }
}

void refine(const FillArgs& args) { plant_masked_keys(args, {"k_cache", "k_new"}, {"v_cache", "v_new"}); }

Work forward_work(const GoldArgs& args) { return attention_work(args, 2, kForwardProducts); }
Work backward_work(const GoldArgs& args) { return attention_work(args, 2, kBackwardProducts); }

constexpr std::array kPasses{Pass{"forward", kForwardIn, kForwardOut, forward, nullptr, forward_work,
                                  &kKvCacheAttentionForward, nullptr, kAttentionForwardRecipes},
                             Pass{"backward", kBackwardIn, kBackwardOut, backward, nullptr, backward_work,
                                  &kKvCacheAttentionBackward, nullptr, kAttentionBackwardRecipes}};

}  // namespace
}  // namespace kv_cache_attention

extern const Operator kKvCacheAttention;
constexpr Operator kKvCacheAttention{"kv_cache_attention",
                                     "reduction",
                                     "o = attention of q over k, v = the cache, then what is new",
                                     "batch",
                                     kAttentionAttrs,
                                     kv_cache_attention::kPasses,
                                     kv_cache_attention::check_sizes,
                                     kv_cache_attention::refine,
                                     /*parallel_dim=*/"",
                                     /*left_out=*/"masked keys"};

}  // namespace checkop
