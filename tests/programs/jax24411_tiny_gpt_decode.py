"""Autoregressive decoding of a tiny GPT with a key/value cache, one fori_loop.

Source: https://github.com/jax-ml/jax/issues/24411 ("JAX code is extremely slow on GPUs",
GPT-2 against PyTorch on an A100, figures as screenshots only). GPT-2 ITSELF IS LARGE
MATMULS; the launch-bound part of that class is token-by-token decoding. Here 2 layers,
width 64, 4 heads, vocabulary 128, 128 tokens, top-k 8 sampling. float32/int32.
"""

import numpy as np
import jax
import jax.numpy as jnp

SOURCE = "jax-ml/jax#24411 (decode form, reduced)"
LOOP = "fori_loop, dynamic_update_slice cache, top_k, categorical"
TRIPS = "127"
DTYPE = "f32"
REPORTED = "JAX slower than PyTorch on A100 (screenshots)"


def _build(layers, d, heads, vocab, length, k):
    hd = d // heads

    def fn(key, emb, pos, params, first):
        def norm(x):
            x = x - x.mean(-1, keepdims=True)
            return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5)

        def token(i, c):
            key, toks, ck, cv = c
            x = emb[toks[i]] + pos[i]

            def layer(x, q):
                (wqkv, wo, w1, w2), kc, vc = q
                a, b, v = jnp.split(norm(x) @ wqkv, 3)
                kc = jax.lax.dynamic_update_slice(kc, b.reshape(1, heads, hd), (i, 0, 0))
                vc = jax.lax.dynamic_update_slice(vc, v.reshape(1, heads, hd), (i, 0, 0))
                s = jnp.einsum("hd,thd->ht", a.reshape(heads, hd), kc) / jnp.sqrt(float(hd))
                s = jnp.where(jnp.arange(length)[None] <= i, s, -1e9)
                x = x + jnp.einsum("ht,thd->hd", jax.nn.softmax(s), vc).reshape(d) @ wo
                return x + jax.nn.gelu(norm(x) @ w1) @ w2, (kc, vc)

            x, (ck, cv) = jax.lax.scan(layer, x, (params, ck, cv))
            vals, idx = jax.lax.top_k(norm(x) @ emb.T, k)
            key, sub = jax.random.split(key)
            nxt = idx[jax.random.categorical(sub, vals)]
            return key, toks.at[i + 1].set(nxt), ck, cv

        cache = jnp.zeros((layers, length, heads, hd))
        toks = jnp.zeros(length, jnp.int32).at[0].set(first)
        return jax.lax.fori_loop(0, length - 1, token, (key, toks, cache, cache))[1]

    g = np.random.default_rng(0)
    f = lambda *s: jnp.asarray(g.normal(size=s) / np.sqrt(s[-2]), jnp.float32)
    p = (f(layers, d, 3 * d), f(layers, d, d), f(layers, d, 2 * d), f(layers, 2 * d, d))
    return fn, (jax.random.PRNGKey(0), f(vocab, d), f(length, d), p, jnp.int32(1))


def make():
    return _build(2, 64, 4, 128, 128, 8)


def make_small():
    return _build(1, 4, 2, 5, 4, 2)
