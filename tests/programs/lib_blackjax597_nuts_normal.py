"""blackjax NUTS on a univariate normal with 1000 observations (real library).

Source: https://github.com/blackjax-devs/blackjax/issues/597 ("NUTS performance concerns
on GPU"): GPU 200 steps 3.0 s, 300 steps 48 s, 500 steps 78 s; CPU 1000 steps 3.7 s.
Typed PRNG key (jax.random.key). 500 steps, step size / inverse mass fixed as after
adaptation. float32.
"""

import numpy as np
import jax
import jax.numpy as jnp
import blackjax

SOURCE = "blackjax-devs/blackjax#597"
LIB = "blackjax"
LOOP = "scan > while_loop > while_loop, cond, grad"
TRIPS = "500 x tree"
DTYPE = "f32"
REPORTED = "GPU 500 steps 78 s (300: 48 s); CPU 1000 steps 3.7 s"


def _build(n_obs, steps, depth):
    def fn(key, y, pos):
        def logp(p):
            s = jnp.exp(p["log_scale"])
            z = (y - p["loc"]) / s
            return jnp.sum(-0.5 * z * z - p["log_scale"] - 0.5 * jnp.log(2 * jnp.pi))

        nuts = blackjax.nuts(logp, step_size=0.02, inverse_mass_matrix=jnp.array([1.0, 0.1]), max_num_doublings=depth)

        def one(state, key):
            state, info = nuts.step(key, state)
            return state, (state.position, info.num_integration_steps)

        _, out = jax.lax.scan(one, nuts.init(pos), jax.random.split(key, steps))
        return out

    y = jnp.asarray(np.random.default_rng(0).normal(10, 20, n_obs), jnp.float32)
    return fn, (jax.random.key(20231201), y, {"loc": jnp.float32(1.0), "log_scale": jnp.float32(1.0)})


def make():
    return _build(1000, 500, 10)


def make_small():
    return _build(4, 1, 2)
