"""The logistic map x <- 4 x (1 - x) for ten million steps, the trajectory kept (QuantEcon lectures, issue 440).

One multiplication at a time there is nothing to run in parallel, so all that counts is what a step costs besides.
The map is chaotic, but each operation rounds once and none can be contracted, so every device gives the same bits.

    python examples/logistic_map.py [--small]
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

import onelaunch

STEPS = 10_000_000


def trajectory(x0: jax.Array, n: int) -> jax.Array:
    """x0 f32[] -> f32[n + 1]: the start and the n states after it."""

    def step(x: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        x = 4.0 * x * (1.0 - x)
        return x, x

    _, xs = jax.lax.scan(step, x0, None, length=n)
    return jnp.concatenate([x0[None], xs])


def make(n: int = STEPS) -> tuple[Any, tuple[Any, ...]]:
    """Ten million steps from 0.1."""
    return partial(trajectory, n=n), (jnp.float32(0.1),)


def make_small() -> tuple[Any, tuple[Any, ...]]:
    """Thirty steps from 0.1."""
    return make(30)


def main() -> None:
    """Run the map through onelaunch and print its last state."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="30 steps instead of ten million")
    options = parser.parse_args()
    fn, args = make_small() if options.small else make()
    fused = onelaunch.fuse(fn)
    jax.block_until_ready(fused(*args))
    start = time.perf_counter()
    xs = jax.block_until_ready(fused(*args))
    elapsed = time.perf_counter() - start
    print(f"{xs.size - 1} steps on {jax.devices()[0].platform}: {elapsed * 1e3:.3f} ms, last state {xs[-1]:.7f}")


if __name__ == "__main__":
    main()
