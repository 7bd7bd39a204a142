"""induction: a carry that only counts is computed from the loop's index.

   for i < n carrying c: ... c ...; c = c + k
-> for i < n:            ... init + i * k ...          (c's last value is init + n * k)
"""

from __future__ import annotations

import dataclasses

from onelaunch.ir import nodes as n
from onelaunch.ir.builder import INT32, Builder
from onelaunch.ir.nodes import Block, Value
from onelaunch.rewrite.rebuild import Renamed, map_blocks, with_blocks, with_operands


def induction(graph: n.Graph) -> n.Graph:
    """Every integer counter of every loop of known length."""
    return map_blocks(graph, _Induction().block)


class _Induction:
    def __init__(self) -> None:
        self.renamed = Renamed()
        self.constants: dict[Value, n.Const] = {}

    def block(self, block: Block) -> Block:
        made: list[n.Node] = []
        for node in block.nodes:
            node = with_operands(node, self.renamed.get_value)
            if isinstance(node, n.Const):
                self.constants[node.out] = node
            made += self._loop(node) if isinstance(node, n.Loop) else [with_blocks(node, self.block)]
        return Block(tuple(made), tuple(map(self.renamed.get_value, block.results)))

    def _loop(self, node: n.Loop) -> list[n.Node]:
        self.constants |= {child.out: child for child in node.body.nodes if isinstance(child, n.Const)}
        steps = {j: step for j in range(len(node.carry)) if (step := self._step(node, j)) is not None}
        if not steps or node.trip is None or node.index is None:
            return [with_blocks(node, self.block)]
        inner, outer = Builder(node.where), Builder(node.where)
        for j, step in steps.items():
            self.renamed[node.carry[j]] = self._at(inner, node.init[j], node.index, step)
            self.renamed[node.outs[j]] = self._at(outer, node.init[j], outer.const(node.trip, INT32), step)
        pick = lambda vs: tuple(v for j, v in enumerate(vs) if j not in steps)  # noqa: E731
        body = self.block(Block((*inner.nodes, *node.body.nodes), pick(node.body.results)))
        loop = dataclasses.replace(node, carry=pick(node.carry), init=pick(node.init), outs=pick(node.outs), body=body)
        return [loop, *outer.nodes]

    def _step(self, node: n.Loop, j: int) -> n.Const | None:
        """What carry ``j`` grows by, if that is all that happens to it."""
        c, r = node.carry[j], node.body.results[j]
        if c.ndim or c.dtype.kind not in "iu":
            return None
        maker = next((child for child in node.body.nodes if r in n.outputs(child)), None)
        if not isinstance(maker, n.Map) or maker.fn != "add" or c not in maker.args:
            return None
        (other,) = [a for k, a in enumerate(maker.args) if k != maker.args.index(c)]
        return self.constants.get(other)

    @staticmethod
    def _at(b: Builder, init: Value, index: Value, step: n.Const) -> Value:
        """init + index * step, wrapping."""
        value = index if index.dtype == init.dtype else b.map("cast", index, dtype=init.dtype)
        if step.value != 1:
            value = b.map("mul", value, b.const(step.value, init.dtype), dtype=init.dtype)
        return b.map("add", init, value, dtype=init.dtype)
