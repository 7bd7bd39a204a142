"""Scan over identical attention layers with jax.vjp of the whole stack (reduced width).

Source: https://github.com/jax-ml/jax/issues/13356 ("Significant Overhead with nn.scan"):
batch 2, sequence 2048, model 4096, 32 heads, 3 layers; nn.scan costs about 15% per step.
AT THE REPORTED SIZE THE LAYERS ARE LARGE MATMULS, NOT LAUNCH-BOUND. Here the same
structure at model 64, 4 heads, sequence 32, 6 layers, where it is launch-bound. float32.
"""

import numpy as np
import jax
import jax.numpy as jnp

SOURCE = "jax-ml/jax#13356 (reduced width)"
LOOP = "scan over layers + transpose"
TRIPS = "6 x 2"
DTYPE = "f32"
REPORTED = "nn.scan +15% step time (at width 4096)"


def _build(layers, b, t, d, heads):
    def layer(x, p):
        wqkv, wo, w1, w2 = p
        z = x - x.mean(-1, keepdims=True)
        z = z * jax.lax.rsqrt(jnp.mean(z * z, -1, keepdims=True) + 1e-6)
        q, k, v = jnp.split((z @ wqkv).reshape(b, t, heads, -1), 3, -1)
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(q.shape[-1])
        s = jnp.where(jnp.tril(jnp.ones((t, t), bool)), s, -1e9)
        x = x + jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s), v).reshape(b, t, d) @ wo
        return x + jax.nn.gelu(x @ w1) @ w2

    def fn(params, x, ct):
        def net(params, x):
            return jax.lax.scan(lambda h, p: (layer(h, p), None), x, params)[0]

        y, pull = jax.vjp(net, params, x)
        return y, pull(ct)

    g = np.random.default_rng(0)
    f = lambda *s: jnp.asarray(g.normal(size=s) / np.sqrt(s[-2]), jnp.float32)
    return fn, (
        (f(layers, d, 3 * d), f(layers, d, d), f(layers, d, 2 * d), f(layers, 2 * d, d)),
        f(b, t, d),
        f(b, t, d),
    )


def make():
    return _build(6, 2, 32, 64, 4)


def make_small():
    return _build(2, 1, 3, 4, 2)
