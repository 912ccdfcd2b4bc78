# SPDX-License-Identifier: Apache-2.0
"""Vectors of quant_fp8_block: both orders of division in NumPy's fp32, codes by a search among all numbers of e4m3."""
import math

import numpy

from common import Stream, mpf, rows_of, transposed, vector
from formats import E4M3, blocks_of, fp32, numbers, rounded

ONE, LARGEST = numpy.float32(1), numpy.float32(448)


def power_from(x):
    """The least power of two that is at least x."""
    mantissa, exponent = math.frexp(float(x))
    return numpy.float32(math.ldexp(1, exponent - 1 if mantissa == 0.5 else exponent))


def power_up_to(x):
    return numpy.float32(math.ldexp(1, math.frexp(float(x))[1] - 1))


def scale_and_factor(block, factor_first, pow2, eps):
    amax = max(max(abs(x) for x in block), numpy.float32(eps))
    if factor_first == 0:
        scale = amax / LARGEST
        scale = power_from(scale) if pow2 else scale
        return scale, ONE / scale
    factor = ONE if amax == 0 or numpy.isinf(amax) else LARGEST / amax
    factor = power_up_to(factor) if pow2 else factor
    return ONE / factor, factor


def codes_and_scales(rows, factor_first, pow2, eps):
    codes, scales = [], []
    for row in rows:
        for block in blocks_of(fp32(row), 128):
            scale, factor = scale_and_factor(block, factor_first, pow2, eps)
            scales.append(scale)
            codes += [rounded(x * factor, E4M3) for x in block]
    return codes, scales


def quantised(name, rows, factor_first, pow2, eps, batch=1, with_transposed=False):
    codes, scales = codes_and_scales(rows, factor_first, pow2, eps)
    outputs = {"codes": numbers(codes), "scales": numbers(scales)}
    if with_transposed:
        codes_t, scales_t = codes_and_scales(transposed(rows), factor_first, pow2, eps)
        outputs.update(codes_t=numbers(codes_t), scales_t=numbers(scales_t))
    return vector(name, "quant_fp8_block", "forward", {"batch": batch, "seq": len(rows) // batch, "hidden": len(rows[0])},
                  {"x": [x for row in rows for x in row]}, outputs, ["codes_t"] if with_transposed else [],
                  attrs={"factor_first": factor_first, "pow2": pow2, "eps": eps, "near": 0})


def vectors():
    stream = Stream(41)
    drawn = rows_of(stream.values(3 * 140), 140)
    # 448 and the middle of two codes; an amax that is a power of two; one just above; zeros.
    ties = [[mpf(448)] + [mpf(17 + 2 * (i % 8)) / 16 * 2 ** (i % 5 - 2) * (-1) ** i for i in range(129)],
            [mpf(4)] * 130, [mpf(4) + mpf(1) / 32] + [mpf(i) / 64 for i in range(129)], [mpf(0)] * 130]
    for factor_first, eps in ((0, 1e-4), (1, 0)):
        for pow2 in (0, 1):
            name = f"quant_fp8_block_{'factor' if factor_first else 'scale'}{'_pow2' if pow2 else ''}"
            yield quantised(f"{name}/drawn", drawn, factor_first, pow2, eps)
            yield quantised(f"{name}/ties", ties, factor_first, pow2, eps)
    yield quantised("quant_fp8_block_infinite", [[mpf("inf"), mpf(3), mpf(-1000)]], 1, 0, 0)
    yield quantised("quant_fp8_block_eps", [[mpf(1) / 4, mpf(-3)]], 0, 0, 1)
    # Three sequences of 50 tokens: the second block of a column begins within the last one.
    drawn_t = rows_of(stream.values(150 * 3), 3)
    for factor_first, pow2, eps in ((0, 0, 1e-4), (0, 1, 1e-4), (1, 0, 0)):
        yield quantised(f"quant_fp8_block_transposed/{factor_first}{pow2}", drawn_t, factor_first, pow2, eps, 3, True)
