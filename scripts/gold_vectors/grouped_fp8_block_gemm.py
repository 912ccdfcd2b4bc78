# SPDX-License-Identifier: Apache-2.0
"""Vectors of grouped_fp8_block_gemm: experts without rows, rows of no expert, tails of blocks in both directions."""
from common import Stream, absolute, dot, flat, mpf, rows_of, vector
from fp8_block_gemm import BLOCK, blocks, codes


def product_of_experts(name, op, k_dim, n_dim, experts, expert_of, dims, groups):
    """A vector of `op`, whose row r belongs to expert expert_of[r], or to none. `groups`: the input that says so, and its values."""
    rows = len(expert_of)
    stream = Stream(rows * 1000 + k_dim * 10 + n_dim)
    a = rows_of(codes(stream, rows * k_dim), k_dim)
    b = rows_of(rows_of(codes(stream, experts * n_dim * k_dim), k_dim), n_dim)
    scale_a = rows_of([1 + abs(stream.value(step=mpf(1) / 128)) for _ in range(rows * blocks(k_dim))], blocks(k_dim))
    scale_b = rows_of(rows_of([abs(stream.value(step=mpf(1) / 256))
                               for _ in range(experts * blocks(n_dim) * blocks(k_dim))], blocks(k_dim)), blocks(n_dim))
    x = [[code * scales[k // BLOCK] for k, code in enumerate(row)] for row, scales in zip(a, scale_a)]
    y = [[[code * scales[n // BLOCK][k // BLOCK] for k, code in enumerate(row)] for n, row in enumerate(matrix)]
         for matrix, scales in zip(b, scale_b)]

    def product(x, y):
        return flat([[mpf(0) if e is None else dot(row, column) for column in y[e or 0]]
                     for row, e in zip(x, expert_of)])

    return vector(name, op, "forward", {**dims, "k_dim": k_dim, "n_dim": n_dim, "experts": experts},
                  {"a": flat(a), "scale_a": flat(scale_a), "b": flat(flat(b)), "scale_b": flat(flat(scale_b)), **groups},
                  {"d": (product(x, y), product(absolute(x), [absolute(matrix) for matrix in y]))},
                  attrs={"acc_bits": 14, "acc_terms": 32})


def grouped(name, k_dim, n_dim, sizes, rest):
    expert_of = [e for e, size in enumerate(sizes) for _ in range(size)] + [None] * rest
    offsets = [sum(sizes[:e]) for e in range(len(sizes) + 1)]
    return product_of_experts(name, "grouped_fp8_block_gemm", k_dim, n_dim, len(sizes), expert_of, {"rows": len(expert_of)},
                              {"offsets": offsets})


def vectors():
    yield grouped("grouped_fp8_block_gemm_one", 1, 1, [1], 0)
    yield grouped("grouped_fp8_block_gemm_no_rows", 2, 2, [0, 0], 2)
    yield grouped("grouped_fp8_block_gemm_several", 130, 3, [0, 2, 1, 0, 1, 0], 1)
    yield grouped("grouped_fp8_block_gemm_two_blocks_of_columns", 3, 130, [1, 1], 0)
