"""Rows: sorting and selection of the largest."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from rows.row import Row, f32, i32, integers, normal, row

A = normal(3, 7)
TIES = integers(0, 4, 2, 11)
HOSTILE = f32(3, np.nan, -0.0, 0, -np.inf, np.inf, 1, -np.nan, 0, -0.0, 1e-40, -5)
LONG = normal(300)


def signs(x):  # type: ignore[no-untyped-def]
    return jnp.signbit(x)


ROWS: list[Row] = [
    row("sort", jnp.sort, A),
    row("sort_first", lambda x: jnp.sort(x, axis=0), A),
    row("sort_one", jnp.sort, A[:, :1]),
    row("sort_nothing", jnp.sort, A[:, :0]),
    row("sort_hostile", lambda x: (jnp.sort(x), signs(jnp.sort(x))), HOSTILE),
    row("sort_int", lambda x: jnp.sort(x), integers(-(2**31), 2**31 - 1, 9)),
    row("sort_unsigned", lambda x: jnp.sort(x), integers(0, 2**32 - 1, 9, dtype=np.uint32)),
    row("sort_bool", lambda x: jnp.sort(x), A > 0),
    row("sort_bf16", lambda x: jnp.sort(x), A.astype(ml_dtypes.bfloat16)),
    row("sort_f64", lambda x: jnp.sort(x), A.astype(np.float64), x64=True),
    row("sort_descending", lambda x: jnp.sort(x, descending=True), HOSTILE),
    row("argsort", jnp.argsort, TIES),
    row("argsort_hostile", jnp.argsort, HOSTILE),
    row("argsort_descending", lambda x: jnp.argsort(x, descending=True), TIES),
    row("sort_pairs", lambda x, y: lax.sort((x, y), num_keys=1), TIES, np.arange(22, dtype=np.int32).reshape(2, 11)),
    row("sort_two_keys", lambda x, y: lax.sort((x, y, -y), num_keys=2), TIES, integers(0, 3, 2, 11, seed=1)),
    row("sort_long", lambda x: (jnp.sort(x), jnp.argsort(x)), LONG),
    row("sort_long_ties", lambda x: jnp.argsort(x), integers(0, 5, 2, 260)),
    row("sort_vmapped", jax.vmap(jnp.sort, 1, 1), A),
    row("sort_gradient", jax.grad(lambda x: (jnp.sort(x) * jnp.arange(7.0)).sum()), A[0]),
    row("top_k", lambda x: lax.top_k(x, 3), A),
    row("top_k_ties", lambda x: lax.top_k(x, 4), TIES),
    row("top_k_all", lambda x: lax.top_k(x, 7), A),
    row("top_k_unsigned", lambda x: lax.top_k(x, 2), np.asarray([0, 2**31, 5], np.uint32)),
    row("top_k_long", lambda x: lax.top_k(x, 3), LONG),
    row("top_1_of_many", lambda x: lax.top_k(x, 1), LONG[:100]),
    row("top_1_negative", lambda x: lax.top_k(x, 1), integers(-9, -1, 100)),
    row("top_1_of_rows", lambda x: lax.top_k(x, 1), integers(-9, -1, 3, 100)),
    row("approx_max_k", lambda x: lax.approx_max_k(x, 2), A),
    row("approx_min_k", lambda x: lax.approx_min_k(x, 2), A),
    row("unique_sized", lambda x: jnp.unique(x, size=6, fill_value=-1), i32(3, 1, 3, 2, 1)),
    row("quantile", lambda x: jnp.quantile(x, f32(0.1, 0.5), axis=1), A, ulps=16, floor=1),
    row("rank_data", lambda x: jnp.argsort(jnp.argsort(x)), A),
]
