"""Small float64 VAR(1)-with-scan likelihood sampled by numpyro HMC.

Source: https://github.com/QuantEcon/lecture-python.myst/issues/1022 ("jax on the GPU
runner is >2.7x slower than its CPU for a small float64 model (sargent_surico NUTS
cell)"): timed out at 2400 s on a T4 against 157 s on a laptop CPU. The lecture's exact
model is not in the stored text; this is a stand-in of that class (state recursion by
scan inside the model, float64): 3-variable VAR(1) with stochastic trend, 120 periods,
100 draws of 8 leapfrog steps.
"""

import numpy as np
import jax
import jax.numpy as jnp

jax.config.update("jax_enable_x64", True)
import numpyro
import numpyro.distributions as dist
from numpyro.infer import HMC

SOURCE = "QuantEcon/lecture-python.myst#1022"
LIB = "numpyro"
LOOP = "scan > fori_loop > scan + transpose"
TRIPS = "100 x 8 x 120 x 2"
DTYPE = "f64"
REPORTED = "T4 >2400 s (timeout); laptop CPU 157 s"


def _build(t, d, draws, leaps):
    def model(y):
        A = numpyro.sample("A", dist.Normal(jnp.zeros((d, d)), 0.3).to_event(2))
        ls = numpyro.sample("ls", dist.Normal(jnp.zeros(d), 1.0).to_event(1))
        q = numpyro.sample("q", dist.HalfNormal(1.0))

        def step(c, yt):
            m, P = c
            mp, Pp = A @ m, A @ P @ A.T + q * jnp.eye(d)
            S = Pp + jnp.diag(jnp.exp(2 * ls))
            L = jnp.linalg.cholesky(S)
            e = yt - mp
            z = jax.scipy.linalg.solve_triangular(L, e, lower=True)
            K = jax.scipy.linalg.cho_solve((L, True), Pp).T
            ll = -0.5 * z @ z - jnp.sum(jnp.log(jnp.diagonal(L)))
            return (mp + K @ e, Pp - K @ Pp), ll

        _, ll = jax.lax.scan(step, (jnp.zeros(d), jnp.eye(d)), y)
        numpyro.factor("ll", jnp.sum(ll))

    g = np.random.default_rng(0)
    y = jnp.asarray(np.cumsum(g.normal(size=(t, d)), 0) * 0.3)
    kernel = HMC(model, step_size=1e-3, num_steps=leaps, adapt_step_size=False, adapt_mass_matrix=False)
    s0 = kernel.init(jax.random.PRNGKey(0), 0, None, (y,), {})

    def fn(state, y):
        def one(s, _):
            s = kernel.sample(s, (y,), {})
            return s, s.potential_energy

        return jax.lax.scan(one, state, None, length=draws)[1]

    return fn, (s0, y)


def make():
    return _build(120, 3, 100, 8)


def make_small():
    return _build(2, 2, 1, 1)
