"""Ising image denoising by raster Gibbs sweeps: scan over sites inside scan over sweeps.

Source: https://github.com/probml/pyprobml/pull/894 (lax.scan added because the plain
loop took too long). 64x64 lattice, 20 sweeps = 81,920 sequential site updates.
float32, uint32.
"""

import numpy as np
import jax
import jax.numpy as jnp

SOURCE = "probml/pyprobml#894"
LOOP = "scan > fori_loop with dynamic index read/write"
TRIPS = "20 x 4096"
DTYPE = "f32"
REPORTED = "native loop 'too slow' (no figure)"


def _build(h, w, sweeps):
    def fn(key, img):
        pad = jnp.pad(jnp.sign(img), 1)

        def sweep(x, key):
            u = jax.random.uniform(key, (h * w,))

            def site(k, x):
                i, j = k // w + 1, k % w + 1
                nb = x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1]
                p = jax.nn.sigmoid(2 * nb + img[i - 1, j - 1])
                return x.at[i, j].set(jnp.where(u[k] < p, 1.0, -1.0))

            x = jax.lax.fori_loop(0, h * w, site, x)
            return x, jnp.mean(x)

        x, m = jax.lax.scan(sweep, pad, jax.random.split(key, sweeps))
        return x[1:-1, 1:-1], m

    g = np.random.default_rng(0)
    yy, xx = np.mgrid[:h, :w]
    clean = np.where((yy - h / 2) ** 2 + (xx - w / 2) ** 2 < (h / 3) ** 2, 1.0, -1.0)
    return fn, (jax.random.PRNGKey(0), jnp.asarray(clean + 1.0 * g.normal(size=(h, w)), jnp.float32))


def make():
    return _build(64, 64, 20)


def make_small():
    return _build(3, 3, 2)
