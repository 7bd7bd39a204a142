"""trace: a JAX function and abstract arguments -> Graph."""

from __future__ import annotations

from jax.extend import core

from onelaunch import ops
from onelaunch.ir.builder import Builder
from onelaunch.ir.nodes import Block, Graph
from onelaunch.ops import table


def to_graph(closed: core.ClosedJaxpr, name: str = "kernel") -> Graph:
    """A closed jaxpr as a Graph; raises FusionError, with the user's line, for what has no rule."""
    assert ops.RULES is table.RULES
    b = Builder()
    params = []
    for var in closed.jaxpr.invars:
        shape, dtype = table.key_shape(var.aval)
        params.append(b.value(shape, dtype))
    results = table.inline_closed(b, closed, params)
    return Graph(name, tuple(params), tuple(b.consts), Block(tuple(b.nodes), tuple(results)))
