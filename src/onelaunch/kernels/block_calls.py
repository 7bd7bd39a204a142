"""Launches of the block-sparse softmax kernels: numbers, tile, grid. No framework in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from onelaunch.kernels import tiles
from onelaunch.kernels.calls import LOGSUMEXP, Call
from onelaunch.sparse.layout import BlockLayout

#: A line of at most this many columns stays in registers between its two passes.
SINGLE = 16384

#: Elements of a program's tile where lines are short.
TILE = 2048

#: Tiles of J, J / 2, J / 4 and J / 8 blocks.
LEVELS = 4

#: A line that is read twice moves three arrays' bytes where two would do.
_TWICE = 1.5

#: A narrower tile is taken for this much more: it leaves more programs to a processor.
_NARROW = 1.02

#: What an idle lane costs, as a share of one that carries a number.
_IDLE = 0.3

#: Strides of the dense arrays (item, batch item, head, query, key) by the letter of their arguments.
Strides = Mapping[str, tuple[int, int, int, int, int] | None]


@dataclass(frozen=True)
class BlockScores:
    """Options: mode as in ``calls``; ``causal``; whether attn and pad leave out (where 0) rather than add."""

    mode: int
    scale: float = 1.0
    causal: bool = False
    attn_mul: bool = False
    pad_mul: bool = False


@dataclass(frozen=True)
class BlockTile:
    """A program's ``rows`` of a line, in tiles of at most ``blocks`` blocks, on ``warps`` warps."""

    rows: int
    blocks: int
    warps: int


def choose(layout: BlockLayout) -> BlockTile:
    """The tile for a layout, by rule."""
    forced = tiles.current()
    if forced is not None:
        return BlockTile(min(forced.rows, layout.block), max(1, forced.columns // layout.block), forced.warps)
    if "tile" not in layout.kept:
        layout.kept["tile"] = _tile(layout)
    found: BlockTile = layout.kept["tile"]
    return found


def _tile(layout: BlockLayout) -> BlockTile:
    """Blocks by what the lines would cost: idle lanes of wide tiles against a second reading of long lines."""
    counts = np.diff(layout.tables.row_start)
    counts = counts[counts > 0]
    costs = {}
    width = 1
    while width * layout.block <= SINGLE:
        held = np.maximum(1 << np.ceil(np.log2(counts)).astype(int), width >> (LEVELS - 1))
        costs[width] = np.where(counts > width, counts * _TWICE, counts + _IDLE * (held - counts)).sum()
        width *= 2
    blocks = next(width for width, cost in costs.items() if cost <= _NARROW * min(costs.values()))
    rows = max(1, min(layout.block, TILE // (blocks * layout.block)))
    return BlockTile(rows, blocks, min(16, max(1, rows * blocks * layout.block // 1024)))


def skewed(layout: BlockLayout) -> bool:
    """Whether lines differ so much that the longest should be begun first."""
    return layout.longest_row * layout.planes * layout.rows > 3 * layout.nnz


def forward(layout: BlockLayout, items: int, options: BlockScores, strides: Strides, extent: int) -> Call:
    """Arrays x, row_start, order, column, rpe, attn, pad, rel, y."""
    numbers = _sizes(layout, items) | _dense(layout, options, strides, extent) | {"MODE": options.mode}
    return _call("block_softmax_forward", layout, items, numbers | {"SCALE": options.scale})


def backward(layout: BlockLayout, items: int, mode: int, factor: float) -> Call:
    """Arrays y, g, row_start, order, dx, of softmax or log-softmax."""
    assert mode != LOGSUMEXP
    return _call("block_softmax_backward", layout, items, _sizes(layout, items) | {"MODE": mode, "FACTOR": factor})


def logsumexp_backward(
    layout: BlockLayout, items: int, options: BlockScores, strides: Strides, extent: int, factor: float
) -> Call:
    """Arrays x, row_start, order, column, rpe, attn, pad, rel, y, g, dx."""
    numbers = _sizes(layout, items) | _dense(layout, options, strides, extent)
    numbers |= {"SCALE": options.scale, "FACTOR": factor}
    return _call("block_logsumexp_backward", layout, items, numbers, levels=False)


def _sizes(layout: BlockLayout, items: int) -> dict[str, Any]:
    return {"items": items, "nnz": layout.nnz}


def _dense(layout: BlockLayout, options: BlockScores, strides: Strides, extent: int) -> dict[str, Any]:
    found: dict[str, Any] = {"lines": layout.planes * layout.rows, "rows": layout.rows, "heads": layout.heads}
    found |= {"extent": extent, "CAUSAL": options.causal, "ATTN_MUL": options.attn_mul, "PAD_MUL": options.pad_mul}
    for letter in "rapl":
        steps = strides.get(letter) or (0,) * 5
        names = "zin" if letter == "p" else "zihmn"  # padding knows neither heads nor queries
        found |= {letter + name: steps["zihmn".index(name)] for name in names}
    return found


def _call(function: str, layout: BlockLayout, items: int, numbers: dict[str, Any], levels: bool = True) -> Call:
    tile = choose(layout)
    numbers |= {"B": layout.block, "ROWS": tile.rows, "J": tile.blocks}
    if levels:
        numbers |= {"LEVELS": min(LEVELS, tile.blocks.bit_length()), "LOOP": layout.longest_row > tile.blocks}
    programs = layout.planes * layout.rows * items * (layout.block // tile.rows)
    return Call("block_softmax", function, numbers, (programs,), tile.warps)
