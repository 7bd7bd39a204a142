"""Rows: moves of elements."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rows.row import Row, f32, i32, normal, row

A = normal(3, 5)
CUBE = normal(2, 3, 4)

ROWS: list[Row] = [
    row("broadcast_scalar", lambda x: jnp.broadcast_to(x, (3, 4)), np.float32(2)),
    row("broadcast_row", lambda x: lax.broadcast_in_dim(x, (2, 5), (1,)), A[0]),
    row("broadcast_column", lambda x: lax.broadcast_in_dim(x, (3, 5), (0, 1)), A[:, :1]),
    row("broadcast_swapped", lambda x: lax.broadcast_in_dim(x, (5, 1, 3), (2, 0)), A),
    row("broadcast_empty", lambda x: jnp.broadcast_to(x, (0, 5)), A[0]),
    row("reshape", lambda x: x.reshape(5, 3), A),
    row("reshape_scalar", lambda x: x.reshape(()), A[:1, :1]),
    row("reshape_ordered", lambda x: lax.reshape(x, (15,), dimensions=(1, 0)), A),
    row("squeeze", lambda x: jnp.squeeze(x, (0, 2)), CUBE[:1, :, :1]),
    row("expand_dims", lambda x: jnp.expand_dims(x, (0, 2)), A),
    row("transpose", lambda x: jnp.transpose(x, (2, 0, 1)), CUBE),
    row("transpose_again", lambda x: (x.T + 1).T, A),
    row("rev", lambda x: lax.rev(x, (0, 1)), A),
    row("rev_one", lambda x: lax.rev(x, (0,)), A[:1]),
    row("slice", lambda x: lax.slice(x, (1, 0), (3, 5)), A),
    row("slice_strided", lambda x: x[::2, 1::3], A),
    row("slice_backward", lambda x: x[::-1, 3:0:-2], A),
    row("slice_empty", lambda x: x[2:2], A),
    row("pad", lambda x: lax.pad(x, 7.0, ((1, 2, 0), (0, 1, 2))), A),
    row("pad_negative", lambda x: lax.pad(x, 0.0, ((-1, 0, 0), (2, -3, 0))), A),
    row("pad_interior_negative", lambda x: lax.pad(x, 1.0, ((-1, -1, 1), (-2, 1, 2))), A),
    row("pad_to_nothing", lambda x: lax.pad(x, 1.0, ((-2, -1, 0), (0, 0, 0))), A),
    row("pad_from_nothing", lambda x: lax.pad(x, 3.0, ((1, 1, 0),)), np.zeros(0, np.float32)),
    row("pad_int", lambda x: jnp.pad(x, (1, 2), constant_values=9), i32(1, 2, 3)),
    row("pad_edge", lambda x: jnp.pad(x, 2, mode="edge"), f32(1, 2, 3)),
    row("concatenate", lambda x, y: jnp.concatenate([x, y, x], 1), A, A[:, :2]),
    row("concatenate_rows", lambda x: lax.concatenate([x[:1], x, x[:0]], 0), A),
    row("stack", lambda x, y: (jnp.stack([x, y]), jnp.stack([x, y], -1)), A[0], A[1]),
    row("split_columns", lambda x: jnp.split(x, (1, 4), axis=1), A),
    row("unstack", lambda x: [u * 2 for u in jnp.unstack(x, axis=1)], A),
    row("tile", lambda x: (jnp.tile(x, 2), jnp.tile(x, (2, 1, 3))), A),
    row("repeat", lambda x: jnp.repeat(x, 3, axis=1), A),
    row("roll", lambda x: jnp.roll(x, (1, -2), (0, 1)), A),
    row("iota", lambda: (lax.iota(jnp.int32, 7), lax.broadcasted_iota(jnp.float32, (2, 3, 4), 1))),
    row("iota_byte", lambda: lax.broadcasted_iota(jnp.uint8, (5,), 0)),
    row("eye", lambda: jnp.eye(3, 5, 1)),
    row("linspace", lambda x: jnp.linspace(x, 4.0, 7), np.float32(-1), floor=1),
    row("triangle", lambda x: (jnp.tril(x), jnp.triu(x, 1)), A),
    row("diagonal", lambda x: jnp.diagonal(x), A),
    row("copy", lambda x: (jnp.copy(x), lax.stop_gradient(x), x + 0), A),
    row("optimization_barrier", lambda x: lax.optimization_barrier((x, x + 1)), A),
    row("empty_filled", lambda x: lax.empty((3, 5), jnp.float32).at[:].set(x), A),
    row("meshgrid", lambda x, y: jnp.meshgrid(x, y), f32(1, 2), f32(3, 4, 5)),
    row("device_put", lambda x: jax.device_put(x, jax.devices("cpu")[0]) * 2, A),
    row("identity_output", lambda x: (x, x), A),
    row("closed_over_array", lambda x: x + jnp.asarray(A[1]) * A[0], A),
    row("bool_moves", lambda x: jnp.concatenate([x, ~x])[::-1].reshape(2, 3), np.asarray([True, False, True])),
    row("byte_moves", lambda x: jnp.pad(x.T, 1).reshape(-1), np.arange(6, dtype=np.uint8).reshape(2, 3)),
]
