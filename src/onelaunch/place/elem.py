"""elem of the kinds that compute nothing across elements: Const, Iota, Map, Move, Gather."""

from __future__ import annotations

from onelaunch.analyse.axes import reshape_groups
from onelaunch.ir import nodes as n
from onelaunch.ir.nodes import Value
from onelaunch.place.nodes import Var
from onelaunch.place.placer import Placer, elem
from onelaunch.place.space import Index, Lane, Space
from onelaunch.place.writer import Number

Indices = tuple[Index, ...]


@elem(n.Const)
def const(p: Placer, node: n.Const, v: Value, idx: Indices, space: Space) -> Var:
    return p.w.const(node.value, v.dtype)


@elem(n.Empty)
def empty(p: Placer, node: n.Empty, v: Value, idx: Indices, space: Space) -> Var:
    return p.w.const(0, v.dtype)


@elem(n.Iota)
def iota(p: Placer, node: n.Iota, v: Value, idx: Indices, space: Space) -> Var:
    return p.w.counted(p.number(idx[node.dim], space), v.dtype)


@elem(n.Map)
def map_(p: Placer, node: n.Map, v: Value, idx: Indices, space: Space) -> Var:
    outs = p.w.scalars(
        node.fn, [p.fetch(a, operand_index(a, v, idx), space) for a in node.args], [o.dtype for o in node.outs]
    )
    return outs[node.outs.index(v)]


def operand_index(a: Value, v: Value, idx: Indices) -> Indices:
    """The index of a Map operand: dims of size 1 repeat, a scalar has none."""
    if a.ndim == 0:
        return ()
    return tuple(0 if a.shape[d] == 1 and v.shape[d] != 1 else i for d, i in enumerate(idx))


@elem(n.Move)
def move(p: Placer, node: n.Move, v: Value, idx: Indices, space: Space) -> Var:
    x, op = node.args[0], node.op
    match op:
        case n.Slice():
            return p.fetch(x, tuple(affine(p, i, t, s, space) for i, s, t in zip(idx, op.starts, op.strides)), space)
        case n.Reverse():
            back = [affine(p, i, -1, x.shape[d] - 1, space) if d in op.axes else i for d, i in enumerate(idx)]
            return p.fetch(x, tuple(back), space)
        case n.Transpose():
            return p.fetch(x, tuple(idx[op.permutation.index(d)] for d in range(x.ndim)), space)
        case n.Broadcast():
            return p.fetch(
                x, tuple(idx[k] if x.shape[d] != 1 or v.shape[k] == 1 else 0 for d, k in enumerate(op.dims)), space
            )
        case n.Reshape():
            return p.fetch(x, reshaped(p, x, v, idx, space), space)
        case n.Pad():
            return _pad(p, node, op, idx, space)
        case n.Concatenate():
            return _concatenate(p, node, op.axis, idx, space)


def affine(p: Placer, i: Index, stride: int, start: int, space: Space) -> Index:
    """start + i * stride."""
    if stride == 1 and start == 0:
        return i
    number = p.number(i, space)
    if stride == -1:
        return p.w.minus(start, number)
    return p.w.plus(p.w.times(number, stride), start)


def reshaped(p: Placer, x: Value, v: Value, idx: Indices, space: Space) -> Indices:
    """The operand index of a reshape: straight where one dim meets one, by division where dims merge or split."""
    result: list[Index] = [0] * x.ndim
    if x.size == 1:  # a batch axis of extent 1 keeps its lane
        lanes = [i for i in idx if isinstance(i, Lane)]
        return tuple(lanes[:1] + [0] * (x.ndim - 1)) if lanes and x.ndim else tuple(result)
    for left, right in reshape_groups(x.shape, v.shape):
        if len(left) == 1 and len(right) == 1:
            result[left[0]] = idx[right[0]]
            continue
        linear: Number = 0
        for d in right:
            linear = p.w.plus(p.w.times(linear, v.shape[d]), p.number(idx[d], space))
        for d in reversed(left[1:]):
            linear, result[d] = p.w.divmod(linear, x.shape[d])
        result[left[0]] = linear
    return tuple(result)


