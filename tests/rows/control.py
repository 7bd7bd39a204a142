"""Rows: calls, loops, branches and derivatives through them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.custom_derivatives import linear_call

from rows.row import Row, f32, i32, normal, row

X = f32(0.5, -1, 2)
XS = normal(5, 3)
SUMS = {"floor": 1, "ulps": 16}


def affine(c: Any, x: Any) -> Any:
    c = 0.5 * c + x
    return c, c * c


def scan(fn: Any = affine, **how: Any) -> Any:
    return lambda c, xs: lax.scan(fn, c, xs, **how)


def halve(x: Any, limit: Any = 0.01) -> Any:
    """Steps until every element, or each lane under vmap, is small."""
    return lax.while_loop(lambda s: jnp.max(jnp.abs(s[1])) > limit, lambda s: (s[0] + 1, s[1] / 2), (0, x))


def collatz(n: Any) -> Any:
    return lax.while_loop(
        lambda s: s[0] > 1, lambda s: (jnp.where(s[0] % 2 == 0, s[0] // 2, 3 * s[0] + 1), s[1] + 1), (n, 0)
    )


def newton(a: Any, x: Any) -> Any:
    return lax.fori_loop(0, 6, lambda _, y: 0.5 * (y + a / y), x)


def dynamic_trips(n: Any, x: Any) -> Any:
    return lax.fori_loop(1, n, lambda i, y: y * 0.9 + i, x)


def nested(x: Any) -> Any:
    def outer(c: Any, i: Any) -> Any:
        inner = lax.fori_loop(0, i, lambda j, s: s + j * c, c)
        return inner * 0.1, inner

    return lax.scan(outer, x, jnp.arange(4))


def branches(i: Any, x: Any) -> Any:
    return lax.switch(i, [lambda x: (x, 0), lambda x: (x * 2, 1), lambda x: (x.sum() + 0 * x, 2)], x)


def choose(p: Any, x: Any) -> Any:
    return lax.cond(p, lambda x: jnp.sin(x), lambda x: x * 3, x)


def branch_in_loop(x: Any) -> Any:
    return lax.fori_loop(0, 5, lambda i, c: lax.cond(i % 2 == 0, lambda c: c + 1, lambda c: c * 2, c), x)


def swap(x: Any, y: Any) -> Any:
    return lax.fori_loop(0, 3, lambda _, s: (s[1], s[0] + 1), (x, y))


def history(x: Any) -> Any:
    def step(i: Any, s: Any) -> Any:
        return s.at[i].set(s[i - 1] * 1.5 + 1)

    return lax.fori_loop(1, 7, step, jnp.zeros(7).at[0].set(x))


@jax.custom_jvp
def clipped(x: Any) -> Any:
    return jnp.minimum(x, 1.0)


clipped.defjvp(lambda primals, tangents: (clipped(*primals), tangents[0] * 0.5))


@jax.custom_vjp
def doubled(x: Any) -> Any:
    return x * 2


doubled.defvjp(lambda x: (x * 2, None), lambda _, g: (g * 3,))


def energy(c: Any, xs: Any) -> Any:
    last, ys = lax.scan(lambda c, x: (jnp.tanh(c + x), c * x), c, xs)
    return (last**2).sum() + ys.sum()


def solve(matrix: Any, b: Any) -> Any:
    """An iterative solver with an implicit derivative."""
    return lax.custom_linear_solve(lambda x: matrix @ x, b, lambda mv, b: newton_like(matrix, b), symmetric=True)


def newton_like(matrix: Any, b: Any) -> Any:
    return lax.fori_loop(0, 8, lambda _, x: x + (b - matrix @ x) / 4, jnp.zeros_like(b))


MATRIX = np.asarray([[4, 1, 0], [1, 4, 1], [0, 1, 4]], np.float32)
TRIPS = i32(1, 7, 27, 4)

LOOPS: list[Row] = [
    row("scan", scan(), X, XS, **SUMS),
    row("scan_reverse", scan(reverse=True), X, XS, **SUMS),
    row("scan_once", scan(), X, XS[:1], **SUMS),
    row("scan_never", scan(), X, XS[:0]),
    row("scan_no_inputs", lambda c: lax.scan(lambda c, _: (c * 2, c), c, None, length=4), X),
    row("scan_no_outputs", lambda c, xs: lax.scan(lambda c, x: (c + x, None), c, xs)[0], X, XS, **SUMS),
    row("scan_no_carry", lambda xs: lax.scan(lambda _, x: (None, x * 2), None, xs)[1], XS),
    row("scan_unrolled", scan(unroll=2), X, XS, **SUMS),
    row(
        "scan_trees",
        lambda c, xs: lax.scan(lambda c, x: ({"a": c["a"] + x[0]}, x[1]), {"a": c}, (xs, xs * 2)),
        X,
        XS,
        **SUMS,
    ),
    row(
        "scan_constants", lambda w, c, xs: lax.scan(lambda c, x: (jnp.tanh(c @ w + x), c), c, xs), MATRIX, X, XS, **SUMS
    ),
    row("scan_dtypes", lambda xs: lax.scan(lambda c, x: ((c[0] + 1, c[1] ^ (x[0] > 0)), c), (0, True), xs), XS),
    row("scan_vmapped", jax.vmap(scan()), normal(2, 3), normal(2, 5, 3), **SUMS),
    row("scan_vmapped_carry", jax.vmap(scan(), (0, None)), normal(2, 3), XS, **SUMS),
    row("map", lambda xs: lax.map(lambda x: x.sum(), xs), XS, **SUMS),
    row("associative_scan", lambda xs: lax.associative_scan(jnp.add, xs), XS, **SUMS),
    row("associative_scan_x64", lambda xs: lax.associative_scan(jnp.add, xs[:, :1], axis=1), XS, x64=True, **SUMS),
    row("associative_scan_long_x64", lambda xs: lax.associative_scan(jnp.maximum, xs.ravel()), XS, x64=True),
    row("while", halve, X),
    row("while_never", lambda x: halve(x, 100.0), X),
    row("while_int", collatz, np.int32(7)),
    row("while_vmapped", jax.vmap(collatz), TRIPS),
    row("while_vmapped_arrays", jax.vmap(halve), XS),
    row("while_vmapped_twice", jax.vmap(jax.vmap(collatz)), TRIPS.reshape(2, 2)),
    row("while_vmapped_limit", jax.vmap(halve, (None, 0)), X, f32(0.1, 0.5, 9)),
    row("fori_static", newton, f32(2, 3, 5), f32(1, 1, 1), **SUMS),
    row("fori_dynamic", dynamic_trips, np.int32(5), X, **SUMS),
    row("fori_dynamic_never", dynamic_trips, np.int32(-5), X),
    row("fori_vmapped_trips", jax.vmap(dynamic_trips, (0, None)), i32(0, 3, 6), X, **SUMS),
    row("fori_swap", swap, X, X * 10),
    row("fori_history", history, np.float32(1)),
    row("fori_zero_trips", lambda x: lax.fori_loop(3, 3, lambda i, c: c + 1, x), X),
    row("loops_in_loops", nested, np.float32(2), **SUMS),
    row("loops_in_loops_vmapped", jax.vmap(nested), X, **SUMS),
    row(
        "loop_invariants",
        lambda w, x: lax.fori_loop(0, 3, lambda i, c: c * jax.nn.softplus(w).sum() * 0.1, x),
        MATRIX,
        X,
        **SUMS,
    ),
    row("loop_f64", lambda x: lax.fori_loop(0, 9, lambda i, c: c * 0.1 + 1 / 3, x), X.astype(np.float64), x64=True),
    row("logistic_map", lambda x: lax.fori_loop(0, 8, lambda i, c: 3.7 * c * (1 - c), x), f32(0.1, 0.5), ulps=512),
]

BRANCHES: list[Row] = [
    *(row(f"switch_{i}", branches, np.int32(i), X, floor=1) for i in (-3, 1, 2, 9)),
    row("switch_static", lambda x: branches(jnp.int32(1), x), X),
    row("cond_true", choose, np.asarray(True), X),
    row("cond_false", choose, np.asarray(False), X),
    row("cond_vmapped", jax.vmap(choose), np.asarray([True, False, True]), X),
    row("cond_in_loop", branch_in_loop, X),
    row("cond_captures", lambda p, x: lax.cond(p, lambda: x.sum(), lambda: x.max()), np.asarray(True), X, floor=1),
    row("cond_gradient", jax.grad(lambda x, p: choose(p, x).sum()), X, np.asarray(True)),
    row("platform", lambda x: lax.platform_dependent(x, cuda=lambda x: x + 1, default=lambda x: x + 1), X),
]

CALLS: list[Row] = [
    row("call_jit", lambda x: jax.jit(jnp.sin)(x) + jax.jit(jnp.sin)(2 * x), X),
    row("call_checkpoint", jax.grad(lambda x: jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))(x).sum()), X),
    row("call_custom_jvp", lambda x: clipped(x), X),
    row("call_custom_jvp_gradient", jax.grad(lambda x: clipped(x).sum()), X),
    row("call_custom_vjp", lambda x: doubled(x), X),
    row("call_custom_vjp_gradient", jax.grad(lambda x: doubled(x).sum()), X),
    row("call_named", lambda x: checkpoint_name(jnp.sin(x), "sine"), X),
    row("call_linear", lambda m, x: linear_call(lambda m, x: m @ x, lambda m, y: m.T @ y, m, x), MATRIX, X, **SUMS),
    row("call_closed", lambda x: lax.map(jax.checkpoint(jnp.tanh), x), X),
    row("call_linear_solve", solve, MATRIX, X, **SUMS),
    row("call_linear_solve_gradient", jax.grad(lambda m, b: solve(m, b).sum(), 1), MATRIX, X, **SUMS),
]

DERIVATIVES: list[Row] = [
    row("scan_gradient", jax.grad(energy), X, XS, **SUMS),
    row("scan_value_and_gradient", jax.value_and_grad(energy, (0, 1)), X, XS, **SUMS),
    row("scan_jvp", lambda c, xs: jax.jvp(energy, (c, xs), (c, xs)), X, XS, **SUMS),
    row("scan_hessian", jax.hessian(energy), X, XS[:2], **SUMS),
    row("scan_jacobian", jax.jacrev(lambda c, xs: lax.scan(affine, c, xs)[0]), X, XS, **SUMS),
    row("scan_checkpointed", jax.grad(lambda c, xs: lax.scan(jax.checkpoint(affine), c, xs)[1].sum()), X, XS, **SUMS),
    row("while_jvp", lambda x: jax.jvp(lambda x: halve(x)[1], (x,), (x,)), X),
    row(
        "fori_gradient",
        jax.grad(lambda x: lax.fori_loop(0, 3, lambda _, y: y - 0.1 * y**3, x).sum()),
        f32(1, 1, 1),
        ulps=64,
        floor=1,
    ),
    row("per_example_gradients", jax.vmap(jax.grad(energy), (0, None)), normal(2, 3), XS, **SUMS),
]

ROWS: list[Row] = LOOPS + BRANCHES + CALLS + DERIVATIVES
