"""Scalar quadratic map iterated ten million times, trajectory kept.

Source: https://github.com/QuantEcon/lecture-python-programming/issues/440 and PR 437.
Reported: n = 10,000,000: CPU ~0.06 s, GPU (T4) ~81.6 s (1340x); about 8 us/iteration,
three kernels per iteration (mul, add, dynamic_update_slice). float32.
"""

import jax
import jax.numpy as jnp

SOURCE = "QuantEcon/lecture-python-programming#440, PR 437"
LOOP = "scan"
TRIPS = "10000000"
DTYPE = "f32"
REPORTED = "CPU 0.06 s; GPU T4 81.6 s"


def _build(n):
    def fn(x0):
        def nxt(x, _):
            y = 4.0 * x * (1.0 - x)
            return y, y

        _, tail = jax.lax.scan(nxt, x0, jnp.arange(n))
        return jnp.concatenate([x0[None], tail])

    return fn, (jnp.float32(0.1),)


def make():
    return _build(10_000_000)


def make_small():
    return _build(20)
