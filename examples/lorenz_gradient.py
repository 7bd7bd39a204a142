"""Fitting a Lorenz ensemble: a loss over all members and its gradient by the system's parameters. float64.

Every member starts elsewhere and is integrated by Runge-Kutta 4; sigma, rho and beta are shared. The loss is the mean
squared distance of the final states from those of other parameters. Gradients of what is shared are sums over the
ensemble, made in the same launch, in a fixed order.

    python examples/lorenz_gradient.py [--small] [--size N]
"""

from __future__ import annotations

import argparse
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import onelaunch

jax.config.update("jax_enable_x64", True)

DT = 0.01


class Parameters(NamedTuple):
    """The system's three numbers, each f64[]."""

    sigma: jax.Array
    rho: jax.Array
    beta: jax.Array


def field(p: Parameters, y: jax.Array) -> jax.Array:
    """The Lorenz vector field at y[3]."""
    x, v, z = y
    return jnp.stack([p.sigma * (v - x), x * (p.rho - z) - v, x * v - p.beta * z])


def solve(p: Parameters, y0: jax.Array, steps: int) -> jax.Array:
    """y0[3] -> the state after some steps."""

    def step(_: int, y: jax.Array) -> jax.Array:
        k1 = field(p, y)
        k2 = field(p, y + DT / 2 * k1)
        k3 = field(p, y + DT / 2 * k2)
        k4 = field(p, y + DT * k3)
        return y + DT / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    return jax.lax.fori_loop(0, steps, step, y0)


def loss(p: Parameters, starts: jax.Array, ends: jax.Array, steps: int) -> jax.Array:
    """The mean squared distance of the members' ends, from starts[n, 3], to ends[n, 3]."""
    return jnp.mean((jax.vmap(solve, (None, 0, None))(p, starts, steps) - ends) ** 2)


def make(n: int = 2_048, steps: int = 100) -> tuple[Any, tuple[Any, ...]]:
    """n members over 100 steps, started around (1, 1, 25)."""
    starts = jnp.array([1.0, 1.0, 25.0]) + jax.random.normal(jax.random.key(0), (n, 3))
    truth = Parameters(jnp.float64(10.0), jnp.float64(28.0), jnp.float64(8.0 / 3.0))
    ends = jax.jit(jax.vmap(solve, (None, 0, None)), static_argnums=2)(truth, starts, steps)
    guess = Parameters(jnp.float64(9.0), jnp.float64(27.0), jnp.float64(2.5))

    def gradient(p: Parameters, starts: jax.Array, ends: jax.Array) -> tuple[jax.Array, tuple[Parameters, jax.Array]]:
        """The loss, and its gradient by the parameters and by the initial states."""
        return jax.value_and_grad(loss, argnums=(0, 1))(p, starts, ends, steps)

    return gradient, (guess, starts, ends)


def make_small() -> tuple[Any, tuple[Any, ...]]:
    """Five members over four steps."""
    return make(5, 4)


def main() -> None:
    """Take the gradient through onelaunch and print its distance from JAX's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="five members, four steps")
    parser.add_argument("--size", type=int, default=2_048, help="number of members (default 2,048)")
    options = parser.parse_args()
    fn, args = make_small() if options.small else make(options.size)
    fused = onelaunch.fuse(fn)
    jax.block_until_ready(fused(*args))
    start = time.perf_counter()
    value, (slope, _) = jax.block_until_ready(fused(*args))
    elapsed = time.perf_counter() - start
    want, _ = jax.jit(fn)(*args)[1]
    off = max(float(abs(a - b) / abs(b)) for a, b in zip(slope, want))
    print(f"loss {value:.4f} on {jax.devices()[0].platform}: {elapsed * 1e3:.3f} ms, gradient from JAX's {off:.1e}")


if __name__ == "__main__":
    main()
