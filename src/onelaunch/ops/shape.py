"""Moves: primitives that copy elements to other places and compute nothing."""

from __future__ import annotations

import math

import numpy as np

from onelaunch.ir.builder import Builder
from onelaunch.ir.nodes import Value
from onelaunch.ops.table import Params, refuse, rule
from onelaunch.ops.words import key_shape


@rule(
    "copy",
    "copy_p",
    "stop_gradient",
    "optimization_barrier",
    "sharding_constraint",
    "device_put",
    "name",
    "pvary",
    "reshard",
    "layout_constraint",
    "mesh_cast",
    "to_edtype",
    "from_edtype",
)
def identity(b: Builder, params: Params, *xs: Value) -> tuple[Value, ...]:
    """Primitives that hand their operands on."""
    return xs


@rule("broadcast_in_dim")
def broadcast_in_dim(b: Builder, params: Params, x: Value, *dynamic: Value) -> Value:
    shape, dims = params["shape"], params["broadcast_dimensions"]
    if math.prod(shape) == x.size and is_sorted(dims):
        return b.reshape(x, shape)
    return b.broadcast(x, shape, dims)


def is_sorted(dims: tuple[int, ...]) -> bool:
    return list(dims) == sorted(dims)


@rule("reshape")
def reshape(b: Builder, params: Params, x: Value, *dynamic: Value) -> Value:
    if params.get("dimensions") is not None:
        x = b.transpose(x, params["dimensions"])
    return b.reshape(x, params["new_sizes"])


@rule("squeeze", "expand_dims")
def squeeze(b: Builder, params: Params, x: Value) -> Value:
    return b.reshape(x, params["_out"][0].shape)


@rule("transpose")
def transpose(b: Builder, params: Params, x: Value) -> Value:
    permutation = tuple(params["permutation"])
    return x if is_sorted(permutation) else b.transpose(x, permutation)


@rule("rev")
def rev(b: Builder, params: Params, x: Value) -> Value:
    axes = [d for d in params["dimensions"] if x.shape[d] > 1]
    return b.reverse(x, axes) if axes else x


@rule("slice")
def slice_(b: Builder, params: Params, x: Value) -> Value:
    return b.slice(x, params["start_indices"], params["limit_indices"], params["strides"])


@rule("pad")
def pad(b: Builder, params: Params, x: Value, fill: Value) -> Value:
    config = [(int(low), int(high), int(inner)) for low, high, inner in params["padding_config"]]
    if not any(any(triple) for triple in config):
        return x
    return b.pad(x, fill, config)


@rule("concatenate")
def concatenate(b: Builder, params: Params, *xs: Value) -> Value:
    full = [x for x in xs if x.size]
    if not full:
        return b.full(params["_out"][0].shape, 0, xs[0].dtype)
    return full[0] if len(full) == 1 else b.concatenate(full, params["dimension"])


@rule("split")
def split(b: Builder, params: Params, x: Value) -> list[Value]:
    axis, outs, start = params["axis"], [], 0
    for size in params["sizes"]:
        outs.append(cut(b, x, axis, start, start + int(size)))
        start += int(size)
    return outs


def cut(b: Builder, x: Value, axis: int, start: int, limit: int) -> Value:
    """x[start:limit] along ``axis``."""
    if (start, limit) == (0, x.shape[axis]):
        return x
    starts, limits = [0] * x.ndim, list(x.shape)
    starts[axis], limits[axis] = start, limit
    return b.slice(x, starts, limits)


@rule("stack")
def stack(b: Builder, params: Params, *xs: Value) -> Value:
    axis = params["axis"]
    rows = [b.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:])) for x in xs]
    return rows[0] if len(rows) == 1 else b.concatenate(rows, axis)


@rule("unstack")
def unstack(b: Builder, params: Params, x: Value) -> list[Value]:
    axis = params["axis"]
    shape = x.shape[:axis] + x.shape[axis + 1 :]
    return [b.reshape(cut(b, x, axis, i, i + 1), shape) for i in range(x.shape[axis])]


@rule("tile")
def tile(b: Builder, params: Params, x: Value) -> Value:
    reps = tuple(params["reps"])
    shape = (1,) * (len(reps) - x.ndim) + x.shape
    reps = (1,) * (len(shape) - len(reps)) + reps
    wide = tuple(v for r, s in zip(reps, shape, strict=True) for v in (r, s))
    spread = b.broadcast(b.reshape(x, shape), wide, [2 * d + 1 for d in range(len(shape))])
    return b.reshape(spread, [r * s for r, s in zip(reps, shape, strict=True)])


@rule("iota")
def iota(b: Builder, params: Params, *dynamic: Value) -> Value:
    return b.iota(params["shape"], params["dimension"], np.dtype(params["dtype"]))


@rule("empty", "empty2")
def empty(b: Builder, params: Params) -> Value:
    """lax.empty: JAX promises nothing of the elements; zeros are a legal choice and read safely."""
    shape, dtype = key_shape(params["_out"][0])  # of typed keys too: their words
    return b.full(shape, 0, dtype)


@rule("create_token", "after_all")
def token(b: Builder, params: Params, *xs: Value) -> Value:
    refuse(
        b, "create_token", "ordered effects have no place in a kernel", "Keep the effect outside the fused function."
    )
