"""Barriers: where one thread may read (or overwrite) what another wrote (or still reads).

A statement list is walked in order with the buffers written and read since the last barrier; loops are walked twice, so
that a hazard between one turn and the next is seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from onelaunch.place.nodes import Barrier, Buffer, For, If, Load, Stmt, Store, While, inner_blocks, walk


@dataclass
class State:
    """Buffers touched since the last barrier: the groups of stores that wrote each, and those read."""

    written: dict[Buffer, set[int]] = field(default_factory=dict)
    read: set[Buffer] = field(default_factory=set)

    def copy(self) -> State:
        return State({b: set(g) for b, g in self.written.items()}, set(self.read))

    def merge(self, other: State) -> None:
        for b, groups in other.written.items():
            self.written.setdefault(b, set()).update(groups)
        self.read |= other.read

    def clear(self) -> None:
        self.written.clear()
        self.read.clear()

    def must_wait(self, stmt: Load | Store) -> bool:
        """Whether another thread may still be reading or writing what ``stmt`` touches."""
        groups = self.written.get(stmt.buffer, set())
        if isinstance(stmt, Load):
            return bool(groups)
        return stmt.buffer in self.read or bool(groups - {stmt.group}) or (stmt.overlaps and bool(groups))


def insert(block: list[Stmt]) -> None:
    """Insert the barriers a kernel needs into its statement lists, in place."""
    _block(block, State())


def _block(block: list[Stmt], state: State) -> None:
    k = 0
    while k < len(block):
        stmt = block[k]
        match stmt:
            case Barrier():
                state.clear()
            case Load() | Store():
                if state.must_wait(stmt):
                    block.insert(k, Barrier())
                    state.clear()
                    k += 1
                if isinstance(stmt, Store):
                    state.written.setdefault(stmt.buffer, set()).add(stmt.group)
                elif stmt.buffer.role != "in":
                    state.read.add(stmt.buffer)
            case For() | While():
                if any(state.must_wait(s) for s in walk([stmt]) if isinstance(s, Load)):  # once, not at every turn
                    block.insert(k, Barrier())
                    state.clear()
                    k += 1
                for _ in range(2):
                    for inner in inner_blocks(stmt):
                        _block(inner, state)
            case If():
                then, other = state.copy(), state.copy()
                _block(stmt.then, then)
                _block(stmt.other, other)
                state.clear()
                state.merge(then)
                state.merge(other)
        k += 1
