"""elem of contractions: a chain over unrolled dims, a tile of products summed, ``tl.dot``, or a loop in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from onelaunch.ir import nodes as n
from onelaunch.ir.nodes import Value
from onelaunch.ir.types import BFLOAT16, is_bool
from onelaunch.place.nodes import For, Var
from onelaunch.place.placer import NeedsMemory, NeedsNoGrid, Placer, elem, needs_memory_where_lanes
from onelaunch.place.reduce import Reduction
from onelaunch.place.space import Axis, Index, Lane, Space, pow2
from onelaunch.place.store import chunk_axis
from onelaunch.place.writer import FLOAT32, HALVES, INT32
from onelaunch.schedule.plan import Home

Indices = tuple[Index, ...]

#: Products of a tile from which on a matrix product through ``tl.dot`` is cheaper than multiplying and summing.
DOT_PRODUCTS = 8192
#: Contracted elements at a time: ``tl.dot`` without tensor cores keeps its operands in registers over the whole extent.
DOT_DEPTH = 32
#: The least extents that ``tl.dot`` takes, and the dtypes.
DOT_EXTENT = 16
DOT_DTYPES = (np.dtype("float16"), BFLOAT16, FLOAT32)


@elem(n.Dot)
def dot(p: Placer, node: n.Dot, v: Value, idx: Indices, space: Space) -> Var:
    """A contraction as the sum of products over its contracted dims."""
    lhs, rhs, w = node.lhs, node.rhs, p.w
    nb = len(node.batch[0])
    free = [
        [d for d in range(x.ndim) if d not in node.contract[s] and d not in node.batch[s]]
        for s, x in enumerate((lhs, rhs))
    ]
    places: list[dict[int, Index]] = [{}, {}]
    for k in range(nb):
        places[0][node.batch[0][k]] = places[1][node.batch[1][k]] = idx[k]
    for k, d in enumerate(free[0]):
        places[0][d] = idx[nb + k]
    for k, d in enumerate(free[1]):
        places[1][d] = idx[nb + len(free[0]) + k]
    wide = FLOAT32 if v.dtype in HALVES else v.dtype

    def element(reduced: Sequence[Index], inner: Space, positions: tuple[int, ...]) -> Var:
        sides = []
        for s, x in enumerate((lhs, rhs)):
            at = {d: p.respace(i, positions, len(inner)) for d, i in places[s].items()} | dict(
                zip(node.contract[s], reduced)
            )
            sides.append(w.cast(p.fetch(x, tuple(at[d] for d in range(x.ndim)), inner), wide))
        return w.scalar("and" if is_bool(wide) else "mul", sides, wide)

    lanes = [i.k for i in places[0].values() if isinstance(i, Lane)]
    after = [max(lanes) + 1 if lanes else 0] * len(node.contract[0])
    kinds = [_contract_kind(p, node, k) for k in range(len(node.contract[0]))]
    extents = [lhs.shape[d] for d in node.contract[0]]
    if not kinds:
        return w.cast(element([], space, tuple(range(len(space)))), v.dtype)
    if _by_tl_dot(p, node, idx, space):
        return _tl_dot(p, node, idx, space, places)
    work = Reduction(p, "or" if is_bool(wide) else "add", wide, element, kinds, extents, after, space)
    for x in (lhs, rhs):
        _needs_memory_for_loops(p, work, x)
    return w.cast(work.run(), v.dtype)


def _contract_kind(p: Placer, node: n.Dot, k: int) -> str:
    kinds = {p.plan.dims[x][node.contract[s][k]] for s, x in enumerate((node.lhs, node.rhs))}
    if "batch" in kinds or "grid" in kinds:
        raise NeedsNoGrid
    return "lane" if "lane" in kinds else "unroll"


def _needs_memory_for_loops(p: Placer, work: Reduction, x: Value) -> None:
    """A contraction too large for a tile walks over its operands in memory."""
    budget = p.plan.limits.work // max(1, math.prod(a.p for a in work.space))
    tile = math.prod(pow2(e) for e, kind in zip(work.extents, work.kinds) if kind == "lane")
    if tile > budget and p.plan.home[x] is Home.REGISTERS and "lane" in p.plan.dims[x]:
        raise NeedsMemory(x)


def _by_tl_dot(p: Placer, node: n.Dot, idx: Indices, space: Space) -> bool:
    """Whether a contraction is a matrix product of two tiles large enough for ``tl.dot``.

    One contracted dim, lanes alone in the output's free dims, one of them from each side, nothing else in the space.
    """
    if node.lhs.dtype not in DOT_DTYPES or node.lhs.dtype != node.rhs.dtype or len(node.contract[0]) != 1:
        return False
    if len(space) != 2:
        return False
    batch = len(node.batch[0])
    left = node.lhs.ndim - 1 - batch
    lanes = [
        [i.k for i in idx[batch : batch + left] if isinstance(i, Lane)],
        [i.k for i in idx[batch + left :] if isinstance(i, Lane)],
    ]
    if sorted(lanes[0] + lanes[1]) != [0, 1] or len(lanes[0]) != 1 or any(isinstance(i, Lane) for i in idx[:batch]):
        return False
    extents = (space[0].p, space[1].p, pow2(node.lhs.shape[node.contract[0][0]]))
    return min(extents) >= DOT_EXTENT and math.prod(extents) >= DOT_PRODUCTS


def _tl_dot(p: Placer, node: n.Dot, idx: Indices, space: Space, places: list[dict[int, Index]]) -> Var:
    """The product of two tiles by ``tl.dot``: at once, or in chunks of the contracted dim added up in a loop."""
    w = p.w
    extent = node.lhs.shape[node.contract[0][0]]
    rows = next(i.k for i in places[0].values() if isinstance(i, Lane))
    shape = (space[rows].p, space[1 - rows].p)
    wide = FLOAT32 if node.out.dtype in HALVES else node.out.dtype
    attrs = (node.precision,)
    if pow2(extent) <= DOT_DEPTH:
        result = w.op("dot", _tiles(p, node, space, places, w.tile(extent, pow2(extent))), wide, shape, attrs)
    else:
        for x in (node.lhs, node.rhs):
            needs_memory_where_lanes(p, x)
        loop = For(Var(INT32, (), "k"), 0, extent, DOT_DEPTH, [Var(wide, shape, "total")], [])
        loop.inits = [w.full(w.const(0, wide), shape)]
        w.ranges[loop.index] = (0, extent - 1)
        with w.inside(loop.body):
            inner = chunk_axis(p, loop.index, extent, DOT_DEPTH)
            loop.results = [w.op("dot", (*_tiles(p, node, space, places, inner), loop.params[0]), wide, shape, attrs)]
        w.add(loop)
        result = loop.params[0]
    if rows == 1:
        result = w.op("permute", (result,), wide, shape[::-1], ((1, 0),))
    return w.cast(result, node.out.dtype)


def _tiles(p: Placer, node: n.Dot, space: Space, places: list[dict[int, Index]], inner: Axis) -> list[Var]:
    """Both operands as tiles, lanes past the contracted extent zero."""
    w = p.w
    tiles = []
    for side, x in enumerate((node.lhs, node.rhs)):
        free = next(i.k for i in places[side].values() if isinstance(i, Lane))
        axes = (space[free], inner) if side == 0 else (inner, space[free])
        at: dict[int, Index] = {}
        for d, i in places[side].items():
            at[d] = Lane(side) if isinstance(i, Lane) else i
        at[node.contract[side][0]] = Lane(1 - side)
        tile = w.full(p.fetch(x, tuple(at[d] for d in range(x.ndim)), axes), tuple(axis.p for axis in axes))
        mask = w.lane_mask(axes, 1 - side)
        tiles.append(w.select(mask, tile, w.const(0, x.dtype)) if isinstance(mask, Var) else tile)
    return tiles
