"""optax L-BFGS with zoom line search on Rosenbrock, in a while_loop.

Source: https://github.com/google-deepmind/optax/issues/1298 (494-516 iterations; scipy
0.073-0.081 s, optax 0.56-0.62 s, docs helper 0.283 s, on the CPU). Dimension 100
chosen here, at most 500 iterations. float32.
"""

import jax
import jax.numpy as jnp
import optax

SOURCE = "google-deepmind/optax#1298"
LIB = "optax"
LOOP = "while_loop > while_loop (zoom search)"
TRIPS = "<= 500 x <= 20"
DTYPE = "f32"
REPORTED = "scipy 0.08 s; optax 0.28-0.6 s (CPU)"


def _build(dim, iters):
    tx = optax.lbfgs(memory_size=10)

    def fn(x0):
        def f(x):
            return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)

        vg = optax.value_and_grad_from_state(f)

        def step(c):
            x, s = c
            v, g = vg(x, state=s)
            u, s = tx.update(g, s, x, value=v, grad=g, value_fn=f)
            return optax.apply_updates(x, u), s

        def go(c):
            _, s = c
            n = optax.tree.get(s, "count")
            g = optax.tree.get(s, "grad")
            return (n == 0) | ((n < iters) & (optax.tree.norm(g) > 1e-5))

        x, s = jax.lax.while_loop(go, step, (x0, tx.init(x0)))
        return x, f(x), optax.tree.get(s, "count")

    return fn, (jnp.full((dim,), -0.5),)


def make():
    return _build(100, 500)


def make_small():
    return _build(3, 2)
