"""Two-layer GRU, forward and gradient of one training step by scan.

Source: StackOverflow question on an unusably slow 2-layer GRU in JAX against PyTorch
(retold at openillumi.com/?p=110888), https://github.com/jax-ml/jax/issues/13111 (XLA
does not generate great RNN code on the GPU) and
https://github.com/lucidrains/minGRU-pytorch/issues/13 (input 10, hidden 100, length
1000, batch 64). Those sizes are used, batch reduced to 16. float32.
"""

import numpy as np
import jax
import jax.numpy as jnp

SOURCE = "StackOverflow GRU question; jax-ml/jax#13111; minGRU-pytorch#13"
LOOP = "scan + transpose"
TRIPS = "1000 x 2"
DTYPE = "f32"
REPORTED = "unusable vs PyTorch (minutes, incl. compile)"


def _build(t, b, n_in, h):
    def cell(p, hprev, x):
        wi, wh, bi, bh = p
        gi = x @ wi + bi
        gh = hprev @ wh + bh
        ir, iz, inn = jnp.split(gi, 3, -1)
        hr, hz, hn = jnp.split(gh, 3, -1)
        r = jax.nn.sigmoid(ir + hr)
        z = jax.nn.sigmoid(iz + hz)
        n = jnp.tanh(inn + r * hn)
        return (1 - z) * n + z * hprev

    def fn(params, xs, target):
        def loss(p):
            def step(c, x):
                h1 = cell(p[0], c[0], x)
                h2 = cell(p[1], c[1], h1)
                return (h1, h2), h2 @ p[2]

            z = jnp.zeros((b, h))
            _, out = jax.lax.scan(step, (z, z), xs)
            return jnp.mean((out - target) ** 2)

        v, g = jax.value_and_grad(loss)(params)
        return v, jax.tree.map(lambda a, d: a - 0.01 * d, params, g)

    g = np.random.default_rng(0)
    f = lambda *s: jnp.asarray(g.normal(size=s) / np.sqrt(s[0]), jnp.float32)
    layer = lambda i: (f(i, 3 * h), f(h, 3 * h), jnp.zeros(3 * h), jnp.zeros(3 * h))
    return fn, ((layer(n_in), layer(h), f(h, 1)), f(t, b, n_in) * np.sqrt(t), f(t, b, 1))


def make():
    return _build(1000, 16, 10, 100)


def make_small():
    return _build(3, 2, 2, 3)
