# SPDX-License-Identifier: Apache-2.0
"""Vectors of det_gemm: the same product as matmul, in other sizes."""
from matmul import product_vectors


def vectors():
    for shape in ((1, 1, 1), (3, 17, 2), (5, 16, 9)):
        yield from product_vectors("det_gemm", *shape)
