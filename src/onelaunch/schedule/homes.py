"""homes: from axis classes and limits to a Plan."""

from __future__ import annotations

import math
from collections.abc import Iterable

from onelaunch.analyse.axes import Axes, values
from onelaunch.ir import nodes as n
from onelaunch.ir.nodes import Value
from onelaunch.place.space import pow2
from onelaunch.schedule.plan import Home, Limits, Plan


def parallel_axis(graph: n.Graph, axes: Axes, late: frozenset[n.Node] = frozenset()) -> tuple[Value, int] | None:
    """The parallel class that covers most elements, as one of its dims; None if none covers half of all computed."""
    work = computed(graph, late)
    best, cover = None, sum(v.size for v in work) // 2
    for root, members in axes.members.items():
        extent = root[0].shape[root[1]]
        if extent < 2 or axes.crossing(root):
            continue
        total = sum(v.size for v in {v for v, _ in members} & work)
        if total > cover:
            best, cover = root, total
    return best


def computed(graph: n.Graph, late: frozenset[n.Node] = frozenset()) -> set[Value]:
    """The values that arithmetic makes (not moved, stacked or carried ones), outside the ``late`` nodes."""
    kinds = n.Map | n.Reduce | n.Scan | n.Dot
    early = n.Block(tuple(node for node in graph.block.nodes if node not in late), ())
    return {v for node in n.walk(early) if isinstance(node, kinds) for v in n.outputs(node)}


