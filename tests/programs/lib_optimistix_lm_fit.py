"""optimistix Levenberg-Marquardt curve fit, vmapped over 128 decay curves.

Source: https://github.com/patrick-kidger/optimistix/issues/48 and #129 (vmapped
parameter estimation, one solve per individual). 128 curves of 50 points, 3 parameters.
float32; QR / triangular solve inside.
"""

import jax
import jax.numpy as jnp
import optimistix as optx

SOURCE = "patrick-kidger/optimistix#48, #129"
LIB = "optimistix"
LOOP = "vmap(while_loop) with QR"
TRIPS = "<= 60"
DTYPE = "f32"
REPORTED = "none stored"


def _build(lanes, n, steps):
    def fn(ts, ys, p0):
        def resid(p, d):
            t, y = d
            return p[0] * jnp.exp(-jnp.exp(p[1]) * t) + p[2] - y

        def one(y, p0):
            s = optx.least_squares(
                resid, optx.LevenbergMarquardt(1e-4, 1e-4), p0, args=(ts, y), max_steps=steps, throw=False
            )
            return s.value, s.stats["num_steps"]

        return jax.vmap(one)(ys, p0)

    k1, k2 = jax.random.split(jax.random.PRNGKey(0))
    ts = jnp.linspace(0, 4, n)
    a = jax.random.uniform(k1, (lanes, 1), minval=0.5, maxval=2.0)
    ys = a * jnp.exp(-ts * a) + 0.1 + 0.02 * jax.random.normal(k2, (lanes, n))
    return fn, (ts, ys, jnp.tile(jnp.array([1.0, 0.0, 0.0]), (lanes, 1)))


def make():
    return _build(128, 50, 60)


def make_small():
    return _build(1, 5, 3)
