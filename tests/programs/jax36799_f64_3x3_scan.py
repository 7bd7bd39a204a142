"""float64 scan with a 3x3 matrix carry: the quasiseparable Cholesky body, n = 2000.

Source: https://github.com/jax-ml/jax/issues/36799 (found profiling tinygp's
SymmQSM.cholesky; CPU, jax 0.9.1 against 0.4.31: n = 2000 float64 10.2x slower, float32
0.67x). Matern-5/2-like carry of shape (3, 3). float64 (x64 mode).
"""

import numpy as np
import jax
import jax.numpy as jnp

jax.config.update("jax_enable_x64", True)

SOURCE = "jax-ml/jax#36799"
LOOP = "scan"
TRIPS = "2000"
DTYPE = "f64"
REPORTED = "CPU f64 10.2x slower than jax 0.4.31 (n=2000)"


def _build(n, m):
    def fn(d, p, q, a):
        def row(f, r):
            dk, pk, qk, ak = r
            v = f @ pk
            c = jnp.sqrt(dk - pk @ v)
            w = (qk - ak @ v) / c
            return ak @ f @ ak.T + jnp.outer(w, w), (c, w)

        _, (c, w) = jax.lax.scan(row, jnp.zeros((m, m)), (d, p, q, a))
        return jnp.sum(jnp.log(c)), c, w

    g = np.random.default_rng(0)
    dt = g.uniform(0.01, 0.2, n)
    a = np.exp(-dt)[:, None, None] * (np.eye(m) + 0.0 * dt[:, None, None])
    q = np.tile(np.ones(m) / m, (n, 1))
    p = np.exp(-dt)[:, None] * np.ones((n, m))
    return fn, tuple(jnp.asarray(x) for x in (np.full(n, 1.3), p, q, a))


def make():
    return _build(2000, 3)


def make_small():
    return _build(4, 3)
