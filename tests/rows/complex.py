"""Rows: complex numbers, which a kernel holds as pairs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rows.row import Row, f32, normal, row

Z = (normal(5) + 1j * normal(5, seed=1)).astype(np.complex64)
W = (normal(5, seed=2) + 1j * normal(5, seed=3)).astype(np.complex64)
M = (normal(3, 5) + 1j * normal(3, 5, seed=1)).astype(np.complex64)
AXES = np.asarray([1, -1, 1j, -1j, 0, 2 + 0j], np.complex64)
SUMS = {"floor": 1, "ulps": 16}


def rotate(z: Any, angles: Any) -> Any:
    return lax.scan(lambda z, a: (z * jnp.exp(1j * a), jnp.abs(z)), z, angles)


def squared_modulus(x: Any) -> Any:
    return (jnp.abs(jnp.exp(1j * x) + x) ** 2).sum()


ROWS: list[Row] = [
    row("complex_arithmetic", lambda z, w: (z + w, z - w, -z, z * w, z / w), Z, W, ulps=16, floor=1),
    row("complex_empty", lambda z: lax.dynamic_update_slice(lax.empty(z.shape, z.dtype), z, (0,) * z.ndim), Z),
    row("complex_parts", lambda z: (z.real, z.imag, jnp.conj(z), jnp.abs(z), jnp.angle(z)), Z, ulps=8),
    row("complex_make", lambda x: (lax.complex(x, 2 * x), x + 1j, x.astype(jnp.complex64), jnp.conj(x)), f32(1, -2)),
    row(
        "complex_functions",
        lambda z: (jnp.exp(z), jnp.log(z), jnp.sqrt(z), z**3, z**-2, lax.rsqrt(z)),
        Z,
        ulps=64,
        floor=1,
    ),
    row(
        "complex_trigonometry",
        lambda z: (jnp.sin(z), jnp.cos(z), jnp.tanh(z), jnp.sinh(z), jnp.cosh(z)),
        Z,
        ulps=64,
        floor=1,
    ),
    row("complex_axes", lambda z: (jnp.sqrt(z), jnp.abs(z), jnp.sign(z), jnp.square(z)), AXES, ulps=16, floor=1),
    row("complex_power", lambda z, w: z**w, Z, W, ulps=256, floor=1),
    row("complex_compare", lambda z: (z == z[::-1], z != z, jnp.isfinite(z), jnp.where(z.real > 0, z, -z)), Z),
    row("complex_moves", lambda z: (z.T, z[1:, ::2], jnp.concatenate([z, z], 1), z.reshape(5, 3), jnp.pad(z, 1)), M),
    row("complex_index", lambda z, i: (z[i], z.at[i].set(1j), lax.dynamic_slice(z, (i, i), (2, 2))), M, np.int32(1)),
    row("complex_sums", lambda z: (z.sum(1), z.mean(), z.prod(1), jnp.cumsum(z, 1)), M, ulps=64, floor=1),
    row("complex_dot", lambda z, w: (z @ w, jnp.vdot(w, w), z.real @ w), M, W, **SUMS),
    row("complex_scan", rotate, Z, normal(4), **SUMS),
    row("complex_while", lambda z: lax.while_loop(lambda z: jnp.abs(z).max() > 0.1, lambda z: z * 0.5j, z), Z, ulps=8),
    row("complex_gradient", jax.grad(squared_modulus), f32(0.5, -1, 2), **SUMS),
    row(
        "complex_128",
        lambda z, w: z * w + jnp.exp(z),
        Z.astype(np.complex128),
        W.astype(np.complex128),
        x64=True,
        **SUMS,
    ),
]
