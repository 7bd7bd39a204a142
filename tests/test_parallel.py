"""A batch axis stays parallel: no rule mixes the elements of an axis that vmap added (or that indices count along)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from onelaunch.ir import nodes as n
from onelaunch.ir.show import detail
from onelaunch.trace import to_graph

BATCH = 11
R = jax.random
X, M, I = jnp.ones((BATCH, 6)), jnp.ones((BATCH, 5, 5)), jnp.zeros((BATCH,), jnp.int32)  # noqa: E741


def keys() -> jax.Array:
    return R.split(R.key(0), BATCH)


def count_batch(shape: tuple[int, ...]) -> int:
    return shape.count(BATCH)


def crosses(node: n.Node) -> bool:
    """Whether a node moves or combines elements along a dim of size BATCH."""
    count = count_batch
    match node:
        case n.Move(op=n.Reshape() | n.Slice() | n.Pad(), args=args, out=out):
            return count(args[0].shape) != count(out.shape)
        case n.Move(op=n.Reverse(axes=axes), args=args):
            return any(args[0].shape[d] == BATCH for d in axes)
        case n.Move(op=n.Concatenate(), args=args, out=out):
            return any(count(a.shape) != count(out.shape) for a in args)
        case n.Gather(operand=operand, window=window) | n.Update(operand=operand, window=window):
            return any(s is not None and operand.shape[d] == BATCH for d, s in enumerate(window.start))
        case n.Reduce(arg=arg, axes=axes):
            return any(arg.shape[d] == BATCH for d in axes)
        case n.Scan(arg=arg, axis=axis):
            return arg.shape[axis] == BATCH
        case n.Dot(lhs=lhs, contract=contract):
            return any(lhs.shape[d] == BATCH for d in contract[0])
    return False


def pair_up(a: Any, b: Any) -> Any:
    return a[0] + b[0], a[1] * b[1]


BY_KEY: dict[str, Callable[..., Any]] = {
    "split": lambda k: R.key_data(R.split(k, 3)),
    "split_matrix": lambda k: R.key_data(R.split(k, (3, 2))),
    "bits_8": lambda k: R.bits(k, (5,), jnp.uint8),
    "normal": lambda k: R.normal(k, (5, 3)),
    "randint": lambda k: R.randint(k, (5,), 0, 9),
    "fold_in": lambda k: R.key_data(R.fold_in(k, 3)),
}
BY_KEY_AND_ROW: dict[str, Callable[..., Any]] = {
    "choice": lambda k, x: R.choice(k, x, (3,)),
    "choice_weighted": lambda k, x: R.choice(k, x, (3,), p=x / 6),
    "permutation": lambda k, x: R.permutation(k, x),
    "categorical": lambda k, x: R.categorical(k, x),
    "gamma": lambda k, x: R.gamma(k, x),
    "poisson": lambda k, x: R.poisson(k, x),
    "key_choice": lambda k, x: R.key_data(jnp.where(x[0] > 0, k, R.fold_in(k, 1))),
}
BY_ROW: dict[str, Callable[..., Any]] = {
    "index": lambda x, i: x[i],
    "dynamic_slice": lambda x, i: lax.dynamic_slice(x, (i,), (2,)),
    "dynamic_update": lambda x, i: lax.dynamic_update_slice(x, x[:2], (i,)),
    "set": lambda x, i: x.at[i].set(2.0),
    "add": lambda x, i: x.at[i].add(2.0),
    "roll": lambda x, i: jnp.roll(x, i),
    "switch": lambda x, i: lax.switch(i, [lambda x: x, lambda x: x * 2], x),
    "sort": lambda x, i: (jnp.sort(x), jnp.argsort(x)),
    "top_k": lambda x, i: lax.top_k(x, 2),
    "searchsorted": lambda x, i: jnp.searchsorted(x, x),
    "interp": lambda x, i: jnp.interp(x[0], x, x),
    "tile": lambda x, i: (jnp.tile(x, 2), jnp.repeat(x, 2)),
    "convolve": lambda x, i: jnp.convolve(x, jnp.ones(3)),
    "window": lambda x, i: lax.reduce_window(x, -jnp.inf, lax.max, (2,), (2,), "VALID"),
    "reduce": lambda x, i: lax.reduce((x, x), (0.0, 1.0), pair_up, (0,)),
    "scan": lambda x, i: lax.scan(lambda c, x: (c + x, c * x), x[0], x),
    "fori": lambda x, i: lax.fori_loop(0, i, lambda j, c: c.at[j].multiply(2.0), x),
    "associative_scan": lambda x, i: lax.associative_scan(jnp.add, x),
}
BY_MATRIX: dict[str, Callable[..., Any]] = {
    "cholesky": jnp.linalg.cholesky,
    "solve": lambda m: jnp.linalg.solve(m, m[0]),
    "qr": jnp.linalg.qr,
    "eigh": jnp.linalg.eigh,
    "lu": lax.linalg.lu,
}
WHOLE: dict[str, tuple[Callable[..., Any], tuple[jax.Array, ...]]] = {
    "iota_gather": (lambda x, i: x[jnp.arange(BATCH), i], (X, I)),
    "iota_gather_two": (lambda m, i: m[jnp.arange(BATCH), i, i], (M, I)),
    "iota_scatter": (lambda x, i: x.at[jnp.arange(BATCH), i].set(1.0), (X, I)),
    "iota_scatter_rows": (lambda m, i: m.at[jnp.arange(BATCH), i].add(1.0), (M, I)),
    "take_along_axis": (lambda x, i: jnp.take_along_axis(x, i[:, None], 1), (X, I)),
    "last_axis": (jax.vmap(lambda x, i: x.at[i].set(2.0), (1, 0), 1), (X.T, I)),
}


def programs() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    return {
        **{name: (jax.vmap(fn), (keys(),)) for name, fn in BY_KEY.items()},
        **{name: (jax.vmap(fn), (keys(), X)) for name, fn in BY_KEY_AND_ROW.items()},
        **{name: (jax.vmap(fn), (X, I)) for name, fn in BY_ROW.items()},
        **{name: (jax.vmap(fn), (M,)) for name, fn in BY_MATRIX.items()},
        **WHOLE,
    }


NAMES = [*BY_KEY, *BY_KEY_AND_ROW, *BY_ROW, *BY_MATRIX, *WHOLE]


@pytest.mark.parametrize("name", NAMES)
def test_batch_axis_is_never_crossed(name: str) -> None:
    fn, args = programs()[name]
    graph = to_graph(jax.make_jaxpr(fn)(*args))
    assert [detail(node) for node in n.walk(graph.block) if crosses(node)] == []


def test_an_index_that_is_no_counter_is_a_start() -> None:
    graph = to_graph(jax.make_jaxpr(lambda x, i: x[i, jnp.arange(BATCH)[::-1] % 6])(X, I))
    (gather,) = (node for node in n.walk(graph.block) if isinstance(node, n.Gather))
    assert gather.window.start == (0, 1)
