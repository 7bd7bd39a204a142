"""1-D heat equation by the method of lines, diffrax adaptive Tsit5 (real library).

Source: https://github.com/patrick-kidger/diffrax/issues/82 ("Diffrax runs slower than
Scipy's solve_ivp", run on a GPU): N = 200 points, t in (0, 0.05), 10 saved times,
float32. The thread's program sets the interior by an indexed update.
"""

import jax
import jax.numpy as jnp
import diffrax as dfx

SOURCE = "patrick-kidger/diffrax#82"
LIB = "diffrax"
LOOP = "while_loop (eqx internal) with scan stages"
TRIPS = "~2500 adaptive steps"
DTYPE = "f32"
REPORTED = "slower than scipy solve_ivp on GPU (no number kept)"


def _build(n, t1, n_save):
    h = 1.0 / (n + 1)

    def rhs(t, y, args):
        return jnp.zeros_like(y).at[1:-1].set((y[:-2] - 2 * y[1:-1] + y[2:]) / h**2)

    def fn(y0):
        sol = dfx.diffeqsolve(
            dfx.ODETerm(rhs),
            dfx.Tsit5(),
            t0=0.0,
            t1=t1,
            dt0=None,
            y0=y0,
            saveat=dfx.SaveAt(ts=jnp.linspace(0.0, t1, n_save)),
            max_steps=16**4,
            stepsize_controller=dfx.PIDController(rtol=1e-4, atol=1e-6),
        )
        return sol.ys, sol.stats["num_steps"]

    y0 = jnp.ones(n).at[0].set(0.0).at[-1].set(0.0)
    return fn, (y0,)


def make():
    return _build(200, 0.05, 10)


def make_small():
    return _build(5, 0.01, 2)
