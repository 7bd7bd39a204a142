"""200 SGD steps of a three-layer MLP, the whole training loop in one program.

Source: https://github.com/jax-ml/jax/issues/4472 (model sizes (500, 50, 50, 100),
batch 100, 200 steps, learning rate 0.05; a smaller model trains no faster, i.e. the
step is overhead-bound) and https://github.com/jax-ml/jax/issues/1797 (GPU slower than
CPU for a 36x6 network: CPU 0.24 s/epoch, GPU 0.039-0.04 after warm-up).
float32.
"""

import numpy as np
import jax
import jax.numpy as jnp

SOURCE = "jax-ml/jax#4472, #1797"
LOOP = "scan with grad inside"
TRIPS = "200"
DTYPE = "f32"
REPORTED = "smaller model trains no faster (overhead-bound)"


def _build(sizes, batch, steps, rows):
    def fn(params, x, y):
        def loss(p, xb, yb):
            v = xb
            for w in p:
                v = jax.nn.relu(v @ w)
            return 0.5 * jnp.mean((v - yb) ** 2)

        n_batches = rows // batch

        def step(p, i):
            at = (i % n_batches) * batch
            xb = jax.lax.dynamic_slice_in_dim(x, at, batch)
            yb = jax.lax.dynamic_slice_in_dim(y, at, batch)
            val, g = jax.value_and_grad(loss)(p, xb, yb)
            return jax.tree.map(lambda a, b: a - 0.05 * b, p, g), val

        return jax.lax.scan(step, params, jnp.arange(steps))

    g = np.random.default_rng(0)
    c = lambda *s: jnp.asarray(g.normal(size=s) / np.sqrt(s[0]), jnp.float32)
    params = tuple(c(a, b) for a, b in zip(sizes[:-1], sizes[1:]))
    return fn, (params, c(rows, sizes[0]), c(rows, sizes[-1]))


def make():
    return _build((500, 50, 50, 100), 100, 200, 1000)


def make_small():
    return _build((6, 4, 4, 3), 4, 3, 8)
