"""100-step RK4 integration of a small ODE for a batch of initial values, one scan.

Source: public article "Why jax.lax.scan Is Slow on GPU and How Pallas Fixes It"
(lin-wang.notion.site): an ODE solver with 100 time steps; each kernel transition
5-10 us; 67x faster once written as a single kernel.
Lorenz system, batch of 1024 chosen here. float32.
"""

import jax
import jax.numpy as jnp

SOURCE = "lin-wang.notion.site article (scan vs single kernel)"
LOOP = "scan"
TRIPS = "100"
DTYPE = "f32"
REPORTED = "67x faster as one kernel (5-10 us per kernel transition)"


def _build(batch, steps):
    def fn(x0, rho):
        def f(x):
            a, b, c = x[..., 0], x[..., 1], x[..., 2]
            return jnp.stack([10 * (b - a), a * (rho - c) - b, a * b - 8 / 3 * c], -1)

        def rk4(x, _):
            h = 0.01
            k1 = f(x)
            k2 = f(x + h / 2 * k1)
            k3 = f(x + h / 2 * k2)
            k4 = f(x + h * k3)
            x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            return x, x

        return jax.lax.scan(rk4, x0, None, length=steps)

    x0 = jax.random.normal(jax.random.PRNGKey(0), (batch, 3))
    return fn, (x0, jnp.linspace(20.0, 30.0, batch))


def make():
    return _build(1024, 100)


def make_small():
    return _build(3, 5)
