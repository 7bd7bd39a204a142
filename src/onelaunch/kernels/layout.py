"""Rows of strided arrays: every dimension but one becomes at most three, with a stride in each for every array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Dimensions of rows that a kernel knows.
DIMS = 3

#: Element offsets inside one row at and above this need 64 bits.
WIDE = 2**31


@dataclass(frozen=True)
class Rows:
    """Sizes of three row dimensions (row-major), and for every array its strides in them and along the columns."""

    sizes: tuple[int, int, int]
    columns: int
    strides: tuple[tuple[int, int, int, int], ...]

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.sizes[0] * self.sizes[1] * self.sizes[2]

    def numbers(self, prefixes: str) -> dict[str, int]:
        """The kernel arguments that say all this; one letter of ``prefixes`` for each array."""
        found = {"rows": self.count, "cols": self.columns, "n1": self.sizes[1], "n2": self.sizes[2]}
        for prefix, (s0, s1, s2, column) in zip(prefixes, self.strides, strict=True):
            found |= {f"{prefix}s0": s0, f"{prefix}s1": s1, f"{prefix}s2": s2, f"{prefix}c": column}
        return found

    @property
    def wide(self) -> bool:
        """Whether a column's offset may not fit 32 bits."""
        return any(s[3] * self.columns >= WIDE for s in self.strides)


def collapse(shape: Sequence[int], axis: int, strides: Sequence[Sequence[int]]) -> Rows | None:
    """The rows along ``axis`` of arrays of one ``shape`` (stride 0 where broadcast), or None where three don't do."""
    sizes = [n for i, n in enumerate(shape) if i != axis]
    steps = [[s[i] for s in strides] for i in range(len(shape)) if i != axis]
    merged: list[tuple[int, list[int]]] = []
    for n, step in zip(sizes, steps, strict=True):
        if n == 1:
            continue
        if merged and all(outer == inner * n for outer, inner in zip(merged[-1][1], step, strict=True)):
            merged[-1] = (merged[-1][0] * n, step)
        else:
            merged.append((n, step))
    if len(merged) > DIMS:
        return None
    zero = [0] * len(strides)
    padded = merged + [(1, zero)] * (DIMS - len(merged))  # the kernel divides by the last two alone
    n0, n1, n2 = (n for n, _ in padded)
    found = []
    for i, s in enumerate(strides):
        s0, s1, s2 = (step[i] for _, step in padded)
        found.append((s0, s1, s2, s[axis]))
    return Rows((n0, n1, n2), shape[axis], tuple(found))


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a row-major array."""
    found, step = [], 1
    for n in reversed(shape):
        found.append(step)
        step *= max(n, 1)
    return tuple(reversed(found))


def broadcast(shape: Sequence[int], full: Sequence[int]) -> tuple[int, ...]:
    """Strides of a row-major array of ``shape`` (as many dimensions as ``full``) read as one of shape ``full``."""
    return tuple(0 if n == 1 and m != 1 else s for n, m, s in zip(shape, full, contiguous(shape), strict=True))
