"""A worker of bench/gpus.py: cross-entropy over a vocabulary split along a mesh axis in JAX, against one device."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from measure import blocked_ms
from onelaunch import nn
from process import emit

SPLIT = PartitionSpec(None, "vocabulary")
WHOLE = PartitionSpec()
# True classes of the vocabularies: one that every width divides, and an odd one, padded to a multiple of 1,024.
CLASSES = (128_256, 151_655)


def padded(classes: int) -> int:
    """Columns that hold ``classes``: a multiple of 1,024 where 8 does not divide them."""
    return classes if classes % 8 == 0 else -(-classes // 1024) * 1024


def data(classes: int, rows: int, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """Logits [rows, columns], rubbish in the padding, and labels int32[rows], one in seven ignored."""
    kx, kt = jax.random.split(jax.random.key(classes))
    logits = 3 * jax.random.normal(kx, (rows, padded(classes)), jnp.float32).astype(dtype)
    labels = jax.random.randint(kt, (rows,), 0, classes)
    return logits, jnp.where(jnp.arange(rows) % 7 == 0, -100, labels)


def measure(call: Callable[..., Any], args: tuple[Any, ...]) -> tuple[float, jax.Array, dict[str, float | int]]:
    """Loss, gradient (on the first device) and times of one way to compute them."""
    loss, gradient = call(*args)
    return float(loss), jax.device_put(gradient, jax.devices()[0]), blocked_ms(partial(call, *args))


@jax.jit
def difference(got: jax.Array, want: jax.Array) -> jax.Array:
    """The largest difference, as a part of the largest value."""
    got, want = got.astype(jnp.float32), want.astype(jnp.float32)
    return abs(got - want).max() / abs(want).max()


def compare(classes: int, widths: list[int], small: bool) -> None:
    """Loss and gradient at each width against the unsplit kernel on one device."""
    rows, dtype = (14, jnp.float32) if small else (8_192, jnp.bfloat16)
    logits, labels = data(classes, rows, dtype)
    whole = jax.jit(jax.value_and_grad(partial(nn.cross_entropy, vocab_size=classes)))
    want, gradient, timed = measure(whole, (logits, labels))
    head = {"rows": rows, "classes": classes, "columns": logits.shape[1], "dtype": str(logits.dtype)}
    emit({**head, "gpus": 1, "split": False, **timed})
    for width in widths:
        mesh = jax.make_mesh((width,), ("vocabulary",), devices=jax.devices()[:width])
        split = partial(nn.cross_entropy, axis_name="vocabulary", vocab_size=classes)
        fn = jax.shard_map(jax.value_and_grad(split), mesh=mesh, in_specs=(SPLIT, WHOLE), out_specs=(WHOLE, SPLIT))
        args = (jax.device_put(logits, NamedSharding(mesh, SPLIT)), jax.device_put(labels, NamedSharding(mesh, WHOLE)))
        loss, got, timed = measure(jax.jit(fn), args)
        errors = {"loss_error": abs(loss - want) / abs(want), "gradient_error": float(difference(got, gradient))}
        emit({**head, "gpus": width, "split": True, **timed, **errors})


def main() -> None:
    """Every vocabulary at every width of two or more."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--section", choices=("vocabulary_jax",))
    parser.add_argument("--widths", type=int, nargs="+", required=True)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    for classes in (96, 101) if options.small else CLASSES:
        compare(classes, [width for width in options.widths if width > 1], options.small)


if __name__ == "__main__":
    main()
