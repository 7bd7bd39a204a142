"""rewrite: Graph -> Graph, several small passes that keep the meaning."""

from __future__ import annotations

from onelaunch.ir.check import verify
from onelaunch.ir.nodes import Graph
from onelaunch.rewrite.freeze import freeze
from onelaunch.rewrite.hoist import hoist
from onelaunch.rewrite.induction import induction
from onelaunch.rewrite.masked import masked
from onelaunch.rewrite.order import order
from onelaunch.rewrite.postpone import postpone
from onelaunch.rewrite.simplify import drop_dead, simplify

#: The passes in order; each is Graph -> Graph and keeps what ``ir.interpret`` says the Graph means.
PASSES = (simplify, induction, freeze, drop_dead, postpone, masked, simplify, drop_dead, hoist, order)


def rewrite(graph: Graph) -> Graph:
    """All passes in order, the result verified."""
    for step in PASSES:
        graph = step(graph)
    verify(graph)
    return graph
