"""A worker of bench/gpus.py: ensembles and a gradient split over a mesh, one launch a device, against one device."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import onelaunch
from measure import blocked_ms, queued_us
from process import emit
from suite import example

BATCH = PartitionSpec("ensemble")
WHOLE = PartitionSpec()


@dataclass(frozen=True)
class Ensemble:
    """fn(*args) with the ensemble along the first axis of the arguments that ``split`` marks, and of every result."""

    label: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    split: tuple[bool, ...]

    @property
    def specs(self) -> tuple[PartitionSpec, ...]:
        return tuple(BATCH if split else WHOLE for split in self.split)


def sampler(small: bool) -> Ensemble:
    """Chains of the sampler of jax-ml/jax issue 7024, each with its key."""
    chains, steps = (16, 3) if small else (1_048_576, 8_000)
    fn, (weights, keys, n) = example("sampler").make_chains(chains, steps)
    return Ensemble(f"sampler, {chains:,} chains", lambda w, k: fn(w, k, n), (weights, keys), (False, True))


def lorenz(small: bool) -> Ensemble:
    """Adaptive solves of the Lorenz system, a rho each."""
    size = 16 if small else 4_194_304
    fn, args = example("lorenz").make(size)
    loose = partial(example("lorenz").ensemble, rtol=1e-2, atol=1e-3)
    return Ensemble(f"Lorenz, {size:,} trajectories", loose if small else fn, args, (True,))


def train(key: jax.Array, x: jax.Array, y: jax.Array, steps: int, hidden: int = 64) -> Any:
    """The weights of one network after ``steps`` of SGD on x f32[batch, 32], y f32[batch, 16], started from its key."""
    k1, k2 = jax.random.split(key)
    start = (
        jax.random.normal(k1, (x.shape[1], hidden)) / x.shape[1] ** 0.5,
        jax.random.normal(k2, (hidden, y.shape[1])) / hidden**0.5,
    )

    def loss(weights: Any) -> jax.Array:
        w1, w2 = weights
        return jnp.mean((jnp.tanh(x @ w1) @ w2 - y) ** 2)

    def step(_: Any, weights: Any) -> Any:
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))

    return jax.lax.fori_loop(0, steps, step, start)


def population(small: bool) -> Ensemble:
    """Whole training runs of small networks, one a key, on the same data."""
    count, steps, batch = (8, 2, 4) if small else (1_056, 1_000, 64)
    kx, ky, keys = jax.random.split(jax.random.key(0), 3)
    x, y = jax.random.normal(kx, (batch, 32)), jax.random.normal(ky, (batch, 16))
    fn = jax.vmap(partial(train, steps=steps, hidden=8 if small else 64), in_axes=(0, None, None))
    words = jax.random.key_data(jax.random.split(keys, count))

    def run(words: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        return fn(jax.random.wrap_key_data(words), x, y)

    return Ensemble(f"population, {count:,} networks", run, (words, x, y), (True, False, False))


def spread(ensemble: Ensemble, width: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The fused program under shard_map over ``width`` devices, and its arguments laid out for it."""
    mesh = jax.make_mesh((width,), ("ensemble",), devices=jax.devices()[:width])
    fused = onelaunch.fuse(ensemble.fn, fallback="error")
    fn = jax.jit(jax.shard_map(fused, mesh=mesh, in_specs=ensemble.specs, out_specs=BATCH, check_vma=False))
    args = tuple(jax.device_put(a, NamedSharding(mesh, s)) for a, s in zip(ensemble.args, ensemble.specs, strict=True))
    return fn, args


def scale(ensemble: Ensemble, widths: list[int]) -> None:
    """Times at each width (efficiency of queued calls), and whether every element equals one device's."""
    alone: Any = None
    single = 0.0
    for width in widths:
        fn, args = spread(ensemble, width)
        result = [np.asarray(part) for part in jax.tree.leaves(fn(*args))]
        timed = times(partial(fn, *args))
        if alone is None:
            alone, single = result, timed["queued_ms"] * width
        row = {"case": ensemble.label, "gpus": width, **timed, "efficiency": single / (width * timed["queued_ms"])}
        emit({**row, "equal": all(np.array_equal(a, b) for a, b in zip(result, alone, strict=True))})


def times(call: Callable[[], Any]) -> dict[str, float | int]:
    """Milliseconds of calls that are waited for one by one, and of calls that are queued (a fifth of a second)."""
    blocked = blocked_ms(call)
    calls = int(max(2, min(30, 200 / blocked["median_ms"])))
    return {**blocked, "queued_ms": queued_us(call, calls, rounds=3) / 1e3}


def summed_gradient(widths: list[int], small: bool) -> None:
    """The gradient of weights that a whole ensemble shares: summed in each device's launch, then by psum."""
    size, steps = (16, 4) if small else (65_536, 200)
    keys = jax.random.split(jax.random.key(1), 3)
    w = jax.random.normal(keys[0], (8, 8)) / 3
    x0 = jax.random.normal(keys[1], (size, 8))

    def cost(w: jax.Array, x0: jax.Array) -> jax.Array:
        def one(x: jax.Array) -> jax.Array:
            return jax.lax.fori_loop(0, steps, lambda _, x: x + 0.01 * jnp.tanh(x @ w), x).sum()

        return jax.vmap(one)(x0).sum() / size

    fused = onelaunch.fuse(jax.grad(cost), fallback="error")
    alone: Any = None
    single = 0.0
    for width in widths:
        mesh = jax.make_mesh((width,), ("ensemble",), devices=jax.devices()[:width])

        def total(w: jax.Array, x0: jax.Array) -> jax.Array:
            return jax.lax.psum(fused(w, x0), "ensemble")

        fn = jax.jit(jax.shard_map(total, mesh=mesh, in_specs=(WHOLE, BATCH), out_specs=WHOLE, check_vma=False))
        args = (jax.device_put(w, NamedSharding(mesh, WHOLE)), jax.device_put(x0, NamedSharding(mesh, BATCH)))
        result = np.asarray(fn(*args))
        timed = times(partial(fn, *args))
        if alone is None:
            alone, single = result, timed["queued_ms"] * width
        row = {"case": f"gradient of shared weights, {size:,} members", "gpus": width, **timed}
        error = float(abs(result - alone).max() / abs(alone).max())
        emit({**row, "efficiency": single / (width * timed["queued_ms"]), "relative_difference": error})


def main() -> None:
    """One section at every width."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--section", choices=("ensembles", "gradient"), required=True)
    parser.add_argument("--widths", type=int, nargs="+", required=True)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    if options.section == "gradient":
        summed_gradient(options.widths, options.small)
        return
    for make in (population, lorenz, sampler):  # the last two set x64 when they are imported
        scale(make(options.small), options.widths)


if __name__ == "__main__":
    main()
