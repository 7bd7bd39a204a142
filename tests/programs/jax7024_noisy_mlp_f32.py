"""float32 variant of the #7024 program (the form most users run).

Source: https://github.com/jax-ml/jax/issues/7024. See jax7024_noisy_mlp_while.py
for the thread's figures (CPU < 1 ms, GPU 7 s). Batch of 1, widths (5, 8, 8, 3)
chosen here, 8000 iterations.
"""

import jax
import jax.numpy as jnp

SOURCE = "jax-ml/jax#7024 (f32 form)"
LOOP = "while_loop"
TRIPS = "8000"
DTYPE = "f32"
REPORTED = "CPU <1 ms; GPU 7 s"


def _build(n_steps, widths=(5, 8, 8, 3)):
    def fn(key, ws, x0):
        def step(c):
            i, key, x = c
            key, k1, k2, k3 = jax.random.split(key, 4)
            h = x
            for k, w in zip((k1, k2, k3), ws):
                h = h @ jax.nn.softplus(w)
                h = jax.nn.sigmoid(h + 0.02 * jax.random.normal(k, h.shape))
            return i + 1, key, 0.9 * x + 0.1 * jnp.resize(h, x.shape)

        return jax.lax.while_loop(lambda c: c[0] < n_steps, step, (0, key, x0))

    ks = jax.random.split(jax.random.PRNGKey(1), 3)
    ws = tuple(jax.random.normal(k, (a, b)) for k, a, b in zip(ks, widths[:-1], widths[1:]))
    return fn, (jax.random.PRNGKey(0), ws, jnp.ones((widths[0],)))


def make():
    return _build(8000)


def make_small():
    return _build(5, widths=(3, 4, 4, 2))
