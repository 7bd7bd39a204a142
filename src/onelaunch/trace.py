"""trace: a JAX function and abstract arguments -> Graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jax.extend import core

from onelaunch import ops
from onelaunch.ir.builder import Builder
from onelaunch.ir.nodes import Block, Graph, Value
from onelaunch.ops import table
from onelaunch.ops.checks import Check, CheckingBuilder, calls_back
from onelaunch.ops.control import argument_names
from onelaunch.ops.words import identifier, key_shape


def to_graph(closed: core.ClosedJaxpr, name: str = "kernel", args: Sequence[int] | None = None) -> Graph:
    """A closed jaxpr as a Graph; raises FusionError, with the user's line, for what has no rule.

    ``args``: the arguments that become parameters, by number; all by default.
    """
    return _graph(Builder(), closed, name, args)


def to_checked_graph(
    closed: core.ClosedJaxpr, name: str = "kernel", args: Sequence[int] | None = None
) -> tuple[Graph, tuple[Check, ...]]:
    """A Graph and the run-time checks in it; if there are any, its last two results say which failed first."""
    if not calls_back(closed.jaxpr):
        return to_graph(closed, name, args), ()
    b = CheckingBuilder()
    graph = _graph(b, closed, name, args)
    if not b.checks:
        return graph, ()
    block = Block(tuple(b.nodes), (*graph.block.results, *b.state))
    return replace(graph, block=block), tuple(b.checks)


def readable(closed: core.ClosedJaxpr) -> tuple[int, ...]:
    """The arguments that a kernel takes: not those of a type that it has not (float0) and that nothing reads."""
    read = {v for eqn in closed.jaxpr.eqns for v in eqn.invars if not isinstance(v, core.Literal)}
    read.update(v for v in closed.jaxpr.outvars if not isinstance(v, core.Literal))
    return tuple(at for at, v in enumerate(closed.jaxpr.invars) if v in read or table.why_not(v.aval) is None)


def _graph(b: Builder, closed: core.ClosedJaxpr, name: str, args: Sequence[int] | None) -> Graph:
    assert ops.RULES is table.RULES
    given: list[Value | None] = []
    for at, (var, hint) in enumerate(zip(closed.jaxpr.invars, argument_names(closed), strict=True)):
        if args is not None and at not in args:
            given.append(None)
            continue
        table.refuse_type(b, var.aval, f"argument {hint or at}")
        given.append(b.value(*key_shape(var.aval), hint))
    results = table.inline_closed(b, closed, given)
    params = tuple(x for x in given if x is not None)
    return Graph(identifier(name), params, tuple(b.consts), Block(tuple(b.nodes), tuple(results)))
