"""Discounted reward-to-go by a reverse scan over time for 16 environments.

Source: https://github.com/jax-ml/jax/issues/810 ("lax.scan is ~6x slower to run than
hand-written loops"): the body is one multiply and one add on f32[16], almost no work
per iteration. Reported: about 6x slower than scipy.signal.lfilter (CPU thread).
Length 1000 chosen here.
"""

import numpy as np
import jax
import jax.numpy as jnp

SOURCE = "jax-ml/jax#810"
LOOP = "scan (reverse)"
TRIPS = "1000"
DTYPE = "f32"
REPORTED = "scan ~6x slower than scipy lfilter"


def _build(t, n):
    def fn(rewards, gamma):
        def acc(future, r):
            now = r + gamma * future
            return now, now

        _, out = jax.lax.scan(acc, jnp.zeros(rewards.shape[1:]), rewards, reverse=True)
        return out

    r = jnp.asarray(np.random.default_rng(0).normal(size=(t, n)), jnp.float32)
    return fn, (r, jnp.float32(0.99))


def make():
    return _build(1000, 16)


def make_small():
    return _build(9, 16)
