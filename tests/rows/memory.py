"""Rows: what is hard to place: aliasing in loops, odd windows, views of views, empty arrays, small dtypes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from rows.row import Row, f32, i32, integers, normal, row

X = normal(12)
BACKWARDS = X[::-1].copy()
LONG = normal(70, seed=3)
SQUARE = normal(5, 5, seed=1)
SUMS = {"floor": 1, "ulps": 16}
HALF = np.asarray([0.5, -1.25, 3.0, 0.0], np.float16)
BRAIN = np.asarray([0.5, -1.25, 3.0, 0.0], ml_dtypes.bfloat16)


def swap_arrays(x: Any, y: Any) -> Any:
    return lax.fori_loop(0, 3, lambda _, s: (s[1], s[0]), (x, y))


def rotate(x: Any, y: Any, z: Any) -> Any:
    return lax.fori_loop(0, 4, lambda i, s: (s[1], s[2] + i, s[0] * 2), (x, y, z))


def swap_while(x: Any, y: Any) -> Any:
    return lax.while_loop(lambda s: s[2] < 3, lambda s: (s[1] + 1, s[0], s[2] + 1), (x, y, 0))


def shift_in_place(x: Any) -> Any:
    """Each element becomes its neighbour: reads and writes of one array at other indices in one step."""
    return lax.fori_loop(0, 3, lambda _, s: s.at[1:].set(s[:-1]), x)


def reverse_in_place(x: Any) -> Any:
    return lax.fori_loop(0, 3, lambda _, s: s.at[:].set(s[::-1] * 2), x)


def sweep(x: Any) -> Any:
    """Red-black relaxation: an update whose updates read neighbours of what it writes."""

    def step(_: Any, s: Any) -> Any:
        s = s.at[1:-1:2].set(0.5 * (s[:-2:2] + s[2::2]))
        return s.at[2:-1:2].set(0.5 * (s[1:-2:2] + s[3::2]))

    return lax.fori_loop(0, 3, step, x)


def gather_step(x: Any, i: Any) -> Any:
    return lax.fori_loop(0, 4, lambda _, s: s[i] + 1, x)


def lagged(x: Any) -> Any:
    """A history that is read at older entries, some of them not yet written."""

    def step(s: Any, i: Any) -> Any:
        past = s[jnp.maximum(i - 7, 0)]
        s = s.at[i].set(0.5 * past + s[i // 2] + 1)
        return s, past

    return lax.scan(step, x, jnp.arange(1, 40))


def two_writers(x: Any, i: Any) -> Any:
    def step(k: Any, s: Any) -> Any:
        a, b = s
        return a.at[i[k]].add(b[k]), b.at[k].multiply(a[i[k]])

    return lax.fori_loop(0, 5, step, (x, x * 0.5))


def old_and_new(x: Any) -> Any:
    """The updated array and the old one are both read afterwards."""

    def step(c: Any, i: Any) -> Any:
        new = c.at[i].set(0.0)
        return new, (c[i], new[(i + 1) % 12], (c - new).sum())

    return lax.scan(step, x, jnp.arange(6))


def grid_walk(x: Any) -> Any:
    """A loop in a loop, both carrying the same matrix."""

    def inner(i: Any) -> Any:
        return lambda j, s: s.at[i, j].set(s[i, (j - 1) % 5] + s[(i - 1) % 5, j])

    return lax.fori_loop(0, 5, lambda i, s: lax.fori_loop(0, 5, inner(i), s), x)


def branch_arrays(p: Any, x: Any, y: Any) -> Any:
    return lax.cond(p, lambda x, y: (x.at[2].set(1.0), y), lambda x, y: (y, x.at[3].add(2.0)), x, y)


def branch_arrays_in_loop(x: Any) -> Any:
    def step(i: Any, s: Any) -> Any:
        return lax.cond(i % 2 == 0, lambda s: s.at[i].set(s[i + 1]), lambda s: s[::-1], s)

    return lax.fori_loop(0, 6, step, x)


def switch_arrays(k: Any, x: Any) -> Any:
    return lax.switch(k, [lambda x: x, lambda x: x.at[0].set(9.0), lambda x: jnp.flip(x), lambda x: jnp.cumsum(x)], x)


def lanes_until(x: Any) -> Any:
    """A while loop whose lanes end at different turns and that carries an array for each."""

    def step(s: Any) -> Any:
        k, h = s
        return k + 1, h.at[k % 4].add(h[(k + 1) % 4] + 1)

    return lax.while_loop(lambda s: s[1].sum() < 40, step, (0, x))


def sieve(n: int) -> Any:
    def step(i: Any, flags: Any) -> Any:
        multiples = (jnp.arange(n) % i == 0) & (jnp.arange(n) > i)
        return jnp.where(flags[i], flags & ~multiples, flags)

    return lambda flags: lax.fori_loop(2, 8, step, flags)


def small_carry(x: Any) -> Any:
    return lax.scan(lambda c, v: (c + v, c * v), x[0], x)


ALIASES: list[Row] = [
    row("swap_arrays", swap_arrays, LONG, LONG * 2),
    row("swap_rotate", rotate, LONG, LONG * 2, -LONG),
    row("swap_while", swap_while, LONG, LONG * 2),
    row(
        "swap_scan", lambda x, y: lax.scan(lambda s, i: ((s[1] * 2, s[0]), s[0][i]), (x, y), jnp.arange(3)), LONG, -LONG
    ),
    row("shift_in_place", shift_in_place, X),
    row("shift_in_place_long", shift_in_place, LONG),
    row("reverse_in_place", reverse_in_place, X),
    row("reverse_in_place_long", reverse_in_place, LONG),
    row("sweep", sweep, normal(13)),
    row("sweep_long", sweep, normal(101)),
    row("gather_step", gather_step, X, integers(0, 12, 12)),
    row("gather_step_long", gather_step, LONG, integers(0, 70, 70)),
    row("lagged", lagged, normal(40)),
    row("lagged_vmapped", jax.vmap(lagged), normal(3, 40)),
    row("two_writers", two_writers, X, i32(3, 3, 0, 11, 2)),
    row("two_writers_long", two_writers, LONG, i32(3, 3, 0, 69, 2)),
    row("old_and_new", old_and_new, X, **SUMS),
    row("grid_walk", grid_walk, SQUARE, **SUMS),
    row("grid_walk_vmapped", jax.vmap(grid_walk), normal(3, 5, 5), **SUMS),
    *(row(f"branch_arrays_{p}", branch_arrays, np.asarray(p), X, X * 2) for p in (True, False)),
    *(row(f"branch_arrays_long_{p}", branch_arrays, np.asarray(p), LONG, LONG * 2) for p in (True, False)),
    row("branch_arrays_in_loop", branch_arrays_in_loop, X),
    row("branch_arrays_in_loop_long", branch_arrays_in_loop, LONG),
    *(row(f"switch_arrays_{k}", switch_arrays, np.int32(k), LONG, **SUMS) for k in range(4)),
    row("lanes_until", jax.vmap(lanes_until), normal(5, 4) ** 2),
    row("sieve", sieve(20), np.ones(20, bool)),
    row("sieve_long", sieve(100), np.ones(100, bool)),
]

WINDOWS: list[Row] = [
    row(
        "update_overlap_scan",
        lambda x: lax.fori_loop(0, 6, lambda i, s: lax.dynamic_update_slice(s, s[:3] + i, (2 * i,)), x),
        X,
    ),
    row(
        "update_reads_itself",
        lambda x, i: lax.dynamic_update_slice(x, lax.dynamic_slice(x, (i,), (4,)), (i + 2,)),
        X,
        np.int32(3),
    ),
    row(
        "update_reads_itself_long",
        lambda x, i: lax.dynamic_update_slice(x, lax.dynamic_slice(x, (i,), (40,)), (i + 2,)),
        LONG,
        np.int32(9),
    ),
    row("scatter_many", lambda x, i, u: x.at[i].add(u), X, integers(0, 12, 300), normal(300), floor=1, ulps=32),
    row("scatter_many_set", lambda x, i, u: x.at[i].set(u), X, integers(-14, 14, 300), normal(300)),
    row("scatter_many_max", lambda x, i, u: x.at[i].max(u), X, integers(0, 12, 300), normal(300)),
    row("scatter_into_constant", lambda i, u: jnp.zeros(4).at[i].add(u), integers(0, 4, 9), normal(9), floor=1),
    row(
        "scatter_into_shared",
        lambda i, u: jnp.zeros(4).at[i].add(jnp.sin(u)).sum() + jnp.cos(u),
        integers(0, 4, 64),
        normal(64),
        **SUMS,
    ),
    row("double_index", lambda x: x[jnp.arange(5), jnp.arange(5)] * 2, SQUARE),
    row("diagonals", lambda x: (jnp.diagonal(jnp.sin(x)), jnp.trace(x @ x)), SQUARE, **SUMS),
    row("diagonals_long", lambda x: (jnp.diagonal(jnp.sin(x)), jnp.trace(jnp.cos(x))), normal(20, 20), **SUMS),
    row("double_index_set", lambda x: jnp.sin(x).at[jnp.arange(5), jnp.arange(5)].set(0.0), SQUARE),
    row("same_index_twice", lambda x, i: jnp.sin(x)[i, i] + jnp.cos(x)[i[::-1], i], SQUARE, i32(0, 4, 2)),
    row("same_index_twice_long", lambda x, i: jnp.sin(x)[i, i], normal(20, 20), integers(0, 20, 33)),
    row("gather_of_gather", lambda x, i: (x[i] * 2)[i][i], X, integers(0, 12, 12)),
    row("argmax_all", lambda x: (jnp.argmax(x), jnp.argmin(x), jnp.argmax(x, 0), jnp.argmin(x, 1)), normal(9, 11)),
    row("argmax_long", lambda x: (jnp.argmax(x), jnp.argmin(x)), np.tile(LONG, 3)),
    row("index_uint8", lambda x, i: x[i] + x.at[i].set(1.0)[i], X, np.uint8([0, 3, 255])),
    row("index_int64", lambda x, i: x[i] + x.at[i].set(1.0)[i], X, np.int64([0, -3, 2**40, 11]), x64=True),
    row("index_uint64", lambda x, i: x[i] + x.at[i].add(1.0)[i], X, np.uint64([0, 3, 2**63, 11]), x64=True),
    row("index_uint32", lambda x, i: x[i], X, np.uint32([0, 3, 2**32 - 1])),
    row("cumsum_long", lambda x: (jnp.cumsum(jnp.sin(x)), jnp.cumsum(x, 0)[::-1]), LONG, **SUMS),
    row(
        "cumulative",
        lambda x: (lax.cummax(x, 1), lax.cumprod(x, 0, reverse=True), lax.cumlogsumexp(x, 1)),
        normal(3, 9),
        **SUMS,
    ),
    row("convolve_inline", lambda x: jnp.convolve(jnp.sin(x), f32(1, 2, 1)), X, **SUMS),
]

SHAPES: list[Row] = [
    row("split_lanes", lambda x: jnp.sin(x).reshape(8, 8).sum(0), normal(64), **SUMS),
    row("split_transposed", lambda x: jnp.sin(x).reshape(8, 8).T.reshape(-1) * 2, normal(64)),
    row("split_ragged", lambda x: jnp.sin(x).reshape(5, 14).T.reshape(7, 10), LONG),
    row("merge_lanes", lambda x: jnp.cumsum(jnp.sin(x).reshape(-1)), normal(9, 10), **SUMS),
    row("merge_three", lambda x: jnp.sin(x).transpose(2, 0, 1).reshape(10, 12) * 2, normal(3, 4, 10)),
    row(
        "split_in_loop",
        lambda x: lax.fori_loop(0, 3, lambda _, s: jnp.sin(s).reshape(6, 12).T.reshape(-1), x),
        normal(72),
    ),
    row("concatenate_lanes", lambda x: jnp.concatenate([jnp.sin(x), x[::-1], jnp.cos(x[3:9])]), LONG),
    row("roll_lanes", lambda x: jnp.roll(jnp.sin(x), 3) + jnp.roll(jnp.sin(x), -5), LONG, **SUMS),
    row("pad_lanes", lambda x: jnp.pad(jnp.sin(x), (3, 4), constant_values=7), LONG),
    row("tile_lanes", lambda x: jnp.tile(jnp.sin(x), 3).reshape(3, -1).sum(0), LONG, **SUMS),
    row("outer_lanes", lambda x: (jnp.sin(x)[:, None] * jnp.cos(x)[None, :]).sum(0), LONG, **SUMS),
    row("pairwise", lambda x: jnp.where(jnp.eye(12, dtype=bool), 0, x[:, None] - x[None]).sum(1), X, **SUMS),
    row("two_axes", lambda x: jnp.sin(x) * 2, normal(9, 10)),
    row("two_axes_loop", lambda x: lax.fori_loop(0, 3, lambda i, s: jnp.sin(s) + i, x), normal(9, 10)),
    row(
        "axis_of_one",
        lambda x: lax.fori_loop(0, 3, lambda i, s: jnp.sin(s) + s.sum(1, keepdims=True), x),
        normal(1, 9),
        **SUMS,
    ),
    row(
        "axis_of_one_vmapped",
        jax.vmap(lambda x: lax.while_loop(lambda s: s.sum() < 9, lambda s: s + 1, x)),
        normal(1, 3),
    ),
    row("scalar_and_one", lambda x, y: (x + y, x[0] * y, jnp.stack([x, y[None]])), f32(2), np.float32(3)),
    row("long_lanes", lambda x: (jnp.sin(x) * x).sum() + x[::-1], normal(5000), **SUMS),
    row("long_rows", lambda x: jnp.exp(x - x.max(1, keepdims=True)), normal(3, 1500), **SUMS),
]

EMPTY: list[Row] = [
    row("empty_map", lambda x: jnp.sin(x) + 1, np.zeros((0, 3), np.float32)),
    row("empty_sum", lambda x: (x.sum(), x.sum(0), x.sum(1), x.prod()), np.zeros((0, 3), np.float32)),
    row(
        "empty_loop",
        lambda x, y: lax.fori_loop(0, 3, lambda i, s: (s[0] * 2, s[1] + s[0].sum()), (x, y)),
        np.zeros((0,), np.float32),
        X,
    ),
    row("empty_scan", lambda x: lax.scan(lambda c, v: (c + v.sum(), v * 2), 0.0, x), np.zeros((4, 0), np.float32)),
    row("empty_dot", lambda x, y: x @ y, np.zeros((3, 0), np.float32), np.zeros((0, 2), np.float32)),
    row("empty_dot_rows", lambda x, y: (x @ y).sum(), np.zeros((0, 3), np.float32), np.ones((3, 2), np.float32)),
    row("empty_concatenate", lambda x, y: jnp.concatenate([x, y, x]), np.zeros((0,), np.float32), X),
    row("empty_gather", lambda x, i: x[i] * 2, X, np.zeros((0, 2), np.int32)),
    row("empty_scatter", lambda x, i: x.at[i].add(1.0) * 2, X, np.zeros((0,), np.int32)),
    row("empty_update", lambda x, u: lax.dynamic_update_slice(x, u, (3,)), X, np.zeros((0,), np.float32)),
    row(
        "empty_cond",
        lambda p, x: lax.cond(p, lambda x: x, lambda x: x * 2, x),
        np.asarray(True),
        np.zeros((0,), np.float32),
    ),
    row("empty_sort", lambda x: jnp.sort(x), np.zeros((2, 0), np.float32)),
    row("empty_cumsum", lambda x: jnp.cumsum(x, 1), np.zeros((2, 0), np.float32)),
    row("empty_slice", lambda x: (x[3:3], x[3:3].sum() + x), X),
    row("empty_pad", lambda x: jnp.pad(x, (2, 1)), np.zeros((0,), np.float32)),
    row(
        "empty_while",
        lambda x: lax.while_loop(lambda s: s[1] < 3, lambda s: (s[0], s[1] + 1), (x, 0)),
        np.zeros((0,), np.float32),
    ),
    row("empty_any", lambda x: (jnp.any(x), jnp.all(x)), np.zeros((0,), bool)),
    row("empty_reshape", lambda x: x.reshape(0, 5), np.zeros((3, 0), np.float32)),
]


def result_of_transposed(x: Any, i: Any) -> Any:
    """A stacked history transposed, an update of that, and the history sorted: two results want its storage."""
    history = lax.scan(lambda c, _: (jnp.tanh(c), c), x, None, length=4)[1].transpose(1, 0, 2, 3)
    return history.at[jnp.arange(5), i].set(0.125), jnp.sort(history, 1)


def start_and_end(x: Any) -> Any:
    """A loop's result returned, and its start, moved, after it."""
    low = jnp.min(x, 2)
    start = lax.scan(lambda c, _: (c, low), 0, None, length=4)[1]
    end = lax.fori_loop(0, 3, lambda _, s: jnp.tanh(jnp.maximum(low[None], s)), start)
    return end, jnp.pad(start, ((0, 0), (2, 1), (0, 0)), constant_values=0.5)


