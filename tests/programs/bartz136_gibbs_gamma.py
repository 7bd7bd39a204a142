"""Gibbs sampler of a hierarchical normal model: jax.random.gamma inside the loop.

Source: https://github.com/bartz-org/bartz/pull/136 ("the gamma sampler in jax has
always been a pain because it uses actual unbounded loops, slow to compile and slow to
run") and https://github.com/radiocosmology/draco/pull/336 (Gibbs sampler in jax).
50 groups x 20 observations, 2000 iterations. float32.
"""

import numpy as np
import jax
import jax.numpy as jnp

SOURCE = "bartz-org/bartz#136; radiocosmology/draco#336"
LOOP = "scan > while (inside random.gamma)"
TRIPS = "2000"
DTYPE = "f32"
REPORTED = "gamma sampler slow (no figure)"


def _build(groups, obs, iters):
    def fn(key, y):
        n = y.size

        def draw(c, key):
            mu, theta, tau, lam = c
            k = jax.random.split(key, 4)
            prec = obs * tau + lam
            theta = (tau * y.sum(1) + lam * mu) / prec + jax.random.normal(k[0], (groups,)) / jnp.sqrt(prec)
            pm = groups * lam + 1e-2
            mu = lam * theta.sum() / pm + jax.random.normal(k[1]) / jnp.sqrt(pm)
            tau = jax.random.gamma(k[2], 1.0 + n / 2) / (1.0 + 0.5 * jnp.sum((y - theta[:, None]) ** 2))
            lam = jax.random.gamma(k[3], 1.0 + groups / 2) / (1.0 + 0.5 * jnp.sum((theta - mu) ** 2))
            return (mu, theta, tau, lam), jnp.stack([mu, tau, lam])

        init = (jnp.float32(0), jnp.zeros(groups), jnp.float32(1), jnp.float32(1))
        return jax.lax.scan(draw, init, jax.random.split(key, iters))

    g = np.random.default_rng(0)
    y = g.normal(size=(groups, 1)) + 0.5 * g.normal(size=(groups, obs)) + 2
    return fn, (jax.random.PRNGKey(0), jnp.asarray(y, jnp.float32))


def make():
    return _build(50, 20, 2000)


def make_small():
    return _build(3, 2, 2)
