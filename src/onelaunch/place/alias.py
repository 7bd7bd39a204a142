"""Aliasing: which updates may happen in place, and which loop carries may take over the storage of their start.

An Update of a value in memory is in place if the value is dead after it: no node after it in the block (nor the
block's results) reads the value, directly or through values that are computed where they are used.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from onelaunch.ir import nodes as n
from onelaunch.ir.nodes import Value
from onelaunch.place.regions import straight
from onelaunch.schedule.plan import Home, Plan


@dataclass
class Aliases:
    """Facts found: in-place updates, loop starts whose storage the carry takes over, branches that alias a value."""

    in_place: set[n.Update] = field(default_factory=set)
    taken: set[tuple[n.Loop, int]] = field(default_factory=set)
    #: element-wise loop results that overwrite the carry they replace
    replaced: dict[Value, Value] = field(default_factory=dict)
    branches: dict[tuple[n.Branch, int], Value] = field(default_factory=dict)


def analyse(graph: n.Graph, plan: Plan) -> Aliases:
    """Alias facts of a whole Graph under a Plan."""
    found = Aliases()
    producer = {v: node for node in n.walk(graph.block) for v in n.outputs(node)}
    _Analysis(plan, producer, found).block(graph.block, ())
    return found


class _Analysis:
    def __init__(self, plan: Plan, producer: dict[Value, n.Node], found: Aliases):
        self.plan, self.producer, self.found = plan, producer, found
        self.cache: dict[Value, frozenset[Value]] = {}

    def storage(self, v: Value) -> frozenset[Value]:
        """The values in memory that reading ``v`` reads."""
        if v not in self.cache:
            home = self.plan.home[v]
            if home is Home.INLINE and v in self.producer:
                self.cache[v] = frozenset().union(*(self.storage(u) for u in n.uses(self.producer[v])))
            else:
                self.cache[v] = frozenset((v,)) if home is Home.MEMORY else frozenset()
        return self.cache[v]

    def block(self, block: n.Block, owned: tuple[Value, ...]) -> None:
        """``owned``: values defined outside whose storage this block may overwrite."""
        last: dict[Value, int] = {}
        for k, node in enumerate(block.nodes):
            if all(self.plan.home[v] is Home.INLINE for v in n.outputs(node)) and not n.blocks(node):
                continue
            for used in n.uses(node):
                for v in self.storage(used):
                    last[v] = k
        for r in block.results:
            for v in self.storage(r):
                last[v] = len(block.nodes)
        mine = set(owned) | {v for node in block.nodes for v in n.outputs(node)}
        for k, node in enumerate(block.nodes):
            self._node(node, k, mine, last)

    def _node(self, node: n.Node, k: int, mine: set[Value], last: dict[Value, int]) -> None:
        if isinstance(node, n.Update):
            x = node.operand
            if self.plan.home[x] is Home.MEMORY and x in mine and last.get(x, -1) <= k and self._once(node, x):
                self.found.in_place.add(node)
        elif isinstance(node, n.Loop):
            inside = {
                v for inner in n.blocks(node) for child in inner.nodes for u in n.uses(child) for v in self.storage(u)
            }
            inside |= {v for inner in n.blocks(node) for r in inner.results for v in self.storage(r)}
            for j, init in enumerate(node.init):
                free = self.plan.home[init] is Home.MEMORY and init in mine and last.get(init, -1) <= k
                if free and node.init.count(init) == 1 and init not in inside:
                    self.found.taken.add((node, j))
            for inner in n.blocks(node):
                self.block(inner, node.carry if inner is node.body else ())
            self._replace(node)
        elif isinstance(node, n.Branch):
            dead = tuple(v for v in mine if self.plan.home[v] is Home.MEMORY and last.get(v, -1) <= k)
            for inner in node.blocks:
                self.block(inner, dead)
            for j in range(len(node.outs)):
                roots = {self._root(inner.results[j], inner) for inner in node.blocks}
                root = roots.pop()
                taken = any(self.found.branches.get((node, i)) is root for i in range(len(node.outs)))
                if not roots and root in dead and not taken:
                    self.found.branches[(node, j)] = root

    def _replace(self, node: n.Loop) -> None:
        """Results computed element by element from the carry they replace, where nothing after them reads it."""
        position = {v: k for k, child in enumerate(node.body.nodes) for v in n.outputs(child)}
        for c, r in zip(node.carry, node.body.results):
            maker = self.producer.get(r)
            memory = self.plan.home[c] is Home.MEMORY and self.plan.home[r] is Home.MEMORY
            if not memory or not isinstance(maker, n.Map) or r not in position or node.body.results.count(r) > 1:
                continue
            later = any(
                c in self.storage(u)
                for child in node.body.nodes[position[r] + 1 :]
                if n.blocks(child) or any(self.plan.home[v] is not Home.INLINE for v in n.outputs(child))
                for u in n.uses(child)
            )
            kept = any(c in self.storage(other) for other in node.body.results if other is not r)
            if not later and not kept and straight(maker, {c}, self.plan, self.producer):
                self.found.replaced[r] = c

    def _once(self, node: n.Update, x: Value) -> bool:
        """The update's own operands read ``x`` at most through one whole fetch before its stores."""
        return x not in self.storage(node.updates) or self._registers(node.updates)

    def _registers(self, v: Value) -> bool:
        return self.plan.home[v] is Home.REGISTERS

    def _root(self, v: Value, block: n.Block) -> Value | None:
        """The value from outside a block whose storage a result is, through in-place updates."""
        local = {u: node for node in block.nodes for u in n.outputs(node)}
        while v in local:
            node = local[v]
            if not isinstance(node, n.Update) or node not in self.found.in_place:
                return None
            v = node.operand
        return v
