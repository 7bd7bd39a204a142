"""Shortest paths by Bellman iteration in a while_loop on a small graph.

Source: https://github.com/QuantEcon/lecture-jax/pull/18 (while_loop version of the
shortest-path lecture; the review says gains need a relatively large problem; the
lecture's exercise graph has 100 nodes). Here 100 nodes, float32, integer greedy path.
"""

import numpy as np
import jax
import jax.numpy as jnp

SOURCE = "QuantEcon/lecture-jax#18"
LOOP = "while_loop, then fori_loop"
TRIPS = "<= 500"
DTYPE = "f32"
REPORTED = "100x over Python loop (no GPU/CPU figure)"


def _build(n, cap):
    def fn(cost):
        def step(c):
            i, J, _ = c
            new = jnp.min(cost + J[None, :], axis=1)
            return i + 1, new, jnp.any(new != J)

        i, J, _ = jax.lax.while_loop(
            lambda c: jnp.logical_and(c[2], c[0] < cap), step, (jnp.int32(0), jnp.zeros(n), jnp.bool_(True))
        )

        def walk(t, c):
            node, path = c
            node = jnp.argmin(cost[node] + J).astype(jnp.int32)
            return node, path.at[t].set(node)

        _, path = jax.lax.fori_loop(0, n, walk, (jnp.int32(0), jnp.zeros(n, jnp.int32)))
        return i, J, path

    g = np.random.default_rng(0)
    cost = np.full((n, n), np.inf)
    for i in range(n - 1):
        for j in {min(n - 1, i + 1), *(int(v) for v in g.integers(i + 1, n, 4))}:
            cost[i, j] = g.uniform(0.1, 1.0) * (j - i) ** 0.9
    cost[n - 1, n - 1] = 0.0
    return fn, (jnp.asarray(cost, jnp.float32),)


def make():
    return _build(100, 500)


def make_small():
    return _build(6, 20)
