"""Writing values: walks over an index space, materialised values, scans and updates in memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from onelaunch.ir import nodes as n
from onelaunch.ir.monoids import identity
from onelaunch.ir.nodes import Value
from onelaunch.place.elem import window_index
from onelaunch.place.nodes import Buffer, For, If, Var
from onelaunch.place.placer import ELEM, NeedsMemory, NeedsNoGrid, Placer, elem, needs_memory_where_lanes
from onelaunch.place.reduce import extend
from onelaunch.place.regions import Region
from onelaunch.place.space import Axis, Index, Lane, Space, pow2
from onelaunch.place.writer import BOOL, FLOAT32, HALVES, INT32, broadcast_shape
from onelaunch.schedule.plan import Home

Indices = tuple[Index, ...]
Body = Callable[["tuple[Index, ...]", Space], None]


def iterate(p: Placer, shape: Sequence[int], kinds: Sequence[str], body: Body) -> None:
    """Call ``body(index, space)`` over a whole index space.

    Kinds: "batch" and "lane" dims become lanes (as many trailing lane dims as fit a tile, one more in chunks),
    "unroll" dims integers, "serial" dims and what does not fit loops.
    """
    if 0 in shape:
        return
    limits = p.plan.limits
    batched = "batch" in kinds
    budget = max(1, limits.tile // (limits.lanes if batched else 1))
    tiled: set[int] = set()
    chunk: tuple[int, int] | None = None
    for d in reversed(range(len(shape))):
        if kinds[d] != "lane":
            continue
        if pow2(shape[d]) <= budget:
            tiled.add(d)
            budget //= pow2(shape[d])
            continue
        if budget >= 32:
            chunk = (d, min(budget, 128 * limits.num_warps))
        break
    pieces = math.prod(s for s, k in zip(shape, kinds) if k == "unroll")
    static = {d for d, k in enumerate(kinds) if k == "unroll" and (pieces <= limits.unroll_value or shape[d] == 1)}
    loops = [
        d
        for d, k in enumerate(kinds)
        if k not in ("batch", "grid") and d not in tiled | static and (chunk is None or d != chunk[0])
    ]
    if chunk is not None:
        loops.append(chunk[0])
    _nest(p, shape, kinds, body, loops, static, tiled, chunk, {})


def _nest(
    p: Placer,
    shape: Sequence[int],
    kinds: Sequence[str],
    body: Body,
    loops: list[int],
    static: set[int],
    tiled: set[int],
    chunk: tuple[int, int] | None,
    fixed: dict[int, Var],
) -> None:
    w = p.w
    if loops:
        d, *rest = loops
        step = chunk[1] if chunk is not None and chunk[0] == d else 1
        loop = For(Var(INT32, (), f"i{d}"), 0, shape[d], step, [], [], disjoint=not w.overlaps)
        w.ranges[loop.index] = (0, shape[d] - 1)
        with w.inside(loop.body):
            _nest(p, shape, kinds, body, rest, static, tiled, chunk, fixed | {d: loop.index})
        w.add(loop)
        return
    axes: list[Axis] = []
    index: list[Index | None] = []
    for d, kind in enumerate(kinds):
        if kind == "batch":
            assert p.batch is not None
            index.append(Lane(len(axes)))
            axes.append(p.batch)
        elif kind == "grid":
            index.append(p.element_of_grid())
        elif d in tiled:
            index.append(Lane(len(axes)))
            axes.append(w.tile(shape[d], pow2(shape[d])))
        elif chunk is not None and chunk[0] == d:
            index.append(Lane(len(axes)))
            axes.append(chunk_axis(p, fixed[d], shape[d], chunk[1]))
        else:
            index.append(fixed.get(d))
    space = tuple(axes)
    for combo in itertools.product(*(range(shape[d]) for d in sorted(static))):
        numbers = dict(zip(sorted(static), combo))
        body(tuple(numbers[d] if d in static else i for d, i in enumerate(index)), space)  # type: ignore[misc]


def chunk_axis(p: Placer, start: Var, extent: int, width: int) -> Axis:
    """``width`` lanes from ``start`` along a dim of ``extent``."""
    w = p.w
    lane = w.top("arange", (), INT32, (width,), (width,))
    index = w.op("index_add", (start, lane), INT32, (width,))
    mask = w.op("index_lt", (index, extent), BOOL, (width,)) if extent % width else None
    return Axis(extent, width, "chunk", index, mask)


def store_element(p: Placer, buffer: Buffer, idx: Indices, space: Space, value: Var, inside: Var | bool = True) -> None:
    """buffer[idx] = value, in the lanes that exist and where ``inside`` holds."""
    if inside is False:
        return
    w = p.w
    offset, mask = p.address(buffer, idx, space, clamped=False)
    if isinstance(inside, Var):
        mask = inside if mask is None else w.op("and", (mask, inside), BOOL)
        at = offset.shape if isinstance(offset, Var) else ()
        shape = broadcast_shape([offset, mask])
        if at != shape:  # along a dim of one element only ``inside`` says which lane stores
            for k, axis in enumerate(space):
                if axis.mask is not None and shape[k] > 1 and (not at or at[k] == 1):
                    mask = w.op("and", (mask, w.lane_mask(space, k)), BOOL)
            offset = w.full(offset if isinstance(offset, Var) else w.const(offset, INT32), shape)
    w.store(buffer, offset, value, mask)


def fill(p: Placer, v: Value, buffer: Buffer, element: Callable[[Indices, Space], Var]) -> None:
    """Write every element of a value into a buffer."""
    p.w.new_group()
    iterate(p, v.shape, p.plan.dims[v], lambda idx, space: store_element(p, buffer, idx, space, element(idx, space)))


def fill_region(p: Placer, region: Region) -> None:
    """Compute the values of a region element by element and store those that are read elsewhere."""
    first = region.values[0]
    p.w.new_group()

    def body(idx: Indices, space: Space) -> None:
        p.local = ({}, idx)
        for node in region.nodes:
            p.w.where = node.where
            for v in node.outs:
                p.local[0][v] = ELEM[n.Map](p, node, v, idx, space)
        made, p.local = p.local[0], ({}, ())
        for v in region.values:
            if v in region.stored:
                store_element(p, p.buffers[v], idx, space, made[v])

    iterate(p, first.shape, p.plan.dims[first], body)


def copy(p: Placer, v: Value, buffer: Buffer) -> None:
    """Write a value, wherever it lives, into a buffer."""
    fill(p, v, buffer, lambda idx, space: p.fetch(v, idx, space))


def materialise(p: Placer, node: n.Node, v: Value, buffer: Buffer | None) -> None:
    """Compute an output of a node into registers, or into ``buffer``."""
    if isinstance(node, n.Scan):
        _scan(p, node, buffer)
        return
    function = ELEM[type(node)]
    if buffer is not None:
        p.buffers[v] = buffer
        if not isinstance(node, n.Empty):
            fill(p, v, buffer, lambda idx, space: function(p, node, v, idx, space))
        return
    space = p.own_space(v)
    p.regs[v] = {c: function(p, node, v, p.own_index(v, c), space) for c in p.coordinates(v)}


# --- prefix sums -------------------------------------------------------------------------------------------


def _scan(p: Placer, node: n.Scan, buffer: Buffer | None) -> None:
    """cumsum and its kin: a chain over an unrolled dim, an associative scan over lanes, a loop in memory."""
    v, axis, w = node.out, node.axis, p.w
    if p.plan.dims[v][axis] in ("batch", "grid"):
        raise NeedsNoGrid
    wide = FLOAT32 if v.dtype in HALVES else v.dtype
    if buffer is not None:
        _scan_memory(p, node, buffer)
        return
    space = p.own_space(v)
    pieces: dict[tuple[int, ...], Var] = {}
    if p.plan.dims[v][axis] == "lane":
        k = sum(1 for kind in p.plan.dims[v][:axis] if kind in ("lane", "batch"))
        for c in p.coordinates(v):
            x = w.cast(p.fetch(node.arg, p.own_index(v, c), space), wide)
            x = w.full(x, p.full_shape(space))
            mask = w.lane_mask(space, k)
            if isinstance(mask, Var):
                x = w.op("select", (mask, x, w.const(identity(node.monoid, wide), wide)), wide)
            pieces[c] = w.cast(w.op("scan", (x,), wide, x.shape, (node.monoid, k, node.reverse)), v.dtype)
    else:
        at = [d for d, kind in enumerate(p.plan.dims[v]) if kind == "unroll"].index(axis)
        for c in sorted(p.coordinates(v), key=lambda c: -c[at] if node.reverse else c[at]):
            before = (*c[:at], c[at] + (1 if node.reverse else -1), *c[at + 1 :])
            x = p.fetch(node.arg, p.own_index(v, c), space)
            pieces[c] = w.scalar(node.monoid, (pieces[before], x), v.dtype) if before in pieces else x
    p.regs[v] = pieces


def _scan_memory(p: Placer, node: n.Scan, buffer: Buffer) -> None:
    v, axis, w = node.out, node.axis, p.w
    p.buffers[v] = buffer
    w.new_group()
    shape = [s for d, s in enumerate(v.shape) if d != axis]
    kinds = [k for d, k in enumerate(p.plan.dims[v]) if d != axis]

    def body(idx: Indices, space: Space) -> None:
        full = p.full_shape(space)
        start = w.full(w.const(identity(node.monoid, v.dtype), v.dtype), full)
        loop = For(Var(INT32, (), "k"), 0, v.shape[axis], 1, [Var(v.dtype, full, "prefix")], [start])
        with w.inside(loop.body):
            k = w.minus(v.shape[axis] - 1, loop.index) if node.reverse else loop.index
            at = (*idx[:axis], k, *idx[axis:])
            total = w.full(w.scalar(node.monoid, (loop.params[0], p.fetch(node.arg, at, space)), v.dtype), full)
            store_element(p, buffer, at, space, total)
            loop.results = [total]
        w.add(loop)

    iterate(p, shape, kinds, body)


# --- updates -----------------------------------------------------------------------------------------------


def update_memory(p: Placer, node: n.Update, buffer: Buffer) -> None:
    """Store the windows of an Update into the buffer that already holds the operand."""
    u, x, win, w = node.updates, node.operand, node.window, p.w
    p.buffers[node.out] = buffer
    disjoint = node.unique or math.prod(u.shape[d] for d in win.batch) == 1
    batching = {b for b in win.batching if b is not None}
    partial = any(s is not None and 1 < size < extent for s, size, extent in zip(win.start, win.sizes, x.shape))
    # The windows of one update may be apart, and those of the next turn of a loop the same in the hands of others.
    dealt = any(u.shape[d] > 1 for d in win.batch if d not in batching)
    w.new_group(overlaps=partial or dealt or not disjoint)
    kinds = []
    for d, kind in enumerate(p.plan.dims[u]):
        shared = d in win.batch and d not in batching and not disjoint
        if shared and kind in ("batch", "grid"):
            raise NeedsNoGrid
        kinds.append("serial" if shared and u.shape[d] > 1 else kind)

    def body(idx: Indices, space: Space) -> None:
        at, inside = window_index(p, node, x, idx, space)
        value = p.fetch(u, idx, space)
        if node.monoid != "set":
            offset, mask = p.address(buffer, at, space, clamped=True)
            old = w.load(buffer, offset, mask)
            value = w.scalar(node.monoid, (old, value), x.dtype)
        store_element(p, buffer, at, space, value, inside)

    iterate(p, u.shape, kinds, body)


@elem(n.Update)
def update(p: Placer, node: n.Update, v: Value, idx: Indices, space: Space) -> Var:
    """An Update of a register value: the old element, replaced where a window covers it."""
    win, u, w = node.window, node.updates, p.w
    batch = [u.shape[d] for d in win.batch]
    moving = [d for d in win.batch if d not in win.batching]
    count = math.prod(u.shape[d] for d in moving)
    if count > 16 and node.monoid != "set" and _fits_tile(p, node, space, moving):
        return _update_by_reduction(p, node, idx, space, moving)
    if count > (64 if node.monoid == "set" else 16):
        return _update_by_turns(p, node, idx, space, moving)
    assert len(batch) == len(win.batch)
    result = p.fetch(node.operand, idx, space)
    for combo in itertools.product(*(range(u.shape[d]) for d in moving)):
        inside, at = _cover(p, node, idx, space, dict(zip(moving, combo)))
        if inside is False:
            continue
        value = p.fetch(u, at, space)
        if node.monoid != "set":
            value = w.scalar(node.monoid, (result, value), v.dtype)
        result = value if inside is True else w.select(inside, value, result)
    return result


def _cover(
    p: Placer, node: n.Update, idx: Indices, space: Space, fixed: dict[int, Index]
) -> tuple[Var | bool, Indices]:
    """Whether one window (at ``fixed`` batch indices) covers operand element ``idx``, and the update's index there."""
    win, x, w = node.window, node.operand, p.w
    at: list[Index] = [fixed.get(d, 0) for d in range(node.updates.ndim)]
    for d in range(x.ndim):
        k = win.batching[d]
        if k is not None and k not in fixed:
            at[k] = idx[d]
    inside: Var | bool = True
    for d in range(x.ndim):
        which, k = win.start[d], win.offset[d]
        if which is None and (b := win.batching[d]) is not None:
            if at[b] != idx[d]:  # two dims run with one batch dim: a diagonal
                inside = w.both(inside, w.compare("eq", p.number(idx[d], space), p.number(at[b], space)))
            continue
        if which is None and k is not None and win.sizes[d] == x.shape[d]:
            at[k] = idx[d]
            continue
        start = 0 if which is None else p.read_index(node.starts[which], tuple(at[b] for b in win.batch), space)
        last = x.shape[d] - win.sizes[d]
        if win.mode == "fill" and which is not None:
            inside = w.both(inside, w.both(w.compare("ge", start, 0), w.compare("lt", start, last + 1)))
        start = w.clip(start, 0, last)
        here = p.number(idx[d], space)
        if k is None:
            inside = w.both(inside, w.compare("eq", here, start))
            continue
        offset = w.minus(here, start)
        inside = w.both(inside, w.both(w.compare("ge", offset, 0), w.compare("lt", offset, win.sizes[d])))
        at[k] = w.clip(offset, 0, win.sizes[d] - 1)
    return inside, tuple(at)


