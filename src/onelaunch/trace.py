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


def argument_names(jaxpr: core.Jaxpr) -> list[str]:
    """The user's names for the parameters (``weights[0]['a']`` is ``weights_0_a``); '' where unknown."""
    known = getattr(jaxpr.debug_info, "arg_names", None) or ()
    names = [identifier(name) if name else "" for name in known]
    return names if len(names) == len(jaxpr.invars) else [""] * len(jaxpr.invars)


def to_graph(closed: core.ClosedJaxpr, name: str = "kernel") -> Graph:
    """A closed jaxpr as a Graph; raises FusionError, with the user's line, for what has no rule."""
    assert ops.RULES is table.RULES
    b = Builder()
    params = []
    for var, hint in zip(closed.jaxpr.invars, argument_names(closed.jaxpr), strict=True):
        shape, dtype = key_shape(var.aval)
        params.append(b.value(shape, dtype, hint))
    results = table.inline_closed(b, closed, params)
    return Graph(identifier(name), tuple(params), tuple(b.consts), Block(tuple(b.nodes), tuple(results)))
