"""postpone: a sum over a batch that a loop only adds up is made once, after the loop.

    for i < n carrying c: ... c = c + sum(x, batch)
 -> for i < n carrying C: ... C = C + x                (C one element for each member, from zero)
    c = c0 + sum(C, batch)

Gradients of weights shared by a batch are such sums. In the loop they would keep all members in one program, or cost a
reduction across threads at every turn; after it members may spread over programs and be summed by the last to finish.
A matrix product that contracts the batch is such a sum of products.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator

from onelaunch.ir import nodes as n
from onelaunch.ir.builder import Builder
from onelaunch.ir.nodes import Block, Value
from onelaunch.rewrite.rebuild import map_blocks, with_blocks

#: Elements that a member may carry through a loop for one sum, and those of all members that are always few enough.
OF_A_MEMBER, OF_ALL = 64, 4096
#: Members from which a matrix product is worth a product for each.
MANY = 64


def postpone(graph: n.Graph) -> n.Graph:
    """Every loop of known length, inner ones first."""
    return map_blocks(graph, _block)


def _block(block: Block) -> Block:
    made: list[n.Node] = []
    for node in block.nodes:
        node = with_blocks(node, _block)
        made += _Sums(node).nodes() if isinstance(node, n.Loop) and node.trip is not None else [node]
    return Block(tuple(made), block.results)


class _Sums:
    """The sums of one loop: ``inside`` and ``after`` collect the nodes that replace them."""

    def __init__(self, loop: n.Loop):
        self.loop = loop
        self.inside, self.before, self.after = Builder(loop.where), Builder(loop.where), Builder(loop.where)
        self.made = {v: node for node in loop.body.nodes for v in n.outputs(node)}
        self.uses = Counter(v for node in loop.body.nodes for v in n.uses(node)) + Counter(loop.body.results)
        self.carry, self.init = list(loop.carry), list(loop.init)
        self.results, self.outs = list(loop.body.results), list(loop.outs)
        self.gone: set[int] = set()

    def nodes(self) -> list[n.Node]:
        """The loop, with what comes before and after it."""
        for k in range(len(self.loop.carry)):
            self._carry(k)
        if not self.after.nodes:
            return [self.loop]
        kept = lambda vs: tuple(v for k, v in enumerate(vs) if k not in self.gone)  # noqa: E731
        body = Block((*self.loop.body.nodes, *self.inside.nodes), kept(self.results))
        loop = dataclasses.replace(
            self.loop, carry=kept(self.carry), init=kept(self.init), body=body, outs=kept(self.outs)
        )
        return [*self.before.nodes, loop, *self.after.nodes]

    def _carry(self, k: int) -> None:
        c = self.loop.carry[k]
        if self.uses[c] != 1 or c.dtype.kind not in "iuf" or (c.dtype.kind == "f" and c.dtype.itemsize < 4):
            return
        terms = list(self._terms(self.loop.body.results[k], c))
        found = [(t, parts) for t in terms if (parts := self._parts(t)) is not None]
        if not found or any(t.type != c.type for t in terms):
            return
        summed = {t for t, _ in found}
        rest = [t for t in terms if t not in summed]
        groups: dict[tuple[object, int], list[Value]] = {}
        for _, (x, axis) in found:
            groups.setdefault((x.type, axis), []).append(x)
        last = self._left(k, rest)
        totals = [self._group(xs, axis) for (_, axis), xs in groups.items()]
        for total in totals[:-1]:
            last = self.after.map("add", last, total)
        self.after.add(n.Map("add", (last, totals[-1]), (self.loop.outs[k],), where=self.loop.where))

    def _left(self, k: int, terms: list[Value]) -> Value:
        """What a carry ends as without its sums; with nothing else added it is no carry."""
        if not terms:
            self.gone.add(k)
            return self.loop.init[k]
        self.results[k] = self._added(self.loop.carry[k], terms)
        self.outs[k] = self.after.value(self.loop.carry[k].shape, self.loop.carry[k].dtype)
        return self.outs[k]

    def _terms(self, v: Value, c: Value) -> Iterator[Value]:
        """What is added to ``c`` to make ``v``; nothing if ``v`` is no such sum, or a part of it is used elsewhere."""
        path = self._path(v, c)
        for node, on_path in path:
            yield from (a for k, a in enumerate(node.args) if k != on_path)

    def _path(self, v: Value, c: Value) -> list[tuple[n.Map, int]]:
        """The additions from ``v`` down to ``c``, each with the number of the argument that leads there."""
        node = self.made.get(v)
        if not isinstance(node, n.Map) or node.fn != "add" or self.uses[v] != 1:
            return []
        for k, a in enumerate(node.args):
            if a is c:
                return [(node, k)]
            if below := self._path(a, c):
                return [(node, k), *below]
        return []

    def _parts(self, v: Value) -> tuple[Value, int] | None:
        """A term as the sum of a value along one axis, the longest; None where it is none, or too large to carry."""
        node = self.made.get(v)
        match node:
            case n.Reduce(monoid="add", arg=x, axes=axes) if x.dtype == v.dtype:
                axis = max(axes, key=lambda d: x.shape[d])
                size = v.size * x.shape[axis]
                if x.shape[axis] < 2 or (v.size > OF_A_MEMBER and size > OF_ALL):
                    return None
                rest = [d for d in axes if d != axis]
                kept = self.inside.reduce("add", x, rest) if rest else x
                return kept, axis - sum(d < axis for d in rest)
            case n.Dot():
                return self._products(node, v)
        return None

    def _products(self, node: n.Dot, v: Value) -> tuple[Value, int] | None:
        """A product that contracts one axis of many, as a product for each of its members."""
        (left, right), batch = node.contract, node.batch[0]
        plain = not batch and len(left) == 1 and node.lhs.dtype == node.rhs.dtype == v.dtype
        if not plain or node.lhs.shape[left[0]] < MANY or v.size > OF_A_MEMBER:
            return None
        b, members = self.inside, node.lhs.shape[left[0]]
        free = [node.lhs.shape[d] for d in range(node.lhs.ndim) if d != left[0]]
        ends = [node.rhs.shape[d] for d in range(node.rhs.ndim) if d != right[0]]
        one = b.reshape(_to_front(b, node.lhs, left[0]), (members, *free, *[1] * len(ends)))
        other = b.reshape(_to_front(b, node.rhs, right[0]), (members, *[1] * len(free), *ends))
        return b.map("mul", one, other), 0

    def _added(self, c: Value, terms: list[Value]) -> Value:
        for t in terms:
            c = self.inside.map("add", c, t)
        return c

    def _group(self, xs: list[Value], axis: int) -> Value:
        """A carry more for sums of one shape; its total after the loop."""
        held = self.inside.value(xs[0].shape, xs[0].dtype, "sums")
        self.init.append(self.before.full(held.shape, 0, held.dtype))
        self.carry.append(held)
        self.results.append(self._added(held, xs))
        self.outs.append(self.after.value(held.shape, held.dtype))
        return self.after.reduce("add", self.outs[-1], (axis,))


def _to_front(b: Builder, x: Value, dim: int) -> Value:
    return b.transpose(x, (dim, *(d for d in range(x.ndim) if d != dim))) if dim else x
