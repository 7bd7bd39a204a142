"""Launches of block-sparse attention: which blocks need tests of their elements, tiles, grids. No framework in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onelaunch.kernels.calls import Call, check_cap
from onelaunch.kernels.matmul_calls import ROOM, asked, falling
from onelaunch.kernels.tiles import power
from onelaunch.sparse.layout import BlockLayout

#: A block's elements are tested: nowhere, in some blocks, everywhere.
NOWHERE, SOME, EVERYWHERE = range(3)

#: Bytes of shared memory from which dk and dv take 128 keys a program.
_LARGE = 160 * 1024

FORWARD, ROWS, COLUMNS = "block_attention", "block_attention_dq", "block_attention_dkv"


@dataclass(frozen=True)
class Attention:
    """Options: ``cap(q·k * scale)``; causal; whether the two masks are added (else they leave out where 0).

    extent: None, or the last size of the mask, which then holds relative logits.
    """

    scale: float
    cap: float | None = None
    causal: bool = False
    pad_add: bool = True
    mask_add: bool = True
    precision: str = "ieee"
    extent: int | None = None

    def __post_init__(self) -> None:
        check_cap(self.cap)

    @property
    def plain(self) -> tuple[float, float | None, bool, bool, bool, str, int | None]:
        """Its fields."""
        return self.scale, self.cap, self.causal, self.pad_add, self.mask_add, self.precision, self.extent

    @property
    def mask(self) -> str | int:
        """What the kernels call it."""
        return self.extent if self.extent is not None else "add" if self.mask_add else "mul"


@dataclass(frozen=True)
class Sizes:
    """Of q (batch, heads, queries, dim), k (batch, key_heads, keys, dim) and v (batch, key_heads, keys, value_dim)."""

    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    dim: int
    value_dim: int


@dataclass(frozen=True)
class AttentionTile:
    """``rows`` of a block a program, ``depth`` elements of the other axis a step."""

    rows: int
    depth: int
    warps: int
    stages: int


@dataclass(frozen=True)
class Lines:
    """Tables of a pass over rows or columns: the order of items, and each line's bounds (see the kernels)."""

    order: np.ndarray
    bounds: np.ndarray
    tested: int


