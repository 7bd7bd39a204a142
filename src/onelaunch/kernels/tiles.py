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

#: The tile that tests ask for, instead of the rule's.
_forced: list[Tile] = []


@dataclass(frozen=True)
class Tile:
    """``rows`` × ``columns`` elements (powers of two) a program, on ``warps`` warps; longer rows take several steps."""

    rows: int
    columns: int
    warps: int


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


@contextmanager
def forced(rows: int, columns: int, warps: int = 4) -> Iterator[None]:
    """Within it every kernel takes this tile (tests: the path of many steps with few columns)."""
    _forced.append(Tile(rows, columns, warps))
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
