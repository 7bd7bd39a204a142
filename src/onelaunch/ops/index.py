"""Dynamic reads and writes: every one is a Gather or an Update with a Window."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend import core

from onelaunch.ir.builder import Builder
from onelaunch.ir.nodes import Value, Window
from onelaunch.ir.types import is_bool, is_float, is_signed
from onelaunch.ops.facts import column, iota_dim, known_scalar
from onelaunch.ops.table import Params, refuse, retrace, rule

Mode = lax.GatherScatterMode


# --- slices --------------------------------------------------------------------------------------------


def box(b: Builder, shape: Sequence[int], starts: Sequence[Value], sizes: Sequence[int]) -> tuple[Window, list[Value]]:
    """The window of a dynamic slice; a dim taken whole has no start."""
    moving = [d for d, (n, s) in enumerate(zip(shape, sizes, strict=True)) if n != s]
    start = [moving.index(d) if d in moving else None for d in range(len(shape))]
    none = (None,) * len(shape)
    window = Window(tuple(range(len(shape))), tuple(start), none, (), tuple(int(s) for s in sizes))
    return window, [starts[d] for d in moving]


@rule("dynamic_slice")
def dynamic_slice(b: Builder, params: Params, x: Value, *starts: Value) -> Value:
    sizes = params["slice_sizes"]
    known = [known_scalar(b, s) for s in starts]
    if all(n == s or k is not None for n, s, k in zip(x.shape, sizes, known, strict=True)):
        firsts = [min(max(int(k or 0), 0), n - s) for n, s, k in zip(x.shape, sizes, known, strict=True)]
        return x if tuple(sizes) == x.shape else b.slice(x, firsts, [f + s for f, s in zip(firsts, sizes, strict=True)])
    window, moving = box(b, x.shape, starts[: x.ndim], sizes)
    return b.gather(x, moving, window, sizes)


@rule("dynamic_update_slice")
def dynamic_update_slice(b: Builder, params: Params, x: Value, updates: Value, *starts: Value) -> Value:
    if updates.shape == x.shape:
        return updates
    window, moving = box(b, x.shape, starts, updates.shape)
    return b.update("set", x, moving, updates, window, unique=True)


# --- gather and scatter --------------------------------------------------------------------------------


def lay(
    operand_rank: int,
    window_dims: Sequence[int],
    dropped: Sequence[int],
    start_map: Sequence[int],
    batching: tuple[Sequence[int], Sequence[int]],
    rank: int,
) -> Window:
    """The Window of gather's or scatter's dimension numbers; ``rank`` is that of the output (or updates)."""
    batch = tuple(d for d in range(rank) if d not in window_dims)
    kept = [d for d in range(operand_rank) if d not in dropped and d not in batching[0]]
    offset = dict(zip(kept, window_dims, strict=True))
    beside = {d: batch[i] for d, i in zip(*batching, strict=True)}
    start = {d: k for k, d in enumerate(start_map)}
    dims = range(operand_rank)
    return Window(
        tuple(offset.get(d) for d in dims),
        tuple(start.get(d) for d in dims),
        tuple(beside.get(d) for d in dims),
        batch,
        (1,) * operand_rank,
    )


def columns(b: Builder, indices: Value, window: Window, shape: tuple[int, ...]) -> tuple[Window, list[Value]]:
    """The start of each indexed dim as a value of its own.

    One that counts along a batch dim is no start but a batching dim, so that the batch stays parallel; one along
    a dim taken whole is always clamped to 0.
    """
    start, batching, starts = list(window.start), list(window.batching), list[Value]()
    for d, k in enumerate(window.start):
        if k is None:
            continue
        start[d] = None
        whole = window.sizes[d] == shape[d] and window.mode == "clip"
        if whole:
            continue
        value = column(b, indices, k)
        along = iota_dim(b, value)
        if along is not None and window.offset[d] is None and value.shape[along] <= shape[d] and batching[d] is None:
            batching[d] = window.batch[along]
            continue
        start[d] = len(starts)
        starts.append(value)
    return replace(window, start=tuple(start), batching=tuple(batching)), starts


def default_fill(dtype: np.dtype) -> Any:
    """What JAX reads outside an array: NaN, the least signed or the greatest unsigned integer, True."""
    if is_float(dtype):
        return np.nan
    if is_bool(dtype):
        return True
    return np.iinfo(dtype).min if is_signed(dtype) else np.iinfo(dtype).max


@rule("gather")
def gather(b: Builder, params: Params, x: Value, indices: Value) -> Value:
    numbers, sizes = params["dimension_numbers"], tuple(int(s) for s in params["slice_sizes"])
    shape = params["_out"][0].shape
    fills = params["mode"] == Mode.FILL_OR_DROP
    given = params["fill_value"]
    fill = b.const(default_fill(x.dtype) if given is None else given, x.dtype) if fills else None
    if not math.prod(x.shape) and math.prod(shape):
        return b.broadcast(fill if fill is not None else b.const(0, x.dtype), shape, ())
    window = lay(
        x.ndim,
        numbers.offset_dims,
        numbers.collapsed_slice_dims,
        numbers.start_index_map,
        (numbers.operand_batching_dims, numbers.start_indices_batching_dims),
        len(shape),
    )
    window = replace(window, sizes=sizes, mode="fill" if fills else "clip")
    window, starts = columns(b, indices, window, x.shape)
    return b.gather(x, starts, window, shape, fill)


def scatter_window(b: Builder, params: Params, x: Value, indices: Value, updates: Value) -> tuple[Window, list[Value]]:
    numbers = params["dimension_numbers"]
    batching = (numbers.operand_batching_dims, numbers.scatter_indices_batching_dims)
    window = lay(
        x.ndim,
        numbers.update_window_dims,
        numbers.inserted_window_dims,
        numbers.scatter_dims_to_operand_dims,
        batching,
        updates.ndim,
    )
    sizes = tuple(1 if o is None else updates.shape[o] for o in window.offset)
    mode = "clip" if params["mode"] == Mode.CLIP else "fill"
    return columns(b, indices, replace(window, sizes=sizes, mode=mode), x.shape)


def scatter_by(monoid: str) -> Callable[..., Value]:
    def scatter(b: Builder, params: Params, x: Value, indices: Value, updates: Value) -> Value:
        if not updates.size or not x.size:
            return x
        window, starts = scatter_window(b, params, x, indices, updates)
        return b.update(monoid, x, starts, updates, window, params["unique_indices"])

    return scatter


for _name in ("add", "mul", "min", "max"):
    rule("scatter-" + _name, "scatter_" + _name)(scatter_by(_name))


@rule("scatter-sub", "scatter_sub")
def scatter_sub(b: Builder, params: Params, x: Value, indices: Value, updates: Value) -> Value:
    return scatter_by("add")(b, params, x, indices, b.map("neg", updates))


@rule("scatter")
def scatter_set(b: Builder, params: Params, x: Value, indices: Value, updates: Value) -> Value:
    """A plain write, or (``.at[].apply``) a function of the old element and the update."""
    body: Any = params["update_jaxpr"]
    jaxpr: Any = getattr(body, "jaxpr", body)
    if body is None or jaxpr.outvars[0] is jaxpr.invars[1]:
        return scatter_by("set")(b, params, x, indices, updates)
    return apply_at(b, params, x, indices, updates)


def apply_at(b: Builder, params: Params, x: Value, indices: Value, updates: Value) -> Value:
    """x.at[i].apply(f): read, apply, write; windows must not overlap, as each may be written once only."""
    if not updates.size or not x.size:
        return x
    window, starts = scatter_window(b, params, x, indices, updates)
    if not params["unique_indices"] and math.prod(updates.shape[d] for d in window.batch) > 1:
        refuse(b, "scatter", "a function is applied at indices that may repeat", "Pass unique_indices=True to .apply.")
    old = b.gather(x, starts, window, updates.shape, b.const(0, x.dtype) if window.mode == "fill" else None)
    body = params["update_jaxpr"]
    closed = body if isinstance(body, core.ClosedJaxpr) else core.ClosedJaxpr(body, params["update_consts"])
    (new,) = retrace(b, mapped, old, updates, body=closed)
    return b.update("set", x, starts, new, window, unique=True)


def mapped(*xs: jax.Array, body: core.ClosedJaxpr) -> list[jax.Array]:
    """A scalar jaxpr over arrays of one shape."""
    fun = core.jaxpr_as_fun(body)
    for _ in range(xs[0].ndim):
        fun = jax.vmap(fun)
    return fun(*xs)
