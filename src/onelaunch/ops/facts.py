"""What rules know of a value by looking at the nodes that produce it."""

from __future__ import annotations

import numpy as np

from onelaunch.ir import nodes as n
from onelaunch.ir.builder import Builder
from onelaunch.ir.nodes import Value


def known_scalar(b: Builder, x: Value) -> int | None:
    """The value of an integer that is a constant, through casts, reshapes and broadcasts."""
    node = b.defs.get(x)
    match node:
        case n.Const(value=value):
            return int(value) if x.dtype.kind in "iub" else None
        case n.Map(fn="cast", args=(arg,)) if arg.dtype.kind in "iub" and x.dtype.kind in "iu":
            known = known_scalar(b, arg)
            return None if known is None else int(np.asarray(known).astype(x.dtype))
        case n.Move(op=n.Reshape() | n.Broadcast(), args=(arg,)):
            return known_scalar(b, arg)
    return None


def column(b: Builder, indices: Value, k: int) -> Value:
    """indices[..., k], taken from the operand of the concatenate that made it where there is one."""
    node = b.defs.get(indices)
    shape = indices.shape[:-1]
    if isinstance(node, n.Move) and isinstance(node.op, n.Concatenate) and node.op.axis == indices.ndim - 1:
        for part in node.args:
            if k < part.shape[-1]:
                return column(b, part, k)
            k -= part.shape[-1]
    if isinstance(node, n.Move) and isinstance(node.op, n.Reshape) and node.args[0].shape == shape:
        return node.args[0]
    if indices.shape[-1] > 1:
        indices = b.slice(indices, [0] * len(shape) + [k], [*shape, k + 1])
    return b.reshape(indices, shape)


def iota_dim(b: Builder, x: Value) -> int | None:
    """The dim d for which x[i] == i[d] (a counter along d), or None."""
    node = b.defs.get(x)
    dim: int | None
    match node:
        case n.Iota():
            return node.dim
        case n.Map(fn="cast", args=(arg,)) if arg.dtype.kind in "iu" and x.dtype.kind in "iu":
            dim = iota_dim(b, arg)
            return dim if dim is not None and arg.shape[dim] - 1 <= np.iinfo(x.dtype).max else None
        case n.Map(fn="select"):
            return wrapped_iota(b, node)
        case n.Map(fn="add" | "sub", args=(arg, other)) if known_scalar(b, other) == 0:
            return iota_dim(b, arg) if arg.shape == x.shape else None
        case n.Map(fn="mul", args=(arg, other)) if known_scalar(b, other) == 1:
            return iota_dim(b, arg) if arg.shape == x.shape else None
        case n.Move(op=n.Broadcast(dims=dims), args=(arg,)):
            dim = iota_dim(b, arg)
            return dims[dim] if dim is not None and arg.shape[dim] == x.shape[dims[dim]] else None
        case n.Move(op=n.Reshape(), args=(arg,)):
            dim = iota_dim(b, arg)
            return None if dim is None else reshaped_dim(arg.shape, x.shape, dim)
        case n.Move(op=n.Transpose(permutation=permutation), args=(arg,)):
            dim = iota_dim(b, arg)
            return None if dim is None else permutation.index(dim)
        case n.Move(op=n.Slice(starts=starts, strides=strides), args=(arg,)):
            dim = iota_dim(b, arg)
            return dim if dim is not None and (starts[dim], strides[dim]) == (0, 1) else None
    return None


def wrapped_iota(b: Builder, node: n.Map) -> int | None:
    """The dim of select(i < 0, i + n, i): indices that count up from 0 are never negative."""
    pred, _negative, kept = node.args
    dim = iota_dim(b, kept)
    test = b.defs.get(pred)
    if dim is None or not isinstance(test, n.Map) or test.fn != "lt" or kept.shape != node.outs[0].shape:
        return None
    counted, bound = test.args
    return dim if iota_dim(b, counted) == dim and known_scalar(b, bound) == 0 else None


def reshaped_dim(old: tuple[int, ...], new: tuple[int, ...], dim: int) -> int | None:
    """Where ``dim`` goes when a reshape only adds or drops dims of size 1."""
    if [s for s in old if s != 1] != [s for s in new if s != 1]:
        return None
    if old[dim] == 1:
        return new.index(1) if 1 in new else None
    nth = sum(s != 1 for s in old[:dim])
    return [d for d, s in enumerate(new) if s != 1][nth]
