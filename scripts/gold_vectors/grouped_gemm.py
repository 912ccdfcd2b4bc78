# SPDX-License-Identifier: Apache-2.0
"""Vectors of grouped_gemm: one expert, experts without rows at both ends and between, rows of no expert."""
from common import Stream, absolute, check_gradient, dot, flat, mpf, rows_of, vector


def grouped_gemm_vectors(name, k_dim, n_dim, sizes, rest):
    rows, experts = sum(sizes) + rest, len(sizes)
    random = Stream(rows * 1000 + k_dim * 10 + n_dim)
    a, upstream = rows_of(random.values(rows * k_dim), k_dim), rows_of(random.values(rows * n_dim), n_dim)
    b = rows_of(rows_of(random.values(experts * n_dim * k_dim), k_dim), n_dim)
    expert_of = [e for e, size in enumerate(sizes) for _ in range(size)] + [None] * rest
    offsets = [sum(sizes[:e]) for e in range(experts + 1)]
    dims = {"rows": rows, "k_dim": k_dim, "n_dim": n_dim, "experts": experts}
    inputs = {"a": flat(a), "b": flat(flat(b)), "offsets": offsets}

    def c_of(a, b):
        return [[mpf(0) if e is None else dot(row, column) for column in b[e or 0]] for row, e in zip(a, expert_of)]

    def da_of(g, b):
        return [[mpf(0) if e is None else dot(row, column) for column in zip(*b[e or 0])]
                for row, e in zip(g, expert_of)]

    def db_of(g, a):
        return [[[sum((g[r][n] * a[r][k] for r in range(rows) if expert_of[r] == e), mpf(0)) for k in range(k_dim)]
                 for n in range(n_dim)] for e in range(experts)]

    def sizes_of(cube):
        return [absolute(matrix) for matrix in cube]

    yield vector(f"{name}/forward", "grouped_gemm", "forward", dims, inputs,
                 {"c": (flat(c_of(a, b)), flat(c_of(absolute(a), sizes_of(b))))})

    def loss(a, b):
        return dot(flat(upstream), flat(c_of(a, b)))

    da, db = flat(da_of(upstream, b)), flat(flat(db_of(upstream, a)))
    check_gradient(f"{name}/da", lambda v: loss(rows_of(v, k_dim), b), flat(a), da)
    check_gradient(f"{name}/db", lambda v: loss(a, rows_of(rows_of(v, k_dim), n_dim)), flat(flat(b)), db)
    yield vector(f"{name}/backward", "grouped_gemm", "backward", dims, {**inputs, "grad_c": flat(upstream)},
                 {"da": (da, flat(da_of(absolute(upstream), sizes_of(b)))),
                  "db": (db, flat(flat(db_of(absolute(upstream), absolute(a)))))})


def vectors():
    yield from grouped_gemm_vectors("grouped_gemm_one", 1, 1, [1], 0)
    yield from grouped_gemm_vectors("grouped_gemm_no_rows", 2, 3, [0, 0], 2)
    yield from grouped_gemm_vectors("grouped_gemm_one_expert", 9, 4, [5], 0)
    yield from grouped_gemm_vectors("grouped_gemm_several", 5, 3, [0, 2, 1, 0, 4, 0], 2)
