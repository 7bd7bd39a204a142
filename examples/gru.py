"""A gated recurrent unit over a sequence by scan: hidden 64, batch 16, 256 steps. float32.

``make_training`` makes the loss of a prediction and its gradient instead, of a smaller unit.

python examples/gru.py [--small]
"""

from __future__ import annotations

import argparse
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import onelaunch


class Parameters(NamedTuple):
    """Weights of the reset, update and candidate gates, side by side: w_in[inputs, 3h], w_h[h, 3h], two biases [3h]."""

    w_in: jax.Array
    w_h: jax.Array
    b_in: jax.Array
    b_h: jax.Array


def cell(p: Parameters, h: jax.Array, x: jax.Array) -> jax.Array:
    """One step: h[batch, hidden], x[batch, inputs] -> the next h."""
    r_in, z_in, n_in = jnp.split(x @ p.w_in + p.b_in, 3, axis=-1)
    r_h, z_h, n_h = jnp.split(h @ p.w_h + p.b_h, 3, axis=-1)
    reset, update = jax.nn.sigmoid(r_in + r_h), jax.nn.sigmoid(z_in + z_h)
    candidate = jnp.tanh(n_in + reset * n_h)
    return (1.0 - update) * candidate + update * h


def gru(p: Parameters, h0: jax.Array, xs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """xs[time, batch, inputs] -> the last state and all states [time, batch, hidden]."""

    def step(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = cell(p, h, x)
        return h, h

    return jax.lax.scan(step, h0, xs)


def make(time_steps: int = 256, batch: int = 16, inputs: int = 32, hidden: int = 64) -> tuple[Any, tuple[Any, ...]]:
    """256 steps of a batch of 16 with 32 inputs and 64 hidden units."""
    k1, k2, k3 = jax.random.split(jax.random.PRNGKey(0), 3)
    parameters = Parameters(
        jax.random.normal(k1, (inputs, 3 * hidden)) / inputs**0.5,
        jax.random.normal(k2, (hidden, 3 * hidden)) / hidden**0.5,
        jnp.zeros(3 * hidden),
        jnp.zeros(3 * hidden),
    )
    return gru, (parameters, jnp.zeros((batch, hidden)), jax.random.normal(k3, (time_steps, batch, inputs)))


def make_small() -> tuple[Any, tuple[Any, ...]]:
    """Four steps of a batch of 3 with 2 inputs and 5 hidden units."""
    return make(4, 3, 2, 5)


def loss(p: Parameters, h0: jax.Array, xs: jax.Array) -> jax.Array:
    """The mean squared error of the first hidden units as predictions of the next inputs."""
    _, states = gru(p, h0, xs)
    return jnp.mean((states[:-1, :, : xs.shape[-1]] - xs[1:]) ** 2)


def gradient(p: Parameters, h0: jax.Array, xs: jax.Array) -> tuple[jax.Array, tuple[Parameters, jax.Array]]:
    """The loss, and its gradient by the weights and by the first state."""
    return jax.value_and_grad(loss, argnums=(0, 1))(p, h0, xs)


def make_training(
    time_steps: int = 64, batch: int = 8, inputs: int = 4, hidden: int = 16
) -> tuple[Any, tuple[Any, ...]]:
    """The gradient through 64 steps of a batch of 8 with 4 inputs and 16 hidden units."""
    return gradient, make(time_steps, batch, inputs, hidden)[1]


def make_training_small() -> tuple[Any, tuple[Any, ...]]:
    """The gradient through three steps of a batch of 2 with 2 inputs and 3 hidden units."""
    return make_training(3, 2, 2, 3)


def main() -> None:
    """Run the unit through onelaunch and print its distance from JAX."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a tiny unit over four steps")
    options = parser.parse_args()
    fn, args = make_small() if options.small else make()
    fused = onelaunch.fuse(fn)
    jax.block_until_ready(fused(*args))
    start = time.perf_counter()
    last, _ = jax.block_until_ready(fused(*args))
    elapsed = time.perf_counter() - start
    difference = float(abs(last - jax.jit(fn)(*args)[0]).max())
    print(f"{args[2].shape[0]} steps on {jax.devices()[0].platform}: {elapsed * 1e3:.3f} ms, from JAX {difference:.1e}")


if __name__ == "__main__":
    main()
