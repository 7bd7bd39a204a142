"""Views: values that may be made right where an output wants them.

A result that is only moved (concatenated, transposed, reversed, given dims of size 1) from other values names, for
each of them, the strides and the start of its part of the output. Stacked outputs of a scan under vmap need no copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from onelaunch.analyse.axes import reshape_groups
from onelaunch.ir import nodes as n
from onelaunch.ir.nodes import Value


@dataclass(frozen=True)
class View:
    """A part of output ``k``: element strides for the dims of the value that lies there, and its first element."""

    k: int
    strides: tuple[int, ...]
    start: int


def parts(node: n.Node | None, view: View) -> list[tuple[Value, View]]:
    """The operands of a Move with the parts of the output they fill together; empty if they can't fill it alone."""
    if not isinstance(node, n.Move):
        return []
    x, op, out = node.args[0], node.op, node.out
    match op:
        case n.Concatenate():
            found, first = [], view.start
            for arg in node.args:
                found.append((arg, View(view.k, view.strides, first)))
                first += arg.shape[op.axis] * view.strides[op.axis]
            return found
        case n.Transpose():
            strides = [0] * x.ndim
            for k, d in enumerate(op.permutation):
                strides[d] = view.strides[k]
            return [(x, View(view.k, tuple(strides), view.start))]
        case n.Reverse():
            strides = [-s if d in op.axes else s for d, s in enumerate(view.strides)]
            start = view.start + sum((x.shape[d] - 1) * view.strides[d] for d in op.axes)
            return [(x, View(view.k, tuple(strides), start))] if x.size else []
        case n.Reshape() if x.size > 1:
            groups = reshape_groups(x.shape, out.shape)
            if any(len(left) != 1 or len(right) != 1 for left, right in groups):
                return []
            strides = [0] * x.ndim
            for left, right in groups:
                strides[left[0]] = view.strides[right[0]]
            return [(x, View(view.k, tuple(strides), view.start))]
        case n.Broadcast() if x.size == out.size:
            return [(x, View(view.k, tuple(view.strides[k] for k in op.dims), view.start))]
        case _:
            return []


def heirs(node: n.Node | None, v: Value) -> tuple[Value, ...]:
    """The values whose storage an output of a node may take over."""
    match node:
        case n.Update():
            return (node.operand,)
        case n.Loop():
            j = node.outs.index(v)
            return node.carry[j], node.body.results[j], node.init[j]
        case n.Branch():
            return tuple(block.results[node.outs.index(v)] for block in node.blocks)
        case _:
            return ()


def release(found: dict[Value, View], producer: dict[Value, n.Node], values: Iterable[Value]) -> None:
    """Take from ``found`` the values, and what they share storage with: they are read after outputs are written."""
    todo, seen = list(values), set[Value]()
    while todo:
        v = todo.pop()
        if v in seen:
            continue
        seen.add(v)
        found.pop(v, None)
        node = producer.get(v)
        todo += heirs(node, v)
        if isinstance(node, n.Move):
            todo += node.args


def flows(graph: n.Graph, strides: list[tuple[int, ...]]) -> dict[Value, View]:
    """Values whose storage may be (a part of) an output's: they reach it by moves, updates, loops and branches."""
    found: dict[Value, View] = {}
    producer = {v: node for node in n.walk(graph.block) for v in n.outputs(node)}

    def back(v: Value, view: View) -> None:
        if v in found:
            return
        found[v] = view
        node = producer.get(v)
        for u in heirs(node, v):
            back(u, view)
        for u, part in parts(node, view):
            back(u, part)

    for k, v in enumerate(graph.block.results):
        back(v, View(k, strides[k], 0))
    return found
