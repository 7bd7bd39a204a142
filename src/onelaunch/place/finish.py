"""finish: copies of results into their outputs, in an order in which none overwrites what another has yet to read.

A value that is live at the end may lie in an output that it only once flowed to (the start of a loop whose result is
returned); that output is written after the others have read it, or the reader takes a copy first.
"""

from __future__ import annotations

from collections.abc import Callable

from onelaunch.ir.nodes import Value
from onelaunch.place.nodes import Buffer
from onelaunch.place.overlap import overlap
from onelaunch.place.placer import Placer
from onelaunch.place.store import copy, fill

Copy = tuple[Value, Buffer]


def copy_all(
    p: Placer, todo: list[Copy], reads: Callable[[Value], set[Value]], private: Callable[[Value], Buffer]
) -> None:
    """Write each value into its buffer; ``reads`` tells what in memory a value is read from."""
    todo = list(todo)
    while todo:
        free = [k for k, (_, target) in enumerate(todo) if not any(_disturbs(p, target, v, reads) for v, _ in todo)]
        k = free[0] if free else 0
        v, target = todo.pop(k)
        if free:
            copy(p, v, target)
            continue
        spare = private(v)
        copy(p, v, spare)
        copy_all(p, todo, reads, private)
        fill(p, v, target, lambda idx, space, spare=spare: p.w.load(spare, *p.address(spare, idx, space, clamped=True)))  # type: ignore[misc]
        return


def _disturbs(p: Placer, target: Buffer, v: Value, reads: Callable[[Value], set[Value]]) -> bool:
    return any(overlap(p.buffers[u], target) for u in reads(v))
