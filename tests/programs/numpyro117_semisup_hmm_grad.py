"""Gradient of a semi-supervised HMM forward algorithm (scan with logsumexp).

Source: https://github.com/pyro-ppl/numpyro/pull/117 and the comment in
https://github.com/jax-ml/jax/pull/704: "really fast in CPU (but slow in GPU ...)".
3 categories, 10 words, 500 unsupervised observations. value_and_grad with respect to
the transition and emission logits. float32.
"""

import numpy as np
import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp

SOURCE = "pyro-ppl/numpyro#117, jax-ml/jax#704"
LOOP = "scan + its transpose"
TRIPS = "500 x 2"
DTYPE = "f32"
REPORTED = "fast on CPU, slow on GPU"


def _build(n_cat, n_word, length):
    def fn(logits_t, logits_e, words):
        def nll(lt, le):
            lt = jax.nn.log_softmax(lt, -1)
            le = jax.nn.log_softmax(le, -1)

            def forward(alpha, w):
                alpha = logsumexp(alpha[:, None] + lt, axis=0) + le[:, w]
                return alpha, None

            alpha, _ = jax.lax.scan(forward, le[:, words[0]], words[1:])
            return -logsumexp(alpha)

        return jax.value_and_grad(nll, argnums=(0, 1))(logits_t, logits_e)

    g = np.random.default_rng(0)
    f = lambda x: jnp.asarray(x, jnp.float32)
    return fn, (
        f(g.normal(size=(n_cat, n_cat))),
        f(g.normal(size=(n_cat, n_word))),
        jnp.asarray(g.integers(0, n_word, length), jnp.int32),
    )


def make():
    return _build(3, 10, 500)


def make_small():
    return _build(2, 3, 6)
