"""Random-walk Metropolis over GP hyper-parameters: Cholesky of a 57x57 kernel per step.

Source: https://github.com/jax-ml/jax/issues/29499 (GP log density with a squared
exponential kernel and three transformed parameters, evaluated inside a compiled MCMC
loop; the report is on CPU over-utilisation). 57 points, 1000 iterations chosen here.
float32. Needs cholesky + triangular_solve in the loop.
"""

import numpy as np
import jax
import jax.numpy as jnp

SOURCE = "jax-ml/jax#29499"
LOOP = "scan"
TRIPS = "1000"
DTYPE = "f32"
REPORTED = "CPU over-utilised (no GPU figure)"


def _build(n, iters):
    def fn(key, xs, ys):
        def logp(z):
            ell, amp = jnp.exp(-1.5 + z[0]), jnp.exp(-1.5 + z[1])
            noise = jnp.exp(-1.5 + z[2]) + 1e-3
            d = xs[:, None] - xs[None]
            K = amp * jnp.exp(-0.5 * d * d / ell**2) + noise * jnp.eye(n)
            L = jnp.linalg.cholesky(K)
            a = jax.scipy.linalg.solve_triangular(L, ys, lower=True)
            return -0.5 * z @ z - 0.5 * a @ a - jnp.sum(jnp.log(jnp.diagonal(L)))

        def step(c, key):
            z, lp = c
            k1, k2 = jax.random.split(key)
            q = z + 0.2 * jax.random.normal(k1, z.shape)
            lq = logp(q)
            ok = jnp.log(jax.random.uniform(k2)) < lq - lp
            z, lp = jnp.where(ok, q, z), jnp.where(ok, lq, lp)
            return (z, lp), (z, ok)

        z0 = jnp.zeros(3)
        return jax.lax.scan(step, (z0, logp(z0)), jax.random.split(key, iters))

    xs = np.linspace(0, 1, n)
    ys = np.sin(9 * xs) + 0.1 * np.random.default_rng(0).normal(size=n)
    f = lambda a: jnp.asarray(a, jnp.float32)
    return fn, (jax.random.PRNGKey(0), f(xs), f(ys))


def make():
    return _build(57, 1000)


def make_small():
    return _build(4, 3)
