"""The meaning of a Graph in numpy: slow, exact, without JAX and without Triton."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import assert_never

import numpy as np

from onelaunch.ir import nodes as n
from onelaunch.ir.nodes import Block, Graph, Value, Window
from onelaunch.ir.scalars import SCALARS
from onelaunch.ir.types import is_bool, is_float

#: Values are defined once, so one flat environment is enough: an iteration overwrites the one before.
Env = dict[Value, np.ndarray]


def run(graph: Graph, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs of ``graph`` on ``args`` (one array for each parameter, of its shape and dtype)."""
    env: Env = dict(graph.consts)
    for param, arg in zip(graph.params, args, strict=True):
        arg = np.asarray(arg)
        if (arg.shape, arg.dtype) != (param.shape, param.dtype):
            raise TypeError(f"parameter is {param.type}, argument is {arg.dtype}{list(arg.shape)}")
        env[param] = arg
    with np.errstate(all="ignore"):
        return run_block(graph.block, env)


def run_block(block: Block, env: Env) -> list[np.ndarray]:
    """Run the nodes of a block; the values of its results."""
    for node in block.nodes:
        outs = run_node(node, env)
        for value, out in zip(n.outputs(node), outs, strict=True):
            assert out.shape == value.shape and out.dtype == value.dtype, (node, out.shape, out.dtype)
            env[value] = out
    return [env[v] for v in block.results]


def run_node(node: n.Node, env: Env) -> Sequence[np.ndarray]:
    """The outputs of one node."""
    match node:
        case n.Const(value=value, out=out):
            return (np.asarray(value, out.dtype),)
        case n.Empty(out=out):
            return (np.zeros(out.shape, out.dtype),)
        case n.Iota(dim=dim, out=out):
            return (iota(out.shape, dim, out.dtype),)
        case n.Map():
            return apply_map(node, [env[a] for a in node.args])
        case n.Reduce():
            return (reduce(node.monoid, env[node.arg], node.axes, node.out.dtype),)
        case n.Scan():
            return (prefix(node.monoid, env[node.arg], node.axis, node.reverse),)
        case n.Move():
            return (move(node, [env[a] for a in node.args]),)
        case n.Gather():
            return (gather(node, env),)
        case n.Update():
            return (update(node, env),)
        case n.Dot():
            return (dot(node, env[node.lhs], env[node.rhs]),)
        case n.Sort():
            return sort([env[a] for a in node.args], node.dim, node.num_keys)
        case n.Loop():
            return run_loop(node, env)
        case n.Branch():
            chosen = int(np.clip(env[node.index], 0, len(node.blocks) - 1))
            return run_block(node.blocks[chosen], env)
        case _:
            assert_never(node)


# --- element-wise and reductions ---------------------------------------------------------------------------


def iota(shape: tuple[int, ...], dim: int, dtype: np.dtype) -> np.ndarray:
    line = np.arange(shape[dim]).astype(dtype).reshape([-1 if d == dim else 1 for d in range(len(shape))])
    return np.broadcast_to(line, shape)


def apply_map(node: n.Map, args: list[np.ndarray]) -> list[np.ndarray]:
    scalar = SCALARS[node.fn]
    if node.fn == "cast":
        results: object = scalar.numpy(args[0], node.outs[0].dtype)
    else:
        results = scalar.numpy(*args)
    outs = results if isinstance(results, tuple) else (results,)
    return [np.broadcast_to(np.asarray(r, v.dtype), v.shape) for r, v in zip(outs, node.outs, strict=True)]


def lowest(dtype: np.dtype) -> object:
    """The identity of max."""
    if is_bool(dtype):
        return False
    return -np.inf if is_float(dtype) else np.iinfo(dtype).min


def highest(dtype: np.dtype) -> object:
    """The identity of min."""
    if is_bool(dtype):
        return True
    return np.inf if is_float(dtype) else np.iinfo(dtype).max


def wide(x: np.ndarray) -> np.ndarray:
    """16-bit floats are computed in f32 and rounded once."""
    return x.astype(np.float32) if is_float(x.dtype) and x.dtype.itemsize == 2 else x