RESULTS: list[Row] = [
    row("result_is_input", lambda x, y: (x, y, x), X, np.int32(3)),
    row("result_twice", lambda x: (jnp.sin(x),) * 2 + (x[::-1],) * 2, X),
    row("result_constant", lambda x: (jnp.float32(2), jnp.zeros((3, 4)), jnp.arange(5), True), X),
    row("result_closed_over", lambda x: (x + jnp.asarray(BACKWARDS), jnp.asarray(BACKWARDS)), X),
    row(
        "result_of_loop_twice",
        lambda x: (lambda r: (r, r, r * 2))(lax.fori_loop(0, 3, lambda i, s: s.at[i].set(0.0), x)),
        LONG,
    ),
    row("result_carry_of_input", lambda x: (lax.fori_loop(0, 3, lambda i, s: s.at[i].set(0.0), x), x), LONG),
    row("result_before_and_after", lambda x: (lambda a: (a, a.at[3].set(1.0), a.at[4].set(2.0)))(jnp.sin(x)), LONG),
    row(
        "result_history_twice",
        lambda x: (lambda h: (h, h[::-1]))(lax.scan(lambda c, _: (c * 0.5 + 1, c), x, None, length=9)[1]),
        X,
    ),
    row("result_of_transposed", result_of_transposed, normal(5, 2, 17), i32(0, 3, -1, 2, 1)),
    row("result_start_and_end", start_and_end, normal(2, 12, 9)),
    row("result_none", lambda x: (), X),
]

