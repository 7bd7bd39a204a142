"""trace: a JAX function and abstract arguments -> Graph."""

from __future__ import annotations

from dataclasses import replace

from jax.extend import core

from onelaunch import ops
from onelaunch.ir.builder import Builder
from onelaunch.ir.nodes import Block, Graph
from onelaunch.ops import table
from onelaunch.ops.checks import Check, CheckingBuilder, calls_back
from onelaunch.ops.control import argument_names
from onelaunch.ops.words import identifier, key_shape


def to_graph(closed: core.ClosedJaxpr, name: str = "kernel") -> Graph:
    """A closed jaxpr as a Graph; raises FusionError, with the user's line, for what has no rule."""
    return _graph(Builder(), closed, name)


def to_checked_graph(closed: core.ClosedJaxpr, name: str = "kernel") -> tuple[Graph, tuple[Check, ...]]:
    """A Graph and the run-time checks in it; if there are any, its last two results say which failed first."""
    if not calls_back(closed.jaxpr):
        return to_graph(closed, name), ()
    b = CheckingBuilder()
    graph = _graph(b, closed, name)
    if not b.checks:
        return graph, ()
    block = Block(tuple(b.nodes), (*graph.block.results, *b.state))
    return replace(graph, block=block), tuple(b.checks)


def _graph(b: Builder, closed: core.ClosedJaxpr, name: str) -> Graph:
    assert ops.RULES is table.RULES
    params = []
    for var, hint in zip(closed.jaxpr.invars, argument_names(closed), strict=True):
        shape, dtype = key_shape(var.aval)
        params.append(b.value(shape, dtype, hint))
    results = table.inline_closed(b, closed, params)
    return Graph(identifier(name), tuple(params), tuple(b.consts), Block(tuple(b.nodes), tuple(results)))
