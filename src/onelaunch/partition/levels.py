"""Which kernel each equation belongs to: clusters of a graph of equations, as few as its kept equations allow."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Node:
    """An equation: the earlier equations it waits for, whether it is kept in XLA, whether it only spreads its inputs.

    A light node (a broadcast, an iota) gives more bytes than it takes: it is computed next to its reader.
    """

    waits: tuple[int, ...]
    kept: bool
    light: bool = False


def levels(nodes: Sequence[Node]) -> list[int]:
    """The level of each node: kernels are the free nodes of one level, kept nodes run after the kernel of theirs.

    The level is the greatest number of free runs on a path to the node, a run ending where a kept node follows:
    no assignment with fewer kernels keeps the graph of kernels acyclic, since every run of that path needs its own.
    """
    found: list[int] = []
    for node in nodes:
        before = [found[w] + (nodes[w].kept and not node.kept) for w in node.waits]
        found.append(max([0 if node.kept else 1, *before]))
    return found


def sunk(nodes: Sequence[Node], level: Sequence[int], results: Collection[int]) -> list[int]:
    """The levels, light nodes that are no results of the program moved to that of their first reader."""
    moved = list(level)
    readers: list[list[int]] = [[] for _ in nodes]
    for at, node in enumerate(nodes):
        for w in node.waits:
            readers[w].append(at)
    for at in reversed(range(len(nodes))):
        if nodes[at].light and not nodes[at].kept and readers[at] and at not in results:
            moved[at] = min(moved[r] for r in readers[at])
    return moved


def components(members: Sequence[int], nodes: Sequence[Node]) -> list[list[int]]:
    """The connected parts of some nodes, each in order."""
    root = {m: m for m in members}

    def find(m: int) -> int:
        while root[m] != m:
            root[m] = root[root[m]]
            m = root[m]
        return m

    for m in members:
        for w in nodes[m].waits:
            if w in root:
                root[find(m)] = find(w)
    groups: dict[int, list[int]] = {}
    for m in members:
        groups.setdefault(find(m), []).append(m)
    return list(groups.values())
