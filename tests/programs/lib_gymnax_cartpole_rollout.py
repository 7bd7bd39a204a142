"""gymnax CartPole: vmapped environments with an MLP policy, one scan over time.

Source: https://github.com/RobertTLange/gymnax/issues/5 (CPU/GPU benchmarks wanted),
#22 (figures are for a fixed policy), https://github.com/RobertTLange/gymnax/pull/24
(lax.scan over an env). 64 environments, 500 steps. float32.
"""

import jax
import jax.numpy as jnp
import gymnax

SOURCE = "RobertTLange/gymnax#5, #22, PR 24"
LIB = "gymnax"
LOOP = "scan > vmap(env.step with auto reset)"
TRIPS = "500"
DTYPE = "f32"
REPORTED = "none stored"


def _build(n, steps, width):
    env, ep = gymnax.make("CartPole-v1")

    def fn(key, w):
        def policy(obs, key):
            h = jnp.tanh(obs @ w[0])
            return jax.random.categorical(key, h @ w[1])

        k0, key = jax.random.split(key)
        obs, st = jax.vmap(env.reset, (0, None))(jax.random.split(k0, n), ep)

        def step(c, key):
            obs, st, total = c
            ka, ks = jax.random.split(key)
            a = jax.vmap(policy)(obs, jax.random.split(ka, n))
            obs, st, r, *rest = jax.vmap(env.step, (0, 0, 0, None))(jax.random.split(ks, n), st, a, ep)
            return (obs, st, total + r), r

        (obs, st, total), rs = jax.lax.scan(step, (obs, st, jnp.zeros(n)), jax.random.split(key, steps))
        return total, rs.sum(1)

    k1, k2 = jax.random.split(jax.random.PRNGKey(0))
    return fn, (jax.random.PRNGKey(1), (jax.random.normal(k1, (4, width)), jax.random.normal(k2, (width, 2))))


def make():
    return _build(64, 500, 64)


def make_small():
    return _build(2, 3, 4)