def _pad(p: Placer, node: n.Move, op: n.Pad, idx: Indices, space: Space) -> Var:
    x, fill = node.args
    w = p.w
    inside: Var | bool = True
    at: list[Index] = []
    for d, i in enumerate(idx):
        size = x.shape[d]
        if op.low[d] == 0 and op.interior[d] == 0 and node.out.shape[d] <= size:
            at.append(i)
            continue
        j = w.minus(p.number(i, space), op.low[d]) if op.low[d] >= 0 else w.plus(p.number(i, space), -op.low[d])
        inside = w.both(inside, w.compare("ge", j, 0))
        if op.interior[d]:
            j, rest = w.divmod(w.clip(j, 0, 2**31 - 1), op.interior[d] + 1)
            inside = w.both(inside, w.compare("eq", rest, 0))
        inside = w.both(inside, w.compare("lt", j, size))
        at.append(w.clip(j, 0, max(0, size - 1)))
    if inside is False or x.size == 0:
        return p.fetch(fill, (), space)
    value = p.fetch(x, tuple(at), space)
    return value if inside is True else w.select(inside, value, p.fetch(fill, (), space))


def _concatenate(p: Placer, node: n.Move, axis: int, idx: Indices, space: Space) -> Var:
    w = p.w
    i = p.number(idx[axis], space)
    pieces, first = [], 0
    for arg in node.args:
        if arg.shape[axis]:
            pieces.append((first, arg))
        first += arg.shape[axis]
    if len(pieces) == 1:
        return p.fetch(pieces[0][1], idx, space)
    result: Var | None = None
    for first, arg in reversed(pieces):
        size = arg.shape[axis]
        if isinstance(i, int) and not first <= i < first + size:
            continue
        at = w.clip(w.minus(i, first), 0, size - 1)
        value = p.fetch(arg, (*idx[:axis], at, *idx[axis + 1 :]), space)
        if isinstance(i, int):
            return value
        inside = w.compare("lt", i, first + size)
        if isinstance(inside, Var):
            result = value if result is None else w.select(inside, value, result)
        elif inside or result is None:
            result = value
    assert result is not None
    return result


@elem(n.Gather)
def gather(p: Placer, node: n.Gather, v: Value, idx: Indices, space: Space) -> Var:
    at, inside = window_index(p, node, node.operand, idx, space)
    if inside is False:
        assert node.fill is not None
        return p.fetch(node.fill, (), space)
    value = p.fetch(node.operand, at, space)
    if inside is True or node.fill is None:
        return value
    return p.w.select(inside, value, p.fetch(node.fill, (), space))


def window_starts(
    p: Placer, node: n.Gather | n.Update, x: Value, idx: Indices, space: Space
) -> tuple[list[Number | None], Var | bool]:
    """Per operand dim the window's (clamped) start, and whether the whole window lies inside."""
    win, w = node.window, p.w
    inside: Var | bool = True
    starts: list[Number | None] = []
    for d in range(x.ndim):
        which = win.start[d]
        if which is None:
            starts.append(None)
            continue
        start = p.read_index(node.starts[which], tuple(idx[b] for b in win.batch), space)
        last = x.shape[d] - win.sizes[d]
        if win.mode == "fill":
            inside = w.both(inside, w.both(w.compare("ge", start, 0), w.compare("lt", start, last + 1)))
        starts.append(w.clip(start, 0, last))
    return starts, inside


def window_index(
    p: Placer, node: n.Gather | n.Update, x: Value, idx: Indices, space: Space
) -> tuple[Indices, Var | bool]:
    """The operand index of one window element, and whether its window lies inside."""
    win, w = node.window, p.w
    starts, inside = window_starts(p, node, x, idx, space)
    at: list[Index] = []
    for d, start in enumerate(starts):
        moving: list[Index] = [idx[k] for k in (win.offset[d], win.batching[d]) if k is not None]
        if start is None and len(moving) == 1:
            at.append(moving[0])
            continue
        total: Number = 0 if start is None else start
        for i in moving:
            total = w.plus(total, p.number(i, space))
        at.append(total)
    return tuple(at), inside
