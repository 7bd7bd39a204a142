"""Look-up tables of a layout: where each row's and column's blocks are, and in which order to take them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Tables:
    """int32 arrays. A plane is a head (of a batch item, where layouts differ); lines of all planes are in one list.

    Blocks are numbered in the order in which they are stored: plane by plane, row by row, column by column. So
    block row ``l = plane * rows + row`` holds blocks ``row_start[l]`` to ``row_start[l + 1]``.

    - plane, row, column: (nnz,), of each block
    - row_start: (planes * rows + 1,)
    - row_order: (planes * rows,), block rows by falling number of blocks, so that the longest are begun first
    - column_start: (planes * columns + 1,), into column_block
    - column_block: (nnz,), blocks in the order plane, column, row
    - column_row: (nnz,), ``row[column_block]``
    - column_order: (planes * columns,), block columns by falling number of blocks
    """

    plane: np.ndarray
    row: np.ndarray
    column: np.ndarray
    row_start: np.ndarray
    row_order: np.ndarray
    column_start: np.ndarray
    column_block: np.ndarray
    column_row: np.ndarray
    column_order: np.ndarray

    def arrays(self) -> dict[str, np.ndarray]:
        """All of them by name."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}


def make(mask: np.ndarray) -> Tables:
    """The tables of a bool mask (planes, rows, columns)."""
    plane, row, column = np.nonzero(mask)
    by_column = np.lexsort((row, column, plane))
    per_row = mask.sum(2).reshape(-1)
    per_column = mask.sum(1).reshape(-1)
    return Tables(
        plane=_table(plane),
        row=_table(row),
        column=_table(column),
        row_start=_starts(per_row),
        row_order=_longest_first(per_row),
        column_start=_starts(per_column),
        column_block=_table(by_column),
        column_row=_table(row[by_column]),
        column_order=_longest_first(per_column),
    )


def _table(values: Any) -> np.ndarray:
    table = np.ascontiguousarray(values, np.int32)
    table.flags.writeable = False
    return table


def _starts(counts: np.ndarray) -> np.ndarray:
    return _table(np.concatenate([[0], np.cumsum(counts)]))


def _longest_first(counts: np.ndarray) -> np.ndarray:
    return _table(np.argsort(-counts, kind="stable"))
