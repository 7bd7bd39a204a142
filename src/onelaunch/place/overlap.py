"""Whether buffers share elements: views of one output, which may be made in different parts of it."""

from __future__ import annotations

import functools

import numpy as np

from onelaunch.place.nodes import Buffer

#: Buffers of more elements overlap if their ranges do.
EXACT = 1 << 20


@functools.lru_cache(1024)
def overlap(a: Buffer, b: Buffer) -> bool:
    """Whether two buffers share an element."""
    if (a.base or a) is not (b.base or b):
        return False
    if a.offset is not None or b.offset is not None:
        return True
    (low, high), (least, most) = _range(a), _range(b)
    if high < least or most < low:
        return False
    return max(a.size, b.size) > EXACT or bool(np.intersect1d(_elements(a), _elements(b)).size)


def _range(b: Buffer) -> tuple[int, int]:
    ends = [(s - 1) * t for s, t in zip(b.shape, b.strides, strict=True)]
    return b.start + sum(min(0, e) for e in ends), b.start + sum(max(0, e) for e in ends)


def _elements(b: Buffer) -> np.ndarray:
    total = np.asarray(b.start)
    for size, stride in zip(b.shape, b.strides, strict=True):
        total = np.add.outer(total, np.arange(size) * stride)
    return total.reshape(-1)
