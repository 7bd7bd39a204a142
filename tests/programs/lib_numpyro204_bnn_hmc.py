"""Bayesian neural network: HMC with 3-5-5-1 tanh layers over 100 points (numpyro).

Source: https://github.com/pyro-ppl/numpyro/issues/204 ("BNN example unusually slow on
the GPU", about 60-70x slower than the CPU). D_X = 3, D_H = 5, N = 100 as in that
example. 100 draws of 10 leapfrog steps. float32.
"""

import numpy as np
import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer import HMC

SOURCE = "pyro-ppl/numpyro#204"
LIB = "numpyro"
LOOP = "scan > fori_loop, grad"
TRIPS = "100 x 10"
DTYPE = "f32"
REPORTED = "GPU 60-70x slower than CPU"


def _build(n, draws, leaps, dh=5):
    def model(x, y):
        def layer(name, i, o):
            return numpyro.sample(name, dist.Normal(jnp.zeros((i, o)), 1.0).to_event(2))

        h = jnp.tanh(x @ layer("w1", x.shape[1], dh))
        h = jnp.tanh(h @ layer("w2", dh, dh))
        out = h @ layer("w3", dh, 1)
        prec = numpyro.sample("prec", dist.Gamma(3.0, 1.0))
        numpyro.sample("y", dist.Normal(out, 1.0 / jnp.sqrt(prec)).to_event(1), obs=y)

    g = np.random.default_rng(0)
    x = np.concatenate([np.linspace(-1, 1, n)[:, None] ** k for k in range(3)], 1)
    y = x @ g.normal(size=(3, 1)) + 0.1 * g.normal(size=(n, 1))
    x, y = jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)
    kernel = HMC(model, step_size=0.01, num_steps=leaps, adapt_step_size=False, adapt_mass_matrix=False)
    s0 = kernel.init(jax.random.PRNGKey(0), 0, None, (x, y), {})

    def fn(state, x, y):
        def one(s, _):
            s = kernel.sample(s, (x, y), {})
            return s, (s.potential_energy, s.accept_prob)

        return jax.lax.scan(one, state, None, length=draws)

    return fn, (s0, x, y)


def make():
    return _build(100, 100, 10)


def make_small():
    return _build(3, 1, 1, 2)
