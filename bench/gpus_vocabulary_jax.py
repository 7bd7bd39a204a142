"""A worker of bench/gpus.py: losses over a vocabulary split along a mesh axis in JAX, against one device."""

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

AXIS = "vocabulary"
SPLIT = PartitionSpec(None, AXIS)
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


def measure(call: Callable[..., Any], args: tuple[Any, ...]) -> tuple[list[jax.Array], dict[str, float | int]]:
    """Loss and gradients (on the first device) and times of one way to compute them."""
    first = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return [jax.device_put(part, first) for part in jax.tree.leaves(call(*args))], blocked_ms(partial(call, *args))


@jax.jit
def difference(got: jax.Array, want: jax.Array) -> jax.Array:
    """The largest difference, as a part of the largest value."""
    got, want = got.astype(jnp.float32), want.astype(jnp.float32)
    return abs(got - want).max() / abs(want).max()


def logits_case(classes: int, widths: list[int], small: bool) -> None:
    """Loss and gradient of logits at each width against the unsplit kernel on one device."""
    rows, dtype = (14, jnp.float32) if small else (8_192, jnp.bfloat16)
    logits, labels = data(classes, rows, dtype)
    head = {"loss": "cross_entropy", "rows": rows, "classes": classes, "columns": logits.shape[1]}
    fn = partial(nn.cross_entropy, vocab_size=classes)
    compare(head, jax.value_and_grad(fn), jax.value_and_grad(partial(fn, axis_name=AXIS)), (logits, labels),
            (SPLIT, WHOLE), (WHOLE, SPLIT), widths)  # fmt: skip


def hidden_case(classes: int, widths: list[int], small: bool) -> None:
    """Loss and gradients of a language model's head at each width against the whole head on one device."""
    rows, size, dtype = (14, 8, jnp.float32) if small else (8_192, 4_096, jnp.bfloat16)
    kx, kw = jax.random.split(jax.random.key(7))
    hidden = jax.random.normal(kx, (rows, size), dtype)
    weight = 3 * jax.random.normal(kw, (padded(classes), size), dtype) / size**0.5
    labels = data(classes, rows, dtype)[1]
    head = {"loss": "linear_cross_entropy", "rows": rows, "classes": classes, "columns": padded(classes)}
    fn = partial(nn.linear_cross_entropy, vocab_size=classes)
    compare({**head, "hidden": size}, jax.value_and_grad(fn, (0, 1)),
            jax.value_and_grad(partial(fn, axis_name=AXIS), (0, 1)), (hidden, weight, labels),
            (WHOLE, PartitionSpec(AXIS), WHOLE), (WHOLE, (WHOLE, PartitionSpec(AXIS))), widths)  # fmt: skip


def compare(
    head: dict[str, Any], whole: Callable[..., Any], split: Callable[..., Any], args: tuple[Any, ...],
    specs: tuple[Any, ...], out_specs: tuple[Any, ...], widths: list[int],
) -> None:  # fmt: skip
    """Times of both ways, and how far the split one's results are from the other's."""
    want, timed = measure(jax.jit(whole), args)
    emit({**head, "gpus": 1, "split": False, **timed})
    for width in widths:
        mesh = jax.make_mesh((width,), (AXIS,), devices=jax.devices()[:width])
        fn = jax.jit(jax.shard_map(split, mesh=mesh, in_specs=specs, out_specs=out_specs))
        laid = tuple(jax.device_put(a, NamedSharding(mesh, spec)) for a, spec in zip(args, specs, strict=True))
        got, timed = measure(fn, laid)
        errors = [float(difference(a, b)) for a, b in zip(got, want, strict=True)]
        named = dict(zip(("loss_error", "gradient_error", "weight_error"), errors, strict=False))
        emit({**head, "gpus": width, "split": True, **timed, **named})


def main() -> None:
    """Every vocabulary at every width of two or more."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--section", choices=("vocabulary_jax",))
    parser.add_argument("--widths", type=int, nargs="+", required=True)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    for classes in (96, 101) if options.small else CLASSES:
        for case in (logits_case, hidden_case):
            case(classes, [width for width in options.widths if width > 1], options.small)


if __name__ == "__main__":
    main()
