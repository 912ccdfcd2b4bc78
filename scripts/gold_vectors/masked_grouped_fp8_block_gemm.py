# SPDX-License-Identifier: Apache-2.0
"""Vectors of masked_grouped_fp8_block_gemm: counts of 0, of the capacity and between, tails of blocks in both directions."""
from common import Stream, absolute, dot, flat, mpf, rows_of, vector
from fp8_block_gemm import BLOCK, blocks, codes


def masked(name, capacity, k_dim, n_dim, counts):
    experts = len(counts)
    rows = experts * capacity
    stream = Stream(rows * 1000 + k_dim * 10 + n_dim)
    a = rows_of(codes(stream, rows * k_dim), k_dim)
    b = rows_of(rows_of(codes(stream, experts * n_dim * k_dim), k_dim), n_dim)
    scale_a = rows_of([1 + abs(stream.value(step=mpf(1) / 128)) for _ in range(rows * blocks(k_dim))], blocks(k_dim))
    scale_b = rows_of(rows_of([abs(stream.value(step=mpf(1) / 256))
                               for _ in range(experts * blocks(n_dim) * blocks(k_dim))], blocks(k_dim)), blocks(n_dim))
    expert_of = [e if i < count else None for e, count in enumerate(counts) for i in range(capacity)]
    x = [[code * scales[k // BLOCK] for k, code in enumerate(row)] for row, scales in zip(a, scale_a)]
    y = [[[code * scales[n // BLOCK][k // BLOCK] for k, code in enumerate(row)] for n, row in enumerate(matrix)]
         for matrix, scales in zip(b, scale_b)]

    def product(x, y):
        return flat([[mpf(0) if e is None else dot(row, column) for column in y[e or 0]]
                     for row, e in zip(x, expert_of)])

    return vector(name, "masked_grouped_fp8_block_gemm", "forward",
                  {"experts": experts, "capacity": capacity, "k_dim": k_dim, "n_dim": n_dim},
                  {"a": flat(a), "scale_a": flat(scale_a), "b": flat(flat(b)), "scale_b": flat(flat(scale_b)),
                   "counts": counts},
                  {"d": (product(x, y), product(absolute(x), [absolute(matrix) for matrix in y]))},
                  attrs={"acc_bits": 14, "acc_terms": 32})


def vectors():
    yield masked("masked_grouped_fp8_block_gemm_one", 1, 1, 1, [1])
    yield masked("masked_grouped_fp8_block_gemm_no_rows", 2, 2, 2, [0, 0])
    yield masked("masked_grouped_fp8_block_gemm_several", 3, 130, 3, [0, 2, 1, 0, 3, 0])
    yield masked("masked_grouped_fp8_block_gemm_two_blocks_of_columns", 2, 3, 130, [1, 2])
