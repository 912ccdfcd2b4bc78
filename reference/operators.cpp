// SPDX-License-Identifier: Apache-2.0
// The table of operators, one line each. There is no self-registration: a static library would silently drop it.
#include <array>

#include "operator/operator.hpp"

namespace checkop {

extern const Operator kLogp;                 // logp.cpp
extern const Operator kLinearLogp;           // linear_logp.cpp
extern const Operator kTpLogp;               // tp_logp.cpp
extern const Operator kTpLinearLogp;         // tp_linear_logp.cpp
extern const Operator kMatmul;               // matmul.cpp
extern const Operator kDetGemm;              // det_gemm.cpp
extern const Operator kLmHead;               // lm_head.cpp
extern const Operator kRmsNorm;              // rms_norm.cpp
extern const Operator kAddRmsNorm;           // add_rms_norm.cpp
extern const Operator kGatedRmsNorm;         // gated_rms_norm.cpp
extern const Operator kSilu;                 // silu.cpp
extern const Operator kSwiglu;               // swiglu.cpp
extern const Operator kEmbedding;            // embedding.cpp
extern const Operator kRope;                 // rope.cpp
extern const Operator kQkNormRope;           // qk_norm_rope.cpp
extern const Operator kAttention;            // attention.cpp
extern const Operator kKvCacheAttention;     // kv_cache_attention.cpp
extern const Operator kVarlenAttention;      // varlen_attention.cpp
extern const Operator kPagedAttention;       // paged_attention.cpp
extern const Operator kAttentionMergeState;  // attention_merge_state.cpp
extern const Operator kEntropy;              // entropy.cpp
extern const Operator kLinearEntropy;        // linear_entropy.cpp
extern const Operator kRatioKl;              // ratio_kl.cpp
extern const Operator kGrpoLoss;             // grpo_loss.cpp
extern const Operator kPolicyLoss;           // policy_loss.cpp
extern const Operator kLinearPolicyLoss;     // linear_policy_loss.cpp
extern const Operator kKlFull;               // kl_full.cpp
extern const Operator kPack;                 // pack.cpp
extern const Operator kMoePermute;           // moe_permute.cpp
extern const Operator kMoeCombine;           // moe_combine.cpp
extern const Operator kMoeRoute;             // moe_route.cpp
extern const Operator kGroupedGemm;          // grouped_gemm.cpp
extern const Operator kMaskedGroupedGemm;    // masked_grouped_gemm.cpp
extern const Operator kGae;                  // gae.cpp
extern const Operator kAdamw;                // adamw.cpp
extern const Operator kAllReduce;            // all_reduce.cpp
extern const Operator kReduceScatter;        // reduce_scatter.cpp
extern const Operator kAllGather;            // all_gather.cpp
extern const Operator kWhiten;               // whiten.cpp
extern const Operator kGroupNorm;            // group_norm.cpp
extern const Operator kQuantFp8Block;        // quant_fp8_block.cpp
extern const Operator kQuantFp8Block2d;      // quant_fp8_block_2d.cpp
extern const Operator kQuantMxfp8;           // quant_mxfp8.cpp
extern const Operator kQuantNvfp4;           // quant_nvfp4.cpp
extern const Operator kFp8BlockGemm;         // fp8_block_gemm.cpp
extern const Operator kGroupedFp8BlockGemm;  // grouped_fp8_block_gemm.cpp
extern const Operator kMaskedFp8BlockGemm;   // masked_grouped_fp8_block_gemm.cpp
extern const Operator kFp8BlockWgrad;        // fp8_block_wgrad.cpp

std::span<const Operator* const> operators() {
  static constexpr std::array kTable{&kLogp,
                                     &kLinearLogp,
                                     &kMatmul,
                                     &kDetGemm,
                                     &kLmHead,
                                     &kRmsNorm,
                                     &kAddRmsNorm,
                                     &kGatedRmsNorm,
                                     &kSilu,
                                     &kSwiglu,
                                     &kEmbedding,
                                     &kRope,
                                     &kQkNormRope,
                                     &kAttention,
                                     &kKvCacheAttention,
                                     &kVarlenAttention,
                                     &kPagedAttention,
                                     &kAttentionMergeState,
                                     &kEntropy,
                                     &kLinearEntropy,
                                     &kRatioKl,
                                     &kKlFull,
                                     &kGrpoLoss,
                                     &kPolicyLoss,
                                     &kLinearPolicyLoss,
                                     &kPack,
                                     &kMoePermute,
                                     &kMoeCombine,
                                     &kMoeRoute,
                                     &kGroupedGemm,
                                     &kMaskedGroupedGemm,
                                     &kGae,
                                     &kAdamw,
                                     &kWhiten,
                                     &kGroupNorm,
                                     &kTpLogp,
                                     &kTpLinearLogp,
                                     &kAllReduce,
                                     &kReduceScatter,
                                     &kAllGather,
                                     &kQuantFp8Block,
                                     &kQuantFp8Block2d,
                                     &kQuantMxfp8,
                                     &kQuantNvfp4,
                                     &kFp8BlockGemm,
                                     &kGroupedFp8BlockGemm,
                                     &kMaskedFp8BlockGemm,
                                     &kFp8BlockWgrad};
  return kTable;
}

}  // namespace checkop
