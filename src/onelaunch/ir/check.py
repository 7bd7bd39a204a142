"""verify: a Graph is well formed (every pass must keep it so)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from onelaunch.ir import nodes as n
from onelaunch.ir.nodes import Block, Graph, Value, Window
from onelaunch.ir.scalars import SCALARS
from onelaunch.ir.types import TRITON_NAMES, Type, is_bool


class MalformedGraph(AssertionError):
    """A pass of onelaunch made a Graph that breaks the rules of ``ir.nodes``: a defect of onelaunch."""


def expect(condition: bool, node: n.Node | None, what: str) -> None:
    if not condition:
        where = f" at {node.where}" if node is not None and node.where else ""
        kind = type(node).__name__ if node is not None else "graph"
        raise MalformedGraph(f"{kind}{where}: {what}")


def verify(graph: Graph) -> None:
    """Raise MalformedGraph unless values are defined once and before use, with consistent types."""
    seen: set[Value] = set()
    for value in (*graph.params, *(v for v, _ in graph.consts)):
        define(value, seen, None)
    for value, array in graph.consts:
        expect(
            (array.shape, array.dtype) == (value.shape, value.dtype),
            None,
            f"constant {value} is {array.dtype}{array.shape}",
        )
    verify_block(graph.block, frozenset(seen), seen, None)


def define(value: Value, seen: set[Value], node: n.Node | None) -> None:
    expect(value not in seen, node, f"{value} is defined twice")
    expect(value.dtype in TRITON_NAMES, node, f"{value} has a dtype that a kernel can't hold")
    seen.add(value)


def verify_block(block: Block, outer: frozenset[Value], seen: set[Value], owner: n.Node | None) -> None:
    """``outer`` is what encloses the block, ``seen`` all that was ever defined."""
    scope = set(outer)
    for node in block.nodes:
        for value in n.operands(node):
            expect(value in scope, node, f"{value} is used before it is defined, or outside its block")
        if isinstance(node, n.Loop):
            verify_loop(node, scope, seen)
        elif isinstance(node, n.Branch):
            verify_branch(node, scope, seen)
        else:
            verify_types(node)
        for value in n.outputs(node):
            define(value, seen, node)
            scope.add(value)
    for value in block.results:
        expect(value in scope, owner, f"result {value} is not defined in its block")


def verify_loop(node: n.Loop, scope: set[Value], seen: set[Value]) -> None:
    expect((node.trip is None) != (node.cond is None), node, "exactly one of trip and cond")
    expect((node.trip is None) == (node.index is None), node, "an index exists with trip only")
    for group in (node.init, node.body.results, node.outs):
        expect(types(group) == types(node.carry), node, f"{types(group)} against the carry's {types(node.carry)}")
    params = [*node.carry, *([node.index] if node.index is not None else [])]
    for value in params:
        define(value, seen, node)
    inner = frozenset(scope | set(params))
    if node.cond is not None:
        verify_block(node.cond, inner, seen, node)
        expect(len(node.cond.results) == 1, node, "a cond has one result")
        going = node.cond.results[0]
        expect(is_bool(going.dtype), node, "a cond is bool")
        for value in node.carry if going.ndim else ():
            expect(
                value.shape[: going.ndim] == going.shape, node, f"{value} lacks the leading dims of the batched cond"
            )
    verify_block(node.body, inner, seen, node)


def verify_branch(node: n.Branch, scope: set[Value], seen: set[Value]) -> None:
    expect(node.index.type == Type((), np.dtype("int32")), node, f"the index is {node.index.type}")
    for block in node.blocks:
        verify_block(block, frozenset(scope), seen, node)
        expect(types(block.results) == types(node.outs), node, f"{types(block.results)} for {types(node.outs)}")


def types(values: Sequence[Value]) -> list[Type]:
    return [v.type for v in values]


def verify_types(node: n.Node) -> None:
    """Shapes and dtypes of a node without blocks."""
    match node:
        case n.Const(value=value, out=out):
            expect(out.shape == () and np.asarray(value).dtype == out.dtype, node, f"{value!r} for {out.type}")
        case n.Iota(dim=dim, out=out):
            expect(0 <= dim < out.ndim and not is_bool(out.dtype), node, f"dim {dim} of {out.type}")
        case n.Map():
            verify_map(node)
        case n.Reduce(monoid=monoid, arg=arg, axes=axes, out=out):
            left = tuple(s for d, s in enumerate(arg.shape) if d not in axes)
            expect(out.shape == left, node, f"{arg.type} over {axes} gives {out.type}")
            expect(monoid.startswith("arg") or out.dtype == arg.dtype, node, f"{arg.type} to {out.type}")
        case n.Scan(arg=arg, axis=axis, out=out):
            expect(out.type == arg.type and 0 <= axis < arg.ndim, node, f"{arg.type} along {axis} gives {out.type}")
        case n.Move():
            verify_move(node)
        case n.Gather(operand=operand, starts=starts, window=window, fill=fill, out=out):
            verify_window(node, window, starts, operand.shape, out.shape)
            expect(out.dtype == operand.dtype, node, f"{operand.type} to {out.type}")
            expect(
                fill is None or fill.type == Type((), operand.dtype), node, "fill is a scalar of the operand's dtype"
            )
            expect((window.mode == "fill") == (fill is not None), node, "a fill value exists with mode fill only")
        case n.Update(operand=operand, starts=starts, updates=updates, window=window, out=out):
            verify_window(node, window, starts, operand.shape, updates.shape)
            expect(
                out.type == operand.type and updates.dtype == operand.dtype, node, f"{updates.type} into {operand.type}"
            )
        case n.Dot():
            verify_dot(node)
        case n.Sort(args=args, outs=outs, dim=dim):
            expect(types(args) == types(outs), node, f"{types(args)} to {types(outs)}")
            expect(len({a.shape for a in args}) == 1 and 0 <= dim < args[0].ndim, node, f"dim {dim} of {types(args)}")


def verify_map(node: n.Map) -> None:
    expect(node.fn in SCALARS, node, f"no scalar function {node.fn!r}")
    ranks = {a.ndim for a in node.args} - {0}
    expect(len(ranks) <= 1, node, f"operands of different rank: {types(node.args)}")
    shape = np.broadcast_shapes(*(a.shape for a in node.args))
    expect(all(o.shape == shape for o in node.outs), node, f"{types(node.args)} to {types(node.outs)}")
    expect(len(node.outs) == SCALARS[node.fn].outs, node, f"{node.fn} has {SCALARS[node.fn].outs} outputs")
    match SCALARS[node.fn].result:
        case "same":
            expect(
                all(o.dtype == node.args[0].dtype for o in node.outs), node, f"{types(node.args)} to {types(node.outs)}"
            )
        case "bool":
            expect(all(is_bool(o.dtype) for o in node.outs), node, f"{node.fn} gives bool, not {types(node.outs)}")


def verify_move(node: n.Move) -> None:
    x, out = node.args[0], node.out
    expect(all(a.dtype == out.dtype for a in node.args), node, f"{types(node.args)} to {out.type}")
    match node.op:
        case n.Slice(starts=starts, strides=strides):
            fits = len(starts) == len(strides) == x.ndim == out.ndim and all(t > 0 for t in strides)
            last = [s + (m - 1) * t for s, t, m in zip(starts, strides, out.shape, strict=True)]
            fits = fits and all(
                s >= 0 and (m == 0 or e < size) for s, e, m, size in zip(starts, last, out.shape, x.shape, strict=True)
            )
        case n.Pad(low=low, interior=interior):
            fits = len(low) == len(interior) == x.ndim == out.ndim and node.args[1].shape == ()
        case n.Reverse(axes=axes):
            fits = out.shape == x.shape and all(0 <= d < x.ndim for d in axes)
        case n.Transpose(permutation=permutation):
            fits = sorted(permutation) == list(range(x.ndim)) and out.shape == tuple(x.shape[p] for p in permutation)
        case n.Reshape():
            fits = out.size == x.size
        case n.Broadcast(dims=dims):
            fits = len(set(dims)) == len(dims) == x.ndim and all(d < out.ndim for d in dims)
            fits = fits and all(s in (1, out.shape[d]) for d, s in zip(dims, x.shape, strict=True))
        case n.Concatenate(axis=axis):
            shape = list(x.shape)
            shape[axis] = sum(a.shape[axis] for a in node.args)
            fits = out.shape == tuple(shape)
    expect(fits, node, f"{node.op} takes {types(node.args)} to {out.type}")


def verify_window(
    node: n.Node, window: Window, starts: Sequence[Value], operand: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    rank = len(operand)
    fields = (window.offset, window.start, window.batching, window.sizes)
    expect(all(len(f) == rank for f in fields), node, f"{window} over rank {rank}")
    used = sorted([*window.batch, *(d for d in window.offset if d is not None)])
    expect(used == list(range(len(shape))), node, f"{window} does not cover each dim of {shape} once")
    expect(
        {k for k in window.start if k is not None} == set(range(len(starts))),
        node,
        f"{window} with {len(starts)} starts",
    )
    batch = tuple(shape[d] for d in window.batch)
    for value in starts:
        expect(value.shape == batch and value.dtype.kind in "iu", node, f"start {value.type} for batch {batch}")
    for d, size in enumerate(window.sizes):
        offset, beside = window.offset[d], window.batching[d]
        extent = 1 if offset is None else shape[offset]
        expect(extent == size <= max(operand[d], 1), node, f"{window}: size {size} along operand dim {d}")
        expect(
            beside is None or (beside in window.batch and shape[beside] <= operand[d]),
            node,
            f"{window}: batching of {d}",
        )


def verify_dot(node: n.Dot) -> None:
    lhs, rhs = node.lhs, node.rhs
    for pair in (node.contract, node.batch):
        sides = [[x.shape[d] for d in dims] for x, dims in zip((lhs, rhs), pair, strict=True)]
        expect(sides[0] == sides[1], node, f"{lhs.type} against {rhs.type} along {pair}")
    free = [
        [s for d, s in enumerate(x.shape) if d not in node.contract[side] and d not in node.batch[side]]
        for side, x in enumerate((lhs, rhs))
    ]
    shape = (*(lhs.shape[d] for d in node.batch[0]), *free[0], *free[1])
    expect(math.prod(shape) == node.out.size and shape == node.out.shape, node, f"{shape} is not {node.out.type}")
