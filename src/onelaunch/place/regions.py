"""Regions: element-wise values in memory that are made in one walk over their index space.

    a = f(x); b = g(a, y); c = h(b)   ->   for i: a_i = f(x_i); b_i = g(a_i, y_i); c[i] = h(b_i)

Only what is read outside the region is stored.
"""

from __future__ import annotations

from dataclasses import dataclass

from onelaunch.ir import nodes as n
from onelaunch.ir.nodes import Value
from onelaunch.schedule.plan import Home, Plan


@dataclass(frozen=True)
class Region:
    """Map nodes of one shape, in order, and those of their values that other nodes read."""

    nodes: tuple[n.Map, ...]
    stored: frozenset[Value]

    @property
    def values(self) -> tuple[Value, ...]:
        return tuple(v for node in self.nodes for v in node.outs)


def split(
    block: n.Block, plan: Plan, producer: dict[Value, n.Node], readers: dict[Value, set[n.Node | None]]
) -> list[n.Node | Region]:
    """The nodes of a block with runs of element-wise nodes in memory gathered into regions."""
    result: list[n.Node | Region] = []
    run: list[n.Map] = []

    def close() -> None:
        if run:
            inside = set(run)
            result.append(
                Region(tuple(run), frozenset(v for m in run for v in m.outs if _read_by(v, plan, readers) - inside))
            )
            run.clear()

    for node in block.nodes:
        if all(plan.home[v] is Home.INLINE for v in n.outputs(node)) and not n.blocks(node):
            result.append(node)
            continue
        if isinstance(node, n.Map) and all(plan.home[v] is Home.MEMORY for v in node.outs):
            if run and not _joins(node, run, plan, producer):
                close()
            run.append(node)
            continue
        close()
        result.append(node)
    close()
    return result


def _read_by(v: Value, plan: Plan, readers: dict[Value, set[n.Node | None]]) -> set[n.Node | None]:
    """The nodes that read a value, through those that are computed where they are used."""
    found: set[n.Node | None] = set()
    for node in readers.get(v, set()):
        if node is not None and not n.blocks(node) and all(plan.home[u] is Home.INLINE for u in n.outputs(node)):
            found = found.union(*(_read_by(u, plan, readers) for u in n.outputs(node)))
        else:
            found.add(node)
    return found


def _joins(node: n.Map, run: list[n.Map], plan: Plan, producer: dict[Value, n.Node]) -> bool:
    """Whether a node may be computed element by element together with a run."""
    first = run[0].outs[0]
    made = {v for m in run for v in m.outs}
    same = node.outs[0].shape == first.shape and plan.dims[node.outs[0]] == plan.dims[first]
    return same and straight(node, made, plan, producer)


def straight(node: n.Map, made: set[Value], plan: Plan, producer: dict[Value, n.Node]) -> bool:
    """Whether a Map reads the values ``made`` at its own index only."""
    for a in node.args:
        if a in made:
            if a.shape != node.outs[0].shape:
                return False
        elif plan.home[a] is Home.INLINE and a in producer:
            inner = producer[a]
            if isinstance(inner, n.Map) and a.shape == node.outs[0].shape:
                if not straight(inner, made, plan, producer):
                    return False
            elif _reaches(inner, made, plan, producer):
                return False
    return True


def _reaches(node: n.Node, made: set[Value], plan: Plan, producer: dict[Value, n.Node]) -> bool:
    """Whether evaluating a node where it is used reads any of ``made``."""
    for a in n.operands(node):
        if a in made or (plan.home[a] is Home.INLINE and a in producer and _reaches(producer[a], made, plan, producer)):
            return True
    return False


def readers(graph: n.Graph) -> dict[Value, set[n.Node | None]]:
    """The nodes that use each value directly; None stands for the results of a block."""
    found: dict[Value, set[n.Node | None]] = {}

    def visit(block: n.Block) -> None:
        for node in block.nodes:
            for v in n.operands(node):
                found.setdefault(v, set()).add(node)
            for inner in n.blocks(node):
                visit(inner)
        for r in block.results:
            found.setdefault(r, set()).add(None)

    visit(graph.block)
    return found
