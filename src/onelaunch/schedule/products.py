"""Which contractions are matrix products by ``tl.dot``, and the tiles of their outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from onelaunch.ir import nodes as n
from onelaunch.ir.nodes import Value
from onelaunch.ir.types import BFLOAT16
from onelaunch.place.space import pow2

#: The dtypes that ``tl.dot`` takes, and the extent that its tiles have at least.
DTYPES = (np.dtype("float16"), BFLOAT16, np.dtype("float32"))
LEAST = 16
#: Products from which on a tile through ``tl.dot`` takes less time than multiplying and summing.
PRODUCTS = 8192
#: Extents of an output's tile, and its elements.
ROWS, COLUMNS, TILE = 128, 128, 8192

Dims = Mapping[Value, tuple[str, ...]]


def product_dims(node: n.Dot, dims: Dims) -> tuple[int, int] | None:
    """The output's dims that are a product's rows and columns: the longest free one of each side; None if it is none.

    One contracted dim or several; the longest is the product's depth.
    """
    if node.lhs.dtype not in DTYPES or node.lhs.dtype != node.rhs.dtype or not node.contract[0]:
        return None
    if any("batch" in dims[v] for v in (node.lhs, node.rhs, node.out)):
        return None
    batch = len(node.batch[0])
    left = node.lhs.ndim - batch - len(node.contract[0])
    shape, kinds = node.out.shape, dims[node.out]
    sides = [range(batch, batch + left), range(batch + left, node.out.ndim)]
    free = [[d for d in side if kinds[d] != "grid"] for side in sides]
    if not free[0] or not free[1]:
        return None
    rows, columns = (max(side, key=lambda d: shape[d]) for side in free)
    depth = max(node.lhs.shape[d] for d in node.contract[0])
    padded = [pow2(extent) for extent in (shape[rows], shape[columns], depth)]
    return (rows, columns) if min(padded) >= LEAST and math.prod(padded) >= PRODUCTS else None


def product_blocks(node: n.Dot, dims: Dims) -> dict[int, int] | None:
    """The tile in which a product in memory is computed, by dims of the output; None if it is no product."""
    found = product_dims(node, dims)
    if found is None:
        return None
    rows, columns = found
    wide = min(COLUMNS, pow2(node.out.shape[columns]))
    high = min(ROWS, TILE // wide, pow2(node.out.shape[rows]))
    return {rows: high, columns: wide}
