"""s-S inventory dynamics: many firms, randomised demand each period, vmapped fori_loop.

Source: the inventory-dynamics lecture of QuantEcon's GPU series (lecture-jax), one of
the lectures covered by https://github.com/QuantEcon/lecture-python-programming/pull/437
("GPU-enabled lecture builds"). 50,000 firms, 500 periods there; per-firm keys and
lognormal demand. float32.
"""

import jax
import jax.numpy as jnp

SOURCE = "QuantEcon lecture-jax inventory dynamics; PR 437"
LOOP = "fori_loop over vmapped step"
TRIPS = "500"
DTYPE = "f32"
REPORTED = "none stored"


def _build(firms, periods):
    def fn(key, x0):
        s, S, mu, sigma = 10.0, 100.0, 1.0, 0.5

        def firm(x, z):
            demand = jnp.exp(mu + sigma * z)
            return jnp.where(x <= s, jnp.maximum(S - demand, 0), jnp.maximum(x - demand, 0))

        def period(t, c):
            key, x, low = c
            key, sub = jax.random.split(key)
            x = jax.vmap(firm)(x, jax.random.normal(sub, x.shape))
            return key, x, jnp.logical_or(low, x <= s)

        _, x, low = jax.lax.fori_loop(0, periods, period, (key, x0, jnp.zeros(x0.shape, bool)))
        return x, jnp.mean(low)

    return fn, (jax.random.PRNGKey(0), jnp.full((firms,), 50.0))


def make():
    return _build(50_000, 500)


def make_small():
    return _build(5, 6)
