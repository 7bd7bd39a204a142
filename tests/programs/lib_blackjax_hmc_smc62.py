"""blackjax HMC, 1000 draws of 50 leapfrog steps, on a 1-D bimodal target.

Source: https://github.com/blackjax-devs/sampling-book/pull/62 (TemperedSMC example:
10,000 HMC draws of 50 steps take 1.14 s on the CPU; 1000 draws take 3.3 s on the GPU;
NUTS 30 steps 0.96 s CPU against 7.3 s GPU for a tenth of the draws, 237 s at 926 steps).
float32.
"""

import jax
import jax.numpy as jnp
import blackjax

SOURCE = "blackjax-devs/sampling-book#62"
LIB = "blackjax"
LOOP = "scan > fori_loop, grad"
TRIPS = "1000 x 50"
DTYPE = "f32"
REPORTED = "CPU 1.14 s /10k draws; GPU 3.3 s /1k draws"


def _build(draws, leaps):
    def fn(key, x0):
        def logp(x):
            v = -((x**2 - 1) ** 2) * 5.0
            return -0.5 * jnp.sum(x**2) * 1e-2 + jnp.sum(v)

        hmc = blackjax.hmc(logp, step_size=1e-2, inverse_mass_matrix=jnp.ones(1), num_integration_steps=leaps)

        def one(s, k):
            s, info = hmc.step(k, s)
            return s, (s.position, info.acceptance_rate)

        return jax.lax.scan(one, hmc.init(x0), jax.random.split(key, draws))[1]

    return fn, (jax.random.key(0), jnp.ones(1))


def make():
    return _build(1000, 50)


def make_small():
    return _build(2, 2)
