# SPDX-License-Identifier: Apache-2.0
"""Vectors of quant_nvfp4 in NumPy's fp32: codes by a search among all numbers of e2m1, scales among those of e4m3."""
import numpy

from common import Stream, mpf, rows_of, vector
from formats import E2M1, E4M3, blocks_of, code_of, fp32, numbers, rounded

ONE, SIX, MOST = numpy.float32(1), numpy.float32(6), numpy.finfo(numpy.float32).max


def nibble(q):
    return code_of(q, E2M1) + (8 if numpy.signbit(q) else 0)


def quantised(name, rows, amax):
    codes, scales = [], []
    with numpy.errstate(divide="ignore", over="ignore"):
        of_tensor = ONE if amax == 0 else min(numpy.float32(2688) / numpy.float32(float(amax)), MOST)
        for row in rows:
            nibbles = []
            for block in blocks_of(fp32(row), 16):
                largest = max(abs(x) for x in block)
                scale = rounded(min(largest * (of_tensor * (ONE / SIX)), numpy.float32(448)), E4M3)
                factor = min(ONE / (scale * (ONE / of_tensor)), MOST)
                scales.append(scale)
                nibbles += [nibble(x * factor) for x in block]
            nibbles += [0] * (len(nibbles) % 2)
            codes += [low + 16 * high for low, high in zip(nibbles[::2], nibbles[1::2])]
    return vector(name, "quant_nvfp4", "forward", {"batch": 1, "seq": len(rows), "hidden": len(rows[0])},
                  {"x": [x for row in rows for x in row], "amax": [amax]},
                  {"codes": (codes, [0] * len(codes)), "scales": numbers(scales)}, attrs={"near": 0})


def vectors():
    drawn = rows_of(Stream(44).values(4 * 37), 37)
    yield quantised("quant_nvfp4/drawn", drawn, max(abs(x) for row in drawn for x in row))
    ties = [[mpf(6)] + [x * (-1) ** i for i, x in enumerate((mpf(1) / 4, mpf(3) / 4, mpf(5) / 4, mpf(7) / 4, mpf(5) / 2,
                                                             mpf(7) / 2, mpf(5)) * 2)],
            [mpf(21) / 2] + [mpf(7 * (1 + i % 5)) / 16 for i in range(14)], [mpf(0)] * 15,
            [mpf(1) / 2**10 * i for i in range(15)], [mpf(1) / 2**14 * i for i in range(15)]]
    yield quantised("quant_nvfp4/ties", ties, mpf(2688) / 256)
    yield quantised("quant_nvfp4/zeros", [[mpf(0)] * 3], mpf(0))
    yield quantised("quant_nvfp4/amax_too_small", [[mpf(100), mpf(-1)]], mpf(2))
