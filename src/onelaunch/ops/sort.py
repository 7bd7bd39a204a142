"""Sorting, as plain JAX traced again: ranks by counting for short rows, a bitonic network for long ones."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from onelaunch.ir.builder import Builder
from onelaunch.ir.nodes import Value
from onelaunch.ops.table import Params, refuse, retrace, rule

#: rows up to this length are ranked by comparing all pairs
COUNTING = 256

Keys = Sequence[jax.Array]


def ordered(x: jax.Array) -> jax.Array:
    """Integers that compare as JAX's sort compares ``x``: zeros are equal, NaNs are equal and last."""
    if x.dtype == bool:
        return x.astype(jnp.int32)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    x = jnp.where(x == 0, jnp.zeros_like(x), x)
    x = jnp.where(jnp.isnan(x), jnp.full_like(x, jnp.nan), x)
    signed = jnp.dtype(f"int{x.dtype.itemsize * 8}")
    bits = lax.bitcast_convert_type(x, signed)
    return jnp.where(bits < 0, bits ^ jnp.asarray(jnp.iinfo(signed).max, signed), bits)


def before(a: Keys, b: Keys) -> jax.Array:
    """a < b, lexicographically."""
    result = a[-1] < b[-1]
    for x, y in zip(reversed(a[:-1]), reversed(b[:-1]), strict=True):
        result = (x < y) | ((x == y) & result)
    return result


def ranks(keys: Keys) -> jax.Array:
    """For each element of the last axis how many come before it; equal keys keep their order."""
    n = keys[0].shape[-1]
    index = lax.iota(jnp.int32, n)
    mine = [k[..., :, None] for k in keys] + [jnp.broadcast_to(index[:, None], (n, n))]
    others = [k[..., None, :] for k in keys] + [jnp.broadcast_to(index[None, :], (n, n))]
    return jnp.sum(before(others, mine), axis=-1, dtype=jnp.int32)


def put_at(x: jax.Array, rank: jax.Array, size: int) -> jax.Array:
    """out[..., rank] = x along the last axis, for ranks below ``size``."""
    axis = x.ndim - 1
    numbers = lax.ScatterDimensionNumbers((), (axis,), (axis,), tuple(range(axis)), tuple(range(axis)))
    out = jnp.zeros((*x.shape[:-1], size), x.dtype)
    mode = lax.GatherScatterMode.FILL_OR_DROP
    return lax.scatter(out, rank[..., None], x, numbers, unique_indices=True, mode=mode)


def take_at(x: jax.Array, index: jax.Array) -> jax.Array:
    """x[..., index] along the last axis."""
    axis = x.ndim - 1
    numbers = lax.GatherDimensionNumbers((), (axis,), (axis,), tuple(range(axis)), tuple(range(axis)))
    mode = lax.GatherScatterMode.PROMISE_IN_BOUNDS
    return lax.gather(x, index[..., None], numbers, (1,) * x.ndim, mode=mode)


def bitonic(keys: Keys) -> jax.Array:
    """The permutation that sorts the last axis, by a bitonic network over (keys, position)."""
    shape, n = keys[0].shape, keys[0].shape[-1]
    padded = 1 << (n - 1).bit_length()
    wide = [(0, 0, 0)] * (len(shape) - 1) + [(0, padded - n, 0)]
    last = [lax.pad(k, jnp.asarray(jnp.iinfo(k.dtype).max, k.dtype), wide) for k in keys]
    place = lax.broadcasted_iota(jnp.int32, (*shape[:-1], padded), len(shape) - 1)
    lane = lax.iota(jnp.int32, padded)
    levels = padded.bit_length() - 1

    def step(
        _: int, state: tuple[jax.Array, jax.Array, list[jax.Array]]
    ) -> tuple[jax.Array, jax.Array, list[jax.Array]]:
        block, reach, rows = state
        partner = lane ^ reach
        other = [row[..., partner] for row in rows]
        wants_less = ((lane & reach) == 0) == ((lane & block) == 0)
        keep = wants_less == before(rows, other)
        rows = [jnp.where(keep, row, theirs) for row, theirs in zip(rows, other, strict=True)]
        done = reach == 1
        block = jnp.where(done, block * 2, block)
        return block, jnp.where(done, block // 2, reach // 2), rows

    start = (jnp.int32(2), jnp.int32(1), [*last, place])
    _, _, rows = lax.fori_loop(0, levels * (levels + 1) // 2, step, start)
    return rows[-1][..., :n]


def sort_rows(*xs: jax.Array, dim: int, num_keys: int) -> list[jax.Array]:
    rows = [jnp.moveaxis(x, dim, -1) for x in xs]
    keys = [ordered(row) for row in rows[:num_keys]]
    n = rows[0].shape[-1]
    if n <= COUNTING:
        rank = ranks(keys)
        out = [put_at(row, rank, n) for row in rows]
    else:
        order = bitonic(keys)
        out = [take_at(row, order) for row in rows]
    return [jnp.moveaxis(row, -1, dim) for row in out]


@rule("sort")
def sort(b: Builder, params: Params, *xs: Value) -> Sequence[Value]:
    dim = params["dimension"]
    if xs[0].size == 0 or xs[0].shape[dim] == 1:
        return xs
    return retrace(b, sort_rows, *xs, dim=dim, num_keys=params["num_keys"])


def top_rows(x: jax.Array, k: int, axis: int, largest: bool) -> list[jax.Array]:
    rows = jnp.moveaxis(x, axis, -1)
    key, n = ordered(rows), rows.shape[-1]
    key = ~key if largest else key
    index = lax.broadcasted_iota(jnp.int32, rows.shape, rows.ndim - 1)
    if n <= COUNTING:
        rank = ranks([key])
        out = [put_at(rows, rank, k), put_at(index, rank, k)]
    else:
        order = bitonic([key])[..., :k]
        out = [take_at(rows, order), order]
    return [jnp.moveaxis(row, -1, axis) for row in out]


@rule("top_k")
def top_k(b: Builder, params: Params, x: Value) -> list[Value]:
    axis = params.get("axis", x.ndim - 1) % x.ndim
    return retrace(b, top_rows, x, k=params["k"], axis=axis, largest=True)


@rule("approx_top_k")
def approx_top_k(b: Builder, params: Params, x: Value) -> list[Value]:
    """The exact answer, which has recall 1."""
    axis, k = params["reduction_dimension"] % x.ndim, params["k"]
    if params["_out"][0].shape[axis] != k:
        refuse(b, "approx_top_k", "it returns candidates, not the k best", "Pass aggregate_to_topk=True.")
    return retrace(b, top_rows, x, k=k, axis=axis, largest=params["is_max_k"])
