"""Rebuild nodes with other operands; outputs keep their identity, so only removed values need a replacement."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from onelaunch.ir import nodes as n
from onelaunch.ir.nodes import Block, Value

Get = Callable[[Value], Value]


def with_operands(node: n.Node, get: Get) -> n.Node:
    """The node with every direct operand ``v`` replaced by ``get(v)``; blocks are left alone."""
    all_of = lambda vs: tuple(get(v) for v in vs)  # noqa: E731
    match node:
        case n.Const() | n.Empty() | n.Iota():
            return node
        case n.Map() | n.Move() | n.Sort():
            return dataclasses.replace(node, args=all_of(node.args))
        case n.Reduce() | n.Scan():
            return dataclasses.replace(node, arg=get(node.arg))
        case n.Gather():
            fill = get(node.fill) if node.fill is not None else None
            return dataclasses.replace(node, operand=get(node.operand), starts=all_of(node.starts), fill=fill)
        case n.Update():
            return dataclasses.replace(
                node, operand=get(node.operand), starts=all_of(node.starts), updates=get(node.updates)
            )
        case n.Dot():
            return dataclasses.replace(node, lhs=get(node.lhs), rhs=get(node.rhs))
        case n.Loop():
            return dataclasses.replace(node, init=all_of(node.init))
        case n.Branch():
            return dataclasses.replace(node, index=get(node.index))


def with_blocks(node: n.Node, change: Callable[[Block], Block]) -> n.Node:
    """The node with every inner block changed."""
    match node:
        case n.Loop():
            cond = change(node.cond) if node.cond is not None else None
            return dataclasses.replace(node, cond=cond, body=change(node.body))
        case n.Branch():
            return dataclasses.replace(node, blocks=tuple(change(b) for b in node.blocks))
        case _:
            return node


class Renamed(dict[Value, Value]):
    """Replacements of removed values, followed to the end."""

    def get_value(self, v: Value) -> Value:
        while v in self:
            v = self[v]
        return v


def map_blocks(graph: n.Graph, change: Callable[[Block], Block]) -> n.Graph:
    """The Graph with its top block changed."""
    return dataclasses.replace(graph, block=change(graph.block))
