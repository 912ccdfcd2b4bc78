# SPDX-License-Identifier: Apache-2.0
"""Names that the program takes, for editors and type checkers. Written by scripts/python_types.py."""
from typing import Literal

Op = Literal["logp", "linear_logp", "matmul", "det_gemm", "lm_head", "rms_norm", "add_rms_norm", "gated_rms_norm",
             "silu", "swiglu", "embedding", "rope", "qk_norm_rope", "attention", "kv_cache_attention",
             "varlen_attention", "paged_attention", "attention_merge_state", "entropy", "linear_entropy", "ratio_kl",
             "kl_full", "grpo_loss", "policy_loss", "linear_policy_loss", "pack", "moe_permute", "moe_combine",
             "moe_route", "grouped_gemm", "masked_grouped_gemm", "gae", "adamw", "whiten", "group_norm", "tp_logp",
             "tp_linear_logp", "all_reduce", "reduce_scatter", "all_gather", "quant_fp8_block", "quant_fp8_block_2d",
             "quant_mxfp8", "quant_nvfp4", "fp8_block_gemm", "grouped_fp8_block_gemm", "masked_grouped_fp8_block_gemm",
             "fp8_block_wgrad"]
DType = Literal["fp32", "bf16", "fp16", "fp64"]
Class = Literal["pointwise", "reduction", "contraction", "logprob", "composite", "exact"]
CheckName = Literal["accuracy", "invariance", "determinism", "memory"]
Suite = Literal["smoke", "ci", "nightly", "large", "captured", "invariance", "mutation"]
Policy = Literal["abs_or_rel", "assert_close", "cosine", "kernelbench", "nmse", "two_times", "vs_reference"]
