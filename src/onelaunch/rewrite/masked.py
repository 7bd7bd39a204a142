"""masked: a select between an updated array and the array itself becomes an update under a mask.

    where(p, update(x, i, u), x)  ->  update(x, i, where(p[window], u, x[window]))

so that one written element costs one element, not the whole array. Goes through chains of updates.
"""

from __future__ import annotations

import dataclasses

from onelaunch.ir import nodes as n
from onelaunch.ir.builder import Builder
from onelaunch.ir.monoids import identity
from onelaunch.ir.nodes import Block, Value
from onelaunch.rewrite.rebuild import Renamed, map_blocks, with_blocks, with_operands


def masked(graph: n.Graph) -> n.Graph:
    """Every such select, in all blocks."""
    return map_blocks(graph, lambda block: _Masked().block(block))


class _Masked:
    def __init__(self) -> None:
        self.renamed = Renamed()

    def block(self, block: Block) -> Block:
        local: dict[Value, n.Node] = {}
        uses: dict[Value, int] = {}
        for node in block.nodes:
            for v in n.uses(node):
                uses[v] = uses.get(v, 0) + 1
        for v in block.results:
            uses[v] = uses.get(v, 0) + 1
        made: list[n.Node] = []
        for node in block.nodes:
            node = with_blocks(with_operands(node, self.renamed.get_value), self.block)
            replacement = self._select(node, local, uses) if isinstance(node, n.Map) and node.fn == "select" else None
            if replacement is not None:
                assert isinstance(node, n.Map)
                b, out = replacement
                made += b.nodes
                local |= {v: m for m in b.nodes for v in n.outputs(m)}
                self.renamed[node.outs[0]] = out
                continue
            made.append(node)
            local |= dict.fromkeys(n.outputs(node), node)
        return Block(tuple(made), tuple(self.renamed.get_value(r) for r in block.results))

    def _select(self, node: n.Map, local: dict[Value, n.Node], uses: dict[Value, int]) -> tuple[Builder, Value] | None:
        pred, yes, no = node.args
        if yes.shape != no.shape or not yes.ndim:
            return None
        for new, old, flip in ((yes, no, False), (no, yes, True)):
            chain = _chain(new, old, local, uses)
            if chain:
                b = Builder(node.where)
                wide = pred if pred.shape == new.shape else b.broadcast(pred, new.shape, range(pred.ndim))
                return b, _apply(b, chain, old, wide, flip)
        return None


def _chain(new: Value, old: Value, local: dict[Value, n.Node], uses: dict[Value, int]) -> list[n.Update]:
    """The updates that lead from ``old`` to ``new``, first to last; empty if there is another way."""
    chain: list[n.Update] = []
    while new is not old:
        node = local.get(new)
        if not isinstance(node, n.Update) or uses.get(new, 0) != 1:
            return []
        small = node.updates.size * 2 <= node.operand.size or node.operand.size > 64
        if not small:
            return []
        chain.append(node)
        new = node.operand
    return chain[::-1]


def _apply(b: Builder, chain: list[n.Update], x: Value, pred: Value, flip: bool) -> Value:
    for node in chain:
        b.where = node.where
        shape = node.updates.shape
        here = dataclasses.replace(node.window, mode="clip")
        old = b.gather(x, node.starts, here, shape)
        mask = b.gather(pred, node.starts, here, shape)
        if node.monoid == "set":
            keep = old
        else:
            keep = b.full(shape, identity(node.monoid, x.dtype), x.dtype)
        yes, no = (keep, node.updates) if flip else (node.updates, keep)
        updates = b.map("select", mask, yes, no, dtype=x.dtype)
        x = b.update(node.monoid, x, node.starts, updates, node.window, node.unique)
    return x
