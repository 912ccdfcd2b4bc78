# SPDX-License-Identifier: Apache-2.0
"""Vectors of quant_fp8_block_2d: amax of NumPy's slices of a matrix, codes by a search among all numbers of e4m3."""
import numpy

from common import Stream, mpf, rows_of, vector
from formats import E4M3, numbers, rounded
from quant_fp8_block import scale_and_factor


def squares(name, rows, factor_first, pow2, eps, with_transposed=False):
    x = numpy.array([[float(value) for value in row] for row in rows], dtype=numpy.float32)
    n, k = x.shape
    codes, scales = numpy.zeros_like(x), numpy.zeros((-(-n // 128), -(-k // 128)), dtype=numpy.float32)
    for i, j in numpy.ndindex(scales.shape):
        part = numpy.s_[128 * i:128 * (i + 1), 128 * j:128 * (j + 1)]
        scales[i, j], factor = scale_and_factor(list(x[part].flat), factor_first, pow2, eps)
        codes[part] = numpy.reshape([rounded(value * factor, E4M3) for value in x[part].flat], x[part].shape)
    outputs = {"codes": numbers(codes.flat), "scales": numbers(scales.flat)}
    if with_transposed:
        outputs.update(codes_t=numbers(codes.T.flat), scales_t=numbers(scales.T.flat))
    return vector(name, "quant_fp8_block_2d", "forward", {"n_dim": n, "k_dim": k},
                  {"x": [value for row in rows for value in row]}, outputs, ["codes_t"] if with_transposed else [],
                  attrs={"factor_first": factor_first, "pow2": pow2, "eps": eps, "near": 0})


def vectors():
    stream = Stream(47)
    tall, wide = rows_of(stream.values(131 * 3), 3), rows_of(stream.values(2 * 130), 130)
    for factor_first, eps in ((0, 1e-4), (1, 0)):
        for pow2 in (0, 1):
            name = f"quant_fp8_block_2d_{'factor' if factor_first else 'scale'}{'_pow2' if pow2 else ''}"
            yield squares(f"{name}/tall", tall, factor_first, pow2, eps, with_transposed=pow2 == 0)
            yield squares(f"{name}/wide", wide, factor_first, pow2, eps)
    yield squares("quant_fp8_block_2d_ties", [[mpf(448)] + [mpf(17 + 2 * i) / 16 * (-1) ** i for i in range(8)]] * 2, 0, 0, 1e-4)
    yield squares("quant_fp8_block_2d_zeros", [[mpf(0)] * 2] * 2, 1, 0, 0, True)
    yield squares("quant_fp8_block_2d_infinite", [[mpf("inf"), mpf(3)], [mpf(-1000), mpf(2)]], 1, 0, 0)
