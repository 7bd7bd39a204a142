"""Axis classes: which dims of which values are the same axis, and which classes nothing crosses.

Union-find over (value, dim) through the whole Graph, loops included. A class is *parallel* if no node reduces,
contracts, slices or indexes across it; such a class may be spread over programs (DESIGN 4).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from onelaunch.ir import nodes as n
from onelaunch.ir.nodes import Value

Dim = tuple[Value, int]


@dataclass
class Axes:
    """Union-find of dims; ``crossed`` maps a class root to the nodes that cross it."""

    parent: dict[Dim, Dim] = field(default_factory=dict)
    crossed: dict[Dim, list[n.Node]] = field(default_factory=dict)
    members: dict[Dim, list[Dim]] = field(default_factory=dict)

    def find(self, dim: Dim) -> Dim:
        root = dim
        while (up := self.parent.get(root, root)) is not root:
            root = up
        while (up := self.parent.get(dim, dim)) is not root:
            self.parent[dim] = root
            dim = up
        return root

    def join(self, a: Dim, b: Dim) -> None:
        """The two dims are one axis (of the same extent)."""
        if a[0].shape[a[1]] != b[0].shape[b[1]]:
            return
        a, b = self.find(a), self.find(b)
        if a is b or a == b:
            return
        self.parent[b] = a
        if b in self.crossed:
            self.crossed.setdefault(a, []).extend(self.crossed.pop(b))

    def cross(self, dim: Dim, node: n.Node) -> None:
        """``node`` mixes elements along ``dim``."""
        self.crossed.setdefault(self.find(dim), []).append(node)

    def crossing(self, dim: Dim) -> list[n.Node]:
        """The nodes that cross the class of ``dim``."""
        return self.crossed.get(self.find(dim), [])


def analyse(graph: n.Graph, apart: frozenset[n.Node] = frozenset()) -> Axes:
    """The axis classes of a Graph; the nodes ``apart`` join nothing."""
    axes = Axes()
    _block(axes, n.Block(tuple(node for node in graph.block.nodes if node not in apart), ()))
    for node in n.walk(graph.block):
        if node not in apart:
            for v in n.outputs(node):
                _pairs(axes, v, node)
    dims = [(v, d) for v in values(graph) for d in range(v.ndim)]
    for dim in dims:
        axes.members.setdefault(axes.find(dim), []).append(dim)
    return axes


def _pairs(axes: Axes, v: Value, node: n.Node) -> None:
    """A value with one class on two dims (all pairs) sets every element beside every other."""
    classes = [axes.find((v, d)) for d in range(v.ndim) if v.shape[d] > 1]
    for cls in classes:
        if classes.count(cls) > 1:
            axes.cross(cls, node)


def values(graph: n.Graph) -> list[Value]:
    """Every value of a Graph, each once."""
    found = dict.fromkeys(graph.params)
    found.update(dict.fromkeys(v for v, _ in graph.consts))
    for node in n.walk(graph.block):
        found.update(dict.fromkeys(n.outputs(node)))
        if isinstance(node, n.Loop):
            found.update(dict.fromkeys(node.carry))
            if node.index is not None:
                found[node.index] = None
    return list(found)


def _block(axes: Axes, block: n.Block) -> None:
    for node in block.nodes:
        _node(axes, node)
        for inner in n.blocks(node):
            _block(axes, inner)


def _same(axes: Axes, a: Value, b: Value) -> None:
    for d in range(a.ndim):
        axes.join((a, d), (b, d))


def _node(axes: Axes, node: n.Node) -> None:
    match node:
        case n.Const() | n.Empty() | n.Iota():
            pass
        case n.Map():
            for v in (*node.args, *node.outs[1:]):
                if v.ndim == node.outs[0].ndim:
                    _same(axes, v, node.outs[0])
        case n.Reduce():
            kept = [d for d in range(node.arg.ndim) if d not in node.axes]
            for k, d in enumerate(kept):
                axes.join((node.arg, d), (node.out, k))
            for d in node.axes:
                axes.cross((node.arg, d), node)
        case n.Scan():
            _same(axes, node.arg, node.out)
            axes.cross((node.arg, node.axis), node)
        case n.Move():
            _move(axes, node)
        case n.Gather():
            _window(axes, node, node.operand, node.out)
        case n.Update():
            _same(axes, node.operand, node.out)
            _window(axes, node, node.operand, node.updates)
        case n.Dot():
            _dot(axes, node)
        case n.Sort():
            for a, b in zip(node.args, node.outs):
                _same(axes, a, b)
                axes.cross((a, node.dim), node)
        case n.Loop():
            for group in zip(node.carry, node.init, node.body.results, node.outs):
                for v in group[1:]:
                    _same(axes, group[0], v)
            if node.cond is not None:
                pred = node.cond.results[0]
                for c in node.carry:
                    for d in range(pred.ndim):
                        axes.join((pred, d), (c, d))
        case n.Branch():
            for k, out in enumerate(node.outs):
                for block in node.blocks:
                    _same(axes, out, block.results[k])


def _move(axes: Axes, node: n.Move) -> None:
    out, op = node.out, node.op
    x = node.args[0]
    match op:
        case n.Slice():
            for d in range(x.ndim):
                axes.join((x, d), (out, d))
                if x.shape[d] != out.shape[d] or op.strides[d] != 1:
                    axes.cross((x, d), node)
                    axes.cross((out, d), node)
        case n.Pad():
            for d in range(x.ndim):
                axes.join((x, d), (out, d))
                if x.shape[d] != out.shape[d] or op.low[d] or op.interior[d]:
                    axes.cross((x, d), node)
                    axes.cross((out, d), node)
        case n.Reverse():
            for d in range(x.ndim):
                axes.join((x, d), (out, d))
                if d in op.axes and x.shape[d] > 1:
                    axes.cross((x, d), node)
        case n.Transpose():
            for k, d in enumerate(op.permutation):
                axes.join((x, d), (out, k))
        case n.Broadcast():
            for d, k in enumerate(op.dims):
                axes.join((x, d), (out, k))
        case n.Concatenate():
            for arg in node.args:
                for d in range(arg.ndim):
                    axes.join((arg, d), (out, d))
                    if d == op.axis and arg.shape[d] != out.shape[d]:
                        axes.cross((arg, d), node)
                        axes.cross((out, d), node)
        case n.Reshape():
            for left, right in reshape_groups(x.shape, out.shape):
                if len(left) == 1 and len(right) == 1:
                    axes.join((x, left[0]), (out, right[0]))
                    continue
                for d in left:
                    axes.cross((x, d), node)
                for d in right:
                    axes.cross((out, d), node)


def reshape_groups(a: tuple[int, ...], b: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """The dims of two shapes of one size, in groups of equal product; dims of size 1 stand in no group."""
    groups: list[tuple[list[int], list[int]]] = []
    if 0 in a:
        return groups
    left = [d for d, s in enumerate(a) if s != 1]
    right = [d for d, s in enumerate(b) if s != 1]
    i = j = 0
    while i < len(left) and j < len(right):
        i0, j0, p, q = i, j, a[left[i]], b[right[j]]
        i, j = i + 1, j + 1
        while p != q:
            if p < q:
                p, i = p * a[left[i]], i + 1
            else:
                q, j = q * b[right[j]], j + 1
        groups.append((left[i0:i], right[j0:j]))
    return groups


def _window(axes: Axes, node: n.Gather | n.Update, x: Value, w: Value) -> None:
    win = node.window
    for d in range(x.ndim):
        along, offset, still = win.batching[d], win.offset[d], win.start[d] is None
        if along is not None and still:
            axes.join((x, d), (w, along))
        elif offset is not None and still and win.sizes[d] == x.shape[d]:
            axes.join((x, d), (w, offset))
        elif x.shape[d] > 1:
            axes.cross((x, d), node)
            if offset is not None:
                axes.cross((w, offset), node)
    for k, d in enumerate(win.batch):
        for s in node.starts:
            axes.join((s, k), (w, d))
    if isinstance(node, n.Update):  # an update per batch element writes into a shared array
        batching = {b for b in win.batching if b is not None}
        for d in win.batch:
            if d not in batching and w.shape[d] > 1:
                axes.cross((w, d), node)


def _dot(axes: Axes, node: n.Dot) -> None:
    k = 0
    for a, b in zip(*node.batch):
        axes.join((node.lhs, a), (node.out, k))
        axes.join((node.rhs, b), (node.out, k))
        k += 1
    for x, side in ((node.lhs, 0), (node.rhs, 1)):
        for d in range(x.ndim):
            if d in node.contract[side]:
                axes.cross((x, d), node)
            elif d not in node.batch[side]:
                axes.join((x, d), (node.out, k))
                k += 1
    for a, b in zip(*node.contract):
        axes.join((node.lhs, a), (node.rhs, b))
