"""A noisy network iterated 8,000 times: the program of jax-ml/jax issue 7024.

A 1 -> 12 -> 1 network with softplus weights and a sigmoid feeds itself; every step splits the key and adds normal
noise. float64. Under XLA on a GPU each step is several launches; here all steps are one kernel.

    python examples/sampler.py [--small] [--chains N]
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp

import onelaunch

jax.config.update("jax_enable_x64", True)

STEPS = 8_000
Weights = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


def network(weights: Weights, x: jax.Array) -> jax.Array:
    """x[1] -> y[1] through 12 hidden units; softplus keeps the weights positive."""
    w1, b1, w2, b2 = weights
    hidden = jax.nn.sigmoid(x @ jax.nn.softplus(w1) + b1)
    return hidden @ jax.nn.softplus(w2) + b2


def infer(weights: Weights, key: jax.Array, n: int | jax.Array) -> tuple[jax.Array, jax.Array]:
    """The last key uint32[2] and state f64[1] of a chain of n steps (n: a number, or static)."""

    def step(state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        i, key, x = state
        key, noise_key = jax.random.split(key)
        noise = jax.random.normal(noise_key, x.shape, x.dtype)
        return i + 1, key, network(weights, x) + 0.1 * noise

    start = (jnp.zeros((), int), key, jnp.zeros(1, float))
    _, key, x = jax.lax.while_loop(lambda state: state[0] < n, step, start)
    return key, x


def infer_chains(weights: Weights, keys: jax.Array, n: int | jax.Array) -> tuple[jax.Array, jax.Array]:
    """One chain for each key of keys uint32[chains, 2]."""
    return jax.vmap(infer, in_axes=(None, 0, None))(weights, keys, n)


def make_weights(hidden: int = 12) -> Weights:
    """Fixed random weights: w1 f64[1, hidden], b1 f64[hidden], w2 f64[hidden, 1], b2 f64[1]."""
    k1, k2, k3 = jax.random.split(jax.random.PRNGKey(1), 3)
    w1 = jax.random.normal(k1, (1, hidden), jnp.float64) - 1.0
    b1 = jax.random.normal(k2, (hidden,), jnp.float64)
    w2 = jax.random.normal(k3, (hidden, 1), jnp.float64) - 1.0
    return w1, b1, w2, jnp.full((1,), -1.0, jnp.float64)


def make() -> tuple[Any, tuple[Any, ...]]:
    """One chain, 8,000 steps, the number of steps traced."""
    return infer, (make_weights(), jax.random.PRNGKey(0), STEPS)


def make_small() -> tuple[Any, tuple[Any, ...]]:
    """One chain, 12 steps."""
    return infer, (make_weights(), jax.random.PRNGKey(0), 12)


def make_chains(chains: int, n: int = STEPS) -> tuple[Any, tuple[Any, ...]]:
    """`chains` chains of n steps, batched by vmap over their keys."""
    return infer_chains, (make_weights(), jax.random.split(jax.random.PRNGKey(0), chains), n)


def main() -> None:
    """Run the sampler through onelaunch and compare it with JAX on the CPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="12 steps instead of 8,000")
    parser.add_argument("--chains", type=int, default=1, help="number of chains (default 1)")
    options = parser.parse_args()
    fn, args = make_chains(options.chains, 12 if options.small else STEPS)
    fused = onelaunch.fuse(fn)
    jax.block_until_ready(fused(*args))
    start = time.perf_counter()
    keys, x = jax.block_until_ready(fused(*args))
    elapsed = time.perf_counter() - start
    with jax.default_device(jax.devices("cpu")[0]):
        keys_xla, x_xla = jax.jit(fn)(*jax.device_put(args, jax.devices("cpu")[0]))
    print(f"{options.chains} chain(s) of {args[2]} steps on {jax.devices()[0].platform}: {elapsed * 1e3:.3f} ms")
    print(f"keys equal to JAX's: {bool((jax.device_get(keys) == jax.device_get(keys_xla)).all())}")
    print(f"largest difference from JAX: {abs(jax.device_get(x) - jax.device_get(x_xla)).max():.1e}")


if __name__ == "__main__":
    main()
