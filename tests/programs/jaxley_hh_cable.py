"""Hodgkin-Huxley cable: implicit voltage step by a scanned tridiagonal solve, per dt.

Source: https://github.com/jaxleyverse/jaxley/pull/625 and PR 691 (multicompartment
cells "extremely suboptimal" on the GPU; run times 0.18-0.65 s per simulated cell) and
https://github.com/brian-team/brian2cuda/issues/313 (tiny network for a very long time
is the GPU's worst case). 64 compartments, dt 0.025 ms, 100 ms = 4000 steps. float32.
"""

import jax
import jax.numpy as jnp

SOURCE = "jaxleyverse/jaxley#625, #691; brian2cuda#313"
LOOP = "scan > scan + reverse scan"
TRIPS = "4000 x (64 + 64)"
DTYPE = "f32"
REPORTED = "GPU 0.26-0.65 s per run of a cell"


def _exprel(x):
    return jnp.where(jnp.abs(x) < 1e-4, 1.0 + 0.5 * x, x / -jnp.expm1(-x))


def _build(comp, steps):
    def fn(stim, g_ax):
        dt, gna, gk, gl = 0.025, 120.0, 36.0, 0.3

        def gate_rates(v):
            am = _exprel((v + 40) / 10)
            bm = 4 * jnp.exp(-(v + 65) / 18)
            ah = 0.07 * jnp.exp(-(v + 65) / 20)
            bh = 1 / (1 + jnp.exp(-(v + 35) / 10))
            an = 0.1 * _exprel((v + 55) / 10)
            bn = 0.125 * jnp.exp(-(v + 65) / 80)
            return (am, bm), (ah, bh), (an, bn)

        def solve(d, o, r):
            def down(c, row):
                dd, rr = row
                den = dd - o * c[0]
                nxt = (o / den, (rr - o * c[1]) / den)
                return nxt, nxt

            z = jnp.float32(0)
            _, (u, y) = jax.lax.scan(down, (z, z), (d, r))
            _, x = jax.lax.scan(lambda xn, q: ((q[1] - q[0] * xn),) * 2, z, (u, y), reverse=True)
            return x

        degree = jnp.full(comp, 2.0).at[0].set(1.0).at[-1].set(1.0)

        def step(c, i_t):
            v, m, h, n = c
            upd = lambda x, ab: x + (1 - jnp.exp(-dt * (ab[0] + ab[1]))) * (ab[0] / (ab[0] + ab[1]) - x)
            rm, rh, rn = gate_rates(v)
            m, h, n = upd(m, rm), upd(h, rh), upd(n, rn)
            gn, gkk = gna * m**3 * h, gk * n**4
            tot = gn + gkk + gl
            rev = gn * 50.0 - gkk * 77.0 - gl * 54.4
            inj = jnp.zeros(comp).at[0].set(i_t)
            diag = 1 + dt * (tot + g_ax * degree)
            v = solve(diag, -dt * g_ax, v + dt * (rev + inj))
            return (v, m, h, n), v[jnp.array([0, comp // 2, comp - 1])]

        v0 = jnp.full(comp, -65.0)
        init = (v0, jnp.full(comp, 0.05), jnp.full(comp, 0.6), jnp.full(comp, 0.32))
        return jax.lax.scan(step, init, stim)[1]

    stim = jnp.where(jnp.arange(steps) < steps // 2, 200.0, 0.0)
    return fn, (stim, jnp.float32(20.0))


def make():
    return _build(64, 4000)


def make_small():
    return _build(3, 4)
