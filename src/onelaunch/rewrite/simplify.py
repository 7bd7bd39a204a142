"""simplify: constants folded, what never changes taken out of carries, branches and loops of known length opened.

select(True, a, b)            ->  a
x + 0 (of integers)           ->  x
loop carrying c, body gives c ->  c replaced by its start
branch on a constant          ->  the branch taken
loop of one turn              ->  its body
transpose(a @ b), used once   ->  b^T @ a^T, the operands as they lie
"""

from __future__ import annotations

import dataclasses
import warnings
from collections import Counter

import numpy as np

from onelaunch.ir import nodes as n
from onelaunch.ir.nodes import Block, Value
from onelaunch.ir.scalars import SCALARS
from onelaunch.rewrite.rebuild import Renamed, map_blocks, with_operands


def simplify(graph: n.Graph) -> n.Graph:
    """One walk over all blocks."""
    uses = Counter(v for node in graph.block.nodes for v in n.uses(node)) + Counter(graph.block.results)
    return map_blocks(graph, lambda block: _Simplify(uses).block(block))


class _Simplify:
    def __init__(self, uses: Counter[Value]) -> None:
        self.uses = uses
        self.products: dict[Value, n.Dot] = {}
        self.renamed = Renamed()
        self.constants: dict[Value, np.generic] = {}

    def block(self, block: Block) -> Block:
        made: list[n.Node] = []
        for node in block.nodes:
            made += self.node(with_operands(node, self.renamed.get_value))
        return Block(tuple(made), tuple(self.renamed.get_value(r) for r in block.results))

    def node(self, node: n.Node) -> list[n.Node]:
        match node:
            case n.Const():
                self.constants[node.out] = node.value
                return [node]
            case n.Map():
                return self._map(node)
            case n.Dot():
                self.products[node.out] = node
                return [node]
            case n.Move(op=n.Transpose(permutation)) if (dot := self._turned(node.args[0], permutation)) is not None:
                return [dataclasses.replace(dot, out=node.out, where=node.where)]
            case n.Update() if node.updates.size == 0:
                self.renamed[node.out] = node.operand
                return []
            case n.Loop():
                return self._loop(node)
            case n.Branch():
                return self._branch(node)
            case n.Move(op=n.Broadcast() | n.Reshape() | n.Slice() | n.Transpose()) if node.out.shape == node.args[
                0
            ].shape and self._still(node):
                self.renamed[node.out] = node.args[0]
                return []
            case _:
                return [node]

    def _turned(self, x: Value, permutation: tuple[int, ...]) -> n.Dot | None:
        """The product with its operands exchanged, if a transpose of ``x``, its only use, is no more than that."""
        dot = self.products.get(x)
        if dot is None or dot.batch[0] or self.uses[x] != 1:
            return None
        free = dot.lhs.ndim - len(dot.contract[0])
        if permutation != (*range(free, x.ndim), *range(free)):
            return None
        return dataclasses.replace(dot, lhs=dot.rhs, rhs=dot.lhs, contract=dot.contract[::-1])

    @staticmethod
    def _still(node: n.Move) -> bool:
        """Whether a Move of unchanged shape moves nothing."""
        op = node.op
        if isinstance(op, n.Transpose):
            return op.permutation == tuple(range(node.out.ndim))
        if isinstance(op, n.Broadcast):
            return op.dims == tuple(range(node.out.ndim))
        return not isinstance(op, n.Slice) or (not any(op.starts) and all(s == 1 for s in op.strides))

    def _map(self, node: n.Map) -> list[n.Node]:
        plain = node.fn == "identity" or (node.fn == "cast" and node.args[0].dtype == node.outs[0].dtype)
        if plain and node.args[0].shape == node.outs[0].shape:
            self.renamed[node.outs[0]] = node.args[0]
            return []
        if node.fn == "select" and node.args[0] in self.constants:
            chosen = node.args[1 if self.constants[node.args[0]] else 2]
            if chosen.shape == node.outs[0].shape:
                self.renamed[node.outs[0]] = chosen
                return []
        if node.fn == "select" and node.args[1] is node.args[2] and node.args[1].shape == node.outs[0].shape:
            self.renamed[node.outs[0]] = node.args[1]
            return []
        if (kept := self._neutral(node)) is not None:
            self.renamed[node.outs[0]] = kept
            return []
        if len(node.outs) == 1 and node.outs[0].ndim == 0 and all(a in self.constants for a in node.args):
            return [self._fold(node)]
        return [node]

    def _neutral(self, node: n.Map) -> Value | None:
        """What an operation of integers or bools leaves as it was: x + 0, x - 0, x * 1, x and True, x or False."""
        kind = node.outs[0].dtype.kind
        table: dict[str, int] = {"add": 0, "sub": 0, "mul": 1} if kind in "iu" else {"and": 1, "or": 0}
        neutral = table.get(node.fn)
        if neutral is None or kind not in "iub":
            return None
        a, b = node.args
        for x, y in ((a, b), (b, a)) if node.fn != "sub" else ((a, b),):
            if y in self.constants and self.constants[y] == neutral and x.shape == node.outs[0].shape:
                return x
        return None

    def _fold(self, node: n.Map) -> n.Node:
        out = node.outs[0]
        arguments: list[object] = [self.constants[a] for a in node.args]
        if node.fn == "cast":
            arguments.append(out.dtype)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            value = SCALARS[node.fn].numpy(*arguments)
        typed = np.asarray(value)
        if typed.dtype != out.dtype or typed.shape != ():
            return node
        scalar: np.generic = typed[()]  # type: ignore[assignment]
        self.constants[out] = scalar
        return n.Const(scalar, out, where=node.where)

    def _loop(self, node: n.Loop) -> list[n.Node]:
        if node.trip == 0:
            self.renamed.update(zip(node.outs, node.init))
            return []
        if node.trip == 1:
            assert node.index is not None
            self.renamed.update(zip(node.carry, node.init))
            start = n.Const(np.int32(0), node.index, where=node.where)
            body = self.block(Block((start, *node.body.nodes), node.body.results))
            self.renamed.update(zip(node.outs, body.results))
            return list(body.nodes)
        same = [j for j, (c, r) in enumerate(zip(node.carry, node.body.results)) if r is c and not _frozen(node)]
        for j in same:
            self.renamed[node.carry[j]] = node.init[j]
            self.renamed[node.outs[j]] = node.init[j]
        keep = [j for j in range(len(node.carry)) if j not in same]
        pick = lambda vs: tuple(vs[j] for j in keep)  # noqa: E731
        cond = self.block(node.cond) if node.cond is not None else None
        body = self.block(Block(node.body.nodes, pick(node.body.results)))
        return [
            dataclasses.replace(
                node, carry=pick(node.carry), init=pick(node.init), outs=pick(node.outs), cond=cond, body=body
            )
        ]

    def _branch(self, node: n.Branch) -> list[n.Node]:
        if node.index in self.constants:
            k = min(max(int(self.constants[node.index]), 0), len(node.blocks) - 1)
            body = self.block(node.blocks[k])
            self.renamed.update(zip(node.outs, body.results))
            return list(body.nodes)
        return [dataclasses.replace(node, blocks=tuple(self.block(b) for b in node.blocks))]


