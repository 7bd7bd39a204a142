"""Adam training of a small MLP: the whole optimiser loop in one scan.

Source: https://github.com/google-deepmind/optax/issues/319 ("Too slow on GPU": the flax
example, under 2 s on the CPU and over 28 s on the GPU because each optimiser op runs
as its own launch). The example's sizes: MLP 2-10-2 (binary parity style), batch 32,
2000 steps. float32.
"""

import jax
import jax.numpy as jnp
import optax

SOURCE = "google-deepmind/optax#319"
LIB = "optax"
LOOP = "scan with grad"
TRIPS = "2000"
DTYPE = "f32"
REPORTED = "CPU <2 s; GPU >28 s"


def _build(steps, batch, width, bits=8):
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(optax.exponential_decay(1e-2, 500, 0.5)))

    def fn(key, params):
        def net(p, x):
            h = jax.nn.relu(x @ p["w1"] + p["b1"])
            return (h @ p["w2"] + p["b2"])[:, 0]

        def loss(p, x, y):
            return optax.sigmoid_binary_cross_entropy(net(p, x), y).mean()

        def step(c, key):
            p, o = c
            x = jax.random.bernoulli(key, 0.5, (batch, bits)).astype(jnp.float32)
            y = jnp.mod(x.sum(1), 2)
            l, g = jax.value_and_grad(loss)(p, x, y)
            u, o = tx.update(g, o, p)
            return (optax.apply_updates(p, u), o), l

        (p, _), l = jax.lax.scan(step, (params, tx.init(params)), jax.random.split(key, steps))
        return p, l

    k1, k2 = jax.random.split(jax.random.PRNGKey(0))
    return fn, (
        jax.random.PRNGKey(1),
        {
            "w1": 0.3 * jax.random.normal(k1, (bits, width)),
            "b1": jnp.zeros(width),
            "w2": 0.3 * jax.random.normal(k2, (width, 1)),
            "b2": jnp.zeros(1),
        },
    )


def make():
    return _build(2000, 32, 10)


def make_small():
    return _build(2, 3, 3, 3)
