"""elem of reductions and contractions: as one tile where it fits, else by loops with an accumulator."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

from onelaunch.ir import nodes as n
from onelaunch.ir.monoids import identity
from onelaunch.ir.nodes import Value
from onelaunch.place.nodes import For, Var
from onelaunch.place.placer import NeedsNoGrid, Placer, elem
from onelaunch.place.space import Axis, Index, Lane, Space, pow2
from onelaunch.place.writer import BOOL, FLOAT32, HALVES, INT32

Indices = tuple[Index, ...]
#: The element to be reduced, at indices along the reduced dims, in a space.
Element = Callable[[Sequence[Index], Space, "tuple[int, ...]"], Var]


@elem(n.Reduce)
def reduce(p: Placer, node: n.Reduce, v: Value, idx: Indices, space: Space) -> Var:
    arg, kept = node.arg, iter(idx)
    outer: list[Index | None] = [None if d in node.axes else next(kept) for d in range(arg.ndim)]

    def element(reduced: Sequence[Index], inner: Space, positions: tuple[int, ...]) -> Var:
        filled = iter(reduced)
        at = tuple(next(filled) if i is None else p.respace(i, positions, len(inner)) for i in outer)
        return p.fetch(arg, at, inner)

    kinds = [p.plan.dims[arg][d] for d in node.axes]
    after = [_after(outer, d) for d in node.axes]
    extents = [arg.shape[d] for d in node.axes]
    if "batch" in kinds or "grid" in kinds:
        raise NeedsNoGrid
    if node.monoid in ("argmax", "argmin"):
        return _arg_reduce(p, node, element, kinds, extents, after, space)
    work = Reduction(p, node.monoid, arg.dtype, element, kinds, extents, after, space)
    return work.run()


def _after(outer: Sequence[Index | None], d: int) -> int:
    """How many axes of the space stand before reduced dim ``d`` in the operand."""
    lanes = [i.k for i in outer[:d] if isinstance(i, Lane)]
    return max(lanes) + 1 if lanes else 0


def extend(space: Space, new: Sequence[tuple[int, Axis]]) -> tuple[Space, tuple[int, ...], list[int]]:
    """Insert axes after so many old ones: the larger space, where the old axes went, where the new ones are."""
    order: list[tuple[int, int, Axis]] = [(k, -1, a) for k, a in enumerate(space)]
    result: list[tuple[str, int, Axis]] = []
    pending = sorted(enumerate(new), key=lambda item: item[1][0])
    for k in range(len(space) + 1):
        result += [("new", m, axis) for m, (after, axis) in pending if after == k]
        if k < len(space):
            result.append(("old", k, order[k][2]))
    old = {k: pos for pos, (kind, k, _) in enumerate(result) if kind == "old"}
    fresh = {m: pos for pos, (kind, m, _) in enumerate(result) if kind == "new"}
    return tuple(a for _, _, a in result), tuple(old[k] for k in range(len(space))), [fresh[m] for m in range(len(new))]


class Reduction:
    """One reduction: unrolled dims by a chain, lane dims by a tile, dims too long for a tile by loops."""

    def __init__(
        self,
        p: Placer,
        monoid: str,
        dtype: np.dtype,
        element: Element,
        kinds: list[str],
        extents: list[int],
        after: list[int],
        space: Space,
    ):
        self.p, self.monoid, self.element, self.space = p, monoid, element, space
        self.kinds, self.extents, self.after = kinds, extents, after
        self.dtype = dtype
        self.wide = FLOAT32 if dtype in HALVES else dtype

    def run(self) -> Var:
        w = self.p.w
        if 0 in self.extents:
            return w.const(identity(self.monoid, self.dtype), self.dtype)
        lanes = [k for k, kind in enumerate(self.kinds) if kind == "lane"]
        budget = self.p.plan.limits.work // max(1, math.prod(a.p for a in self.space))
        tiles: list[int] = []
        for k in sorted(lanes, key=lambda k: -k):  # innermost dims first
            if pow2(self.extents[k]) * math.prod(pow2(self.extents[t]) for t in tiles) <= budget:
                tiles.append(k)
        loops = [k for k in lanes if k not in tiles]
        unrolled = [k for k, kind in enumerate(self.kinds) if kind == "unroll"]
        if not loops:
            return w.cast(self._pieces(unrolled, tiles, {}), self.dtype)
        return w.cast(self._loops(unrolled, tiles, loops, budget), self.dtype)

    def combine(self, a: Var, b: Var) -> Var:
        return self.p.w.scalar(self.monoid, (a, b), self.wide)

    def _pieces(self, unrolled: list[int], tiles: list[int], fixed: dict[int, Index]) -> Var:
        """All unrolled indices combined lane by lane, then the tile reduced."""
        p, w = self.p, self.p.w
        axes = [(self.after[t], w.tile(self.extents[t], pow2(self.extents[t]))) for t in tiles]
        inner, positions, fresh = extend(self.space, axes)
        total: Var | None = None
        for combo in itertools.product(*(range(self.extents[u]) for u in unrolled)):
            at: dict[int, Index] = {k: p.respace(i, positions, len(inner)) for k, i in fixed.items()}
            at |= dict(zip(unrolled, combo)) | {t: Lane(k) for t, k in zip(tiles, fresh)}
            item = w.cast(self.element([at[k] for k in range(len(self.kinds))], inner, positions), self.wide)
            total = item if total is None else self.combine(total, item)
        assert total is not None
        return self._fold(total, inner, fresh)

    def _fold(self, x: Var, inner: Space, fresh: list[int]) -> Var:
        """Reduce the new axes of a tile away, padding lanes neutral."""
        w = self.p.w
        if not fresh:
            return x
        if x.shape == () or any(x.shape[k] == 1 for k in fresh):
            shape = tuple(inner[k].p if k in fresh else (x.shape[k] if x.shape else 1) for k in range(len(inner)))
            x = w.full(x, shape)
        for k in fresh:
            mask = w.lane_mask(inner, k)
            if isinstance(mask, Var):
                x = w.op("select", (mask, x, w.const(identity(self.monoid, self.wide), self.wide)), x.dtype)
        for k in sorted(fresh, reverse=True):
            shape = (*x.shape[:k], *x.shape[k + 1 :])
            x = w.op("reduce", (x,), x.dtype, shape, (self.monoid, k))
        return x

    def _loops(self, unrolled: list[int], tiles: list[int], loops: list[int], budget: int) -> Var:
        """Serial loops over the dims that don't fit, the innermost of them in chunks of lanes where lanes are left."""
        p, w = self.p, self.p.w
        left = budget // max(1, math.prod(pow2(self.extents[t]) for t in tiles))
        chunked = loops[-1] if left >= 32 and not tiles else None
        shape = p.full_shape(self.space)
        width = min(left, 128 * p.plan.limits.num_warps, pow2(self.extents[chunked])) if chunked is not None else 1
        if chunked is not None:
            shape = (*shape, width)
        start = w.full(w.const(identity(self.monoid, self.wide), self.wide), shape)

        def nest(todo: list[int], fixed: dict[int, Index], acc: Var) -> Var:
            if not todo:
                return self._step(unrolled, tiles, fixed, acc)
            k, *rest = todo
            step = width if k == chunked else 1
            loop = For(Var(INT32, (), "k"), 0, self.extents[k], step, [Var(self.wide, shape, "total")], [acc])
            with w.inside(loop.body):
                loop.results = [nest(rest, fixed | {k: loop.index}, loop.params[0])]
            w.add(loop)
            return loop.params[0]

        order = [k for k in loops if k != chunked] + ([chunked] if chunked is not None else [])
        self.chunk = (chunked, width)
        total = nest(order, {}, start)
        if chunked is None:
            return total
        return w.op("reduce", (total,), total.dtype, total.shape[:-1], (self.monoid, len(shape) - 1))

    def _step(self, unrolled: list[int], tiles: list[int], fixed: dict[int, Index], acc: Var) -> Var:
        """One turn of the innermost loop."""
        p, w = self.p, self.p.w
        chunked, width = self.chunk
        if chunked is None:
            return w.full(self.combine(acc, self._pieces(unrolled, tiles, fixed)), acc.shape)
        lane = w.top("arange", (), INT32, (width,), (width,))
        start = fixed[chunked]
        assert isinstance(start, Var)
        index = w.op("index_add", (start, lane), INT32, (width,))
        ragged = self.extents[chunked] % width != 0
        mask = w.op("index_lt", (index, self.extents[chunked]), BOOL, (width,)) if ragged else None
        axis = Axis(self.extents[chunked], width, "chunk", index, mask)
        inner, positions, fresh = extend(self.space, [(len(self.space), axis)])
        item: Var | None = None
        for combo in itertools.product(*(range(self.extents[u]) for u in unrolled)):
            at: dict[int, Index] = {k: p.respace(i, positions, len(inner)) for k, i in fixed.items()}
            at |= dict(zip(unrolled, combo)) | {chunked: Lane(fresh[0])}
            x = w.cast(self.element([at[k] for k in range(len(self.kinds))], inner, positions), self.wide)
            item = x if item is None else self.combine(item, x)
        assert item is not None
        real = w.lane_mask(inner, fresh[0])
        if isinstance(real, Var):
            neutral = w.const(identity(self.monoid, self.wide), self.wide)
            item = w.op("select", (real, item, neutral), item.dtype, acc.shape)
        return w.full(self.combine(acc, item), acc.shape)


