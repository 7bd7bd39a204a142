"""Kinds of programs that tests/programs has not: each is one kernel, and means what jax.jit computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import onelaunch
from onelaunch import trace
from onelaunch.ir.interpret import run as meaning
from onelaunch.ops.words import raw
from onelaunch.rewrite import rewrite

G = np.random.default_rng(0)
KEY = np.array([0, 7], np.uint32)


def normal(*shape: int) -> np.ndarray:
    return G.normal(size=shape).astype(np.float32)


def kalman(ys: jax.Array) -> Any:
    """A Kalman filter of position and velocity, with its log-likelihood."""
    a, q, h = jnp.array([[1.0, 0.1], [0.0, 1.0]]), 0.01 * jnp.eye(2), jnp.array([[1.0, 0.0]])

    def step(c: Any, y: jax.Array) -> Any:
        m, p = c
        m, p = a @ m, a @ p @ a.T + q
        s = h @ p @ h.T + 0.1 * jnp.eye(1)
        k = jnp.linalg.solve(s, h @ p).T
        e = y - h @ m
        score = -0.5 * (e @ jnp.linalg.solve(s, e) + jnp.log(jnp.linalg.det(s)))
        return (m + k @ e, p - k @ h @ p), (m, score)

    return lax.scan(step, (jnp.zeros(2), jnp.eye(2)), ys)


def particles(key: jax.Array, ys: jax.Array) -> Any:
    """A particle filter that resamples systematically at every step."""

    def step(c: Any, y: jax.Array) -> Any:
        key, x = c
        key, k1, k2 = jax.random.split(key, 3)
        x = 0.9 * x + 0.3 * jax.random.normal(k1, x.shape)
        w = jax.nn.softmax(-((x - y) ** 2))
        u = (jnp.arange(x.size) + jax.random.uniform(k2)) / x.size
        return (key, x[jnp.searchsorted(jnp.cumsum(w), u)]), (w * x).sum()

    return lax.scan(step, (key, jnp.zeros(12)), ys)


def value_iteration(p: jax.Array, r: jax.Array) -> Any:
    """Values of a Markov decision process, iterated until they stand still."""

    def step(c: Any) -> Any:
        v, _, n = c
        new = (r + 0.5 * jnp.einsum("asn,n->as", p, v)).max(0)
        return new, jnp.abs(new - v).max(), n + 1

    v, _, n = lax.while_loop(lambda c: c[1] > 1e-3, step, (jnp.zeros(r.shape[1]), jnp.inf, 0))
    return v, n, (r + 0.5 * jnp.einsum("asn,n->as", p, v)).argmax(0)


def q_learning(key: jax.Array, p: jax.Array) -> Any:
    """Tabular Q-learning with an epsilon-greedy policy."""

    def step(c: Any, key: jax.Array) -> Any:
        q, s = c
        k1, k2, k3 = jax.random.split(key, 3)
        greedy = jax.random.uniform(k1) > 0.1
        a = jnp.where(greedy, q[s].argmax(), jax.random.randint(k2, (), 0, q.shape[1]))
        new = jax.random.categorical(k3, jnp.log(p[a, s]))
        reward = (new == 0).astype(jnp.float32)
        q = q.at[s, a].add(0.1 * (reward + 0.9 * q[new].max() - q[s, a]))
        return (q, new), reward

    return lax.scan(step, (jnp.zeros((4, 3)), 1), jax.random.split(key, 20))


def garch(theta: jax.Array, r: jax.Array) -> Any:
    """The likelihood of a GARCH(1, 1) model, and its gradient."""

    def loss(theta: jax.Array) -> jax.Array:
        w, a, b = jnp.exp(theta)
        step = lambda h, x: ((w + a * x * x + b * h), jnp.log(h) + x * x / h)  # noqa: E731
        return lax.scan(step, r.var(), r)[1].sum()

    return jax.value_and_grad(loss)(theta)


def sinkhorn(cost: jax.Array) -> Any:
    """Entropic optimal transport in logarithms."""
    n, m = cost.shape

    def step(_: Any, c: Any) -> Any:
        f, g = c
        f = -0.1 * jax.nn.logsumexp((g[None] - cost) / 0.1 - jnp.log(m), axis=1)
        return f, -0.1 * jax.nn.logsumexp((f[:, None] - cost) / 0.1 - jnp.log(n), axis=0)

    return lax.fori_loop(0, 10, step, (jnp.zeros(n), jnp.zeros(m)))


def clipped_control(x0: jax.Array) -> Any:
    """A linear regulator's gains by a backward recursion, then its steps with clipped controls."""
    a, b = jnp.array([[1.0, 0.1], [0.0, 1.0]]), jnp.array([[0.0], [0.1]])

    def back(p: jax.Array, _: Any) -> Any:
        k = jnp.linalg.solve(jnp.eye(1) + b.T @ p @ b, b.T @ p @ a)
        return jnp.eye(2) + a.T @ p @ (a - b @ k), k

    _, gains = lax.scan(back, jnp.eye(2), None, length=15)
    move = lambda x, k: (a @ x + b @ jnp.clip(-k @ x, -1, 1), x)  # noqa: E731
    return lax.scan(move, x0, gains[::-1])


