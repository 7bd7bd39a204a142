"""Log-space matrix products along time (HMM forward with time-varying transitions).

Source: https://github.com/pyro-ppl/numpyro/issues/1010 ("HMM forward algorithm - 20x
difference in performance between two comparable approaches"; sequential scan against a
halving reduction, compared on CPU and GPU). Sizes chosen here: 1000 steps, 4 states,
batch 16. float32.
"""

import numpy as np
import jax
import jax.numpy as jnp

SOURCE = "pyro-ppl/numpyro#1010"
LOOP = "scan"
TRIPS = "1000"
DTYPE = "f32"
REPORTED = "20x between two approaches"


def _build(t, b, k):
    def lme(a, m):
        ca = a.max(-1, keepdims=True)
        cm = m.max(-2, keepdims=True)
        return jnp.log(jnp.matmul(jnp.exp(a - ca), jnp.exp(m - cm))) + ca + cm

    def fn(pi, mats):
        last, _ = jax.lax.scan(lambda a, m: (lme(a, m), None), pi[:, None, :], mats)
        return jax.nn.logsumexp(last[:, 0], -1)

    g = np.random.default_rng(0)
    f = lambda x: jnp.asarray(x, jnp.float32)
    return fn, (f(g.normal(size=(b, k))), f(g.normal(size=(t, b, k, k))))


def make():
    return _build(1000, 16, 4)


def make_small():
    return _build(4, 2, 2)
