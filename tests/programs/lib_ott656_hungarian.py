"""Linear assignment by optax's Hungarian algorithm on a 256x256 cost matrix.

Source: https://github.com/ott-jax/ott/pull/656: on the GPU the (then current) optax
implementation takes 26 s for 256 points, the scenic one 171 ms; newest optax (0.2.6)
as fast as scenic. Calls the present optax.assignment.hungarian_algorithm. 256 points,
10 dimensions. float32 / int32.
"""

import numpy as np
import jax
import jax.numpy as jnp
import optax

SOURCE = "ott-jax/ott#656"
LIB = "optax"
LOOP = "nested while_loops / fori_loop"
TRIPS = "256 x (up to 256) x ..."
DTYPE = "f32/i32"
REPORTED = "GPU 26 s (old optax) vs 171 ms (scenic)"


def _build(n, d):
    def fn(x, y):
        c = jnp.sqrt(jnp.maximum(jnp.sum((x[:, None] - y[None]) ** 2, -1), 0))
        i, j = optax.assignment.hungarian_algorithm(c)
        return i, j, c[i, j].sum()

    g = np.random.default_rng(0)
    f = lambda: jnp.asarray(g.normal(size=(n, d)), jnp.float32)
    return fn, (f(), f())


def make():
    return _build(256, 10)


def make_small():
    return _build(4, 2)