def _update_by_turns(p: Placer, node: n.Update, idx: Indices, space: Space, moving: list[int]) -> Var:
    """Many updates of few elements, one after the other: each lane looks whether the update is its own.

    What an update reads stands in memory, where every thread finds it without the others.
    """
    u, x, w = node.updates, node.operand, p.w
    if any(p.plan.dims[u][d] in ("batch", "grid") for d in moving):
        raise NeedsMemory(node.out)
    for v in (*node.starts, u):
        needs_memory_where_lanes(p, v)
    shape = p.full_shape(space)
    start = w.full(p.fetch(x, idx, space), shape)

    def nest(todo: list[int], fixed: dict[int, Index], total: Var) -> Var:
        if not todo:
            inside, at = _cover(p, node, idx, space, fixed)
            value = p.fetch(u, at, space)
            value = value if node.monoid == "set" else w.scalar(node.monoid, (total, value), x.dtype)
            return w.full(
                value if inside is True else total if inside is False else w.select(inside, value, total), shape
            )
        d, *rest = todo
        loop = For(Var(INT32, (), "k"), 0, u.shape[d], 1, [Var(x.dtype, shape, "updated")], [total])
        w.ranges[loop.index] = (0, u.shape[d] - 1)
        with w.inside(loop.body):
            loop.results = [nest(rest, fixed | {d: loop.index}, loop.params[0])]
        w.add(loop)
        return loop.params[0]

    return nest([d for d in moving if u.shape[d] > 1], dict.fromkeys(moving, 0), start)


