"""trace: a JAX function and abstract arguments -> Graph."""

from __future__ import annotations

import keyword
import re

from jax.extend import core

from onelaunch import ops
from onelaunch.ir.builder import Builder
from onelaunch.ir.nodes import Block, Graph
from onelaunch.ops import table
from onelaunch.ops.words import key_shape


def identifier(name: str) -> str:
    """A function's name as a name for its kernel: ``<lambda>`` becomes ``lambda_``."""
    word = re.sub(r"\W+", "_", name).strip("_") or "kernel"
    word = f"_{word}" if word[0].isdigit() else word
    return f"{word}_" if keyword.iskeyword(word) else word


def to_graph(closed: core.ClosedJaxpr, name: str = "kernel") -> Graph:
    """A closed jaxpr as a Graph; raises FusionError, with the user's line, for what has no rule."""
    assert ops.RULES is table.RULES
    b = Builder()
    params = []
    for var in closed.jaxpr.invars:
        shape, dtype = key_shape(var.aval)
        params.append(b.value(shape, dtype))
    results = table.inline_closed(b, closed, params)
    return Graph(identifier(name), tuple(params), tuple(b.consts), Block(tuple(b.nodes), tuple(results)))
