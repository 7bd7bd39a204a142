"""elem of contractions: a chain over unrolled dims, a tile of products summed, ``tl.dot``, or a loop in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

from onelaunch.ir import nodes as n
from onelaunch.ir.nodes import Value
from onelaunch.ir.types import is_bool
from onelaunch.place.nodes import For, Var
from onelaunch.place.placer import NeedsMemory, NeedsNoGrid, Placer, elem, needs_memory_where_lanes
from onelaunch.place.reduce import Reduction
from onelaunch.place.space import Axis, Index, Lane, Space, pow2
from onelaunch.place.store import chunk_axis
from onelaunch.place.writer import FLOAT32, HALVES, INT32
from onelaunch.schedule.plan import Home
from onelaunch.schedule.products import LEAST, PRODUCTS, product_dims

Indices = tuple[Index, ...]

#: Contracted elements at a time: the operands of ``tl.dot`` stand in registers over the whole extent.
DOT_DEPTH = 32


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

    Lanes alone in the output's rows and columns, nothing else in the space.
    """
    found = product_dims(node, p.plan.dims)
    lanes = {d: i.k for d, i in enumerate(idx) if isinstance(i, Lane)}
    if found is None or set(lanes) != set(found) or sorted(lanes.values()) != [0, 1] or len(space) != 2:
        return False
    depth = pow2(max(node.lhs.shape[d] for d in node.contract[0]))
    return min(axis.p for axis in space) >= LEAST and space[0].p * space[1].p * depth >= PRODUCTS


def _tl_dot(p: Placer, node: n.Dot, idx: Indices, space: Space, places: list[dict[int, Index]]) -> Var:
    """The product of two tiles by ``tl.dot``: over the longest contracted dim in chunks, over the others in loops."""
    w = p.w
    extents = [node.lhs.shape[d] for d in node.contract[0]]
    deep = max(range(len(extents)), key=lambda k: extents[k])
    rows = next(i.k for i in places[0].values() if isinstance(i, Lane))
    shape = (space[rows].p, space[1 - rows].p)
    wide = FLOAT32 if node.out.dtype in HALVES else node.out.dtype

    def product(fixed: dict[int, Index], inner: Axis, total: Var | None) -> Var:
        at = [
            side | {node.contract[s][k]: i for k, i in fixed.items()} | {node.contract[s][deep]: Lane(1 - s)}
            for s, side in enumerate(places)
        ]
        tiles = _tiles(p, node, space, at, inner)
        added = () if total is None else (total,)
        return w.op("dot", (*tiles, *added), wide, shape, (node.precision,))

    def nest(todo: list[int], fixed: dict[int, Index], total: Var | None) -> Var:
        if not todo and pow2(extents[deep]) <= DOT_DEPTH:
            return product(fixed, w.tile(extents[deep], pow2(extents[deep])), total)
        k, *rest = todo or [deep]
        step = 1 if todo else DOT_DEPTH
        start = w.full(w.const(0, wide), shape) if total is None else total
        loop = For(Var(INT32, (), "k"), 0, extents[k], step, [Var(wide, shape, "total")], [start])
        w.ranges[loop.index] = (0, extents[k] - 1)
        with w.inside(loop.body):
            if todo:
                loop.results = [nest(rest, fixed | {k: loop.index}, loop.params[0])]
            else:
                inner = chunk_axis(p, loop.index, extents[deep], DOT_DEPTH)
                loop.results = [product(fixed, inner, loop.params[0])]
        w.add(loop)
        return loop.params[0]

    ones: dict[int, Index] = {k: 0 for k, e in enumerate(extents) if e == 1 and k != deep}
    result = nest([k for k in range(len(extents)) if k != deep and k not in ones], ones, None)
    if rows == 1:
        result = w.op("permute", (result,), wide, shape[::-1], ((1, 0),))
    return w.cast(result, node.out.dtype)


def _tiles(p: Placer, node: n.Dot, space: Space, places: list[dict[int, Index]], inner: Axis) -> list[Var]:
    """Both operands as tiles, lanes past the contracted extent zero."""
    w = p.w
    tiles = []
    for side, x in enumerate((node.lhs, node.rhs)):
        deep = next(d for d, i in places[side].items() if i == Lane(1 - side) and d in node.contract[side])
        free, other = next((i.k, d) for d, i in places[side].items() if isinstance(i, Lane) and d != deep)
        axes = (space[free], inner) if side == 0 else (inner, space[free])
        at = {**places[side], other: Lane(side), deep: Lane(1 - side)}
        _must_be_reached(p, x, at, axes)
        tile = w.full(p.fetch(x, tuple(at[d] for d in range(x.ndim)), axes), tuple(axis.p for axis in axes))
        mask = w.lane_mask(axes, 1 - side)
        tiles.append(w.select(mask, tile, w.const(0, x.dtype)) if isinstance(mask, Var) else tile)
    return tiles


def _must_be_reached(p: Placer, x: Value, at: dict[int, Index], axes: Space) -> None:
    """An operand of which a tile is a part stands in memory, and so does one in several pieces along the tile."""
    if any(axis.kind == "chunk" for axis in axes):
        needs_memory_where_lanes(p, x)
    kinds = p.plan.dims[x]
    split = any(kinds[d] == "unroll" and x.shape[d] > 1 for d, i in at.items() if isinstance(i, Lane))
    moved = any(kinds[d] == "lane" and isinstance(i, Var) for d, i in at.items())
    if p.plan.home[x] is Home.REGISTERS and (split or moved):
        raise NeedsMemory(x)
