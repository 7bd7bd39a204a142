"""Cholesky factor of a symmetric quasiseparable matrix, then a log-likelihood, by scan.

Source: https://github.com/dfm/tinygp/pull/269 (cholesky, J = 8: N = 65k 2.4 s, N = 262k
10.4 s on one GPU with the sequential scan; 8.4 / 18 ms with the parallel one).
Here J = 8, N = 65,536. float32; small (8,8) matmuls, sqrt and a division per step.
"""

import numpy as np
import jax
import jax.numpy as jnp

SOURCE = "dfm/tinygp#269"
LOOP = "scan"
TRIPS = "65536"
DTYPE = "f32"
REPORTED = "GPU 2.4 s (N=65k, J=8)"


def _build(n, j):
    def fn(d, p, q, a, y):
        def row(c, r):
            f, g, quad, logdet = c
            dk, pk, qk, ak, yk = r
            fp = f @ pk
            diag = jnp.sqrt(jnp.maximum(dk - pk @ fp, 1e-6))
            w = (qk - ak @ fp) / diag
            z = (yk - pk @ g) / diag
            g = ak @ g + w * z
            f = ak @ f @ ak.T + jnp.outer(w, w)
            return (f, g, quad + z * z, logdet + jnp.log(diag)), (diag, w)

        init = (jnp.zeros((j, j)), jnp.zeros(j), jnp.float32(0), jnp.float32(0))
        (_, _, quad, logdet), (c, w) = jax.lax.scan(row, init, (d, p, q, a, y))
        return -0.5 * quad - logdet, c, w

    g = np.random.default_rng(0)
    f = lambda x: jnp.asarray(x, jnp.float32)
    dt = g.uniform(0.01, 0.1, n)
    dt[0] = 0.0
    rates = np.linspace(0.5, 4.0, j)
    a = np.exp(-dt[:, None] * rates)[:, :, None] * np.eye(j)
    amp = np.full(j, 1.0 / j)
    q = np.tile(amp, (n, 1))
    p = np.exp(-dt[:, None] * rates)
    d = np.full(n, amp.sum() + 0.1)
    return fn, (f(d), f(p), f(q), f(a), f(g.normal(size=n)))


def make():
    return _build(65_536, 8)


def make_small():
    return _build(5, 2)
