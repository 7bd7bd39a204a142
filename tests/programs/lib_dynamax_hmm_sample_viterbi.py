"""dynamax: Viterbi path and a posterior sample of an HMM (argmax, categorical in scan).

Source: https://github.com/probml/dynamax/pull/342 (posterior sampling, 5 states,
lengths 10^0 to 10^6). 10,000 steps here. float32/int32.
"""

import numpy as np
import jax
import jax.numpy as jnp
from dynamax.hidden_markov_model import hmm_posterior_mode, hmm_posterior_sample

SOURCE = "probml/dynamax#342"
LIB = "dynamax"
LOOP = "scan + reverse scan (x2)"
TRIPS = "10000 x 4"
DTYPE = "f32/i32"
REPORTED = "serial vs parallel crossover at a few thousand steps"


def _build(t, k):
    def fn(key, pi, A, ll):
        return hmm_posterior_mode(pi, A, ll), hmm_posterior_sample(key, pi, A, ll)

    g = np.random.default_rng(0)
    f = lambda x: jnp.asarray(x, jnp.float32)
    return fn, (jax.random.PRNGKey(0), f(np.ones(k) / k), f(g.dirichlet(np.ones(k), k)), f(g.normal(size=(t, k))))


def make():
    return _build(10_000, 5)


def make_small():
    return _build(4, 2)