def reduce(monoid: str, x: np.ndarray, axes: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    x = wide(x)
    match monoid:
        case "argmax" | "argmin":
            (axis,) = axes
            return np.asarray(getattr(np, monoid)(x, axis=axis)).astype(dtype)
        case "max":
            out = np.maximum.reduce(x, axis=axes, initial=np.asarray(lowest(x.dtype), x.dtype))
        case "min":
            out = np.minimum.reduce(x, axis=axes, initial=np.asarray(highest(x.dtype), x.dtype))
        case "add":
            out = np.add.reduce(x, axis=axes, dtype=x.dtype)
        case "mul":
            out = np.multiply.reduce(x, axis=axes, dtype=x.dtype)
        case _:
            ufunc = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[monoid]
            out = ufunc.reduce(x, axis=axes)
    return np.asarray(out).astype(dtype)


def logaddexp(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.logaddexp(a, b)


PREFIX: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "logaddexp": logaddexp,
}


def prefix(monoid: str, x: np.ndarray, axis: int, reverse: bool) -> np.ndarray:
    lines = np.moveaxis(wide(x), axis, 0)
    lines = lines[::-1] if reverse else lines
    out = lines.copy()
    for i in range(1, len(out)):
        out[i] = PREFIX[monoid](out[i - 1], lines[i])
    out = out[::-1] if reverse else out
    return np.moveaxis(out, 0, axis).astype(x.dtype)


# --- moves ---------------------------------------------------------------------------------------------


def move(node: n.Move, args: list[np.ndarray]) -> np.ndarray:
    x, shape = args[0], node.out.shape
    match node.op:
        case n.Slice(starts=starts, strides=strides):
            return x[
                tuple(slice(s, s + max(0, (m - 1) * t + 1), t) for s, t, m in zip(starts, strides, shape, strict=True))
            ]
        case n.Pad():
            return pad(node.op, x, args[1], shape)
        case n.Reverse(axes=axes):
            return np.flip(x, axes)
        case n.Transpose(permutation=permutation):
            return np.transpose(x, permutation)
        case n.Reshape():
            return np.reshape(x, shape)
        case n.Broadcast(dims=dims):
            spread = [1] * len(shape)
            for d, s in zip(dims, x.shape, strict=True):
                spread[d] = s
            return np.broadcast_to(np.transpose(x, np.argsort(dims, kind="stable")).reshape(spread), shape)
        case n.Concatenate(axis=axis):
            return np.concatenate(args, axis)
        case _:
            assert_never(node.op)


def pad(op: n.Pad, x: np.ndarray, fill: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if math.prod(shape) == 0 or x.size == 0:
        return np.broadcast_to(fill, shape)
    grids, inside = [], np.ones((), bool)
    for index, low, interior, size in zip(open_grid(shape), op.low, op.interior, x.shape, strict=True):
        quotient, remainder = np.divmod(index - low, interior + 1)
        inside = inside & (remainder == 0) & (quotient >= 0) & (quotient < size)
        grids.append(np.clip(quotient, 0, size - 1))
    return np.where(inside, x[tuple(grids)], fill) if x.ndim else x


# --- indexing ------------------------------------------------------------------------------------------


def open_grid(shape: tuple[int, ...]) -> list[np.ndarray]:
    """One index array for each dim, of size 1 along the other dims."""
    return [np.arange(s).reshape([-1 if e == d else 1 for e in range(len(shape))]) for d, s in enumerate(shape)]


def locate(
    window: Window, starts: Sequence[np.ndarray], shape: tuple[int, ...], operand: tuple[int, ...]
) -> tuple[list[np.ndarray], np.ndarray]:
    """The operand index along each operand dim over the window array, and which windows are wholly inside."""
    grid = open_grid(shape)
    spread = [shape[d] if d in window.batch else 1 for d in range(len(shape))]
    order = np.argsort(window.batch, kind="stable")
    inside = np.ones((1,) * len(shape), bool)
    places = []
    for d, size in enumerate(operand):
        place = np.zeros((1,) * len(shape), np.int64)
        column = window.start[d]
        if column is not None:
            first = as_int64(starts[column])
            first = np.transpose(first, order).reshape(spread)
            last = size - window.sizes[d]
            inside = inside & (first >= 0) & (first <= last)
            place = np.clip(first, 0, max(last, 0))
        for dim in (window.offset[d], window.batching[d]):
            place = place if dim is None else place + grid[dim]
        places.append(place)
    return places, inside if window.mode == "fill" else np.ones_like(inside)


def as_int64(x: np.ndarray) -> np.ndarray:
    """Indices as int64; an unsigned one beyond it is far outside any array either way."""
    return (
        np.minimum(x, np.uint64(np.iinfo(np.int64).max)).astype(np.int64)
        if x.dtype == np.uint64
        else x.astype(np.int64)
    )


def gather(node: n.Gather, env: Env) -> np.ndarray:
    x, shape = env[node.operand], node.out.shape
    if node.out.size == 0:
        return np.zeros(shape, x.dtype)
    fill = env[node.fill] if node.fill is not None else np.zeros((), x.dtype)
    if x.size == 0:
        return np.broadcast_to(fill, shape)
    places, inside = locate(node.window, [env[s] for s in node.starts], shape, x.shape)
    out = np.broadcast_to(x[tuple(places)] if x.ndim else x, shape)
    return out if inside.all() else np.where(inside, out, fill)


def update(node: n.Update, env: Env) -> np.ndarray:
    x, updates, window = env[node.operand], env[node.updates], node.window
    if updates.size == 0 or x.size == 0:
        return x
    places, inside = locate(window, [env[s] for s in node.starts], updates.shape, x.shape)
    flat = np.zeros((1,) * updates.ndim, np.int64)
    for place, size in zip(places, x.shape, strict=True):
        flat = flat * size + place
    # Windows one after the other, in row-major order of the batch dims.
    order = [*window.batch, *(d for d in range(updates.ndim) if d not in window.batch)]
    flat, inside, updates = (
        np.transpose(np.broadcast_to(a, updates.shape), order).ravel() for a in (flat, inside, updates)
    )
    flat, updates = flat[inside], updates[inside]
    out = wide(x).flatten()
    if node.monoid == "set":
        out[flat] = updates
    else:
        PREFIX[node.monoid].at(out, flat, wide(updates))  # type: ignore[attr-defined]
    return out.astype(x.dtype).reshape(x.shape)


# --- dot and sort ----------------------------------------------------------------------------------------


def dot(node: n.Dot, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    dtype = node.out.dtype
    work = np.result_type(dtype, np.float32) if is_float(dtype) else np.dtype(np.int64 if is_bool(dtype) else dtype)
    if is_float(dtype) and dtype.itemsize == 2:
        work = np.dtype(np.float32)
    sides = []
    for x, contract, batch, last in ((lhs, *pick(node, 0), True), (rhs, *pick(node, 1), False)):
        free = [d for d in range(x.ndim) if d not in contract and d not in batch]
        order = [*batch, *free, *contract] if last else [*batch, *contract, *free]
        rows = math.prod(x.shape[d] for d in free)
        inner = math.prod(x.shape[d] for d in contract)
        lead = [x.shape[d] for d in batch]
        tail = [rows, inner] if last else [inner, rows]
        sides.append(np.transpose(x, order).astype(work).reshape(lead + tail))
    out = np.matmul(*sides).reshape(node.out.shape)
    return out != 0 if is_bool(dtype) else out.astype(dtype)


def pick(node: n.Dot, side: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return node.contract[side], node.batch[side]


def sort(args: list[np.ndarray], dim: int, num_keys: int) -> list[np.ndarray]:
    shape = args[0].shape
    lines = [np.moveaxis(a, dim, -1) for a in args]
    order = np.lexsort([wide(a) for a in reversed(lines[:num_keys])], axis=-1)
    if not shape[dim]:
        return args
    return [np.moveaxis(np.take_along_axis(a, order, -1), -1, dim) for a in lines]


# --- control flow ----------------------------------------------------------------------------------------


def run_loop(node: n.Loop, env: Env) -> list[np.ndarray]:
    carry = [env[v] for v in node.init]
    if node.trip is not None:
        assert node.index is not None
        for i in range(node.trip):
            env.update(zip(node.carry, carry, strict=True))
            env[node.index] = np.asarray(i, np.int32)
            carry = run_block(node.body, env)
        return carry
    assert node.cond is not None
    while True:
        env.update(zip(node.carry, carry, strict=True))
        (going,) = run_block(node.cond, env)
        if not going.any():
            return carry
        carry = [freeze(going, new, old) for new, old in zip(run_block(node.body, env), carry, strict=True)]


def freeze(going: np.ndarray, new: np.ndarray, old: np.ndarray) -> np.ndarray:
    """The carry of a batched while: lanes that are done keep their old value."""
    if going.all():
        return new
    return np.where(going.reshape(going.shape + (1,) * (new.ndim - going.ndim)), new, old)
