"""Gradient-descent training of a neural ODE, jax.experimental.ode.odeint + adjoint.

Source: https://github.com/jax-ml/jax/issues/5006 ("Gradients with odeint slow on
GPU"). A 2-D Van der Pol oscillator sampled along one trajectory is fitted by a small
MLP vector field. Reported: about 17 training iterations/s on the GPU against more
than 800/s on the CPU.
Sizes chosen here: 100 samples over 10 s, MLP 2-32-32-2, 20 training steps per call
(the thread loops from Python; here the loop is a fori_loop). float32.
"""

import jax
import jax.numpy as jnp
from jax.experimental.ode import odeint

SOURCE = "jax-ml/jax#5006"
LOOP = "fori_loop > scan > while_loop (+ adjoint)"
TRIPS = "20 steps x ~100 segments x adaptive"
DTYPE = "f32"
REPORTED = "GPU 17 it/s; CPU >800 it/s"


def _build(n_train, n_obs, t_end, width):
    def vdp(x, t):
        return jnp.stack([x[1], (1.0 - x[0] ** 2) * x[1] - x[0]])

    def field(x, t, params):
        (w1, b1), (w2, b2), (w3, b3) = params
        h = jnp.tanh(w1 @ x + b1)
        h = jnp.tanh(w2 @ h + b2)
        return w3 @ h + b3

    def fn(params, x0, ts, data):
        def loss(p):
            xs = odeint(field, x0, ts, p, rtol=1e-5, atol=1e-5)
            return jnp.mean((xs - data) ** 2)

        def train(_, c):
            p, _ = c
            val, g = jax.value_and_grad(loss)(p)
            return jax.tree.map(lambda a, b: a - 0.02 * b, p, g), val

        return jax.lax.fori_loop(0, n_train, train, (params, jnp.float32(0)))

    k = jax.random.split(jax.random.PRNGKey(0), 3)
    dims = (2, width, width, 2)
    params = tuple(
        (0.4 * jax.random.normal(kk, (o, i)) / jnp.sqrt(i), jnp.zeros(o)) for kk, i, o in zip(k, dims[:-1], dims[1:])
    )
    ts = jnp.linspace(0.0, t_end, n_obs)
    x0 = jnp.array([2.0, 0.0])
    data = odeint(vdp, x0, ts, rtol=1e-5, atol=1e-5)
    return fn, (params, x0, ts, data)


def make():
    return _build(20, 100, 10.0, 32)


def make_small():
    return _build(1, 2, 0.1, 4)
