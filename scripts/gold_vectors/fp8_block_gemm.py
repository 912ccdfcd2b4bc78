# SPDX-License-Identifier: Apache-2.0
"""Vectors of fp8_block_gemm: whole blocks and tails, codes at both ends of e4m3, a scale of 0."""
from common import Stream, absolute, dot, flat, mpf, rows_of, vector
from formats import E4M3

BLOCK = 128


def blocks(n):
    return -(-n // BLOCK)


def codes(stream, count):
    """Numbers of e4m3 that bf16 and fp16 hold, too."""
    found = []
    for _ in range(count):
        size = E4M3[stream.below(len(E4M3))]
        found.append(mpf(size.numerator) / size.denominator * (-1) ** stream.below(2))
    return found


def gemm(name, rows, k_dim, n_dim, zero=False):
    stream = Stream(rows * 1000 + k_dim * 10 + n_dim)
    a, b = rows_of(codes(stream, rows * k_dim), k_dim), rows_of(codes(stream, n_dim * k_dim), k_dim)
    scale_a = rows_of([1 + abs(stream.value(step=mpf(1) / 128)) for _ in range(rows * blocks(k_dim))], blocks(k_dim))
    scale_b = rows_of([abs(stream.value(step=mpf(1) / 256)) for _ in range(blocks(n_dim) * blocks(k_dim))], blocks(k_dim))
    if zero:
        scale_a[0][0] = mpf(0)
    x = [[code * scales[k // BLOCK] for k, code in enumerate(row)] for row, scales in zip(a, scale_a)]
    y = [[code * scale_b[n // BLOCK][k // BLOCK] for k, code in enumerate(row)] for n, row in enumerate(b)]

    def product(x, y):
        return flat([[dot(row, column) for column in y] for row in x])

    return vector(name, "fp8_block_gemm", "forward", {"batch": 1, "seq": rows, "k_dim": k_dim, "n_dim": n_dim},
                  {"a": flat(a), "scale_a": flat(scale_a), "b": flat(b), "scale_b": flat(scale_b)},
                  {"d": (product(x, y), product(absolute(x), absolute(y)))}, attrs={"acc_bits": 14, "acc_terms": 32})


def vectors():
    yield gemm("fp8_block_gemm_one", 1, 1, 1)
    yield gemm("fp8_block_gemm_tail", 2, 130, 3)
    yield gemm("fp8_block_gemm_zero_scale", 2, 140, 2, zero=True)
    yield gemm("fp8_block_gemm_two_blocks_of_columns", 1, 5, 131)
