"""Hierarchical Bernoulli logit: gather of K group effects over N observations (numpyro).

Source: https://github.com/pyro-ppl/numpyro/issues/2225 ("NUTS ~100-200x slower on
numpyro 0.21.0 than 0.20.0 ... GPU"): N = 100000, K = 8, jax 0.10.2: 5102 s against 26.8 s
on jax 0.9.1 (L4, 1000 + 2000 draws); K = 48: 1554 against 23.7 s. The gradient of the
gather is a scatter-add with many collisions. 3 HMC draws of 8 leapfrog steps here.
float32, int32 indices. (Beyond one block's memory: N = 100000.)
"""

import numpy as np
import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer import HMC

SOURCE = "pyro-ppl/numpyro#2225"
LIB = "numpyro"
LOOP = "scan > fori_loop, grad (scatter-add)"
TRIPS = "3 x 8 (3000 x ~26 in the report)"
DTYPE = "f32"
REPORTED = "L4 GPU, jax 0.10.2: 5102 s vs 26.8 s on jax 0.9.1 (K=8)"


def _build(n, k, draws, leaps):
    def model(group, y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        sd = numpyro.sample("sd", dist.HalfNormal(1.0))
        with numpyro.plate("g", k):
            a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        with numpyro.plate("n", y.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=(mu + sd * a)[group]), obs=y)

    g = np.random.default_rng(0)
    grp = jnp.asarray(g.integers(0, k, n), jnp.int32)
    y = jnp.asarray(g.uniform(size=n) < 0.4, jnp.int32)
    kernel = HMC(model, step_size=1e-3, num_steps=leaps, adapt_step_size=False, adapt_mass_matrix=False)
    s0 = kernel.init(jax.random.PRNGKey(0), 0, None, (grp, y), {})

    def fn(state, grp, y):
        def one(s, _):
            s = kernel.sample(s, (grp, y), {})
            return s, (s.z["a"], s.potential_energy)

        return jax.lax.scan(one, state, None, length=draws)[1]

    return fn, (s0, grp, y)


def make():
    return _build(100_000, 8, 3, 8)


def make_small():
    return _build(6, 2, 1, 1)
