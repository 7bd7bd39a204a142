"""MPPI control: sampled rollouts inside a closed-loop simulation.

Source: https://github.com/google-deepmind/mujoco_warp/issues/841 (MPC loop too slow
for real time, JAX version even worse), https://github.com/google/trajax. Pendulum
swing-up, 256 samples, horizon 30, 100 control steps. float32.
"""

import jax
import jax.numpy as jnp

SOURCE = "google-deepmind/mujoco_warp#841"
LOOP = "scan > vmap(scan)"
TRIPS = "100 x 30"
DTYPE = "f32"
REPORTED = "30 Hz target missed (no figure)"


def _build(samples, horizon, steps):
    def dyn(x, u):
        th, om = x[0], x[1]
        om = om + 0.05 * (15.0 * jnp.sin(th) + 3.0 * jnp.clip(u, -2, 2))
        om = jnp.clip(om, -8, 8)
        return jnp.stack([th + 0.05 * om, om])

    def cost(x, u):
        th = jnp.mod(x[0] + jnp.pi, 2 * jnp.pi) - jnp.pi
        return th**2 + 0.1 * x[1] ** 2 + 0.001 * u**2

    def fn(key, x0):
        def control(c, key):
            x, plan = c
            noise = jax.random.normal(key, (samples, horizon))
            cand = plan + noise

            def roll(us):
                def st(x, u):
                    x = dyn(x, u)
                    return x, cost(x, u)

                return jnp.sum(jax.lax.scan(st, x, us)[1])

            J = jax.vmap(roll)(cand)
            w = jax.nn.softmax(-(J - J.min()) / 1.0)
            plan = plan + w @ noise
            x = dyn(x, plan[0])
            return (x, jnp.roll(plan, -1).at[-1].set(0.0)), (x, J.min())

        return jax.lax.scan(control, (x0, jnp.zeros(horizon)), jax.random.split(key, steps))

    return fn, (jax.random.PRNGKey(0), jnp.array([jnp.pi, 0.0]))


def make():
    return _build(256, 30, 100)


def make_small():
    return _build(3, 3, 2)
