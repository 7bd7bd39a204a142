"""flax.nnx GRU trained for several optax Adam steps, loop inside one jit.

Source: StackOverflow/openillumi "Flax GRU unbearably slow against PyTorch",
https://github.com/jax-ml/jax/issues/13111. One GRU layer 10 -> 32, length 200, batch 16,
20 Adam steps in a fori_loop. float32.
"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

SOURCE = "StackOverflow flax GRU question; jax-ml/jax#13111"
LIB = "flax.nnx+optax"
LOOP = "fori_loop > scan + transpose"
TRIPS = "20 x 200 x 2"
DTYPE = "f32"
REPORTED = "minutes vs PyTorch (incl. compile)"


def _build(t, b, i, h, steps):
    cell = nnx.GRUCell(i, h, rngs=nnx.Rngs(0))
    head = nnx.Linear(h, 1, rngs=nnx.Rngs(1))
    gdef, state = nnx.split((cell, head))
    tx = optax.adam(1e-3)

    def fn(state, x, y):
        def loss(s):
            cell, head = nnx.merge(gdef, s)

            def step(c, xt):
                c, o = cell(c, xt)
                return c, o

            _, hs = jax.lax.scan(step, jnp.zeros((b, h)), x)
            return jnp.mean((head(hs[-1]) - y) ** 2)

        def train(_, c):
            s, o, _ = c
            l, g = jax.value_and_grad(loss)(s)
            u, o = tx.update(g, o, s)
            return optax.apply_updates(s, u), o, l

        s, _, l = jax.lax.fori_loop(0, steps, train, (state, tx.init(state), jnp.float32(0)))
        return jax.tree.leaves(s), l

    k1, k2 = jax.random.split(jax.random.PRNGKey(2))
    return fn, (state, jax.random.normal(k1, (t, b, i)), jax.random.normal(k2, (b, 1)))


def make():
    return _build(200, 16, 10, 32, 20)


def make_small():
    return _build(2, 2, 2, 2, 2)