def _arg_reduce(
    p: Placer, node: n.Reduce, element: Element, kinds: list[str], extents: list[int], after: list[int], space: Space
) -> Var:
    """argmax and argmin along one axis: (value, index) pairs, NaN first, the lowest index on ties."""
    w, monoid = p.w, node.monoid
    (extent,), (kind,) = extents, kinds
    dtype = FLOAT32 if node.arg.dtype in HALVES else node.arg.dtype
    pair = [(dtype, INT32)]

    def better(a: tuple[Var, Var], b: tuple[Var, Var]) -> tuple[Var, Var]:
        shape = max(a[0].shape, b[0].shape, a[1].shape, b[1].shape, key=math.prod)
        best = w.ops(f"{monoid}_pair", (*a, *b), [(pair[0][0], shape), (INT32, shape)])
        return best[0], best[1]

    if kind == "unroll":
        best: tuple[Var, Var] | None = None
        for k in range(extent):
            item = (w.cast(element([k], space, tuple(range(len(space)))), dtype), w.const(k, INT32))
            best = item if best is None else better(best, item)
        assert best is not None
        return w.cast(best[1], node.out.dtype)
    if pow2(extent) * math.prod(a.p for a in space) <= p.plan.limits.work:
        axis = w.tile(extent, pow2(extent))
        inner, positions, (k,) = extend(space, [(after[0], axis)])
        x = w.cast(element([Lane(k)], inner, positions), dtype)
        shape = tuple(a.p if j == k or (x.shape and x.shape[j] > 1) else 1 for j, a in enumerate(inner))
        x = w.full(x, shape)
        mask = w.lane_mask(inner, k)
        if isinstance(mask, Var):
            x = w.op("select", (mask, x, w.const(identity(monoid, dtype), dtype)), dtype, shape)
        lane = w.full(w.lane(inner, k), shape)
        kept = (*shape[:k], *shape[k + 1 :])
        outs = w.ops("reduce_pair", (x, lane), [(dtype, kept), (INT32, kept)], (monoid, k))
        return w.cast(outs[1], node.out.dtype)
    shape = p.full_shape(space)
    loop = For(Var(INT32, (), "k"), 0, extent, 1, [Var(dtype, shape, "best"), Var(INT32, shape, "at")], [])
    loop.inits = [w.full(w.const(identity(monoid, dtype), dtype), shape), w.full(w.const(2**31 - 1, INT32), shape)]
    with w.inside(loop.body):
        x = w.cast(element([loop.index], space, tuple(range(len(space)))), dtype)
        found = better((loop.params[0], loop.params[1]), (x, loop.index))
        loop.results = [w.full(f, shape) for f in found]
    w.add(loop)
    return w.cast(loop.params[1], node.out.dtype)