def _fits_tile(p: Placer, node: n.Update, space: Space, moving: list[int]) -> bool:
    """Whether all updates of all elements fit one tile."""
    work = math.prod(a.p for a in space) * math.prod(pow2(node.updates.shape[d]) for d in moving)
    return work <= p.plan.limits.work


def _update_by_reduction(p: Placer, node: n.Update, idx: Indices, space: Space, moving: list[int]) -> Var:
    """Many updates added (or multiplied, or compared) into few elements: a reduction over the updates in order."""
    u, x, w = node.updates, node.operand, p.w
    axes = [(len(space), w.tile(u.shape[d], pow2(u.shape[d]))) for d in moving]
    if any(p.plan.dims[u][d] in ("batch", "grid") for d in moving):
        raise NeedsMemory(node.out)
    inner, positions, fresh = extend(space, axes)
    at = tuple(p.respace(i, positions, len(inner)) for i in idx)
    inside, where = _cover(p, node, at, inner, {d: Lane(k) for d, k in zip(moving, fresh)})
    wide = FLOAT32 if x.dtype in HALVES else x.dtype
    neutral = w.const(identity(node.monoid, wide), wide)
    item = w.cast(p.fetch(u, where, inner), wide)
    for k in fresh:
        inside = w.both(inside, w.lane_mask(inner, k))
    shape = tuple(a.p for a in inner)
    item = w.full(item if inside is True else neutral if inside is False else w.select(inside, item, neutral), shape)
    for k in sorted(fresh, reverse=True):
        item = w.op("reduce", (item,), wide, (*item.shape[:k], *item.shape[k + 1 :]), (node.monoid, k))
    old = w.cast(p.fetch(x, idx, space), wide)
    return w.cast(w.scalar(node.monoid, (old, item), wide), x.dtype)


__all__ = ["Home", "If", "copy", "fill", "iterate", "materialise", "update_memory"]
