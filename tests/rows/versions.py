"""Rows of primitives that only some versions of JAX have."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from rows.elementwise import EDGES, SMALL, UNIT, WHOLE
from rows.row import Row, f32, row

Z = np.asarray([1 + 2j, -0.5 + 0.25j, 3 - 1j, -2 - 2j], np.complex64)


def newer_rows(name: str) -> list[Row]:
    """Rows of one function of ``jax.lax``."""
    fn: Any = getattr(lax, name, None)
    if fn is None:
        return []
    if name == "one_minus_square":
        real = [
            row(name, fn, EDGES),
            row(f"{name}_int", fn, WHOLE),
            row(f"{name}_f64", fn, UNIT.astype(float), x64=True),
        ]
        return [*real, row(f"{name}_complex", fn, Z, ulps=16, floor=1)]
    terms = f32(0.5, -1, 2, 0, 3, -0.25, 1, 0.125, -2, 4)
    return [
        row(f"{name}_4", lambda x: fn(x, [1.0, 5.0, x[:1], 2.0]), SMALL),
        row(f"{name}_10", lambda x: fn(x, list(terms)), SMALL, ulps=64, floor=1),
        row(f"{name}_unroll", lambda x: fn(x, [1.0, 0.5, 2.0], unroll=2), SMALL),
        row(f"{name}_int", lambda x: fn(x, [1, 5, 2]), WHOLE),
        row(f"{name}_complex", lambda z: fn(z, [1.0, 2j, z]), Z, ulps=16, floor=1),
    ]


ROWS: list[Row] = [
    row("log2", jnp.log2, EDGES, ulps=8),
    row("log2_complex", jnp.log2, Z, ulps=16, floor=1),
    *newer_rows("one_minus_square"),
    *newer_rows("polynomial"),
]
