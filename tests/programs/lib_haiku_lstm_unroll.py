"""haiku LSTM by hk.dynamic_unroll, character-model sizes, loss gradient.

Source: https://github.com/google-deepmind/dm-haiku/issues/351 (static or dynamic
unroll: is one faster?). 128-step sequences, hidden 128, vocabulary 64, batch 8.
float32 / int32.
"""

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np

SOURCE = "google-deepmind/dm-haiku#351"
LIB = "dm-haiku"
LOOP = "scan + transpose"
TRIPS = "128 x 2"
DTYPE = "f32"
REPORTED = "none stored (question)"


def _build(t, b, h, v):
    def net(tok):
        x = hk.Embed(v, h)(tok)
        core = hk.LSTM(h)
        y, _ = hk.dynamic_unroll(core, x, core.initial_state(tok.shape[1]))
        return hk.BatchApply(hk.Linear(v))(y)

    f = hk.without_apply_rng(hk.transform(net))

    def fn(params, tok):
        def loss(p):
            lp = jax.nn.log_softmax(f.apply(p, tok[:-1]))
            return -jnp.mean(jnp.sum(lp * jax.nn.one_hot(tok[1:], v), -1))

        return jax.value_and_grad(loss)(params)

    tok = jnp.asarray(np.random.default_rng(0).integers(0, v, (t + 1, b)), jnp.int32)
    return fn, (f.init(jax.random.PRNGKey(0), tok), tok)


def make():
    return _build(128, 8, 128, 64)


def make_small():
    return _build(3, 2, 3, 4)
