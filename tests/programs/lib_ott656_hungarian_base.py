"""The slower Hungarian variant kept in optax as base_hungarian_algorithm, 64x64.

Source: https://github.com/ott-jax/ott/pull/656 (26 s on the GPU for 256 points with the
older optax implementation; the 256 case takes too long in a CPU check, so 64 here).
float32 / int32.
"""

import numpy as np
import jax
import jax.numpy as jnp
import optax

SOURCE = "ott-jax/ott#656"
LIB = "optax"
LOOP = "while_loops"
TRIPS = "64 x ..."
DTYPE = "f32/i32"
REPORTED = "GPU 26 s at 256 points"


def _build(n):
    def fn(c):
        i, j = optax.assignment.base_hungarian_algorithm(c)
        return i, j, c[i, j].sum()

    return fn, (jnp.asarray(np.random.default_rng(0).uniform(size=(n, n)), jnp.float32),)


def make():
    return _build(64)


def make_small():
    return _build(3)
