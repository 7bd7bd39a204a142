"""Barriers: where one thread may read (or overwrite) what another wrote (or still reads).

A statement list is walked in order with the buffers written and read since the last barrier; loops are walked twice, so
that a hazard between one turn and the next is seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from onelaunch.place.nodes import (
    Arrive,
    Barrier,
    Buffer,
    For,
    If,
    Load,
    Op,
    Stmt,
    Store,
    Var,
    While,
    defined,
    direct_uses,
    inner_blocks,
    walk,
)
from onelaunch.place.overlap import overlap

#: Threads of a warp (of the widest that Triton knows).
WARP = 64


@dataclass
class State:
    """Accesses since the last barrier: who wrote each buffer (group of stores, address expression), who read it.

    threads: of a program, 1 if it has one warp. A tensor of fewer elements stands in several warps, and one stores it.
    """

    threads: int = 1
    written: dict[Buffer, set[tuple[int, Var | None]]] = field(default_factory=dict)
    read: dict[Buffer, set[Var | None]] = field(default_factory=dict)

    def copy(self) -> State:
        return State(
            self.threads, {b: set(w) for b, w in self.written.items()}, {b: set(r) for b, r in self.read.items()}
        )

    def merge(self, other: State) -> None:
        for b, writers in other.written.items():
            self.written.setdefault(b, set()).update(writers)
        for b, addresses in other.read.items():
            self.read.setdefault(b, set()).update(addresses)

    def clear(self) -> None:
        self.written.clear()
        self.read.clear()

    def forget(self, addresses: set[Var]) -> None:
        """From here on these address expressions have other values than those that were accessed."""
        for b, writers in self.written.items():
            self.written[b] = {(group, None if at in addresses else at) for group, at in writers}
        for b, read in self.read.items():
            self.read[b] = {None if at in addresses else at for at in read}

    def lanes(self, stmt: Load | Store) -> Var | None:
        """The address expression of an access by lanes: accesses by one expression touch an element from one thread."""
        offset = stmt.offset
        return offset if isinstance(offset, Var) and offset.shape and math.prod(offset.shape) >= self.threads else None

    def through_a_view(self, buffer: Buffer, accesses: Iterable[Buffer]) -> bool:
        """Whether there was an access to an element of a buffer that another view of the same memory has too."""
        return any(other is not buffer and overlap(other, buffer) for other in accesses)

    def must_wait(self, stmt: Load | Store) -> bool:
        """Whether another thread may still be reading or writing what ``stmt`` touches."""
        here = self.lanes(stmt)
        elsewhere = {w for w in self.written.get(stmt.buffer, set()) if here is None or w[1] is not here}
        if self.through_a_view(stmt.buffer, self.written):
            return True
        if isinstance(stmt, Load):
            return bool(elsewhere)
        if any(here is None or address is not here for address in self.read.get(stmt.buffer, set())):
            return True
        if self.through_a_view(stmt.buffer, self.read):
            return True
        return any(group != stmt.group or stmt.overlaps for group, _ in elsewhere)


def insert(block: list[Stmt], num_warps: int) -> None:
    """Insert the barriers that a kernel of so many warps needs into its statement lists, in place."""
    _block(block, State(WARP * num_warps if num_warps > 1 else 1))


def _block(block: list[Stmt], state: State) -> None:
    k = 0
    while k < len(block):
        stmt = block[k]
        match stmt:
            case Barrier() | Arrive():
                state.clear()
            case Load() | Store():
                if state.must_wait(stmt):
                    block.insert(k, Barrier())
                    state.clear()
                    k += 1
                if isinstance(stmt, Store):
                    state.written.setdefault(stmt.buffer, set()).add((stmt.group, state.lanes(stmt)))
                elif stmt.buffer.role != "in":
                    state.read.setdefault(stmt.buffer, set()).add(state.lanes(stmt))
            case For() | While():
                if any(state.must_wait(s) for s in walk([stmt]) if isinstance(s, Load)):  # once, not at every turn
                    block.insert(k, Barrier())
                    state.clear()
                    k += 1
                moving = _moving(stmt)
                for _ in range(2):
                    for inner in inner_blocks(stmt):
                        _block(inner, state)
                    state.forget(moving)
            case If():
                then, other = state.copy(), state.copy()
                _block(stmt.then, then)
                _block(stmt.other, other)
                state.clear()
                state.merge(then)
                state.merge(other)
        k += 1


def _moving(loop: For | While) -> set[Var]:
    """What may differ between two turns of a loop, where the turns may store to the same elements."""
    if isinstance(loop, For) and loop.disjoint:
        return set()
    moving = {*loop.params, *([loop.index] if isinstance(loop, For) else [])}
    for stmt in (s for inner in inner_blocks(loop) for s in walk(inner)):
        if not isinstance(stmt, Op) or not moving.isdisjoint(direct_uses(stmt)):
            moving.update(defined(stmt))
    return moving
