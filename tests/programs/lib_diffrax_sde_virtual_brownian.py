"""SDE ensemble with diffrax's VirtualBrownianTree (while_loop + PRNG inside the field).

Source: the ensemble form of the reports patrick-kidger/diffrax#82/#338/#605 and the
SDE question at stackoverflow.com/q/79238188; VirtualBrownianTree walks a binary tree
by a while_loop of threefry splits at every step. 256 paths, 200 Heun steps, dimension 2.
float32.
"""

import jax
import jax.numpy as jnp
import diffrax as dfx

SOURCE = "diffrax SDE API (reports diffrax#338/#605 class)"
LIB = "diffrax"
LOOP = "vmap(while_loop > while_loop)"
TRIPS = "200"
DTYPE = "f32"
REPORTED = "none stored"


def _build(paths, steps):
    def fn(key, y0):
        def one(key, y0):
            bm = dfx.VirtualBrownianTree(0.0, 1.0, tol=1e-3, shape=(2,), key=key)
            terms = dfx.MultiTerm(
                dfx.ODETerm(lambda t, y, a: -y * (y**2 - 1)), dfx.ControlTerm(lambda t, y, a: 0.3 * jnp.eye(2), bm)
            )
            sol = dfx.diffeqsolve(
                terms, dfx.Heun(), 0.0, 1.0, 1.0 / steps, y0, saveat=dfx.SaveAt(t1=True), max_steps=steps + 2
            )
            return sol.ys[0]

        return jax.vmap(one)(jax.random.split(key, paths), y0)

    return fn, (jax.random.PRNGKey(0), jnp.ones((paths, 2)) * 0.1)


def make():
    return _build(256, 200)


def make_small():
    return _build(2, 2)
