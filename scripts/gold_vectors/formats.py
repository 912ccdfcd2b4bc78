# SPDX-License-Identifier: Apache-2.0
"""Formats of 8 and 4 bits from their definitions, and rounding to them by a search among all codes."""
from fractions import Fraction

import numpy

from common import mpf

E4M3 = [Fraction(m, 8) / 2**6 if e == 0 else (1 + Fraction(m, 8)) * Fraction(2) ** (e - 7)
        for e in range(16) for m in range(8)][:-1]  # the last one is NaN
E2M1 = [Fraction(0), Fraction(1, 2), Fraction(1), Fraction(3, 2), Fraction(2), Fraction(3), Fraction(4), Fraction(6)]


def code_of(x, sizes):
    """The code of the size nearest to |x|, the even one of two; the largest of all that is beyond it."""
    if numpy.isinf(x):
        return len(sizes) - 1
    size = abs(Fraction(float(x)))
    return min(range(len(sizes)), key=lambda code: (abs(sizes[code] - size), code % 2))


def rounded(x, sizes):
    """The nearest number of a format."""
    return numpy.copysign(numpy.float32(float(sizes[code_of(x, sizes)])), x)


def blocks_of(row, width):
    return [row[i:i + width] for i in range(0, len(row), width)]


def fp32(values):
    return [numpy.float32(float(x)) for x in values]


def numbers(values):
    """Exact outputs of a vector."""
    return [mpf("inf") if numpy.isinf(x) else mpf(float(x)) for x in values], [0] * len(values)
