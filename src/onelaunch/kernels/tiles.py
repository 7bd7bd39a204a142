"""How many rows and columns a program takes at once. Chosen by rule; nothing is measured at a call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

#: A row of at most this many columns stays in registers between its two passes.
SINGLE = 16384

#: Columns of a step along a longer row.
BLOCK = 8192

#: Elements of a program's tile where rows are short.
SMALL = 2048

#: Programs of one row that wait for each other: few enough that any GPU holds them all at once.
PARTS = 32

#: The tile that tests ask for, instead of the rule's.
_forced: list[Tile] = []


@dataclass(frozen=True)
class Tile:
    """``rows`` × ``columns`` elements (powers of two) a program, on ``warps`` warps; longer rows take several steps.

    A row over ``parts`` programs takes one step; they have at most ``registers`` registers a thread.
    """

    rows: int
    columns: int
    warps: int
    registers: int | None = None
    parts: int = 1


@dataclass(frozen=True)
class Machine:
    """Where a kernel runs: ``arch`` is an NVIDIA GPU's compute capability, 90 for 9.0.

    None stands for anything else, the interpreter too: no PTX, and programs do not wait for each other.
    """

    arch: int | None = None


def choose(rows: int, columns: int, unit: bool, block: int = BLOCK) -> Tile:
    """The tile for ``rows`` × ``columns``; ``unit`` says that neighbours along a row are neighbours in memory."""
    if _forced:
        return _forced[-1]
    if not unit:
        height = min(32, power(rows))
        return Tile(height, min(128, power(columns)), 4)
    width = power(columns)
    if width > SINGLE:
        return Tile(1, block, 16)
    height = min(power(rows), max(1, SMALL // width))
    return Tile(height, width, min(16, max(4, height * width // 1024)))


def split_entropy(columns: int, size: int, unit: bool, best: bool, machine: Machine) -> Tile | None:
    """How cross-entropy with its gradient holds a row of logits of ``size`` bytes; None: not at all.

    ``unit``: neighbours in a row are so in memory; ``best``: the argmax, which takes more registers, is wanted.
    """
    if _forced:
        tile = _forced[-1]
        return tile if tile.parts * tile.columns >= columns and tile.registers is not None else None
    if not unit or columns <= SINGLE:
        return None
    registers = 64 if size == 2 and not best else 128
    for piece, warps in ((8192, 4), (16384, 8)) if columns > 2 * SINGLE or size > 2 else ((2 * SINGLE, 16),):
        parts = -(-columns // piece)
        if parts == 1 or (parts <= PARTS and machine.arch is not None):
            return Tile(1, piece, warps, registers, parts)
    return None


@contextmanager
def forced(rows: int, columns: int, warps: int = 4, registers: int | None = None, parts: int = 1) -> Iterator[None]:
    """Within it every kernel takes this tile (tests: the path of many steps with few columns)."""
    _forced.append(Tile(rows, columns, warps, registers, parts))
    try:
        yield
    finally:
        _forced.pop()


def power(n: int) -> int:
    """The least power of two that is at least ``n``."""
    return 1 << max(0, n - 1).bit_length()


def current() -> Tile | None:
    """The forced tile, if any: part of what a traced call depends on."""
    return _forced[-1] if _forced else None
