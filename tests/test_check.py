"""verify finds Graphs that break the rules; show prints what a reader needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from onelaunch.ir import nodes as n
from onelaunch.ir.builder import Builder, leading_window
from onelaunch.ir.check import MalformedGraph, verify
from onelaunch.ir.interpret import run
from onelaunch.ir.nodes import Block, Graph, Value
from onelaunch.ir.show import show
from onelaunch.ir.types import Type
from onelaunch.trace import to_graph

F32, I32 = np.dtype("float32"), np.dtype("int32")


def value(*shape: int, dtype: np.dtype = F32) -> Value:
    return Value(Type(shape, dtype))


def graph(params: list[Value], nodes: list[n.Node], *results: Value) -> Graph:
    return Graph("g", tuple(params), (), Block(tuple(nodes), results))


def used_too_early() -> Graph:
    x, y, z = value(3), value(3), value(3)
    return graph([x], [n.Map("neg", (y,), (z,)), n.Map("neg", (x,), (y,))], z)


def defined_twice() -> Graph:
    x, y = value(3), value(3)
    return graph([x], [n.Map("neg", (x,), (y,)), n.Map("exp", (x,), (y,))], y)


def wrong_shape() -> Graph:
    x, y = value(3), value(4)
    return graph([x], [n.Map("neg", (x,), (y,))], y)


def unknown_function() -> Graph:
    x, y = value(3), value(3)
    return graph([x], [n.Map("no_such", (x,), (y,))], y)


def slice_outside() -> Graph:
    x, y = value(3), value(2)
    return graph([x], [n.Move(n.Slice((2,), (1,)), (x,), y)], y)


def window_too_large() -> Graph:
    x, i, y = value(3, 4), value(dtype=I32), value(4)
    window = replace(leading_window((3, 4)), sizes=(1, 5))
    return graph([x, i], [n.Gather(x, (i,), window, None, y)], y)


def fill_missing() -> Graph:
    x, i, y = value(3, 4), value(dtype=I32), value(4)
    window = replace(leading_window((3, 4)), mode="fill")
    return graph([x, i], [n.Gather(x, (i,), window, None, y)], y)


def loop_changes_type() -> Graph:
    x, c, out, i = value(3), value(3), value(3), value(dtype=I32)
    bad = value(2)
    body = Block((n.Move(n.Slice((0,), (1,)), (c,), bad),), (bad,))
    return graph([x], [n.Loop((c,), (x,), body, (out,), trip=2, index=i)], out)


def escapes_its_block() -> Graph:
    x, c, out, i, inner = value(3), value(3), value(3), value(dtype=I32), value(3)
    body = Block((n.Map("neg", (c,), (inner,)),), (inner,))
    return graph([x], [n.Loop((c,), (x,), body, (out,), trip=2, index=i)], inner)


@pytest.mark.parametrize(
    "make",
    [
        *(used_too_early, defined_twice, wrong_shape, unknown_function, slice_outside),
        *(window_too_large, fill_missing, loop_changes_type, escapes_its_block),
    ],
    ids=lambda make: make.__name__,
)
def test_verify_refuses(make: Callable[[], Graph]) -> None:
    with pytest.raises(MalformedGraph):
        verify(make())


def test_builder_makes_graphs_that_verify_and_run() -> None:
    b = Builder()
    x = b.value((3,), F32)

    def body(i: Value, total: Value) -> list[Value]:
        return [b.map("add", total, b.cast(b.take(x, i), F32))]

    (total,) = b.loop([b.const(0, F32)], body, trip=3)
    made = Graph("total", (x,), (), Block(tuple(b.nodes), (total,)))
    verify(made)
    assert run(made, [np.asarray([1, 2, 3], np.float32)])[0] == 6


def test_run_refuses_other_types() -> None:
    x = value(3)
    with pytest.raises(TypeError, match="parameter is float32"):
        run(graph([x], [], x), [np.zeros(3)])


def test_show_prints_every_kind() -> None:
    def program(x: jax.Array, i: jax.Array) -> tuple[jax.Array, ...]:
        y = lax.fori_loop(0, i, lambda _, c: jnp.cumsum(c) @ jnp.eye(3), x)
        z = lax.switch(i, [lambda: y, lambda: y.at[i].set(1.0)])
        return z[::-1][:2], lax.scan(lambda c, x: (c + x, c), 0.0, x)[1], jnp.argmax(x)

    text = show(to_graph(jax.make_jaxpr(program)(jnp.ones(3), jnp.int32(1)), "program"))
    assert text.startswith("program(x: float32[3], i: int32[])")
    for word in (
        "while carrying",
        "for ",
        "case 1:",
        "update_set[",
        "scan_add[0]",
        "dot(",
        "reverse(",
        "reduce_argmax[0]",
    ):
        assert word in text, word
    assert text.splitlines()[-1].startswith("  return ")
