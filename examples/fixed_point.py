"""Inversion of a small network by x <- x + k * vjp(f)(z - f(x)): the derivative is taken inside the loop. float32.

python examples/fixed_point.py [--small]
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp

import onelaunch

GAIN = 0.2
Weights = tuple[jax.Array, jax.Array, jax.Array]


def network(weights: Weights, x: jax.Array) -> jax.Array:
    """x[d] -> f(x)[d]: the identity plus a small hidden layer."""
    w1, b1, w2 = weights
    return x + jnp.tanh(x @ w1 + b1) @ w2


def invert(weights: Weights, z: jax.Array, n: int | jax.Array) -> tuple[jax.Array, jax.Array]:
    """An x[d] with f(x) = z[d] after n steps, and the largest residual."""

    def step(_: jax.Array, x: jax.Array) -> jax.Array:
        y, pull = jax.vjp(lambda v: network(weights, v), x)
        (direction,) = pull(z - y)
        return x + GAIN * direction

    x = jax.lax.fori_loop(0, n, step, jnp.zeros_like(z))
    return x, jnp.max(abs(z - network(weights, x)))


def make(n: int = 2_000, dimension: int = 8, hidden: int = 16) -> tuple[Any, tuple[Any, ...]]:
    """2,000 steps in 8 dimensions with 16 hidden units."""
    k1, k2, k3, k4 = jax.random.split(jax.random.PRNGKey(0), 4)
    weights = (
        jax.random.normal(k1, (dimension, hidden)) / dimension**0.5,
        jax.random.normal(k2, (hidden,)),
        0.3 * jax.random.normal(k3, (hidden, dimension)) / hidden**0.5,
    )
    return invert, (weights, jax.random.normal(k4, (dimension,)), n)


def make_small() -> tuple[Any, tuple[Any, ...]]:
    """Five steps in 3 dimensions with 4 hidden units."""
    return make(5, 3, 4)


def main() -> None:
    """Invert the network through onelaunch and print the residual."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="five steps in three dimensions")
    options = parser.parse_args()
    fn, args = make_small() if options.small else make()
    fused = onelaunch.fuse(fn)
    jax.block_until_ready(fused(*args))
    start = time.perf_counter()
    _, residual = jax.block_until_ready(fused(*args))
    elapsed = time.perf_counter() - start
    print(f"{args[2]} steps on {jax.devices()[0].platform}: {elapsed * 1e3:.3f} ms, residual {residual:.1e}")


if __name__ == "__main__":
    main()
