"""Rows: reductions, prefix scans, windows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from rows.row import Row, f32, i32, integers, normal, row

A = normal(3, 7)
CUBE = normal(2, 3, 5)
NEGATIVE = -np.abs(A) - 1
HOLES = np.where(np.arange(21).reshape(3, 7) % 5 == 2, np.nan, A).astype(np.float32)
ENDLESS = f32(1, np.inf, -np.inf, 2)
TIES = f32(1, 3, 3, -2, 3)
INTS = integers(-(2**30), 2**30, 4, 9)
BITS = integers(0, 2, 3, 5).astype(bool)
NOTHING = np.zeros((0, 3), np.float32)


def argreduce(x, axis):  # type: ignore[no-untyped-def]
    return jnp.argmax(x, axis), jnp.argmin(x, axis)


def both_ways(fn, axis):  # type: ignore[no-untyped-def]
    return lambda x: (fn(x, axis), fn(x, axis, reverse=True))


def add_and_multiply(a, b):  # type: ignore[no-untyped-def]
    return a[0] + b[0], a[1] * b[1]


ROWS: list[Row] = [
    row("sum_all", jnp.sum, A, floor=1),
    row("sum_rows", lambda x: x.sum(1), A, floor=1),
    row("sum_columns", lambda x: x.sum(0), A, floor=1),
    row("sum_outer_dims", lambda x: x.sum((0, 2)), CUBE, floor=1),
    row("sum_one_element", lambda x: x.sum(0), A[:1]),
    row("sum_nothing", lambda x: (x.sum(0), x.sum(1)), NOTHING),
    row("sum_int_wraps", lambda x: lax.reduce(x, np.int32(0), lax.add, (1,)), INTS),
    row("sum_of_bools", lambda x: jnp.sum(x, 0), BITS),
    row("sum_f16", lambda x: x.sum(1), A.astype(np.float16), floor=1),
    row("sum_bf16", lambda x: x.sum(1), A.astype(ml_dtypes.bfloat16), floor=1),
    row("sum_f64", lambda x: x.sum(1), normal(2, 33, dtype=np.float64), x64=True, floor=1),
    row("prod", lambda x: (x.prod(1), x.prod()), A, ulps=16),
    row("prod_int", lambda x: jnp.prod(x, 1), INTS),
    row("max_min", lambda x: (x.max(1), x.min(0)), NEGATIVE),
    row("max_min_nan", lambda x: (x.max(1), x.min(1), x.max()), HOLES),
    row("max_min_inf", lambda x: (x.max(), x.min()), ENDLESS),
    row("extremes_int", lambda x: (x.max(1), x.min(1)), INTS),
    row("extremes_unsigned", lambda x: (x.max(1), x.min(1)), INTS.astype(np.uint32)),
    row("maximum_bf16", lambda x: x.max(1), HOLES.astype(ml_dtypes.bfloat16)),
    row("all_any", lambda x: (x.all(1), x.any(1), x.all(), x.any()), BITS),
    row("and_or_xor_int", lambda x: [lax.reduce(x, i, f, (1,)) for i, f in bitwise()], INTS),
    row("parity", lambda x: lax.reduce_xor_p.bind(x, axes=(0,)), BITS),
    row("argmax", lambda x: argreduce(x, 1), A),
    row("argmax_ties", lambda x: argreduce(x, 0), TIES),
    row("argmax_nan", lambda x: argreduce(x, 1), HOLES),
    row("argmax_middle", lambda x: argreduce(x, 1), CUBE),
    row("argmax_int", lambda x: argreduce(x, 1), INTS),
    row("argmax_bool", lambda x: argreduce(x, 1), BITS),
    row("argmax_byte_index", lambda x: lax.argmax(x, 1, jnp.uint8), A),
    row("reduce_init", lambda x: lax.reduce(x, np.float32(2), lax.add, (1,)), A, floor=1),
    row("reduce_body", lambda x: lax.reduce(x, np.float32(0), lambda a, b: jnp.where(abs(a) > abs(b), a, b), (1,)), A),
    row(
        "reduce_pair", lambda x: lax.reduce((x, x), (np.float32(0), np.float32(1)), add_and_multiply, (1,)), A, floor=1
    ),
    row("mean_variance", lambda x: (x.mean(1), x.var(0)), A, floor=1),
    row("logsumexp", lambda x: jax.nn.logsumexp(x, 1), NEGATIVE, ulps=8),
    row("softmax", lambda x: jax.nn.softmax(x, 1), A, ulps=8),
    row("softmax_gradient", jax.grad(lambda x: (jax.nn.softmax(x, 1) ** 2).sum()), A, ulps=32, floor=1),
    row("norm", lambda x: jnp.linalg.norm(x, axis=1), A, ulps=8),
    row("cumsum", both_ways(lax.cumsum, 1), A, floor=1),
    row("cumsum_first", both_ways(lax.cumsum, 0), CUBE, floor=1),
    row("cumsum_int", both_ways(lax.cumsum, 1), INTS),
    row("cumprod", both_ways(lax.cumprod, 1), A, ulps=16),
    row("cummax", both_ways(lax.cummax, 1), HOLES),
    row("cummin", both_ways(lax.cummin, 1), HOLES),
    row("cumlogsumexp", both_ways(lax.cumlogsumexp, 1), A, ulps=16, floor=1),
    row("cumsum_one", both_ways(lax.cumsum, 0), A[:1]),
    row("window_max", lambda x: lax.reduce_window(x, -np.inf, lax.max, (2, 3), (1, 2), "SAME"), A),
    row("window_min", lambda x: lax.reduce_window(x, np.inf, lax.min, (2, 3), (2, 1), "VALID"), A),
    row("window_sum", lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 3), (1, 1), "SAME", (1, 1), (1, 2)), A, floor=1),
    row("window_body", lambda x: lax.reduce_window(x, 1.0, lax.mul, (2, 2), (1, 1), "VALID"), A, ulps=8),
    row(
        "window_max_gradient",
        jax.grad(lambda x: (lax.reduce_window(x, -np.inf, lax.max, (2, 2), (1, 2), "SAME") ** 2).sum()),
        A,
    ),
    row("median", lambda x: jnp.median(x, axis=1), A),
    row("count_nonzero", lambda x: jnp.count_nonzero(x > 0, axis=0), A),
    row("int_sums", lambda x: (x.sum(), (x * 2).sum(0)), i32(1, 2, 3)),
]


def bitwise():  # type: ignore[no-untyped-def]
    """Initial values and functions of the bitwise reductions."""
    return ((np.int32(-1), lax.bitwise_and), (np.int32(0), lax.bitwise_or), (np.int32(0), lax.bitwise_xor))
