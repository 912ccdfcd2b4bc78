# SPDX-License-Identifier: Apache-2.0
"""Vectors of masked_grouped_gemm: counts of 0, of the capacity and between, one expert with everything, infinities in
rows that are left out."""
from common import NEGATIVE_INFINITY, Stream, absolute, check_gradient, dot, flat, mpf, rows_of, vector


def masked_grouped_gemm_vectors(name, capacity, k_dim, n_dim, counts):
    experts = len(counts)
    random = Stream(capacity * 1000 + k_dim * 10 + n_dim + sum(counts))

    def cube(rows, columns):
        return rows_of(rows_of(random.values(experts * rows * columns), columns), rows)

    a, b, upstream = cube(capacity, k_dim), cube(n_dim, k_dim), cube(capacity, n_dim)
    dims = {"experts": experts, "capacity": capacity, "k_dim": k_dim, "n_dim": n_dim}

    def cut(rows):
        """The rows that the experts have."""
        return [own[:count] for own, count in zip(rows, counts)]

    def filled(rows, columns):
        """The same as stored, with zeros behind them."""
        return [own + [[mpf(0)] * columns] * (capacity - len(own)) for own in rows]

    def spoilt(rows):
        """The same as stored, with infinities behind them."""
        return [own[:count] + [[-NEGATIVE_INFINITY if column % 2 else NEGATIVE_INFINITY for column in range(len(row))]
                               for row in own[count:]] for own, count in zip(rows, counts)]

    def flat3(values):
        return flat(flat(values))

    def c_of(a, b):
        return [[[dot(row, column) for column in matrix] for row in own] for own, matrix in zip(a, b)]

    def da_of(g, b):
        return [[[dot(row, column) for column in zip(*matrix)] for row in own] for own, matrix in zip(g, b)]

    def db_of(g, a):
        return [[[sum((g_row[n] * a_row[k] for g_row, a_row in zip(own_g, own_a)), mpf(0)) for k in range(k_dim)]
                 for n in range(n_dim)] for own_g, own_a in zip(g, a)]

    def sizes_of(values):
        return [absolute(matrix) for matrix in values]

    inputs = {"a": flat3(spoilt(a)), "b": flat3(b), "counts": counts}
    a, upstream, stored_upstream = cut(a), cut(upstream), flat3(spoilt(upstream))
    yield vector(f"{name}/forward", "masked_grouped_gemm", "forward", dims, inputs,
                 {"c": (flat3(filled(c_of(a, b), n_dim)), flat3(filled(c_of(sizes_of(a), sizes_of(b)), n_dim)))})

    def loss(a, b):
        return dot(flat3(upstream), flat3(c_of(a, b)))

    def with_rows(values):
        """`values`, one behind the other, as the rows that the experts have."""
        rows = rows_of(values, k_dim)
        return [rows[sum(counts[:e]):sum(counts[:e + 1])] for e in range(experts)]

    da, db = da_of(upstream, b), flat3(db_of(upstream, a))
    check_gradient(f"{name}/da", lambda v: loss(with_rows(v), b), flat3(a), flat3(da))
    check_gradient(f"{name}/db", lambda v: loss(a, rows_of(rows_of(v, k_dim), n_dim)), flat3(b), db)
    yield vector(f"{name}/backward", "masked_grouped_gemm", "backward", dims, {**inputs, "grad_c": stored_upstream},
                 {"da": (flat3(filled(da, k_dim)), flat3(filled(da_of(sizes_of(upstream), sizes_of(b)), k_dim))),
                  "db": (db, flat3(db_of(sizes_of(upstream), sizes_of(a))))})


def vectors():
    yield from masked_grouped_gemm_vectors("masked_grouped_gemm_one", 1, 1, 1, [1])
    yield from masked_grouped_gemm_vectors("masked_grouped_gemm_no_rows", 2, 2, 3, [0, 0])
    yield from masked_grouped_gemm_vectors("masked_grouped_gemm_one_expert", 5, 9, 4, [0, 5, 0])
    yield from masked_grouped_gemm_vectors("masked_grouped_gemm_several", 4, 5, 3, [1, 0, 4, 3, 0, 2])
