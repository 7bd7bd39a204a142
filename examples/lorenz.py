"""An ensemble of adaptive Lorenz solves: Tsitouras 5(4) with step control by the error, vmap of a while_loop. float64.

Each trajectory has its own rho in [0, 21] and takes its own steps; finished ones wait for the slowest of their program.
sigma = 10, beta = 8/3, start (1, 0, 0), t in [0, 1], the final state, rtol 1e-6, atol 1e-9.

    python examples/lorenz.py [--small] [--size N]
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import onelaunch

jax.config.update("jax_enable_x64", True)

SIGMA, BETA, T1 = 10.0, 8.0 / 3.0, 1.0

# Ch. Tsitouras, Runge-Kutta pairs of order 5(4) satisfying only the first column simplifying assumption (2011).
A = (
    (0.161,),
    (-0.008480655492356989, 0.335480655492357),
    (2.8971530571054935, -6.359448489975075, 4.3622954328695815),
    (5.325864828439257, -11.748883564062828, 7.4955393428898365, -0.09249506636175525),
    (5.86145544294642, -12.92096931784711, 8.159367898576159, -0.071584973281401, -0.028269050394068383),
    (0.09646076681806523, 0.01, 0.4798896504144996, 1.379008574103742, -3.290069515436081, 2.324710524099774),
)
# The fifth-order weights are the last row of A; E are their differences from the fourth-order ones.
E = (
    0.001780011052225777,
    0.0008164344596567469,
    -0.007880878010261995,
    0.1447110071732629,
    -0.5823571654525552,
    0.45808210592918697,
    -1.0 / 66.0,
)


class State(NamedTuple):
    """Where a solve stands: time, step, state y[3], its slope, steps tried."""

    t: jax.Array
    dt: jax.Array
    y: jax.Array
    slope: jax.Array
    tried: jax.Array


def field(rho: jax.Array, y: jax.Array) -> jax.Array:
    """The Lorenz vector field at y[3]."""
    x, v, z = y
    return jnp.stack([SIGMA * (v - x), x * (rho - z) - v, x * v - BETA * z])


def attempt(rho: jax.Array, y: jax.Array, slope: jax.Array, dt: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """One step of the pair: the new state, its slope (first same as last) and the error estimate."""
    slopes, new = [slope], y
    for row in A:
        new = y + dt * sum(a * k for a, k in zip(row, slopes, strict=True))
        slopes.append(field(rho, new))
    return new, slopes[-1], dt * sum(e * k for e, k in zip(E, slopes, strict=True))


def solve(rho: jax.Array, rtol: float = 1e-6, atol: float = 1e-9, max_steps: int = 10_000) -> jax.Array:
    """y(1) f64[3] for one rho f64[]."""

    def advance(s: State) -> State:
        dt = jnp.minimum(s.dt, T1 - s.t)
        y, slope, error = attempt(rho, s.y, s.slope, dt)
        scale = atol + rtol * jnp.maximum(abs(s.y), abs(y))
        norm = jnp.maximum(jnp.sqrt(jnp.mean((error / scale) ** 2)), 1e-10)
        accept = norm <= 1.0
        factor = jnp.clip(0.9 * norm ** (-1 / 5), 0.2, 5.0)
        return State(
            t=jnp.where(accept, s.t + dt, s.t),
            dt=dt * factor,
            y=jnp.where(accept, y, s.y),
            slope=jnp.where(accept, slope, s.slope),
            tried=s.tried + 1,
        )

    y0 = jnp.array([1.0, 0.0, 0.0])
    start = State(jnp.zeros(()), jnp.full((), 1e-2), y0, field(rho, y0), jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(lambda s: (s.t < T1) & (s.tried < max_steps), advance, start).y


def ensemble(rho: jax.Array, rtol: float = 1e-6, atol: float = 1e-9) -> jax.Array:
    """The final states f64[n, 3] for rho f64[n]."""
    return jax.vmap(partial(solve, rtol=rtol, atol=atol))(rho)


def reference(rho: np.ndarray) -> np.ndarray:
    """The final states by scipy's DOP853 at rtol 1e-12: an independent method."""
    from scipy.integrate import solve_ivp

    def one(r: float) -> np.ndarray:
        def slope(_: float, y: np.ndarray) -> list[float]:
            return [SIGMA * (y[1] - y[0]), y[0] * (r - y[2]) - y[1], y[0] * y[1] - BETA * y[2]]

        return solve_ivp(slope, (0.0, T1), [1.0, 0.0, 0.0], method="DOP853", rtol=1e-12, atol=1e-14).y[:, -1]

    return np.stack([one(float(r)) for r in rho])


def make(n: int = 2_048) -> tuple[Any, tuple[Any, ...]]:
    """n trajectories with rho spread over [0, 21]."""
    return ensemble, (jnp.linspace(0.0, 21.0, n),)


def make_small() -> tuple[Any, tuple[Any, ...]]:
    """Five trajectories (a ragged number) at a loose tolerance."""
    return partial(ensemble, rtol=1e-3, atol=1e-6), (jnp.linspace(0.0, 21.0, 5),)


def main() -> None:
    """Solve an ensemble through onelaunch and print the error against the reference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="five trajectories, rtol 1e-3")
    parser.add_argument("--size", type=int, default=2_048, help="number of trajectories (default 2,048)")
    options = parser.parse_args()
    fn, (rho,) = make_small() if options.small else make(options.size)
    fused = onelaunch.fuse(fn)
    jax.block_until_ready(fused(rho))
    start = time.perf_counter()
    y = jax.block_until_ready(fused(rho))
    elapsed = time.perf_counter() - start
    picked = np.linspace(0, rho.size - 1, min(rho.size, 64)).astype(int)
    error = abs(np.asarray(y)[picked] - reference(np.asarray(rho)[picked])).max()
    print(f"{rho.size} trajectories on {jax.devices()[0].platform}: {elapsed * 1e3:.3f} ms, largest error {error:.1e}")


if __name__ == "__main__":
    main()