def make_plan(
    graph: n.Graph,
    axes: Axes,
    limits: Limits,
    in_memory: Iterable[Value] = (),
    late: frozenset[n.Node] = frozenset(),
) -> Plan:
    """Homes under ``limits``; ``limits.lanes`` > 0 puts the best parallel axis on the grid."""
    batch = parallel_axis(graph, axes, late) if limits.lanes else None
    dims = _dims(graph, axes, limits, batch)
    home = _homes(graph, limits, dims, set(in_memory))
    extent = batch[0].shape[batch[1]] if batch else 0
    grid = -(-extent // limits.lanes) if batch else 1
    return Plan(limits, home, dims, extent, grid, late if batch else frozenset())


def _dims(graph: n.Graph, axes: Axes, limits: Limits, batch: tuple[Value, int] | None) -> dict[Value, tuple[str, ...]]:
    """Per value and dim: batch, lane or unroll; one decision per class."""
    root = axes.find(batch) if batch else None
    everything = values(graph)
    lane: set[tuple[Value, int]] = set()
    for v in everything:
        for d in range(v.ndim):
            if v.shape[d] > limits.unroll_dim:
                lane.add(axes.find((v, d)))
    changed = True
    while changed:  # values in too many pieces give their longest unrolled dim to lanes
        changed = False
        for v in everything:
            open_dims = [d for d in range(v.ndim) if axes.find((v, d)) not in lane and axes.find((v, d)) != root]
            if math.prod(v.shape[d] for d in open_dims) > limits.unroll_value:
                lane.add(axes.find((v, max(open_dims, key=lambda d: v.shape[d]))))
                changed = True
    result = {}
    for v in everything:
        seen_batch = False
        kinds = []
        for d in range(v.ndim):
            cls = axes.find((v, d))
            if cls == root and not seen_batch:
                seen_batch = True
                kinds.append("batch" if limits.lanes > 1 else "grid")
            else:
                kinds.append("lane" if cls in lane and v.shape[d] > 1 else "unroll")
        result[v] = tuple(kinds)
    return result


def fits(v: Value, dims: tuple[str, ...], limits: Limits) -> bool:
    """Whether a value may live in registers."""
    pieces = math.prod(s for s, k in zip(v.shape, dims) if k == "unroll")
    tile = math.prod(pow2(s) for s, k in zip(v.shape, dims) if k == "lane")
    return pieces <= limits.unroll_value and tile * max(1, limits.lanes if "batch" in dims else 1) <= limits.tile


def held_words(graph: n.Graph, axes: Axes, limits: Limits, late: frozenset[n.Node] = frozenset()) -> int:
    """32-bit registers a thread holds through loops for unrolled values that the loops only read."""
    dims = _dims(graph, axes, limits, parallel_axis(graph, axes, late) if limits.lanes else None)
    moved = {v for node in n.walk(graph.block) if isinstance(node, n.Move | n.Const | n.Iota) for v in n.outputs(node)}
    total = 0
    for v in held_through_loops(graph, dims) - moved:
        pieces = math.prod(s for s, kind in zip(v.shape, dims[v]) if kind == "unroll")
        if v.ndim and "lane" not in dims[v] and pieces <= limits.unroll_value:
            total += pieces * max(1, v.dtype.itemsize // 4)
    return total


def held_through_loops(graph: n.Graph, dims: dict[Value, tuple[str, ...]]) -> set[Value]:
    """Values made before a loop, the same in all lanes of the grid axis, that the loop reads."""
    found: set[Value] = set()

    def visit(block: n.Block, outside: set[Value]) -> None:
        known = set(outside)
        for node in block.nodes:
            if isinstance(node, n.Loop):
                used = {v for inner in n.blocks(node) for child in inner.nodes for v in n.uses(child)}
                found.update(v for v in used & known if "batch" not in dims[v])
            for inner in n.blocks(node):
                visit(inner, known)
            known.update(n.outputs(node))

    visit(graph.block, {*graph.params, *(v for v, _ in graph.consts)})
    return found


#: Integer operations that cost less again than an array of their results.
CHEAP = frozenset({"add", "sub", "mul", "cast", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "min", "max"})


def _inline(graph: n.Graph) -> set[Value]:
    """What is only moved, and arithmetic on indices alone: ``arange(1, n)`` is index + 1 wherever it is read."""
    inline: set[Value] = set()
    known: set[Value] = set()
    for node in n.walk(graph.block):
        outs = n.outputs(node)
        if isinstance(node, n.Move | n.Const | n.Iota):
            inline.update(outs)
        arithmetic = isinstance(node, n.Map) and node.fn in CHEAP and all(v.dtype.kind in "iub" for v in outs)
        if isinstance(node, n.Move | n.Const | n.Iota) or arithmetic:
            known.update(outs if all(v in known for v in n.operands(node)) else ())
        if arithmetic:
            inline.update(v for v in outs if v in known and v.ndim)
    return inline


class _Families:
    """Union-find of values that share storage if they live in memory."""

    def __init__(self) -> None:
        self.parent: dict[Value, Value] = {}

    def find(self, v: Value) -> Value:
        while (up := self.parent.get(v, v)) is not v:
            v = up
        return v

    def join(self, a: Value, b: Value) -> None:
        a, b = self.find(a), self.find(b)
        if a is not b:
            self.parent[b] = a


def _homes(graph: n.Graph, limits: Limits, dims: dict[Value, tuple[str, ...]], forced: set[Value]) -> dict[Value, Home]:
    """Inline what is only moved, memory for what is too large, stacked or forced, registers for the rest."""
    inputs = {*graph.params, *(v for v, _ in graph.consts)}
    inline = _inline(graph)
    stacked = {node.out for node in n.walk(graph.block) if isinstance(node, n.Empty)}
    families = _families(graph, inline | inputs)
    results = {families.find(v) for v in graph.block.results}
    memory = {families.find(v) for v in forced}
    for v in values(graph):
        if v in inline or v in inputs:
            continue
        big_stack = v in stacked and (v.size > limits.small_stack or families.find(v) in results)
        if big_stack or not fits(v, dims[v], limits):
            memory.add(families.find(v))
    for v in held_through_loops(graph, dims):
        if v.size * v.dtype.itemsize > limits.held and v not in inline and v not in inputs:
            memory.add(families.find(v))
    carried = {families.find(c) for node in n.walk(graph.block) if isinstance(node, n.Loop) for c in node.carry}
    for v in _read_by_turns(graph, dims, inline) - inputs:
        if families.find(v) not in carried:
            memory.add(families.find(v))
    lazy = _lazy(graph, families) | _windows(graph, families, inline | inputs)
    home = {}
    for v in values(graph):
        if v in inputs:
            home[v] = Home.MEMORY
        elif v in inline:
            home[v] = Home.INLINE
        elif families.find(v) in memory:
            home[v] = Home.INLINE if v in lazy and v not in forced else Home.MEMORY
        else:
            home[v] = Home.REGISTERS
    return home


def _read_by_turns(graph: n.Graph, dims: dict[Value, tuple[str, ...]], inline: set[Value]) -> set[Value]:
    """Values made before a loop that it reads at one index of a lane dim: an address costs less than a search."""
    producer = {v: node for node in n.walk(graph.block) for v in n.outputs(node)}
    found: set[Value] = set()

    def sources(v: Value) -> set[Value]:
        node = producer.get(v)
        return {u for a in n.operands(node) for u in sources(a)} if v in inline and node is not None else {v}

    def visit(block: n.Block, outside: set[Value]) -> None:
        known = set(outside)
        for node in block.nodes:
            if isinstance(node, n.Gather) and _one_of_lanes(node, dims):
                found.update(sources(node.operand) & outside)
            for inner in n.blocks(node):
                visit(inner, known if isinstance(node, n.Loop) else outside)
            known.update(n.outputs(node))

    visit(graph.block, set())
    return found


def _one_of_lanes(gather: n.Gather, dims: dict[Value, tuple[str, ...]]) -> bool:
    """Whether a gather takes one index of a lane dim, the same for all that it reads."""
    x, win = gather.operand, gather.window
    starts = {gather.starts[k] for k in win.start if k is not None}
    return all(s.size == 1 for s in starts) and any(
        k is not None and win.sizes[d] == 1 and dims[x][d] == "lane" for d, k in enumerate(win.start)
    )


def _families(graph: n.Graph, apart: set[Value]) -> _Families:
    families = _Families()

    def join(a: Value, b: Value) -> None:
        if a not in apart and b not in apart:
            families.join(a, b)

    for node in n.walk(graph.block):
        if isinstance(node, n.Update):
            join(node.operand, node.out)
        elif isinstance(node, n.Loop):
            for c, init, result, out in zip(node.carry, node.init, node.body.results, node.outs):
                families.join(c, out)
                join(c, init)
                join(c, result)
        elif isinstance(node, n.Branch):
            for k, out in enumerate(node.outs):
                for block in node.blocks:
                    join(out, block.results[k])
    return families


def _windows(graph: n.Graph, families: _Families, fixed: set[Value]) -> set[Value]:
    """Slices at a computed start of arrays that never change: read where they are used, not copied."""
    shared: dict[Value, int] = {}
    for v in values(graph):
        shared[families.find(v)] = shared.get(families.find(v), 0) + 1
    producer = {v: node for node in n.walk(graph.block) for v in n.outputs(node)}
    known = {*graph.params, *(v for v, _ in graph.consts)}

    def constant(v: Value) -> bool:
        node = producer.get(v)
        if isinstance(node, n.Move):
            return v in fixed and all(constant(a) for a in node.args)
        return (
            v in known
            or isinstance(node, n.Const)
            or (isinstance(node, n.Map | n.Dot) and shared[families.find(v)] == 1)
        )

    return {
        node.out
        for node in n.walk(graph.block)
        if isinstance(node, n.Gather)
        and not node.window.batch
        and shared[families.find(node.out)] == 1
        and constant(node.operand)
    }


def _lazy(graph: n.Graph, families: _Families) -> set[Value]:
    """Large Map results with one use, in the same block, that no loop or branch carries: computed where used."""
    uses: dict[Value, int] = {}
    carried: set[Value] = set(graph.block.results)
    local: set[Value] = set()

    def visit(block: n.Block) -> None:
        for node in block.nodes:
            for v in n.operands(node):
                uses[v] = uses.get(v, 0) + 1
            if isinstance(node, n.Loop | n.Branch | n.Update):
                carried.update(n.operands(node))
            for inner in n.blocks(node):
                carried.update(inner.results)
                visit(inner)

    visit(graph.block)
    for block in _blocks(graph.block):
        made = {v for node in block.nodes if isinstance(node, n.Map) for v in node.outs}
        used_here = {v for node in block.nodes for v in n.operands(node)}
        local |= made & used_here
    return {v for v in local if uses.get(v) == 1 and v not in carried}


def _blocks(block: n.Block) -> Iterable[n.Block]:
    yield block
    for node in block.nodes:
        for inner in n.blocks(node):
            yield from _blocks(inner)
