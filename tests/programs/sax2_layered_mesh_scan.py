"""Photonic mesh as a long scanned chain of 2x2 complex scattering blocks.

Source: https://github.com/gdsfactory/sax/pull/2 (unrolled circuit against lax loop: the
loop compiles faster but executes about 6x slower on the GPU). 200 layers acting on 32
modes, complex64, with pairwise 2x2 mixing and a roll between layers.
"""

import numpy as np
import jax
import jax.numpy as jnp

SOURCE = "gdsfactory/sax#2"
LOOP = "scan"
TRIPS = "200"
DTYPE = "c64"
REPORTED = "scan ~6x slower than unrolled on GPU"


def _build(layers, modes):
    def fn(theta, phi, x):
        def layer(x, q):
            t, p = q
            a, b = x[0::2], x[1::2]
            c, s = jnp.cos(t), jnp.sin(t)
            e = jnp.exp(1j * p)
            y = jnp.stack([e * (c * a + 1j * s * b), c * b + 1j * s * a], 1).reshape(-1)
            return jnp.roll(y, 1), jnp.sum(jnp.abs(y) ** 2)

        return jax.lax.scan(layer, x, (theta, phi))

    g = np.random.default_rng(0)
    f = lambda *s: jnp.asarray(g.uniform(0, 2 * np.pi, s), jnp.float32)
    x = np.zeros(modes)
    x[0] = 1
    return fn, (f(layers, modes // 2), f(layers, modes // 2), jnp.asarray(x, jnp.complex64))


def make():
    return _build(200, 32)


def make_small():
    return _build(3, 4)
