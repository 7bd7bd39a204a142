"""Block-sparse attention in JAX's own operations, on dense scores, with the kernels' definitions."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onelaunch.kernels.attention_calls import Attention
from onelaunch.nn.block_reference import shifted
from onelaunch.nn.softmax import wide
from onelaunch.sparse.layout import BlockLayout


def merged(rpe: jax.Array, mask: jax.Array | None, options: Attention) -> tuple[jax.Array, Attention]:
    """What is added to scores and a mask as one mask that is added."""
    if mask is None:
        return rpe, dataclasses.replace(options, mask_add=True)
    if options.mask_add:
        return rpe + mask, options
    return jnp.where(mask != 0, rpe, -jnp.inf), dataclasses.replace(options, mask_add=True)


def attention(
    q: jax.Array, k: jax.Array, v: jax.Array, pad: Any, mask: Any, layout: BlockLayout, options: Attention
) -> list[jax.Array]:
    """out in q's dtype and lse in the wide one. pad: (items or 1, keys); mask: four dimensions, that may broadcast."""
    p, lse, _ = _weights(q, k, pad, mask, layout, options)
    return [jnp.matmul(p, _spread(v, q), precision="highest").astype(q.dtype), lse]


def gradients(
    q: jax.Array, k: jax.Array, v: jax.Array, pad: Any, mask: Any, dout: jax.Array, delta: jax.Array,
    layout: BlockLayout, options: Attention,
) -> list[jax.Array]:  # fmt: skip
    """Of q, k and v; delta is Σ out·dout − dlse of each query."""
    p, _, before = _weights(q, k, pad, mask, layout, options)
    up = dout.astype(p.dtype)
    dp = jnp.matmul(up, _spread(v, q).mT, precision="highest")
    ds = p * (dp - delta[..., None]) * options.scale
    if options.cap is not None:
        ds = ds * (1 - (before / options.cap) ** 2)
    dq = jnp.matmul(ds, _spread(k, q), precision="highest").astype(q.dtype)
    dk = jnp.matmul(ds.mT, q.astype(p.dtype), precision="highest")
    return [dq, _gathered(dk, k), _gathered(jnp.matmul(p.mT, up, precision="highest"), v)]


def _spread(a: jax.Array, q: jax.Array) -> jax.Array:
    """Keys or values for every query head, in the wide dtype."""
    return jnp.repeat(a.astype(wide(q.dtype)), q.shape[1] // a.shape[1], 1)


def _gathered(gradient: jax.Array, like: jax.Array) -> jax.Array:
    """The sum over the query heads that share a key head."""
    heads = like.shape[1]
    split = gradient.reshape(gradient.shape[0], heads, -1, *gradient.shape[2:])
    return split.sum(2).astype(like.dtype)


def _weights(
    q: jax.Array, k: jax.Array, pad: Any, mask: Any, layout: BlockLayout, options: Attention
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Probabilities, logsumexp and the scores before masks."""
    z = jnp.matmul(q.astype(wide(q.dtype)), _spread(k, q).mT, precision="highest") * options.scale
    if options.cap is not None:
        z = jnp.tanh(z / options.cap) * options.cap
    before, (queries, keys) = z, z.shape[-2:]
    if mask is not None and options.extent is not None:
        mask = shifted(jnp.broadcast_to(mask, (*mask.shape[:2], queries, mask.shape[-1])), keys)
    blocks = layout.mask.repeat(layout.block, -1).repeat(layout.block, -2)[..., :queries, :keys]
    blocks = blocks.repeat(q.shape[1] // layout.heads, -3)
    if options.causal:
        blocks = blocks & np.tri(queries, keys, dtype=bool)
    if layout.batch is not None:
        blocks = np.tile(blocks, (q.shape[0] // layout.batch, 1, 1, 1))
    use: Any = jnp.asarray(blocks)
    spread = None if pad is None else pad[:, None, None, :]
    for array, add in ((spread, options.pad_add), (mask, options.mask_add)):
        if array is not None and add:
            z = z + array.astype(z.dtype)
        elif array is not None:
            use = use & (array != 0)
    use = jnp.broadcast_to(use & (z != -jnp.inf), z.shape)
    live = use.any(-1, keepdims=True)
    # A query that sees nothing is one of zeros for the time being: its derivatives would be NaN.
    z = jnp.where(use, z, jnp.where(live, -jnp.inf, 0.0))
    p = jnp.where(use, jax.nn.softmax(z, -1), 0.0)
    return p, jnp.where(live[..., 0], jax.nn.logsumexp(z, -1), -jnp.inf), before
