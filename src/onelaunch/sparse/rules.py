"""Layouts from rules. Sizes are in blocks unless said otherwise; rules combine by ``|`` and ``&``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from onelaunch.sparse.layout import BlockLayout

#: Elements of a mask that are looked at at once.
_CHUNK = 2**22


def dense(rows: int, columns: int | None = None, *, block: int, heads: int = 1) -> BlockLayout:
    """Every block."""
    return BlockLayout(np.ones((rows, columns or rows), bool), block, heads=heads)


def causal(rows: int, columns: int | None = None, *, block: int, heads: int = 1) -> BlockLayout:
    """Blocks on and below the diagonal. Of those on it, ``is_causal`` leaves out the entries above."""
    row, column = _grid(rows, columns)
    return BlockLayout(column <= row, block, heads=heads)


def sliding_window(
    rows: int, columns: int | None = None, *, block: int, before: int, after: int = 0, heads: int = 1
) -> BlockLayout:
    """Blocks from ``before`` to the left of the diagonal to ``after`` to the right of it."""
    row, column = _grid(rows, columns)
    return BlockLayout((row - column <= before) & (column - row <= after), block, heads=heads)


def dilated(
    rows: int, columns: int | None = None, *, block: int, reach: int, step: int, after: int = 0, heads: int = 1
) -> BlockLayout:
    """The diagonal, and every ``step``-th block up to ``reach`` to the left of it and ``after`` to the right."""
    row, column = _grid(rows, columns)
    gap = row - column
    return BlockLayout((gap <= reach) & (-gap <= after) & (gap % step == 0), block, heads=heads)


def global_tokens(
    rows: int, columns: int | None = None, *, block: int, indices: Sequence[int], seen: bool = True, see: bool = True,
    heads: int = 1,
) -> BlockLayout:  # fmt: skip
    """Blocks ``indices`` that everyone sees (``seen``: whole columns) and that see everyone (``see``: whole rows)."""
    mask = np.zeros((rows, columns or rows), bool)
    mask[:, [i for i in indices if i < mask.shape[1]]] |= seen
    mask[[i for i in indices if i < rows]] |= see
    return BlockLayout(mask, block, heads=heads)


def random(
    rows: int, columns: int | None = None, *, block: int, density: float, seed: int = 0, diagonal: bool = True,
    heads: int = 1,
) -> BlockLayout:  # fmt: skip
    """Blocks drawn with probability ``density``, heads apart; the ``diagonal`` besides."""
    if not 0 <= density <= 1:
        raise ValueError(f"density is between 0 and 1, not {density}")
    mask = np.random.default_rng(seed).random((heads, rows, columns or rows)) < density
    row, column = _grid(rows, columns)
    return BlockLayout(mask | (row == column) if diagonal else mask, block)


def from_function(
    rule: Callable[[Any, Any, Any], Any], rows: int, columns: int | None = None, *, block: int, heads: int = 1
) -> BlockLayout:
    """Blocks where ``rule(head, row, column)`` is true: of int arrays of blocks that broadcast, or of single ints."""
    grid = np.ogrid[:heads, :rows, : columns or rows]
    try:
        mask = np.broadcast_to(np.asarray(rule(*grid)), (heads, rows, columns or rows))
    except (TypeError, ValueError):  # a rule with `if`, or `and`
        mask = np.vectorize(rule, otypes=[bool])(*grid)
    return BlockLayout(mask, block)


def from_mask_mod(
    rule: Callable[[Any, Any, Any, Any], Any], queries: int, keys: int | None = None, *, block: int, heads: int = 1,
    batch: int = 1,
) -> BlockLayout:  # fmt: skip
    """Blocks with an element where ``rule(batch, head, query, key)`` is true, as FlexAttention's ``mask_mod``.

    queries, keys: in elements, multiples of ``block``. The rule gets int64 arrays that broadcast.
    """
    keys = keys or queries
    if queries % block or keys % block:
        raise ValueError(f"{queries} queries and {keys} keys are not multiples of the block, {block}")
    mask = np.zeros((batch, heads, queries // block, keys // block), bool)
    step = max(1, _CHUNK // (keys * block * batch * heads))
    for row in range(0, mask.shape[2], step):
        rows = min(step, mask.shape[2] - row)
        b, h, q, k = np.ogrid[:batch, :heads, row * block : (row + rows) * block, :keys]
        found = np.broadcast_to(np.asarray(rule(b, h, q, k)), (batch, heads, rows * block, keys))
        split = found.reshape(batch, heads, rows, block, keys // block, block)
        mask[:, :, row : row + rows] = split.any((3, 5))
    return BlockLayout(mask, block)


def from_elements(mask: Any, block: int) -> BlockLayout:
    """Blocks with a true element of a mask ([[batch,] heads,] queries, keys)."""
    array = np.asarray(mask.detach().cpu() if hasattr(mask, "detach") else mask).astype(bool)
    *lead, queries, keys = array.shape
    if queries % block or keys % block:
        raise ValueError(f"{queries} queries and {keys} keys are not multiples of the block, {block}")
    split = array.reshape(*lead, queries // block, block, keys // block, block)
    return BlockLayout(split.any((-3, -1)), block)


def from_block_mask(mask: Any) -> BlockLayout:
    """The blocks of FlexAttention's BlockMask (square ones), full and partial alike."""
    sizes = mask.BLOCK_SIZE if isinstance(mask.BLOCK_SIZE, tuple) else (mask.BLOCK_SIZE,) * 2
    if sizes[0] != sizes[1]:
        raise ValueError(f"blocks of {sizes[0]} × {sizes[1]}; a layout's are square")
    return BlockLayout(mask.to_dense(), sizes[0])


def _grid(rows: int, columns: int | None) -> tuple[np.ndarray, np.ndarray]:
    row, column = np.ogrid[:rows, : columns or rows]
    return row, column
