"""Block-sparse softmax in JAX's own operations, on dense matrices, with the kernels' definitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onelaunch.kernels.block_calls import BlockScores
from onelaunch.kernels.calls import LOGSUMEXP, SOFTMAX
from onelaunch.nn.softmax import wide
from onelaunch.sparse.layout import BlockLayout

#: rpe, attn, pad, rel: (items, batch items, heads, queries, keys or distances) or None; sizes of 1 broadcast.
Dense = Sequence[Any]


def dense_of(values: jax.Array, layout: BlockLayout, fill: Any = 0.0) -> jax.Array:
    """(items, nnz, block, block) as (items, batch items, heads, queries, keys)."""
    dense = layout.to_dense(values, fill)
    return dense if layout.batch is not None else dense[:, None]


def values_of(dense: jax.Array, layout: BlockLayout) -> jax.Array:
    """The inverse of ``dense_of``."""
    values: jax.Array = layout.from_dense(dense if layout.batch is not None else dense[:, 0])
    return values


def places(queries: int, keys: int, extent: int) -> np.ndarray:
    """(queries, keys): where in its row of relative logits a query has a key."""
    return np.arange(keys) - np.arange(queries)[:, None] + extent - 1


def shifted(rel: jax.Array, keys: int) -> jax.Array:
    """Relative logits (..., queries, extent) as (..., queries, keys), 0 where they have none."""
    queries, extent = rel.shape[-2:]
    at = places(queries, keys, extent)
    spread = jnp.take_along_axis(rel, jnp.asarray(at.clip(0, extent - 1))[(None,) * (rel.ndim - 2)], -1)
    return jnp.where((at >= 0) & (at < extent), spread, 0)


def scores(x: jax.Array, dense: Dense, layout: BlockLayout, options: BlockScores) -> tuple[jax.Array, jax.Array]:
    """Dense scores in the wide dtype, and which take part."""
    rpe, attn, pad, rel = dense
    z = dense_of(x.astype(wide(x.dtype)) * options.scale, layout)
    use = dense_of(jnp.ones(x.shape, bool), layout, False)
    queries, keys = z.shape[-2:]
    if rpe is not None:
        z = z + rpe.astype(z.dtype)
    if rel is not None:
        whole = jnp.broadcast_to(rel, (*rel.shape[:-2], queries, rel.shape[-1]))
        z = z + shifted(whole, keys).astype(z.dtype)
    for mask, multiply in ((attn, options.attn_mul), (pad, options.pad_mul)):
        if mask is not None and multiply:
            use = use & (mask != 0)
        elif mask is not None:
            z = z + mask.astype(z.dtype)
    if options.causal:
        use = use & np.tri(queries, keys, dtype=bool)
    return z, use & (z != -jnp.inf)


def softmax(x: jax.Array, dense: Dense, layout: BlockLayout, options: BlockScores) -> jax.Array:
    """Values of softmax or its logarithm, or logsumexp of rows (items, lines, block), in the wide dtype."""
    z, use = scores(x, dense, layout, options)
    live = use.any(-1, keepdims=True)
    # A row of which nothing takes part is one of zeros for the time being: its derivatives would be NaN.
    z = jnp.where(use, z, jnp.where(live, -jnp.inf, 0).astype(z.dtype))
    if options.mode == LOGSUMEXP:
        y = jnp.where(live[..., 0], jax.nn.logsumexp(z, -1), -jnp.inf)
        return y.reshape(x.shape[0], -1, layout.block)
    if options.mode == SOFTMAX:
        return values_of(jnp.where(use, jax.nn.softmax(z, -1), 0), layout)
    return values_of(jnp.where(use, jax.nn.log_softmax(z, -1), -jnp.inf), layout)


def backward(y: jax.Array, g: jax.Array, layout: BlockLayout, mode: int, factor: float) -> jax.Array:
    """The gradient with respect to scores, times ``factor``, from the output of softmax or its logarithm."""
    kind = wide(y.dtype)
    left_out = 0.0 if mode == SOFTMAX else -jnp.inf
    out = dense_of(y.astype(kind), layout, left_out)
    up = jnp.where(out == left_out, 0, dense_of(g.astype(kind), layout))
    if mode == SOFTMAX:
        dz = out * (up - (out * up).sum(-1, keepdims=True))
    else:
        dz = up - jnp.exp(out) * up.sum(-1, keepdims=True)
    return values_of(dz * factor, layout)


def logsumexp_backward(
    x: jax.Array, dense: Dense, y: jax.Array, g: jax.Array, layout: BlockLayout, options: BlockScores, factor: float
) -> jax.Array:
    """The gradient of logsumexp with respect to scores, times ``factor``."""
    z, use = scores(x, dense, layout, options)
    rows = (*z.shape[:-1], 1)
    lse, up = y.reshape(rows).astype(z.dtype), g.reshape(rows).astype(z.dtype)
    live = lse != -jnp.inf
    p = jnp.exp(z - jnp.where(live, lse, 0))
    return values_of(jnp.where(use & live, p * up * factor, 0), layout)


def summed(dz: jax.Array, layout: BlockLayout, shape: Sequence[int]) -> jax.Array:
    """Values summed into a dense array of five dimensions that they were spread from.

    Blocks are gathered, not scattered, so that the order of a sum is fixed.
    """
    items, batch, heads, m, n = shape
    if items == 1:
        dz = dz.sum(0, keepdims=True)
    if m == 1:
        dz = dz.sum(-2, keepdims=True)
    if n == 1:
        dz = dz.sum(-1, keepdims=True)
    there = layout.planes_mask.reshape(-1)
    number = np.maximum(np.cumsum(there) - 1, 0)
    height, width = dz.shape[-2:]
    grid = (dz.shape[0], layout.batch or 1, layout.heads, layout.rows, layout.columns, height, width)
    if layout.nnz == 0:
        return jnp.zeros(shape, dz.dtype)
    spread = jnp.where(there[:, None, None], dz[:, number], 0).reshape(grid)
    over = [axis for axis, size in ((1, batch), (2, heads), (3, m), (4, n)) if size == 1]
    spread = spread.sum(over, keepdims=True)
    return spread.swapaxes(-2, -3).reshape(shape)


def summed_by_distance(dz: jax.Array, layout: BlockLayout, shape: Sequence[int]) -> jax.Array:
    """``summed`` for relative logits."""
    items, batch, heads, queries, extent = shape
    keys = layout.shape[-1]
    dense = summed(dz, layout, (items, batch, heads, layout.shape[-2], keys))
    at = np.arange(extent) - extent + 1 + np.arange(layout.shape[-2])[:, None]
    there = (at >= 0) & (at < keys)
    found = jnp.take_along_axis(dense, jnp.asarray(at.clip(0, keys - 1))[None, None, None], -1)
    found = jnp.where(there, found, 0)
    return found.sum(-2, keepdims=True) if queries == 1 else found
