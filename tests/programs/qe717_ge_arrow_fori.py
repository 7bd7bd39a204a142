"""Recursive competitive equilibrium prices by backward fori_loop, 100 Markov chains.

Source: https://github.com/QuantEcon/lecture-python.myst/pull/717 (ge_arrow lecture:
fori_loop based solution, Example 3 solved for 100 transition matrices; runtime
compared over 1000 repeats, NumPy vs JAX CPU vs JAX GPU T4; PR closed).
Here: 100 transition matrices of 2-3 states, horizon 100, small linear solves
(jnp.linalg.solve) per chain. float32.
"""

import numpy as np
import jax
import jax.numpy as jnp

SOURCE = "QuantEcon/lecture-python.myst#717"
LOOP = "vmap(fori_loop) + linalg.solve"
TRIPS = "100"
DTYPE = "f32"
REPORTED = "closed after CPU/GPU comparison (plot only)"


def _build(chains, n, horizon):
    def fn(P, ys):
        def one(P):
            y = ys.sum(0)
            u1 = y**-0.5
            Q = 0.98 * P * u1[None, :] / u1[:, None]

            def back(t, V):
                return jnp.eye(n) + Q @ V

            V_T = jax.lax.fori_loop(0, horizon, back, jnp.eye(n))
            V = jnp.linalg.solve(jnp.eye(n) - Q, jnp.eye(n))
            alpha = (V @ ys.T)[0] / (V @ y)[0]
            psi = V_T @ (alpha[:, None] * y[None] - ys).T
            return Q, alpha, psi

        return jax.vmap(one)(P)

    g = np.random.default_rng(0)
    P = g.uniform(0.05, 1, (chains, n, n))
    P = P / P.sum(-1, keepdims=True)
    f = lambda x: jnp.asarray(x, jnp.float32)
    return fn, (f(P), f(g.uniform(0.5, 2, (2, n))))


def make():
    return _build(100, 3, 100)


def make_small():
    return _build(2, 2, 5)
