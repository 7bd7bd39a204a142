"""Training a neural ODE: the loss and its gradient through 200 steps of Runge-Kutta 4, forward and backward. float32.

A network of two hidden layers is the vector field of a planar system; the loss is the mean squared distance of the
trajectory from given points. The value and the gradient, by weights and by the initial state, are one launch.

    python examples/neural_ode.py [--small]
"""

from __future__ import annotations

import argparse
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import onelaunch


class Network(NamedTuple):
    """Weights and biases of the vector field: [2, h], [h], [h, h], [h], [h, 2], [2]."""

    w1: jax.Array
    b1: jax.Array
    w2: jax.Array
    b2: jax.Array
    w3: jax.Array
    b3: jax.Array


def field(p: Network, y: jax.Array) -> jax.Array:
    """The slope at y[2]."""
    hidden = jnp.tanh(y @ p.w1 + p.b1)
    return jnp.tanh(hidden @ p.w2 + p.b2) @ p.w3 + p.b3


def trajectory(p: Network, y0: jax.Array, dt: float, steps: int) -> jax.Array:
    """y0[2] -> the states after each step [steps, 2]."""

    def step(y: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        k1 = field(p, y)
        k2 = field(p, y + dt / 2 * k1)
        k3 = field(p, y + dt / 2 * k2)
        k4 = field(p, y + dt * k3)
        y = y + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return y, y

    return jax.lax.scan(step, y0, None, length=steps)[1]


def loss(p: Network, y0: jax.Array, seen: jax.Array) -> jax.Array:
    """The mean squared distance from the points seen[steps, 2]."""
    return jnp.mean((trajectory(p, y0, 0.05, seen.shape[0]) - seen) ** 2)


def gradient(p: Network, y0: jax.Array, seen: jax.Array) -> tuple[jax.Array, tuple[Network, jax.Array]]:
    """The loss, and its gradient by the weights and by the initial state."""
    return jax.value_and_grad(loss, argnums=(0, 1))(p, y0, seen)


def spiral(steps: int) -> jax.Array:
    """Points of a linear spiral: [steps, 2]."""
    t = 0.05 * jnp.arange(1, steps + 1)
    return jnp.exp(-0.1 * t)[:, None] * jnp.stack([jnp.cos(t), jnp.sin(t)], 1)


def make(steps: int = 200, hidden: int = 16) -> tuple[Any, tuple[Any, ...]]:
    """200 steps, 16 hidden units."""
    k1, k2, k3 = jax.random.split(jax.random.key(0), 3)
    p = Network(
        jax.random.normal(k1, (2, hidden)) / 2**0.5,
        jnp.zeros(hidden),
        jax.random.normal(k2, (hidden, hidden)) / hidden**0.5,
        jnp.zeros(hidden),
        jax.random.normal(k3, (hidden, 2)) / hidden**0.5,
        jnp.zeros(2),
    )
    return gradient, (p, jnp.array([1.0, 0.0]), spiral(steps))


def make_small() -> tuple[Any, tuple[Any, ...]]:
    """Three steps, 4 hidden units."""
    return make(3, 4)


def main() -> None:
    """Take the gradient through onelaunch and print its distance from JAX's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="three steps, 4 hidden units")
    options = parser.parse_args()
    fn, args = make_small() if options.small else make()
    fused = onelaunch.fuse(fn)
    jax.block_until_ready(fused(*args))
    start = time.perf_counter()
    value, slope = jax.block_until_ready(fused(*args))
    elapsed = time.perf_counter() - start
    want = jax.jit(fn)(*args)[1]
    off = max(float(abs(a - b).max()) for a, b in zip(jax.tree.leaves(slope), jax.tree.leaves(want)))
    print(f"loss {value:.4f} on {jax.devices()[0].platform}: {elapsed * 1e3:.3f} ms, gradient from JAX's {off:.1e}")


if __name__ == "__main__":
    main()