def _frozen(node: n.Loop) -> bool:
    return node.cond is not None and node.cond.results[0].ndim > 0


def drop_dead(graph: n.Graph) -> n.Graph:
    """Remove nodes nobody reads, and loop carries that feed only themselves."""
    live: set[Value] = set()
    producers: dict[Value, n.Node] = {v: node for node in n.walk(graph.block) for v in n.outputs(node)}
    carried = {
        c: (node, j) for node in n.walk(graph.block) if isinstance(node, n.Loop) for j, c in enumerate(node.carry)
    }
    todo = list(graph.block.results)
    while todo:
        v = todo.pop()
        if v in live:
            continue
        live.add(v)
        if v in carried:
            loop, j = carried[v]
            todo += (loop.init[j], loop.body.results[j])
        node = producers.get(v)
        match node:
            case None:
                pass
            case n.Loop():
                j = node.outs.index(v)
                todo += (node.carry[j], *(node.cond.results if node.cond is not None else ()))
            case n.Branch():
                todo += (node.index, *(b.results[node.outs.index(v)] for b in node.blocks))
            case _:
                todo += n.operands(node)
    return map_blocks(graph, lambda block: _prune(block, live))


def _prune(block: Block, live: set[Value]) -> Block:
    made: list[n.Node] = []
    for node in block.nodes:
        if isinstance(node, n.Loop):
            keep = [j for j in range(len(node.outs)) if node.outs[j] in live or node.carry[j] in live]
            if not any(node.outs[j] in live for j in keep):
                continue
            pick = lambda vs, keep=keep: tuple(vs[j] for j in keep)  # noqa: E731
            cond = _prune(node.cond, live) if node.cond is not None else None
            body = _prune(Block(node.body.nodes, pick(node.body.results)), live)
            node = dataclasses.replace(
                node, carry=pick(node.carry), init=pick(node.init), outs=pick(node.outs), cond=cond, body=body
            )
        elif isinstance(node, n.Branch):
            keep = [j for j, out in enumerate(node.outs) if out in live]
            if not keep:
                continue
            pick = lambda vs, keep=keep: tuple(vs[j] for j in keep)  # noqa: E731
            pruned = tuple(_prune(Block(b.nodes, pick(b.results)), live) for b in node.blocks)
            node = dataclasses.replace(node, outs=pick(node.outs), blocks=pruned)
        elif not any(v in live for v in n.outputs(node)):
            continue
        made.append(node)
    return Block(tuple(made), block.results)
