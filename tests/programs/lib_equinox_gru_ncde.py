"""equinox GRU + MLP decoder trained through a scan with filter_grad (library modules).

Source: https://github.com/patrick-kidger/equinox/issues/928 (equinox overhead reports,
T4: 131 us to 1.23 ms per step for the same small model depending on how it is passed);
as a recurrent net this is the class of jax#13111. GRU 8-32, length 64, batch 32, one
SGD step. float32.
"""

import equinox as eqx
import jax
import jax.numpy as jnp

SOURCE = "patrick-kidger/equinox#928"
LIB = "equinox"
LOOP = "scan + transpose (vmapped)"
TRIPS = "64 x 2"
DTYPE = "f32"
REPORTED = "T4 0.13-1.23 ms per step"


def _build(t, b, i, h):
    kc, km, kx, ky = jax.random.split(jax.random.PRNGKey(0), 4)
    model = (eqx.nn.GRUCell(i, h, key=kc), eqx.nn.MLP(h, 1, 16, 1, key=km))
    arrays, static = eqx.partition(model, eqx.is_array)

    def fn(arrays, x, y):
        def loss(arrays):
            cell, mlp = eqx.combine(arrays, static)

            def one(x, y):
                def st(c, xt):
                    c = cell(xt, c)
                    return c, None

                c, _ = jax.lax.scan(st, jnp.zeros(h), x)
                return (mlp(c)[0] - y) ** 2

            return jnp.mean(jax.vmap(one)(x, y))

        v, g = jax.value_and_grad(loss)(arrays)
        return v, jax.tree.map(lambda a, d: a - 0.05 * d, arrays, g)

    return fn, (arrays, jax.random.normal(kx, (b, t, i)), jax.random.normal(ky, (b,)))


def make():
    return _build(64, 32, 8, 32)


def make_small():
    return _build(2, 1, 2, 2)
