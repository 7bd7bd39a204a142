"""Launches of block-sparse products: tables of work, tiles, grids. No framework in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from onelaunch.kernels.calls import Call
from onelaunch.kernels.tiles import power
from onelaunch.sparse.layout import BlockLayout

#: How f32 operands are multiplied: exactly rounded, on tensor cores with 10 bits, or with three of those.
PRECISIONS = ("ieee", "tf32", "tf32x3")

#: Shared memory of a program, in bytes, on the GPUs that the tiles are chosen for (H100, H200).
ROOM = 227 * 1024

#: The same by architecture, in kilobytes.
_ROOMS = {"75": 64, "80": 163, "86": 99, "87": 163, "89": 99, "90": 227, "100": 227, "103": 227, "110": 227}

#: Programs that a GPU should be given at least, if the layout lets it.
_PROGRAMS = 128

#: A line is not cut into pieces of less depth than this.
_PIECE = 1024

#: Bytes of the dense operand that the programs at work should share in cache.
_CACHED = 24 * 2**20

#: The tiles that tests and sweeps ask for, by the kernel's name, instead of the rules'.
_forced: dict[str, Any] = {}

#: Strides of a dense array (batch, plane, row, column).
Strides = Sequence[int]


def room_of(arch: str) -> int:
    """Bytes of shared memory that a program may have on an architecture ("90"; others than NVIDIA's have 64 KB)."""
    return 1024 * _ROOMS.get(arch, 99 if arch.isdigit() else 64)


@dataclass(frozen=True)
class ProductTile:
    """``width`` columns of the dense operand, or blocks of the sparse result, and ``depth`` of the sum a step."""

    width: int
    depth: int
    warps: int
    stages: int


@dataclass(frozen=True)
class Work:
    """Tables of a product over lines: see ``block_dsd`` and ``block_gather``; ``slots`` partial sums."""

    items: np.ndarray
    cut: np.ndarray
    slots: int


@contextmanager
def forced(**tiles: Any) -> Iterator[None]:
    """Within it kernels (dsd, sdd, block_attention, ...) take these tiles, in PyTorch."""
    before = dict(_forced)
    _forced.update(tiles)
    try:
        yield
    finally:
        _forced.clear()
        _forced.update(before)


def asked(kernel: str) -> Any:
    """The forced tile of a kernel, if any."""
    return _forced.get(kernel)


def dsd_tile(itemsize: int, block: int, columns: int, room: int = ROOM) -> ProductTile:
    """The tile of a dense result, by rule."""
    if (tile := asked("dsd")) is not None:
        return ProductTile(*tile)
    if itemsize > 2:
        width = min(64, max(16, power(columns)))
        return ProductTile(width, 32 if itemsize == 4 else 16, 8 if block == 128 else 4, 2)
    width = min({64: 512, 128: 256}.get(block, 128), max(16, power(columns)))
    while width > 128 and -(-columns // width) * width > 1.15 * columns:
        width //= 2
    warps = 8 if block * width > 64 * 256 else 4
    return _fitted(ProductTile(width, 64, warps, 3), block, 1, itemsize, room)


def sdd_tile(layout: BlockLayout, itemsize: int, room: int = ROOM) -> ProductTile:
    """The tile of a sparse result: blocks of a row to make 256 columns, fewer where rows would not fill them."""
    if (tile := asked("sdd")) is not None:
        return ProductTile(*tile)
    block = layout.block
    if itemsize > 2:
        return ProductTile(max(1, 64 // block), 32 if itemsize == 4 else 16, 8 if block == 128 else 4, 2)
    cover = _cover(layout)
    warps = 8 if block * block * cover > 128 * 128 else 4
    return _fitted(ProductTile(cover, 64, warps, 4 if block == 128 else 3), block, block, itemsize, room)


def _cover(layout: BlockLayout) -> int:
    """Blocks of 256 columns, halved while a quarter of what the tiles hold would be empty."""
    if "cover" not in layout.kept:
        cover = 256 // layout.block
        counts = np.diff(layout.tables.row_start)
        while cover * layout.block > 64 and 4 * layout.nnz < 3 * cover * int((-(-counts // cover)).sum()):
            cover //= 2
        layout.kept["cover"] = cover
    found: int = layout.kept["cover"]
    return found


def _fitted(tile: ProductTile, rows: int, unit: int, itemsize: int, room: int) -> ProductTile:
    """With as many stages as shared memory has room for, and narrower where not even two fit; a width has ``unit``s."""

    def stages(width: int) -> int:
        return room // ((rows + width * unit) * tile.depth * itemsize)

    width = tile.width
    while stages(width) < 2 and width * unit > 64 and width > 1:
        width //= 2
    return ProductTile(width, tile.depth, tile.warps, max(1, min(tile.stages, stages(width))))


def work_of(layout: BlockLayout, transposed: bool, copies: int) -> Work:
    """Lines by falling length, each done by ``copies`` programs; one that all would wait for is cut in pieces."""
    starts = layout.tables.column_start if transposed else layout.tables.row_start
    fair = max(-(-layout.nnz * copies // _PROGRAMS), 1)
    longest = layout.longest_column if transposed else layout.longest_row
    limit = max(fair // 2, _PIECE // layout.block)
    return _cut(starts, limit if longest > max(fair, 2 * limit) else None)


def work(layout: BlockLayout, transposed: bool, copies: int) -> Work:
    """``work_of``, kept with the layout."""
    key = ("work", transposed, copies)
    if key not in layout.kept:
        layout.kept[key] = work_of(layout, transposed, copies)
    found: Work = layout.kept[key]
    return found


def _cut(starts: np.ndarray, limit: int | None) -> Work:
    """Items (line, first, end, slot): lines of more than ``limit`` blocks in even pieces, which have slots."""
    counts = np.diff(starts)
    pieces = np.ones_like(counts) if limit is None else np.maximum(-(-counts // limit), 1)
    line = np.repeat(np.arange(len(counts)), pieces)
    number = np.arange(len(line)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begin = starts[line] + number * counts[line] // pieces[line]
    end = starts[line] + (number + 1) * counts[line] // pieces[line]
    several = pieces[line] > 1
    slot = np.where(several, np.cumsum(several) - 1, -1)
    items = np.stack([line, begin, end, slot], 1)[falling(end - begin)].astype(np.int32)
    which = np.flatnonzero(pieces > 1)
    last = np.cumsum(pieces[which])
    cut = np.stack([which, last - pieces[which], last], 1).astype(np.int32)
    return Work(items, cut, int(several.sum()))


def falling(lengths: np.ndarray) -> np.ndarray:
    """An order that begins with the longest; lengths up to twice the mean keep theirs, as neighbours share caches."""
    mean = max(float(lengths.mean()) if lengths.size else 1.0, 1.0)
    rank = np.ceil(np.log2(np.maximum(lengths / (2 * mean), 1.0)))
    return np.argsort(-rank, kind="stable")


def groups(layout: BlockLayout, cover: int) -> np.ndarray:
    """Items (row, first, end) of a sparse result: up to ``cover`` blocks of a row, near ones at the same time."""
    key = ("groups", cover)
    if key not in layout.kept:
        layout.kept[key] = _groups(layout, cover)
    found: np.ndarray = layout.kept[key]
    return found


def _groups(layout: BlockLayout, cover: int) -> np.ndarray:
    starts = layout.tables.row_start
    counts = np.diff(starts)
    pieces = -(-counts // cover)
    line = np.repeat(np.arange(len(counts)), pieces)
    number = np.arange(len(line)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    first = starts[line] + number * cover
    end = np.minimum(first + cover, starts[line + 1])
    # Programs at work at a time cover about a square of the result, so they read few rows and columns.
    side = max(1, int(np.sqrt(_PROGRAMS * cover / max(layout.density, 1e-6))))
    column = layout.tables.column[first] if len(first) else first
    order = np.lexsort((line, column // side, line // layout.rows))
    return np.stack([line, first, end], 1)[order].astype(np.int32)


def dsd(
    layout: BlockLayout, transposed: bool, batch: int, columns: int, tile: ProductTile, dense: Strides, out: Strides,
    precision: str, itemsize: int,
) -> tuple[Call, Call | None, Work]:  # fmt: skip
    """Arrays values, dense, work, lines, where, out, partial; and partial, cut, out of the second launch, if any."""
    tiles = -(-columns // tile.width)
    found = work(layout, transposed, batch * tiles)
    lines = layout.columns if transposed else layout.rows
    inner = (layout.rows if transposed else layout.columns) * layout.block
    band = max(1, min(tiles, _CACHED // max(1, inner * tile.width * itemsize)))
    sizes: dict[str, Any] = {"tiles": tiles, "rows": lines, "columns": columns, "batch": batch} | _strides(
        "o", "zhmn", out
    )
    numbers: dict[str, Any] = sizes | _strides("d", "zhkn", dense) | {"count": len(found.items), "blocks": layout.nnz}
    numbers |= {"BLOCK": layout.block, "WIDTH": tile.width, "DEPTH": tile.depth, "BAND": 1 << band.bit_length() - 1}
    numbers |= {"EVEN": columns % tile.width == 0, "PRECISION": precision}
    grid = (batch * len(found.items) * tiles,)
    first = Call("block_matmul", "block_dsd", numbers, grid, tile.warps, tile.stages)
    if not found.slots:
        return first, None, found
    width = min(64, tile.width)
    numbers = sizes | {"BLOCK": layout.block, "WIDTH": width, "tiles": -(-columns // width)}
    grid = (len(found.cut) * batch * -(-columns // width),)
    return first, Call("block_matmul", "block_gather", numbers, grid, 4), found


def sdd(
    layout: BlockLayout, batch: int, depth: int, tile: ProductTile, x: Strides, y: Strides, precision: str
) -> tuple[Call, np.ndarray]:
    """Arrays x, y, work, lines, values."""
    found = groups(layout, tile.width)
    numbers: dict[str, Any] = {"count": len(found), "depth": depth, "rows": layout.rows, "blocks": layout.nnz}
    numbers |= _strides("x", "zhmk", x) | _strides("y", "zhkn", y)
    numbers |= {"BLOCK": layout.block, "COVER": tile.width, "DEPTH": tile.depth}
    numbers |= {"EVEN": depth % tile.depth == 0, "PRECISION": precision}
    return Call("block_matmul", "block_sdd", numbers, (batch * len(found),), tile.warps, tile.stages), found


def _strides(letter: str, names: str, strides: Strides) -> dict[str, Any]:
    return {letter + name: int(s) for name, s in zip(names, strides, strict=True)}
