# SPDX-License-Identifier: Apache-2.0
"""Vectors of masked_grouped_fp8_block_gemm: counts of 0, of the capacity and between, tails of blocks in both directions."""
from grouped_fp8_block_gemm import product_of_experts


def masked(name, capacity, k_dim, n_dim, counts):
    expert_of = [e if i < count else None for e, count in enumerate(counts) for i in range(capacity)]
    return product_of_experts(name, "masked_grouped_fp8_block_gemm", k_dim, n_dim, len(counts), expert_of, {"capacity": capacity},
                              {"counts": counts})


def vectors():
    yield masked("masked_grouped_fp8_block_gemm_one", 1, 1, 1, [1])
    yield masked("masked_grouped_fp8_block_gemm_no_rows", 2, 2, 2, [0, 0])
    yield masked("masked_grouped_fp8_block_gemm_several", 3, 130, 3, [0, 2, 1, 0, 3, 0])
    yield masked("masked_grouped_fp8_block_gemm_two_blocks_of_columns", 2, 3, 130, [1, 2])