def tile_of(kind: str, itemsize: int, block: int, dim: int, room: int = ROOM) -> AttentionTile:
    """The tile of a pass (FORWARD, ROWS or COLUMNS), by rule; ``dim`` is the larger head dim."""
    if (tile := asked(kind)) is not None:
        return AttentionTile(*tile)
    width = max(16, power(dim))
    if itemsize > 2:
        rows = min(block, 64 if width <= 64 and kind != COLUMNS else 32)
        return AttentionTile(rows, 32 if width <= 64 else 16, 8 if width >= 64 else 4, 1)
    if block < 64:
        return AttentionTile(block, 64 if width <= 128 else 32, 4, 2)
    rows = 128 if kind == COLUMNS and block == 128 and width == 128 and room >= _LARGE else 64
    held = (1 if kind == FORWARD else 2) * rows * width * itemsize
    stages = 2 if kind == COLUMNS or (kind == ROWS and width > 64) else 3
    depth = 64 if width <= 128 else 32
    warps = 8 if rows == 128 or (kind == COLUMNS and width > 128) else 4
    return AttentionTile(rows, depth, warps, max(1, min(stages, (room - held) // (2 * depth * width * itemsize))))


def lines(layout: BlockLayout, sizes: Sizes, causal: bool, masks: bool, depth: int, columns: bool) -> Lines:
    """The tables of a pass, kept with the layout."""
    everywhere = masks or layout.block < depth or (columns and sizes.queries % layout.block != 0)
    key = ("lines", sizes.heads, sizes.key_heads, sizes.keys, causal, everywhere, columns)
    if key not in layout.kept:
        layout.kept[key] = _lines(layout, sizes, causal, everywhere, columns)
    found: Lines = layout.kept[key]
    return found


def _lines(layout: BlockLayout, sizes: Sizes, causal: bool, everywhere: bool, columns: bool) -> Lines:
    t, b = layout.tables, layout.block
    row, column = (t.column_row, t.column[t.column_block]) if columns else (t.row, t.column)
    starts = (t.column_start if columns else t.row_start).astype(np.int64)
    gone = causal & (column > row)
    tested = (causal & (column == row)) | everywhere
    if not columns:  # keys beyond the last one; beyond the last query there are none that are stored
        tested |= (column + 1) * b > sizes.keys
    first, stop = starts[:-1], starts[1:]
    left_out = _counts(gone, starts)
    concerned = _counts(tested & ~gone, starts)
    if columns:  # sorted by row: those above the diagonal, on it, below it
        first = first + left_out
        middle = first + concerned
    else:
        stop = stop - left_out
        middle = stop - concerned
    bounds = np.stack([first, middle, stop], 1).astype(np.int32)
    amount = int(concerned.sum())
    level = NOWHERE if not amount else EVERYWHERE if everywhere or amount == int((stop - first).sum()) else SOME
    return Lines(_order(layout, sizes, stop - first, columns), bounds, level)


def _counts(flags: np.ndarray, starts: np.ndarray) -> np.ndarray:
    total = np.concatenate([[0], np.cumsum(np.broadcast_to(flags, (int(starts[-1]),)))])
    return np.asarray(total[starts[1:]] - total[starts[:-1]])


def _order(layout: BlockLayout, sizes: Sizes, lengths: np.ndarray, columns: bool) -> np.ndarray:
    """Items (batch item of the layout, head, line): query heads' rows, or key heads' columns with all their readers."""
    per_head = lengths.reshape(layout.batch or 1, layout.heads, -1).repeat(sizes.heads // layout.heads, 1)
    if columns:
        shape = (per_head.shape[0], sizes.key_heads, sizes.heads // sizes.key_heads, per_head.shape[2])
        per_head = per_head.reshape(shape).sum(2)
    return falling(per_head.reshape(-1)).astype(np.int32)


def launch_of(
    kind: str, layout: BlockLayout, sizes: Sizes, options: Attention, found: Lines, tile: AttentionTile,
    strides: Mapping[str, Sequence[int]],
) -> Call:  # fmt: skip
    """The launch of a pass. strides: of arrays by the letter that begins their arguments' names (see kernels)."""
    columns = kind == COLUMNS
    numbers: dict[str, Any] = {
        "count": len(found.order),
        "columns" if columns else "rows": layout.columns if columns else layout.rows,
        "heads": sizes.heads,
        "group": sizes.heads // sizes.key_heads,
        "batches": layout.batch or 1,
        "planes": layout.heads,
        "share": sizes.heads // layout.heads,
        "queries": sizes.queries,
        "keys": sizes.keys,
    }
    for letter, steps in strides.items():
        numbers |= {letter + axis: int(s) for axis, s in zip(_axes(letter), steps, strict=True)}
    numbers |= {"SCALE": options.scale, "CAP": options.cap, "OFFSET": 0 if options.causal else None}
    numbers |= {"PADADD": options.pad_add, "MASK": options.mask, "TESTED": found.tested}
    numbers |= {"BLOCK": layout.block, "ROWS": tile.rows, "DEPTH": tile.depth, "PRECISION": options.precision}
    numbers |= {"DIM": sizes.dim, "WIDTH": max(16, power(sizes.dim))}
    numbers |= {"VDIM": sizes.value_dim, "VWIDTH": max(16, power(sizes.value_dim))}
    items = sizes.batch // (layout.batch or 1) * len(found.order)
    family = "block_attention" if kind == FORWARD else "block_attention_backward"
    return Call(family, kind, numbers, (items * (layout.block // tile.rows),), tile.warps, tile.stages)


def _axes(letter: str) -> str:
    """Batch item, head, and what follows: query or key and head dim, or both of a mask."""
    return {"p": "zhn", "m": "zhmn", "k": "zhnd", "v": "zhnd", "s": "zhnd", "t": "zhnd"}.get(letter, "zhmd")


def delta(sizes: Sizes, out: Sequence[int], dout: Sequence[int]) -> Call:
    """Arrays out, dout, dlse, delta."""
    numbers: dict[str, Any] = {"queries": sizes.queries, "heads": sizes.heads}
    for letter, steps in (("o", out), ("g", dout)):
        numbers |= {letter + axis: int(s) for axis, s in zip("zhmd", steps, strict=True)}
    rows = 32
    numbers |= {"ROWS": rows, "VDIM": sizes.value_dim, "VWIDTH": max(16, power(sizes.value_dim))}
    grid = (sizes.batch * sizes.heads * -(-sizes.queries // rows),)
    return Call("block_attention_backward", "block_attention_delta", numbers, grid, 4)
