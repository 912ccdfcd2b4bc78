# SPDX-License-Identifier: Apache-2.0
"""Vectors of fp8_block_wgrad: one expert, experts without rows, columns of no expert."""
from common import Stream, absolute, dot, flat, mpf, rows_of, vector
from fp8_block_gemm import BLOCK, blocks, codes


def wgrad(name, n_dim, k_dim, sizes, rest):
    """`sizes`: of the groups, in blocks."""
    rows, experts = sum(sizes) * BLOCK + rest, len(sizes)
    stream = Stream(rows * 1000 + k_dim * 10 + n_dim)

    def operand(count):
        numbers = rows_of(codes(stream, count * rows), rows)
        scales = rows_of([1 + abs(stream.value(step=mpf(1) / 128)) for _ in range(count * blocks(rows))], blocks(rows))
        return numbers, scales, [[code * of[r // BLOCK] for r, code in enumerate(row)] for row, of in zip(numbers, scales)]

    grad_t, scale_grad_t, g = operand(n_dim)
    x_t, scale_x_t, x = operand(k_dim)
    offsets = [sum(sizes[:e]) * BLOCK for e in range(experts + 1)]

    def product(g, x):
        return flat([[dot(left[first:end], right[first:end]) if end > first else mpf(0) for right in x]
                     for first, end in zip(offsets, offsets[1:]) for left in g])

    return vector(name, "fp8_block_wgrad", "forward",
                  {"rows": rows, "k_dim": k_dim, "n_dim": n_dim, "experts": experts},
                  {"grad_t": flat(grad_t), "scale_grad_t": flat(scale_grad_t), "x_t": flat(x_t),
                   "scale_x_t": flat(scale_x_t), "offsets": offsets},
                  {"dw": (product(g, x), product(absolute(g), absolute(x)))}, attrs={"acc_bits": 14, "acc_terms": 32})


def vectors():
    yield wgrad("fp8_block_wgrad_no_rows", 2, 1, [0], 3)
    yield wgrad("fp8_block_wgrad_one", 2, 3, [1], 0)
    yield wgrad("fp8_block_wgrad_several", 2, 1, [0, 1, 2, 0], 5)
