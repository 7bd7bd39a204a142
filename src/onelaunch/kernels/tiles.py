"""How many rows and columns a program takes at once: as measured (``tuned.json``), else by rule; never at a call."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: A row of at most this many columns stays in registers between its two passes.
SINGLE = 16384

#: Columns of a step along a longer row.
BLOCK = 8192

#: Elements of a program's tile where rows are short.
SMALL = 2048

#: Elements that four warps hold as f32.
UNPACKED = 4096

#: Programs of one row that wait for each other, at most. No more than half as many as the GPU has processors, so that
#: it holds them all at once, beside another such kernel's.
PARTS = 32

#: What bench/tune_rows.py measured.
TUNED = Path(__file__).parent / "tuned.json"

#: The tile that tests ask for, instead of the rule's.
_forced: list[Tile] = []


@dataclass(frozen=True)
class Tile:
    """``rows`` × ``columns`` elements (powers of two) a program, on ``warps`` warps; longer rows take several steps.

    A row over ``parts`` programs takes one step; they have at most ``registers`` registers a thread, and ``packed``
    ones hold elements as they are in memory.
    """

    rows: int
    columns: int
    warps: int
    registers: int | None = None
    parts: int = 1
    packed: bool = False


@dataclass(frozen=True)
class Machine:
    """Where a kernel runs: ``arch`` is an NVIDIA GPU's compute capability, 90 for 9.0.

    None stands for anything else, the interpreter too: no PTX, and programs do not wait for each other. ``processors``:
    streaming multiprocessors.
    """

    arch: int | None = None
    processors: int = 2 * PARTS


ANYWHERE = Machine()


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


def softmax(rows: int, columns: int, unit: bool, size: int, kind: str, masked: bool, machine: Machine) -> Tile:
    """The tile of softmax of elements of ``size`` bytes; ``kind``: "forward" or "backward"; ``masked``: not packed."""
    tile = _measured(f"softmax {kind}", rows, columns, unit, size, machine) or choose(rows, columns, unit)
    if not (tile.packed and masked) or _forced:
        return tile
    parts = -(-columns // UNPACKED)
    return Tile(1, UNPACKED, 4, None, parts) if parts <= most(machine) else choose(rows, columns, unit)


def split_entropy(rows: int, columns: int, unit: bool, size: int, more: bool, machine: Machine) -> Tile | None:
    """How cross-entropy with its gradient holds rows of logits of ``size`` bytes; None: not at all.

    ``more``: there are options that take more registers.
    """
    if _forced:
        wanted = _forced[-1]
        return wanted if wanted.packed and wanted.parts * wanted.columns >= columns else None
    tile = None if columns <= SINGLE else _measured("cross_entropy", rows, columns, unit, size, machine)
    if tile is None or not more:
        return tile
    piece = UNPACKED * 2 if columns <= UNPACKED * 2 * most(machine) else SINGLE
    parts = -(-columns // piece)
    return Tile(1, piece, piece // 2048, 128, parts, True) if parts <= most(machine) else None


def most(machine: Machine) -> int:
    """Programs that may share a row."""
    return min(PARTS, machine.processors // 2)


def _measured(kernel: str, rows: int, columns: int, unit: bool, size: int, machine: Machine) -> Tile | None:
    """The tile that was best at a like shape, if one was measured."""
    if _forced or not unit or machine.arch is None:
        return None
    width = power(columns)
    known, table = _table(machine.arch)
    for entry in table.get(f"{kernel} {size}", ()):
        if columns <= entry["upto"]:
            elements = entry["elements"]
            parts = max(1, -(-columns // elements))
            if parts > most(machine):
                return None
            height = min(power(rows), max(1, elements // width))
            # What the compiler makes of another target was not seen: no bound that could make it spill.
            registers = entry["registers"] if known == machine.arch else None
            return Tile(height, min(width, elements), entry["warps"], registers, parts, entry["packed"])
    return None


@functools.cache
def _table(arch: int) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    """Measured on GPUs of this compute capability, or of the nearest that there is: which, and the tiles."""
    tables = json.loads(TUNED.read_text())
    nearest = min(tables, key=lambda known: (abs(int(known) - arch), known))
    return int(nearest), tables[nearest]["tiles"]


@contextmanager
def forced(
    rows: int, columns: int, warps: int = 4, registers: int | None = None, parts: int = 1, packed: bool = False
) -> Iterator[None]:
    """Within it every kernel takes this tile (tests: the path of many steps with few columns)."""
    _forced.append(Tile(rows, columns, warps, registers, parts, packed))
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