def automaton(cells: jax.Array) -> Any:
    """Conway's game of life on a torus."""

    def step(_: Any, x: jax.Array) -> jax.Array:
        around = sum(jnp.roll(x, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j)
        return ((around == 3) | ((x == 1) & (around == 2))).astype(x.dtype)

    return lax.fori_loop(0, 4, step, cells)


def k_means(x: jax.Array) -> Any:
    """Lloyd's iterations with empty clusters kept where they are."""

    def step(_: Any, c: jax.Array) -> jax.Array:
        near = ((x[:, None] - c[None]) ** 2).sum(-1).argmin(1)
        count = jnp.zeros(len(c)).at[near].add(1.0)
        total = jnp.zeros_like(c).at[near].add(x)
        return jnp.where(count[:, None] > 0, total / jnp.maximum(count, 1)[:, None], c)

    return lax.fori_loop(0, 3, step, x[:3])


def viterbi(start: jax.Array, moves: jax.Array, scores: jax.Array) -> Any:
    """The best path of a hidden Markov model, with pointers followed backward."""

    def step(best: jax.Array, e: jax.Array) -> Any:
        through = best[:, None] + moves
        return through.max(0) + e, through.argmax(0)

    last, back = lax.scan(step, start + scores[0], scores[1:])
    _, path = lax.scan(lambda s, p: (p[s], p[s]), last.argmax(), back, reverse=True)
    return last.max(), path


def levenberg(x: jax.Array, y: jax.Array) -> Any:
    """Damped least squares of an exponential with an adaptive damping."""
    residual = lambda p: p[0] * jnp.exp(-p[1] * x) + p[2] - y  # noqa: E731

    def step(_: Any, c: Any) -> Any:
        p, damping = c
        j, r = jax.jacfwd(residual)(p), residual(p)
        new = p - jnp.linalg.solve(j.T @ j + damping * jnp.eye(3), j.T @ r)
        better = (residual(new) ** 2).sum() < (r**2).sum()
        return jnp.where(better, new, p), jnp.where(better, damping / 3, damping * 2)

    return lax.fori_loop(0, 5, step, (jnp.array([1.0, 1.0, 0.0]), 0.1))


def roots(a: jax.Array) -> Any:
    """Newton's roots of an ensemble of cubics, each to its own tolerance."""

    def solve(a: jax.Array) -> Any:
        go = lambda c: (jnp.abs(c[0] ** 3 + c[0] - a) > 1e-4) & (c[1] < 30)  # noqa: E731
        return lax.while_loop(go, lambda c: (c[0] - (c[0] ** 3 + c[0] - a) / (3 * c[0] ** 2 + 1), c[1] + 1), (a, 0))

    return jax.vmap(solve)(a)


def equilibrium(w: jax.Array, x: jax.Array) -> Any:
    """The fixed point of a layer, and the gradient through it by the implicit function theorem."""

    @jax.custom_vjp
    def fixed(w: jax.Array, x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 20, lambda _, z: jnp.tanh(w @ z + x), jnp.zeros_like(x))

    def forward(w: jax.Array, x: jax.Array) -> Any:
        z = fixed(w, x)
        return z, (w, x, z)

    def backward(saved: Any, g: jax.Array) -> Any:
        w, x, z = saved
        _, pull = jax.vjp(lambda w, x, z: jnp.tanh(w @ z + x), w, x, z)
        u = lax.fori_loop(0, 20, lambda _, u: g + pull(u)[2], g)
        return pull(u)[:2]

    fixed.defvjp(forward, backward)
    return jax.value_and_grad(lambda w: (fixed(w, x) ** 2).sum())(w)


def heat(u: jax.Array) -> Any:
    """Crank and Nicolson's steps of the heat equation by tridiagonal solves."""
    n = len(u)
    lower, diagonal = jnp.full(n, -0.3).at[0].set(0), jnp.full(n, 1.6)
    upper = jnp.full(n, -0.3).at[-1].set(0)

    def step(_: Any, u: jax.Array) -> jax.Array:
        right = 0.4 * u + 0.3 * (jnp.roll(u, 1).at[0].set(0) + jnp.roll(u, -1).at[-1].set(0))
        return lax.linalg.tridiagonal_solve(lower, diagonal, upper, right[:, None])[:, 0]

    return lax.fori_loop(0, 4, step, u)


def evolution(key: jax.Array) -> Any:
    """An evolution strategy with antithetic samples and ranked fitness."""

    def step(c: Any, key: jax.Array) -> Any:
        mean, scale = c
        half = jax.random.normal(key, (4, 3))
        noise = jnp.concatenate([half, -half])
        fitness = ((mean + scale * noise - 1) ** 2).sum(-1)
        rank = jnp.argsort(jnp.argsort(fitness)) / 7 - 0.5
        return (mean - 0.3 * (rank[:, None] * noise).mean(0) / scale, scale * 0.98), fitness.min()

    return lax.scan(step, (jnp.zeros(3), 0.5), jax.random.split(key, 5))


def distance(a: jax.Array, b: jax.Array) -> Any:
    """The edit distance of two texts, a row of the table at a time."""

    def row(above: jax.Array, x: jax.Array) -> Any:
        def cell(left: jax.Array, y: Any) -> Any:
            up, corner, other = y
            new = jnp.minimum(jnp.minimum(left, up) + 1, corner + (x != other))
            return new, new

        first = above[0] + 1
        _, rest = lax.scan(cell, first, (above[1:], above[:-1], b))
        return jnp.concatenate([first[None], rest]), None

    return lax.scan(row, jnp.arange(len(b) + 1), a)[0][-1]


def bodies(x: jax.Array, v: jax.Array) -> Any:
    """Leapfrog steps of bodies that attract each other, with the energy at the end."""

    def pull(x: jax.Array) -> jax.Array:
        d = x[None] - x[:, None]
        return (d / ((d**2).sum(-1, keepdims=True) + 0.1) ** 1.5).sum(1)

    def step(_: Any, c: Any) -> Any:
        x, v = c
        v = v + 0.005 * pull(x)
        x = x + 0.01 * v
        return x, v + 0.005 * pull(x)

    x, v = lax.fori_loop(0, 4, step, (x, v))
    return x, 0.5 * (v**2).sum()


def epidemic(key: jax.Array, places: jax.Array) -> Any:
    """People who meet where they are, fall ill by chance and recover."""

    def step(c: Any, key: jax.Array) -> Any:
        state, where = c
        k1, k2, k3 = jax.random.split(key, 3)
        ill = jnp.zeros(5).at[where].add((state == 1).astype(jnp.float32))
        caught = (state == 0) & (jax.random.uniform(k1, state.shape) < 1 - 0.7 ** ill[where])
        well = (state == 1) & (jax.random.bernoulli(k2, 0.2, state.shape))
        state = jnp.where(caught, 1, jnp.where(well, 2, state))
        where = (where + jax.random.randint(k3, where.shape, -1, 2)) % 5
        return (state, where), jnp.bincount(state, length=3)

    return lax.scan(step, (jnp.zeros(10, jnp.int32).at[0].set(1), places), jax.random.split(key, 4))


def beam(scores: jax.Array) -> Any:
    """A beam search: the best continuations and where they came from."""

    def step(best: jax.Array, s: jax.Array) -> Any:
        values, flat = lax.top_k((best[:, None] + s[None]).ravel(), 3)
        return values, (flat // s.size, flat % s.size)

    return lax.scan(step, jnp.array([0.0, -1e9, -1e9]), jax.nn.log_softmax(scores))


def replicator(payoff: jax.Array, x: jax.Array) -> Any:
    """Replicator dynamics until the shares stand still."""

    def step(c: Any) -> Any:
        x, _ = c
        f = payoff @ x
        new = x + 0.1 * x * (f - x @ f)
        return new, jnp.abs(new - x).max()

    return lax.while_loop(lambda c: c[1] > 1e-4, step, (x, jnp.float32(1)))


STOCHASTIC = np.abs(normal(3, 4, 4)) + 0.1
STOCHASTIC /= STOCHASTIC.sum(-1, keepdims=True)
PROGRAMS: dict[Callable[..., Any], tuple[Any, ...]] = {
    kalman: (normal(6, 1),),
    particles: (KEY, normal(4)),
    value_iteration: (STOCHASTIC, normal(3, 4)),
    q_learning: (KEY, STOCHASTIC),
    garch: (np.log(np.float32([0.1, 0.1, 0.8])), normal(20)),
    sinkhorn: (normal(4, 5) ** 2,),
    clipped_control: (np.float32([3, -1]),),
    automaton: (G.integers(0, 2, (6, 7)).astype(np.int32),),
    k_means: (normal(20, 2),),
    viterbi: (normal(4), normal(4, 4), normal(7, 4)),
    levenberg: (np.linspace(0, 2, 9, dtype=np.float32), normal(9) * 0.01 + np.exp(-np.linspace(0, 2, 9)).astype("f4")),
    roots: (normal(7),),
    equilibrium: (normal(5, 5) * 0.2, normal(5)),
    heat: (normal(9),),
    evolution: (KEY,),
    distance: (G.integers(0, 4, 6).astype(np.int32), G.integers(0, 4, 8).astype(np.int32)),
    bodies: (normal(5, 3), normal(5, 3)),
    epidemic: (KEY, G.integers(0, 5, 10).astype(np.int32)),
    beam: (normal(5, 6),),
    replicator: (normal(4, 4), np.full(4, 0.25, np.float32)),
}


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_one_kernel_that_means_what_jax_computes(fn: Callable[..., Any]) -> None:
    args = PROGRAMS[fn]
    lowered = onelaunch.fuse(fn, fallback="error").lower(*args)
    assert lowered.launches == 1 and lowered.refusals == ()
    assert lowered.source.count("@triton.jit") >= 1
    got = meaning(rewrite(trace.to_graph(jax.make_jaxpr(fn)(*args), fn.__name__)), [raw(a) for a in args])
    want = jax.tree.leaves(jax.jit(fn)(*args))
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, np.asarray(y), rtol=2e-4, atol=2e-5)
