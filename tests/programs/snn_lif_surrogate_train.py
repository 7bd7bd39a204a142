"""Leaky integrate-and-fire network trained through time with a surrogate gradient.

Source: https://github.com/BindsNET/bindsnet/issues/91 (spiking network slower on four
GPUs than on one 8-core CPU, 2x), https://github.com/n2cholas/awesome-jax/pull/93 (Spyx).
Sizes after the SHD task those libraries use: 700 inputs reduced to 140, 128 hidden
LIF cells, 20 classes, 100 time bins, batch 32; custom_jvp spike. float32.
"""

import numpy as np
import jax
import jax.numpy as jnp

SOURCE = "BindsNET/bindsnet#91; spyx"
LOOP = "scan + transpose (custom_jvp)"
TRIPS = "100 x 2"
DTYPE = "f32"
REPORTED = "GPU server 2x slower than CPU (BindsNET)"


@jax.custom_jvp
def spike(v):
    return (v > 0).astype(v.dtype)


@spike.defjvp
def _spike_jvp(primals, tangents):
    (v,) = primals
    (dv,) = tangents
    return spike(v), dv / (1.0 + 10.0 * jnp.abs(v)) ** 2


def _build(t, b, n_in, n_h, n_out):
    def fn(params, x, label):
        def loss(p):
            w1, wr, w2 = p

            def step(c, xt):
                v, s, u = c
                v = 0.9 * v * (1 - s) + xt @ w1 + s @ wr
                s = spike(v - 1.0)
                u = 0.95 * u + s @ w2
                return (v, s, u), u

            z = jnp.zeros((b, n_h))
            _, us = jax.lax.scan(step, (z, z, jnp.zeros((b, n_out))), x)
            logits = us.max(0)
            logp = jax.nn.log_softmax(logits)
            return -jnp.mean(jnp.take_along_axis(logp, label[:, None], 1))

        val, g = jax.value_and_grad(loss)(params)
        return val, jax.tree.map(lambda a, d: a - 0.01 * d, params, g)

    g = np.random.default_rng(0)
    f = lambda *s: jnp.asarray(g.normal(size=s) / np.sqrt(s[0]), jnp.float32)
    x = jnp.asarray(g.uniform(size=(t, b, n_in)) < 0.1, jnp.float32)
    return fn, ((3 * f(n_in, n_h), f(n_h, n_h), f(n_h, n_out)), x, jnp.asarray(g.integers(0, n_out, b), jnp.int32))


def make():
    return _build(100, 32, 140, 128, 20)


def make_small():
    return _build(4, 2, 3, 4, 2)