SMALL: list[Row] = [
    *(
        row(f"small_scan_{x.dtype}", small_carry, x, ulps=8)
        for x in (HALF, BRAIN, np.int8([100, 100, -7, 3]), np.uint8([200, 100, 7, 3]), np.int16([30000, 9, -7, 3]))
    ),
    row(
        "small_bool_scan",
        lambda x: lax.scan(lambda c, v: (c ^ v, c & ~v), x[0], x),
        np.asarray([True, False, True, True]),
    ),
    row(
        "small_bool_memory",
        lambda x, i: lax.fori_loop(0, 5, lambda k, s: s.at[i[k]].set(~s[k]), x),
        np.zeros(80, bool),
        i32(3, 0, 3, 79, 2),
    ),
    *(
        row(
            f"small_memory_{np.dtype(dtype)}",
            lambda x, i: lax.fori_loop(0, 5, lambda k, s: s.at[i[k]].add(s[k] + 1), x),
            np.ones(80, dtype),
            i32(3, 0, 3, 79, 2),
        )
        for dtype in (np.int8, np.uint8, np.uint16, np.float16, ml_dtypes.bfloat16, np.int32, np.uint32)
    ),
    *(
        row(
            f"small_reduce_{np.dtype(dtype)}",
            lambda x: (x.sum(), x.max(), x.min(0), jnp.argmax(x), jnp.cumsum(x, 0)),
            integers(0, 9, 5, 9, dtype=dtype),
            ulps=8,
            floor=1,
        )
        for dtype in (np.int8, np.uint8, np.float16, ml_dtypes.bfloat16, np.uint32)
    ),
    *(
        row(
            f"small_dot_{np.dtype(dtype)}",
            lambda x, y: (x @ y, x[0] @ y),
            normal(4, 9).astype(dtype),
            normal(9, 3, seed=1).astype(dtype),
            ulps=16,
            floor=1,
        )
        for dtype in (np.float16, ml_dtypes.bfloat16)
    ),
    row(
        "wide_memory",
        lambda x, i: lax.fori_loop(0, 5, lambda k, s: s.at[i[k]].add(s[k] + 1), x),
        np.full(80, 2**40, np.int64),
        np.int64([3, 0, 3, 79, 2]),
        x64=True,
    ),
    row(
        "wide_reduce",
        lambda x: (x.sum(), x.max(), jnp.argmin(x), jnp.cumsum(x)),
        integers(0, 9, 40, dtype=np.uint64) << np.uint64(60),
        x64=True,
    ),
]


def keywords(lambda_: Any, tl: Any, program_id: Any, pass_: Any) -> Any:
    """Arguments named like what a generated module uses."""
    return lax.fori_loop(0, 3, lambda i, x: x * tl + program_id, lambda_) + pass_


NAMES: list[Row] = [row("names", keywords, X, X, np.float32(2), X)]

ROWS: list[Row] = ALIASES + WINDOWS + SHAPES + EMPTY + RESULTS + SMALL + NAMES
