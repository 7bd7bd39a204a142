"""Sums over a batch that a loop only adds up: made after it, of the same value, and members spread over programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import walk
from compare import agree
from onelaunch.ir import nodes as n
from onelaunch.ir.interpret import run as meaning
from onelaunch.pipeline import compile_graph
from onelaunch.rewrite import rewrite
from onelaunch.trace import to_graph
from rows.row import Row, normal

Fn = Callable[..., Any]
XS = normal(70, 3)


def turns(step: Callable[[Any, Any, Any], Any], start: Any = 0.0, length: int = 4) -> Fn:
    """A loop over an ensemble that carries a sum beside the members."""

    def fn(xs: jax.Array) -> Any:
        def body(i: Any, carry: Any) -> Any:
            total, ys = carry
            ys = jnp.sin(ys * 1.5)
            return step(total, ys, i), ys

        return lax.fori_loop(0, length, body, (jnp.zeros_like(step(start, xs, 0)) + start, xs))

    return fn


MOVED: dict[str, Fn] = {
    "scalar": turns(lambda c, ys, i: c + ys[:, 0].sum()),
    "from elsewhere": turns(lambda c, ys, i: c + ys[:, 0].sum(), 3.0),
    "on the left": turns(lambda c, ys, i: ys[:, 1].sum() + c),
    "of rows": turns(lambda c, ys, i: c + ys.sum(0)),
    "of everything": turns(lambda c, ys, i: c + ys.sum()),
    "several": turns(lambda c, ys, i: ys[:, 1].sum() + (c + ys[:, 0].sum()) + ys.sum()),
    "and something else": turns(lambda c, ys, i: c + ys[:, 0].sum() + i * 0.5),
    "a product": turns(lambda c, ys, i: c + ys.T @ ys),
    "a product on the right": turns(lambda c, ys, i: c + ys[:, 0] @ ys),
    "integers": turns(lambda c, ys, i: c + (ys[:, 0] > 0).sum(), 0),
    "nested": lambda xs: lax.fori_loop(
        0, 2, lambda i, c: lax.fori_loop(0, 3, lambda j, c: c + jnp.cos(xs * (j + 1)).sum(0), c), jnp.zeros(3)
    ),
}
LEFT: dict[str, Fn] = {
    "used in the loop": turns(lambda c, ys, i: c + (ys[:, 0] * c).sum()),
    "scaled": turns(lambda c, ys, i: 0.5 * c + ys[:, 0].sum()),
    "a maximum": turns(lambda c, ys, i: jnp.maximum(c, ys[:, 0].max())),
    "a partial sum is used": turns(lambda c, ys, i: (lambda t: t + t * t)(c + ys[:, 0].sum())),
    "of half precision": turns(lambda c, ys, i: c + ys[:, 0].astype(jnp.bfloat16).sum(), jnp.bfloat16(0)),
}


def crossings(graph: n.Graph) -> int:
    """Sums and products inside loops."""
    loops = [node for node in n.walk(graph.block) if isinstance(node, n.Loop)]
    return sum(isinstance(node, n.Reduce | n.Dot) for loop in loops for node in n.walk(loop.body))


def graphs(fn: Fn) -> tuple[n.Graph, n.Graph]:
    traced = to_graph(jax.make_jaxpr(fn)(XS))
    return traced, rewrite(traced)


@pytest.mark.parametrize("name", [*MOVED, *LEFT])
def test_same_value(name: str) -> None:
    fn = {**MOVED, **LEFT}[name]
    want = [np.asarray(y) for y in jax.tree.leaves(jax.jit(fn)(XS))]
    for graph in graphs(fn):
        for x, y in zip(meaning(graph, [XS]), want, strict=True):
            agree(x, y, 200, 1.0, name)


@pytest.mark.parametrize("name", MOVED)
def test_moved_out(name: str) -> None:
    traced, rewritten = graphs(MOVED[name])
    inner = 1 if name == "of everything" else 0  # a member's own elements are summed in the loop
    assert crossings(traced) > 0
    assert crossings(rewritten) <= inner if name != "several" else crossings(rewritten) <= 1


@pytest.mark.parametrize("name", LEFT)
def test_left_alone(name: str) -> None:
    traced, rewritten = graphs(LEFT[name])
    assert crossings(rewritten) == crossings(traced)


def test_members_spread_over_programs_and_the_last_one_sums() -> None:
    row = walk.start(Row("ensemble", MOVED["several"], (XS,), ulps=200, floor=1))
    plan, kernel = compile_graph(row.graph)
    assert plan.grid > 1 and kernel.counter
    for order in ("forward", "reverse", "shuffled"):
        row.compare(walk.run(row.graph, kernel, row.args, order), order)


def test_a_wide_sum_stays() -> None:
    """Carrying a whole matrix for each member would cost more than it saves."""
    wide = normal(80, 100)
    fn = turns(lambda c, ys, i: c + ys.T @ ys)
    graph = rewrite(to_graph(jax.make_jaxpr(fn)(wide)))
    assert crossings(graph) == 1
