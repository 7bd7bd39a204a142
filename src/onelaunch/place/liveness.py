"""Liveness: scratch buffers that are never needed at the same time share memory.

A buffer that is only used inside one block of statements lives there from its first use to its last; whatever a
block's statements compute is written before it is read in the same turn, so two such buffers of one block with ranges
apart can be one. (What a loop carries is also used outside the loop, so it belongs to the outer block and lives through
the whole loop.)
"""

from __future__ import annotations

from dataclasses import dataclass

from onelaunch.place.nodes import Buffer, Load, Program, Stmt, Store, inner_blocks


@dataclass
class Range:
    """The block that holds all uses of a buffer, and the numbers of the first and last statement with one."""

    block: list[Stmt]
    first: int
    last: int


def share(program: Program) -> None:
    """Give scratch buffers with ranges apart the same memory, in place.

    Of several programs each has its part of a buffer: parts lie alike in buffers of one size.
    """
    ranges = {b: r for b in program.scratch if (r := _range(program.body, b)) is not None}
    kept: list[Buffer] = []
    merged: dict[Buffer, Buffer] = {}
    for b in sorted(ranges, key=lambda b: ranges[b].first):
        mine = ranges[b]
        for other in kept:
            theirs = ranges[other]
            alike = other.dtype == b.dtype and other.offset is b.offset and theirs.block is mine.block
            if alike and (program.grid == 1 or other.size == b.size) and theirs.last < mine.first:
                merged[b] = other
                other.size = max(other.size, b.size)
                theirs.last = mine.last
                break
        else:
            kept.append(b)
    _replace(program.body, merged)
    program.scratch = [b for b in program.scratch if b not in merged and b in ranges]


def _range(block: list[Stmt], b: Buffer) -> Range | None:
    """Where a buffer is used, in the innermost block that holds all uses; None if nowhere."""
    used = [k for k, stmt in enumerate(block) if _uses(stmt, b)]
    if not used:
        return None
    if len(used) == 1:
        inner = [r for child in inner_blocks(block[used[0]]) if (r := _range(child, b)) is not None]
        if len(inner) == 1:
            return inner[0]
    return Range(block, used[0], used[-1])


def _uses(stmt: Stmt, b: Buffer) -> bool:
    if isinstance(stmt, Load | Store):
        return stmt.buffer is b
    return any(_uses(child, b) for block in inner_blocks(stmt) for child in block)


def _replace(block: list[Stmt], merged: dict[Buffer, Buffer]) -> None:
    for stmt in block:
        if isinstance(stmt, Load | Store):
            stmt.buffer = merged.get(stmt.buffer, stmt.buffer)
        for inner in inner_blocks(stmt):
            _replace(inner, merged)
