"""Stochastic mixing of two 2-vectors per observation, uniform draws in every step.

Source: https://github.com/jax-ml/jax/issues/2777 (8 observations; split + uniform +
elementwise mix in a scanned body; unrolling it explodes compile time, so users must
keep the loop). The thread times n = 1..8 on the GPU (141-216 ms with compile).
Length 1000 chosen here. float32.
"""

import jax
import jax.numpy as jnp

SOURCE = "jax-ml/jax#2777"
LOOP = "scan, xs=None"
TRIPS = "1000"
DTYPE = "f32"
REPORTED = "compile explodes if unrolled; scan 140-216 ms incl. compile"


def _build(n_obs, steps):
    def fn(key):
        a = jnp.tile(jnp.array([[1.0, 0.0]]), (n_obs, 1))
        b = a[:, ::-1]

        def mix(c, _):
            key, a, b = c
            key, sub = jax.random.split(key)
            g = jax.random.uniform(sub, (n_obs, 1))
            m = g * a + (1 - g) * b
            return (key, 0.5 * (a + m), 0.5 * (b + m)), None

        (_, a, b), _ = jax.lax.scan(mix, (key, a, b), None, length=steps)
        return a, b

    return fn, (jax.random.PRNGKey(1),)


def make():
    return _build(8, 1000)


def make_small():
    return _build(3, 5)
