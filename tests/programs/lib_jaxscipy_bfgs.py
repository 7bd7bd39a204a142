"""jax.scipy.optimize.minimize (BFGS) on Rosenbrock.

Source: https://github.com/google/jaxopt/issues/326 (the comparison solver).
Dimension 20. float32. (BFGS in jax.scipy: while_loop with a nested line search.)
"""

import jax
import jax.numpy as jnp
from jax.scipy.optimize import minimize

SOURCE = "google/jaxopt#326 (jax.scipy side)"
LOOP = "while_loop > while_loop"
TRIPS = "<= 200"
DTYPE = "f32"
REPORTED = "2x faster than jaxopt LBFGS"


def _build(dim, iters):
    def fn(x0):
        def f(x):
            return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)

        r = minimize(f, x0, method="BFGS", tol=1e-5, options=dict(maxiter=iters))
        return r.x, r.fun, r.nit

    return fn, (jnp.full((dim,), -0.5),)


def make():
    return _build(20, 200)


def make_small():
    return _build(2, 2)
