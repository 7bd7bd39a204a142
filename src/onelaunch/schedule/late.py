"""late: an ensemble whose members are combined at the end (a mean, a histogram) still spreads over programs.

Only nodes after the ensemble's loops cross its axis. They are set apart: each program stores its members, and the last
program to finish runs the rest alone, in a fixed order, in the same launch.

    y = loop(x); m = mean(y)   ->   y = loop(x); c = y (in memory) | m = mean(c)
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from onelaunch.analyse.axes import Axes, Dim
from onelaunch.ir import nodes as n
from onelaunch.ir.nodes import Block, Value
from onelaunch.rewrite.freeze import fresh
from onelaunch.schedule.homes import computed

#: Ensembles smaller than this stay in one program.
SMALLEST = 64


@dataclass(frozen=True)
class Split:
    """A Graph with its late nodes, those through which they read the others' values, and the values stored for them."""

    graph: n.Graph
    late: frozenset[n.Node]
    entries: frozenset[n.Node]
    stored: frozenset[Value]


def split(graph: n.Graph, axes: Axes) -> Split | None:
    """Set the late nodes apart for the class that covers most of what loops compute; None if there is none."""
    top = {inner: node for node in graph.block.nodes for inner in n.walk(Block((node,), ()))}
    best: tuple[int, Dim] | None = None
    for root, members in axes.members.items():
        crossing = {top[node] for node in axes.crossing(root)}
        if root[0].shape[root[1]] < SMALLEST or not crossing:
            continue
        late = _dependents(graph, crossing)
        early = [node for node in graph.block.nodes if node not in late]
        if not any(isinstance(node, n.Loop) for node in early):
            continue
        work = computed(dataclasses.replace(graph, block=Block(tuple(early), ())))
        cover = sum(v.size for v in {v for v, _ in members} & work)
        if cover > sum(v.size for v in work) // 2 and (best is None or cover > best[0]):
            best = (cover, root)
    if best is None:
        return None
    crossing = {top[node] for node in axes.crossing(best[1])}
    return _Builder(graph, axes, best[1], _dependents(graph, crossing)).build()


def _dependents(graph: n.Graph, crossing: set[n.Node]) -> set[n.Node]:
    """The crossing nodes and all that depend on them."""
    late, made = set(crossing), {v for node in crossing for v in n.outputs(node)}
    for node in graph.block.nodes:
        if node in late or any(v in made for v in n.uses(node)):
            late.add(node)
            made.update(n.outputs(node))
    return late


class _Builder:
    def __init__(self, graph: n.Graph, axes: Axes, root: Dim, late: set[n.Node]):
        self.graph, self.axes, self.root, self.late = graph, axes, root, late
        self.producer = {v: node for node in graph.block.nodes for v in n.outputs(node)}
        self.env: dict[Value, Value] = {}
        self.copies: list[n.Node] = []
        self.made: list[n.Node] = []
        self.entries: list[n.Node] = []

    def build(self) -> Split:
        outside = set(self.graph.params) | {v for v, _ in self.graph.consts} | set(self.producer)
        for node in self.graph.block.nodes:
            if node in self.late:
                for v in n.uses(node):
                    if v in outside and self.producer.get(v) not in self.late:
                        self.read(v)
                self.made.append(fresh(node, self.env))
        early = [node for node in self.graph.block.nodes if node not in self.late]
        defined = {v for node in self.late for v in n.outputs(node)}
        results = tuple(self.env[r] if r in defined else r for r in self.graph.block.results)
        block = Block((*early, *self.copies, *self.made), results)
        stored = frozenset(v for node in self.copies for v in n.outputs(node))
        graph = dataclasses.replace(self.graph, block=block)
        return Split(graph, frozenset(self.made), frozenset(self.entries), stored)

    def read(self, v: Value) -> Value:
        """An early value as late nodes see it: moved ones moved again, members of the ensemble through memory."""
        if v in self.env:
            return self.env[v]
        node = self.producer.get(v)
        if isinstance(node, n.Move | n.Iota | n.Const):
            for a in n.operands(node):
                self.read(a)
            self.made.append(fresh(node, self.env))
            return self.env[v]
        self.env[v] = v
        if any(self.axes.find((v, d)) == self.axes.find(self.root) for d in range(v.ndim)):
            source = v
            if node is not None:
                source = Value(v.type, v.hint)
                self.copies.append(n.Map("identity", (v,), (source,), where=node.where))
            self.env[v] = Value(v.type, v.hint)
            entry = n.Move(n.Broadcast(tuple(range(v.ndim))), (source,), self.env[v])
            self.made.append(entry)
            self.entries.append(entry)
        return self.env[v]
