"""Gauss-Newton steps: conjugate gradient on J^T J inside a scan (jvp + vjp matvec).

Source: https://github.com/jax-ml/jax/issues/23479 ("Capture of small arrays causes
JIT execution 10x longer"): jax.scipy.sparse.linalg.cg in a lax.scan, the matvec made
of a JVP and a VJP. Reported: jitted 10x slower than not jitted.
Sizes chosen here: 60 residuals, 20 parameters, 10 outer steps, at most 25 CG
iterations each. float32.
"""

import numpy as np
import jax
import jax.numpy as jnp
from jax.scipy.sparse.linalg import cg

SOURCE = "jax-ml/jax#23479"
LOOP = "scan > while_loop (cg) with jvp/vjp"
TRIPS = "10 x <=25"
DTYPE = "f32"
REPORTED = "JIT 10x slower than eager"


def _build(m, n, outer, inner):
    def fn(A, y, x0):
        def residual(x):
            return jnp.tanh(A @ x) + 0.1 * jnp.sum(x**2) - y

        def step(x, _):
            r, pull = jax.vjp(residual, x)

            def mv(v):
                _, t = jax.jvp(residual, (x,), (v,))
                return pull(t)[0] + 1e-2 * v

            d, _ = cg(mv, -pull(r)[0], maxiter=inner, tol=1e-5)
            x = x + 0.5 * d
            return x, jnp.sum(r**2)

        return jax.lax.scan(step, x0, None, length=outer)

    g = np.random.default_rng(0)
    A = jnp.asarray(g.normal(size=(m, n)) / np.sqrt(n), jnp.float32)
    y = jnp.asarray(g.uniform(-0.5, 0.5, m), jnp.float32)
    return fn, (A, y, jnp.zeros(n))


def make():
    return _build(60, 20, 10, 25)


def make_small():
    return _build(5, 3, 2, 3)
