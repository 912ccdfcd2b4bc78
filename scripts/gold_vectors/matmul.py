# SPDX-License-Identifier: Apache-2.0
"""Vectors of matmul and of operators that are the same product."""
from common import Stream, absolute, check_gradient, dot, flat, product, rows_of, transposed, vector


def product_vectors(op, rows, inner, columns):
    name = f"{op}_{rows}x{inner}x{columns}"
    random = Stream(rows * 10000 + inner * 100 + columns)
    a, b = rows_of(random.values(rows * inner), inner), rows_of(random.values(inner * columns), columns)
    upstream = rows_of(random.values(rows * columns), columns)
    dims = {"batch": 1, "seq": rows, "k_dim": inner, "n_dim": columns}
    inputs = {"a": flat(a), "b": flat(b)}

    def both(x, y):
        return flat(product(x, y)), flat(product(absolute(x), absolute(y)))

    yield vector(f"{name}/forward", op, "forward", dims, inputs, {"c": both(a, b)})
    outputs = {"da": both(upstream, transposed(b)), "db": both(transposed(a), upstream)}

    def loss(x, y):
        return dot(flat(upstream), flat(product(rows_of(x, inner), rows_of(y, columns))))

    check_gradient(name + "/da", lambda x: loss(x, flat(b)), flat(a), outputs["da"][0])
    check_gradient(name + "/db", lambda x: loss(flat(a), x), flat(b), outputs["db"][0])
    yield vector(f"{name}/backward", op, "backward", dims, {**inputs, "grad_c": flat(upstream)}, outputs)


def vectors():
    for shape in ((1, 1, 1), (1, 7, 3), (4, 33, 6)):
        yield from product_vectors("matmul", *shape)
