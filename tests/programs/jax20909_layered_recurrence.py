"""Long sequential recurrence where each step feeds two stacked gated layers.

Source: https://github.com/jax-ml/jax/issues/20909 (a fori_loop over long inputs slows
down; the thread's own conclusion is that the recurrent carry makes it a purely
sequential loop, with unroll as the only knob). No timing in the stored text.
Sizes chosen here: 4096 steps, width 128, two elementwise gated layers, float32.
"""

import numpy as np
import jax
import jax.numpy as jnp

SOURCE = "jax-ml/jax#20909"
LOOP = "fori_loop with dynamic_slice / dynamic_update_slice"
TRIPS = "4096"
DTYPE = "f32"
REPORTED = "long loop slows down (no figure stored)"


def _build(t, d):
    def fn(x, gate1, gate2):
        out0 = jnp.zeros_like(x)

        def body(i, c):
            h1, h2, out = c
            xi = jax.lax.dynamic_index_in_dim(x, i, keepdims=False)
            a = jax.nn.sigmoid(gate1 * xi)
            h1 = a * h1 + (1 - a) * xi
            b = jax.nn.sigmoid(gate2 * h1)
            h2 = b * h2 + (1 - b) * jnp.tanh(h1)
            out = jax.lax.dynamic_update_index_in_dim(out, h2, i, 0)
            return h1, h2, out

        z = jnp.zeros((d,))
        return jax.lax.fori_loop(0, t, body, (z, z, out0))[2]

    g = np.random.default_rng(0)
    c = lambda *s: jnp.asarray(g.normal(size=s), jnp.float32)
    return fn, (c(t, d), c(d), c(d))


def make():
    return _build(4096, 128)


def make_small():
    return _build(6, 4)
