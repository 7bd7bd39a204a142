"""trace: a JAX function and abstract arguments -> Graph."""

from __future__ import annotations

from jax.extend import core

from onelaunch import ops
from onelaunch.ir.builder import Builder
from onelaunch.ir.nodes import Block, Graph
from onelaunch.ops import table
from onelaunch.ops.control import argument_names
from onelaunch.ops.words import identifier, key_shape


def to_graph(closed: core.ClosedJaxpr, name: str = "kernel") -> Graph:
    """A closed jaxpr as a Graph; raises FusionError, with the user's line, for what has no rule."""
    assert ops.RULES is table.RULES
    b = Builder()
    params = []
    for var, hint in zip(closed.jaxpr.invars, argument_names(closed), strict=True):
        shape, dtype = key_shape(var.aval)
        params.append(b.value(shape, dtype, hint))
    results = table.inline_closed(b, closed, params)
    return Graph(identifier(name), tuple(params), tuple(b.consts), Block(tuple(b.nodes), tuple(results)))
