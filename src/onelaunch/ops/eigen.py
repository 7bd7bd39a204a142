"""Jacobi's rotations in round-robin order: every step turns n/2 separate pairs at once, as vector work."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from onelaunch.ops.sort import put_at, ranks

SWEEPS = 15

State = tuple[jax.Array, jax.Array]


def partners(step: jax.Array, n: int) -> jax.Array:
    """Whom each index meets at a step of a round-robin tournament; itself where it rests."""
    players = n + n % 2
    last = players - 1
    me = lax.iota(jnp.int32, n)
    other = (2 * step - me + 2 * last) % last if last > 1 else 1 - me
    other = jnp.where(other == me, last, other)
    other = jnp.where(me == last, step % last, other)
    return jnp.where(other >= n, me, other)


def rotation(mine: jax.Array, theirs: jax.Array, cross: jax.Array, first: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(c, s) for each index of a pair: new = c * own + s * partner's makes the cross term 0."""
    small, large = jnp.where(first, mine, theirs), jnp.where(first, theirs, mine)
    rests = cross == 0
    theta = (large - small) / (2 * jnp.where(rests, jnp.ones_like(cross), cross))
    root = jnp.abs(theta) + jnp.sqrt(theta * theta + 1)
    tangent = jnp.where(theta < 0, -1, 1).astype(theta.dtype) / root
    tangent = jnp.where(rests, jnp.zeros_like(tangent), tangent)
    c = 1 / jnp.sqrt(tangent * tangent + 1)
    return c, jnp.where(first, -tangent, tangent) * c


def sweeps(
    state: State, turn: Callable[[jax.Array, State], State], n: int, done: Callable[[State], jax.Array]
) -> State:
    """Repeat whole tournaments of ``turn`` until ``done`` or SWEEPS of them."""
    rounds = n + n % 2 - 1

    def going(carry: tuple[jax.Array, State]) -> jax.Array:
        count, state = carry
        return (count < SWEEPS) & ~done(state)

    def sweep(carry: tuple[jax.Array, State]) -> tuple[jax.Array, State]:
        count, state = carry
        return count + 1, lax.fori_loop(0, rounds, turn, state)

    return lax.while_loop(going, sweep, (jnp.int32(0), state))[1]


def eigh_matrix(a: jax.Array, lower: bool) -> tuple[jax.Array, jax.Array]:
    """Eigenvectors (as columns) and ascending eigenvalues of a symmetric matrix, from one triangle of it."""
    n = a.shape[0]
    half = jnp.tril(a, -1) if lower else jnp.triu(a, 1)
    eye = jnp.eye(n, dtype=bool)
    a = jnp.where(eye, a, half + half.T)
    if n == 1:
        return jnp.ones_like(a), a[0]
    me = lax.iota(jnp.int32, n)
    tolerance = jnp.finfo(a.dtype).eps ** 2

    def turn(step: jax.Array, state: State) -> State:
        a, vt = state
        other = partners(step, n)
        diagonal = jnp.sum(jnp.where(eye, a, 0), axis=1)
        cross = jnp.sum(jnp.where(other[:, None] == me[None, :], a, 0), axis=1)
        # Both of a pair must turn by one angle, though rounding leaves a[i, j] and a[j, i] apart.
        cross = jnp.where(me < other, cross, cross[other])
        cross = jnp.where(other == me, jnp.zeros_like(cross), cross)
        c, s = rotation(diagonal, diagonal[other], cross, me < other)
        a = c[:, None] * a + s[:, None] * a[other]
        a = c[None, :] * a + s[None, :] * a[:, other]
        return a, c[:, None] * vt + s[:, None] * vt[other]

    def done(state: State) -> jax.Array:
        a, _ = state
        off = jnp.sum(jnp.where(eye, 0, a * a))
        return ~(off > tolerance * jnp.sum(a * a))

    a, vt = sweeps((a, jnp.eye(n, dtype=a.dtype)), turn, n, done)
    values = jnp.sum(jnp.where(eye, a, 0), axis=1)
    rank = ranks([values])
    return permuted(vt, rank).T, put_at(values, rank, n)


def permuted(x: jax.Array, rank: jax.Array) -> jax.Array:
    """Row i of ``x`` becomes row rank[i]."""
    return jnp.zeros_like(x).at[rank].set(x, unique_indices=True, mode="promise_in_bounds")


def rotate_columns(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(a v, v) with v orthogonal and the columns of a v orthogonal, longest first."""
    n = a.shape[1]
    if n == 1:
        return a, jnp.ones((1, 1), a.dtype)
    me = lax.iota(jnp.int32, n)
    tolerance = jnp.finfo(a.dtype).eps ** 2

    def turn(step: jax.Array, state: State) -> State:
        at, vt = state
        other = partners(step, n)
        theirs, norms = at[other], jnp.sum(at * at, axis=1)
        cross = jnp.where(other == me, jnp.zeros_like(norms), jnp.sum(at * theirs, axis=1))
        c, s = rotation(norms, norms[other], cross, me < other)
        return c[:, None] * at + s[:, None] * theirs, c[:, None] * vt + s[:, None] * vt[other]

    def done(state: State) -> jax.Array:
        at, _ = state
        gram = jnp.sum(at[:, None, :] * at[None, :, :], axis=2)
        norms = jnp.sum(at * at, axis=1)
        off = jnp.where(jnp.eye(n, dtype=bool), 0, gram * gram)
        return ~jnp.any(off > tolerance * norms[:, None] * norms[None, :])

    at, vt = sweeps((a.T, jnp.eye(n, dtype=a.dtype)), turn, n, done)
    rank = ranks([-jnp.sum(at * at, axis=1)])
    return permuted(at, rank).T, permuted(vt, rank).T
