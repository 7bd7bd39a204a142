"""Rows: dynamic reads and writes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rows.row import Row, f32, i32, integers, normal, row

A = normal(4, 6)
CUBE = normal(3, 4, 5)
LINE = normal(9)
OUTSIDE = i32(0, 8, 9, -1, -9, -10, 100, 3)
TWICE = i32(2, 5, 2, 2, 0)
RACE = f32(1, 2, 3, 4, 5)


def gather_pairs(numbers: lax.GatherDimensionNumbers, sizes: tuple[int, ...], mode: str) -> Any:
    return lambda x, i: lax.gather(x, i, numbers, sizes, mode=mode)


def rows_of(mode: str) -> Any:
    return gather_pairs(lax.GatherDimensionNumbers((1,), (0,), (0,)), (1, 6), mode)


def boxes_of(mode: str) -> Any:
    """2 x 3 boxes, whose corner may be outside."""
    return gather_pairs(lax.GatherDimensionNumbers((1, 2), (), (0, 1)), (2, 3), mode)


def at(method: str, **how: Any) -> Any:
    return lambda x, i, u: getattr(x.at[i], method)(u, **how)


CORNERS = i32(0, 0, 2, 3, 3, 4, -1, 2, 9, 9).reshape(5, 2)
BOXES = normal(5, 2, 3, seed=2)
SCATTER_BOX = lax.ScatterDimensionNumbers((1, 2), (), (0, 1))


def scatter_boxes(scatter: Any, mode: str) -> Any:
    return lambda x, i, u: scatter(x, i, u, SCATTER_BOX, mode=mode)


MANY = integers(-3, 300, 280)


SLICES: list[Row] = [
    row("dynamic_slice", lambda x, i, j: lax.dynamic_slice(x, (i, j), (2, 3)), A, np.int32(1), np.int32(2)),
    row("dynamic_slice_high", lambda x, i, j: lax.dynamic_slice(x, (i, j), (2, 3)), A, np.int32(9), np.int32(5)),
    row("dynamic_slice_low", lambda x, i, j: lax.dynamic_slice(x, (i, j), (2, 3)), A, np.int32(-9), np.int32(-1)),
    row("dynamic_slice_whole", lambda x, i: lax.dynamic_slice(x, (i, i), (4, 2)), A, np.int32(3)),
    row("dynamic_slice_static", lambda x: lax.dynamic_slice(x, (1, 9), (2, 3)), A),
    row("dynamic_slice_byte", lambda x, i: lax.dynamic_slice(x, (i,), (3,)), LINE, np.uint8(200)),
    row("dynamic_index", lambda x, i: (x[i], x[1, i]), A, np.int32(-2)),
    row("dynamic_slices", jax.vmap(lambda x, i: lax.dynamic_slice(x, (i,), (3,))), A, i32(0, 2, 9, -1)),
    row(
        "dynamic_slices_one_array", jax.vmap(lambda x, i: lax.dynamic_slice(x, (i, 1), (2, 3)), (None, 0)), A, i32(0, 9)
    ),
    row("scatter_many_of_few", at("add"), normal(290), MANY, normal(280, seed=2), floor=1),
    row("scatter_70_into_12", at("set"), normal(12), integers(0, 12, 70), normal(70, seed=2)),
    row(
        "slice_of_table",
        lambda t, n: lax.fori_loop(0, n, lambda i, x: jnp.tanh(t[i] @ x), t[0, 0]),
        normal(3, 12, 12),
        np.int32(3),
        floor=1,
        ulps=32,
    ),
    row("dynamic_update", lambda x, u, i: lax.dynamic_update_slice(x, u, (i, i)), A, A[:2, :3] * 2, np.int32(1)),
    row("dynamic_update_high", lambda x, u, i: lax.dynamic_update_slice(x, u, (i, i)), A, A[:2, :3] * 2, np.int32(99)),
    row("dynamic_update_negative", lambda x, u, i: lax.dynamic_update_slice(x, u, (i, i)), A, A[:2, :3], np.int32(-3)),
    row("dynamic_update_whole", lambda x, u, i: lax.dynamic_update_slice(x, u, (i, i)), A, A * 2, np.int32(3)),
    row(
        "dynamic_updates",
        jax.vmap(lambda x, u, i: lax.dynamic_update_slice(x, u, (i,))),
        A,
        A[:, :2] * 2,
        i32(0, 2, 9, -1),
    ),
    row("dynamic_update_bool", lambda x, i: x.at[i].set(True), np.zeros(5, bool), np.int32(3)),
]

GATHERS: list[Row] = [
    row("gather_clip", rows_of("clip"), A, i32(0, 3, 4, -1, 2).reshape(5, 1)),
    row("gather_fill", rows_of("fill"), A, i32(0, 3, 4, -1, 2).reshape(5, 1)),
    row("gather_promise", rows_of("promise_in_bounds"), A, i32(0, 3, 1).reshape(3, 1)),
    row("gather_boxes_clip", boxes_of("clip"), A, CORNERS),
    row("gather_boxes_fill", boxes_of("fill"), A, CORNERS),
    row("gather_grid", lambda x, i: x[i], A, i32(0, 1, 2, 3, 2, 1).reshape(2, 3)),
    row("gather_outside", lambda x, i: (x[i], x.at[i].get(mode="fill", fill_value=-5.0)), LINE, OUTSIDE),
    row("gather_fill_int", lambda x, i: x.at[i].get(mode="fill"), integers(0, 9, 9), OUTSIDE),
    row("gather_fill_unsigned", lambda x, i: x.at[i].get(mode="fill"), integers(0, 9, 9, dtype=np.uint8), OUTSIDE),
    row("gather_fill_bool", lambda x, i: x.at[i].get(mode="fill"), np.arange(9) % 2 == 0, OUTSIDE),
    row("gather_two_columns", lambda x, i, j: x[i, j], A, i32(0, -1, 9, 2), i32(5, 0, 1, -6)),
    row("gather_transposed", lambda x, i: x[:, i].T, A, i32(5, 0, 2)),
    row("gather_between", lambda x, i, j: x[i, :, j], CUBE, i32(0, 2), i32(4, 1)),
    row("gather_wide_index", lambda x, i: x[i], LINE, np.asarray([0, -1, 2**40, 3], np.int64), x64=True),
    row("gather_byte_index", lambda x, i: x.at[i].get(mode="clip"), LINE, np.asarray([0, 255, 8], np.uint8)),
    row("gather_nothing", lambda x, i: x[i], A, np.zeros((0,), np.int32)),
    row("gather_per_row", lambda x, i: jnp.take_along_axis(x, i, 1), A, integers(0, 6, 4, 3)),
    row("gather_by_iota", lambda x, i: x[jnp.arange(4), i], A, i32(5, 0, -1, 9)),
    row("gather_by_iota_last", lambda x, i: x[i, jnp.arange(4)], A, i32(3, 0, -1, 1)),
    row("gather_by_iotas", lambda x, i: x[jnp.arange(3)[:, None], i, jnp.arange(2)[None]], CUBE, integers(0, 4, 3, 2)),
    row("gather_diagonal", lambda x: x[jnp.arange(4), jnp.arange(4)], A),
    row("gather_vmapped", jax.vmap(lambda x, i: x[i]), A, integers(-7, 7, 4, 3)),
    row("gather_vmapped_twice", jax.vmap(jax.vmap(lambda x, i: x[i])), CUBE, integers(0, 5, 3, 4)),
    row("gather_vmapped_index", jax.vmap(lambda x, i: x[i], (None, 0)), LINE, integers(0, 9, 2, 3)),
    row("gather_vmapped_last", jax.vmap(lambda x, i: x[i], (1, 0), 1), A, integers(0, 4, 6, 2)),
    row("gather_gradient", jax.grad(lambda x, i: (x[i] ** 2).sum()), LINE, TWICE),
    row("take_modes", lambda x, i: (jnp.take(x, i, mode="wrap"), jnp.take(x, i, mode="clip")), LINE, OUTSIDE),
    row("one_hot", lambda i: jax.nn.one_hot(i, 5), i32(0, 4, 5, -1)),
    row("searchsorted", lambda x, v: jnp.searchsorted(jnp.sort(x), v), LINE, f32(-9, 0, 9, 0.5)),
    row("interp", lambda x: jnp.interp(x, jnp.arange(5.0), jnp.arange(5.0) ** 2), f32(0.5, 3.25, -1, 9), ulps=8),
]

SCATTERS: list[Row] = [
    row("scatter_set", at("set"), LINE, i32(1, -1, 5), f32(10, 20, 30)),
    row("scatter_last_wins", at("set"), LINE, TWICE, RACE),
    row("scatter_add", at("add"), LINE, TWICE, RACE, floor=1),
    row("scatter_mul", at("mul"), LINE, TWICE, RACE),
    row("scatter_min", at("min"), LINE, TWICE, -RACE),
    row("scatter_max", at("max"), LINE, TWICE, RACE),
    row("scatter_sub", at("subtract"), LINE, TWICE, RACE, floor=1),
    row("scatter_nan", at("max"), LINE, TWICE, f32(np.nan, 1, 2, 3, 4)),
    row("scatter_drop", at("add"), LINE, OUTSIDE, np.ones(8, np.float32), floor=1),
    row("scatter_clip", at("add", mode="clip"), LINE, OUTSIDE, np.ones(8, np.float32), floor=1),
    row("scatter_promise", at("set", mode="promise_in_bounds", unique_indices=True), LINE, i32(3, 1), f32(7, 8)),
    row("scatter_int", at("add"), integers(0, 9, 9), TWICE, i32(1, 2, 3, 4, 2**31 - 1)),
    row("scatter_bool", at("max"), np.zeros(9, bool), TWICE, np.ones(5, bool)),
    row("scatter_row", lambda x, i: x.at[i].set(1.0), A, np.int32(-1)),
    row("scatter_column", lambda x, i: x.at[:, i].add(1.0), A, i32(0, 5, 0)),
    row("scatter_two_columns", lambda x, i, j: x.at[i, j].set(9.0), A, i32(0, -1, 9, 2), i32(5, 0, 1, -6)),
    row("scatter_boxes_clip", scatter_boxes(lax.scatter, "clip"), A, CORNERS, BOXES),
    row("scatter_boxes_drop", scatter_boxes(lax.scatter, "fill"), A, CORNERS, BOXES),
    row("scatter_boxes_add", scatter_boxes(lax.scatter_add, "clip"), A, CORNERS, BOXES, floor=1),
    row("scatter_slice", lambda x: x.at[1:3, ::2].set(0.0), A),
    row("scatter_by_iota", lambda x, i: x.at[jnp.arange(4), i].set(7.0), A, i32(5, 0, -1, 2)),
    row("scatter_by_iota_add", lambda x, i: x.at[jnp.arange(4), i].add(7.0), A, i32(5, 0, -1, 9)),
    row("scatter_vmapped", jax.vmap(lambda x, i, u: x.at[i].add(u)), A, integers(-7, 7, 4, 3), normal(4, 3), floor=1),
    row("scatter_vmapped_last", jax.vmap(lambda x, i: x.at[i].set(3.0), (1, 0), 1), A, integers(0, 4, 6, 2)),
    row("scatter_vmapped_twice", jax.vmap(jax.vmap(lambda x, i: x.at[i].set(3.0))), CUBE, integers(0, 5, 3, 4)),
    row("scatter_nothing", at("add"), LINE, np.zeros(0, np.int32), np.zeros(0, np.float32)),
    row("scatter_apply", lambda x, i: x.at[i].apply(jnp.exp), LINE, np.int32(4)),
    row(
        "scatter_apply_unique",
        lambda x, i: lax.scatter_apply(x, i[:, None], jnp.exp, NUMBERS, unique_indices=True, update_shape=(3,)),
        LINE,
        i32(4, 0, 8),
    ),
    row("scatter_gradient", jax.grad(lambda u, x, i: (x.at[i].add(u) ** 2).sum()), RACE, LINE, TWICE, floor=1),
    row(
        "scatter_mul_gradient",
        jax.grad(lambda x, i, u: (x.at[i].multiply(u, unique_indices=True)).sum()),
        LINE,
        i32(1, 4),
        f32(2, 3),
    ),
    row("segment_sum", lambda x, i: jax.ops.segment_sum(x, i, 3), LINE, i32(0, 1, 2, 1, 0, 2, 2, 2, 5), floor=1),
    row("segment_max", lambda x, i: jax.ops.segment_max(x, i, 4), LINE, i32(0, 1, 2, 1, 0, 2, 2, 2, 5)),
    row("bincount", lambda i: jnp.bincount(i, length=5), i32(0, 3, 3, 4, 9)),
    row("histogram_bf16", at("add"), np.zeros(4, np.float16), i32(0, 1, 1, 3), np.ones(4, np.float16)),
]

NUMBERS = lax.ScatterDimensionNumbers((), (0,), (0,))

ROWS: list[Row] = SLICES + GATHERS + SCATTERS
