"""Langevin dynamics of 64 Lennard-Jones particles, all pairs, periodic box.

Source: https://github.com/jax-md/jax-md/issues/309 (jax-md 5-10x slower than hoomd at
the same settings; Langevin dt 0.01, gamma 1.0, density 0.2) and
https://github.com/ericchansen/q2mm/pull/193 (small molecules: GPU 0.20x of the CPU,
kernel-launch bound). 64 particles in 3-D, 2000 steps. Forces by jax.grad of the energy.
float32.
"""

import numpy as np
import jax
import jax.numpy as jnp

SOURCE = "jax-md/jax-md#309; ericchansen/q2mm#193"
LOOP = "fori_loop with grad inside"
TRIPS = "2000"
DTYPE = "f32"
REPORTED = "small molecule: GPU 0.054 s/eval vs CPU 0.011"


def _build(n, steps):
    box = float((n / 0.2) ** (1 / 3))

    def fn(key, x, v):
        def energy(x):
            d = x[:, None] - x[None]
            d = d - box * jnp.round(d / box)
            r2 = jnp.sum(d * d, -1) + jnp.eye(n)
            s6 = (1.0 / jnp.maximum(r2, 0.5)) ** 3
            e = jnp.where((r2 < 6.25) & ~jnp.eye(n, dtype=bool), 4 * (s6 * s6 - s6), 0.0)
            return 0.5 * jnp.sum(e)

        force = jax.grad(lambda x: -energy(x))
        dt, gam, kT = 0.005, 1.0, 1.0
        c1 = jnp.exp(-gam * dt)

        def step(_, s):
            key, x, v, f = s
            v = v + 0.5 * dt * f
            x = x + 0.5 * dt * v
            key, sub = jax.random.split(key)
            v = c1 * v + jnp.sqrt(kT * (1 - c1 * c1)) * jax.random.normal(sub, v.shape)
            x = jnp.mod(x + 0.5 * dt * v, box)
            f = force(x)
            return key, x, v + 0.5 * dt * f, f

        out = jax.lax.fori_loop(0, steps, step, (key, x, v, force(x)))
        return out[1], out[2], energy(out[1])

    m = int(np.ceil(n ** (1 / 3)))
    pts = np.stack(np.meshgrid(*[np.arange(m)] * 3), -1).reshape(-1, 3)[:n] * (box / m) + 0.3
    v = np.random.default_rng(0).normal(size=(n, 3))
    f = lambda a: jnp.asarray(a, jnp.float32)
    return fn, (jax.random.PRNGKey(0), f(pts), f(v))


def make():
    return _build(64, 2000)


def make_small():
    return _build(4, 4)
