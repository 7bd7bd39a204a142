"""Stiff Robertson kinetics by diffrax Kvaerno5 (implicit, Newton root find inside).

Source: https://github.com/patrick-kidger/diffrax/issues/577 ("Comparison to
numbalsoda": at least 10x slower; float64, rtol/atol 1e-8, t to 100, 8 saved times).
Vmapped over 32 rate constants here as the reporter's aim is a parameter sweep.
"""

import jax
import jax.numpy as jnp
import diffrax as dfx

jax.config.update("jax_enable_x64", True)

SOURCE = "patrick-kidger/diffrax#577"
LIB = "diffrax"
LOOP = "vmap(while_loop > while_loop), LU solve"
TRIPS = "~100-200 steps x Newton"
DTYPE = "f64"
REPORTED = ">=10x slower than numbalsoda"


def _build(batch, ts, rtol):
    def rhs(t, y, k):
        a = -k[0] * y[0] + k[2] * y[1] * y[2]
        c = k[1] * y[1] ** 2
        return jnp.stack([a, -a - c, c])

    def fn(ks, ts):
        def one(k):
            sol = dfx.diffeqsolve(
                dfx.ODETerm(rhs),
                dfx.Kvaerno5(),
                0.0,
                ts[-1],
                2e-4,
                jnp.array([1.0, 0.0, 0.0]),
                args=k,
                saveat=dfx.SaveAt(ts=ts),
                max_steps=4096,
                stepsize_controller=dfx.PIDController(rtol=rtol, atol=rtol),
            )
            return sol.ys, sol.stats["num_steps"]

        return jax.vmap(one)(ks)

    ks = jnp.array([0.04, 3e7, 1e4]) * jnp.linspace(0.8, 1.2, batch)[:, None]
    return fn, (ks, jnp.array(ts))


def make():
    return _build(32, [0.0, 1e-4, 1e-3, 1e-2, 1e-1, 1e0, 1e1, 1e2], 1e-8)


def make_small():
    return _build(1, [0.0, 2e-4], 1e-2)
