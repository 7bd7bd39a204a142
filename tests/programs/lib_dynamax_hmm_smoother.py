"""dynamax HMM smoother: forward filter + backward pass over time (real library).

Source: https://github.com/probml/dynamax/pull/212, PR 342 (parallel versions added
because the serial scan is slow on the GPU; the parallel sampler wins only past "a few
thousand" steps for 5 states). 5 states, 5000 steps. float32.
"""

import numpy as np
import jax
import jax.numpy as jnp
from dynamax.hidden_markov_model import hmm_smoother

SOURCE = "probml/dynamax#212, #342"
LIB = "dynamax"
LOOP = "scan + reverse scan"
TRIPS = "5000 + 5000"
DTYPE = "f32"
REPORTED = "serial slower than parallel past a few thousand steps"


def _build(t, k):
    def fn(pi, A, ll):
        post = hmm_smoother(pi, A, ll)
        return post.marginal_loglik, post.smoothed_probs, post.trans_probs

    g = np.random.default_rng(0)
    A = g.dirichlet(np.ones(k) * 2, k)
    f = lambda x: jnp.asarray(x, jnp.float32)
    return fn, (f(np.ones(k) / k), f(A), f(g.normal(size=(t, k))))


def make():
    return _build(5000, 5)


def make_small():
    return _build(4, 2)
