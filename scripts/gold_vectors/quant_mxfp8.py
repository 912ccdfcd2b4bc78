# SPDX-License-Identifier: Apache-2.0
"""Vectors of quant_mxfp8: scales rounded up and as OCP has them, codes by a search among all numbers of e4m3."""
from fractions import Fraction

import numpy

from common import Stream, mpf, rows_of, vector
from formats import E4M3, blocks_of, fp32, numbers, rounded


def exponent(amax, round_up):
    """The exponent of the scale, by a search among all that e8m0 has."""
    if numpy.isinf(amax):
        return 127
    if round_up:
        least = Fraction(float(amax * (numpy.float32(1) / numpy.float32(448))))
        return next((e for e in range(-127, 128) if Fraction(2) ** e >= least), 127)
    return next((e for e in range(127, -128, -1) if Fraction(2) ** (e + 8) <= Fraction(float(amax))), -127)


def quantised(name, rows, round_up):
    codes, scales = [], []
    for row in rows:
        for block in blocks_of(fp32(row), 32):
            e = exponent(max(abs(x) for x in block), round_up)
            scales.append(mpf(2) ** e)
            codes += [rounded(numpy.ldexp(numpy.float64(x), -e), E4M3) for x in block]
    return vector(name, "quant_mxfp8", "forward", {"batch": 1, "seq": len(rows), "hidden": len(rows[0])},
                  {"x": [x for row in rows for x in row]}, {"codes": numbers(codes), "scales": (scales, [0] * len(scales))},
                  attrs={"round_up": round_up})


def vectors():
    drawn = rows_of(Stream(43).values(4 * 40), 40)
    ties = [[mpf(448)] + [mpf(17 + 2 * (i % 8)) / 16 * 2 ** (i % 5 - 2) * (-1) ** i for i in range(32)],
            [mpf(4)] * 33, [mpf(450)] + [mpf(i) / 64 for i in range(32)], [mpf(0)] * 33,
            [mpf(255)] * 33, [mpf(256)] * 33]
    infinite = [[mpf("-inf"), mpf(3), mpf(-1000)]]
    for round_up in (1, 0):
        name = f"quant_mxfp8_{'rounded_up' if round_up else 'ocp'}"
        for data, rows in (("drawn", drawn), ("ties", ties), ("infinite", infinite)):
            yield quantised(f"{name}/{data}", rows, round_up)
