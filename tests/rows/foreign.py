"""Rows: primitives of other libraries, opened through their implementation (skipped where not installed)."""

from __future__ import annotations

import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import onelaunch
from rows.row import Row, f32, normal, row

X = f32(0.5, -1, 2)


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def equinox_rows() -> list[Row]:
    import equinox as eqx  # optional: the rows exist only where it is installed

    def checkpointed(x: Any) -> Any:
        return eqx.internal.while_loop(
            lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 2), (0, x), kind="checkpointed", max_steps=4
        )

    return [
        row("equinox_unvmap", lambda x: (eqx.internal.unvmap_any(x > 0), eqx.internal.unvmap_max(x.astype(int))), X),
        row("equinox_unvmap_batched", jax.vmap(lambda x: eqx.internal.unvmap_any(x > 0)), X),
        row("equinox_nonbatchable", lambda x: eqx.internal.nonbatchable(x), X),
        row("equinox_backward", lambda x: eqx.internal.nondifferentiable_backward(x), X),
        row("equinox_while", checkpointed, X),
        row("equinox_while_gradient", jax.grad(lambda x: checkpointed(x)[1].sum()), X),
    ]


def lineax_rows() -> list[Row]:
    import lineax as lx  # optional: the rows exist only where it is installed

    def solve(a: Any, b: Any) -> Any:
        return lx.linear_solve(lx.MatrixLinearOperator(a), b, throw=False).value

    a = normal(3, 3) + 3 * np.eye(3, dtype=np.float32)
    return [
        row("lineax_solve", solve, a, X, ulps=512, floor=1),
        row("lineax_solve_vmapped", jax.vmap(solve, (None, 0)), a, normal(2, 3), ulps=512, floor=1),
    ]


def custom_batched(x: Any) -> Any:
    fn = jax.custom_batching.custom_vmap(lambda x: x * 2)
    fn.def_vmap(lambda size, batched, x: (x * 2, True))
    return fn(x) + 1


def composed(x: Any) -> Any:
    return lax.composite(lambda x: jnp.sin(x) * 2, "example.twice_sine")(x)


ROWS: list[Row] = [
    row("custom_vmap", custom_batched, X),
    row("composite", composed, X),
    row("fuse_in_fuse", lambda x: onelaunch.fuse(lambda x: jnp.sin(x) * 2)(x) + 1, X),
    *(equinox_rows() if installed("equinox") else []),
    *(lineax_rows() if installed("lineax") else []),
]
