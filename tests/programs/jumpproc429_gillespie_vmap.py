"""Gillespie stochastic simulation of a reaction network, a batch of trajectories.

Source: https://github.com/SciML/JumpProcesses.jl/issues/429 (thousands of small
simulations, fewer than 100 reactions each, each fits one GPU thread) and
https://github.com/SciML/Catalyst.jl/issues/543. SIR-type network with 5 reactions,
1000 trajectories; the while_loop runs until every lane reaches t_end or 2000 events.
float32; exponential + categorical per event.
"""

import jax
import jax.numpy as jnp

SOURCE = "SciML/JumpProcesses.jl#429, Catalyst.jl#543"
LOOP = "vmap(while_loop)"
TRIPS = "<= 2000"
DTYPE = "f32/i32"
REPORTED = "100-1000x potential claimed for one-thread-per-trajectory"


def _build(traj, t_end, cap, pop):
    nu = jnp.array([[-1, 1, 0], [0, -1, 1], [1, 0, -1], [-1, 0, 0], [1, 0, 0]], jnp.int32)

    def fn(key, rates, x0):
        def one(key, rates):
            def go(c):
                t, _, _, n = c
                return (t < t_end) & (n < cap)

            def event(c):
                t, x, key, n = c
                s, i, r = (x[k].astype(jnp.float32) for k in range(3))
                a = rates * jnp.stack([s * i / pop, i, r, s, jnp.float32(pop)])
                key, k1, k2 = jax.random.split(key, 3)
                tot = jnp.sum(a)
                dt = jax.random.exponential(k1) / jnp.maximum(tot, 1e-12)
                j = jax.random.categorical(k2, jnp.log(jnp.maximum(a, 1e-30)))
                return t + dt, x + nu[j], key, n + 1

            t, x, _, n = jax.lax.while_loop(go, event, (jnp.float32(0), x0, key, jnp.int32(0)))
            return t, x, n

        return jax.vmap(one)(jax.random.split(key, traj), rates)

    r = jnp.array([1.5, 0.5, 0.05, 0.01, 0.01])
    scale = jnp.linspace(0.8, 1.2, traj)[:, None]
    return fn, (jax.random.PRNGKey(0), r * scale, jnp.array([pop - 10, 10, 0], jnp.int32))


def make():
    return _build(1000, 10.0, 2000, 200)


def make_small():
    return _build(2, 0.05, 6, 20)
