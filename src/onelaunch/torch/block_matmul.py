"""matmul with a block-sparse operand or result: the modes and transposes of triton.ops.blocksparse."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from onelaunch.errors import OptionError
from onelaunch.kernels import matmul_calls
from onelaunch.kernels.matmul_calls import PRECISIONS
from onelaunch.sparse.layout import BlockLayout
from onelaunch.torch.block_layouts import capturing, find, planned
from onelaunch.torch.launching import Prepared, by_kernel, signature, unknown_derivative
from onelaunch.torch.operator import operator
from onelaunch.torch.reference import wide
from onelaunch.torch.softmax import FLOATS

MODES = ("sdd", "dsd", "dds")


def matmul(
    a: Tensor, b: Tensor, layout: BlockLayout, mode: str, *, trans_a: bool = False, trans_b: bool = False,
    trans_c: bool = False, precision: str = "ieee",
) -> Tensor:  # fmt: skip
    """c = a @ b, one of the three block-sparse in ``layout``: c in mode "sdd", a in "dsd", b in "dds".

    Dense arrays are (..., [batch,] heads, rows, columns) of any strides, or two-dimensional for a layout of one head;
    sparse ones are values (..., nnz, block, block) of ``layout``. trans_a, trans_b: that operand is given transposed;
    trans_c: the result is. The layout is that of the array as it is given or returned. Leading axes broadcast.

    f16, bf16 (autocast casts to them), f32 or f64, the same for both; sums in f32 (f64 for f64), on tensor cores.
    precision: of f32 products, "ieee", "tf32" or "tf32x3". Differentiable, any number of times. Raises ValueError for
    shapes that do not fit, TypeError for dtypes, OptionError for another mode or precision, in one line.
    """
    if mode not in MODES:
        raise OptionError(f"mode is one of {', '.join(MODES)}, not {mode!r}")
    check_precision(precision)
    a, b = cast(a, b)
    check_arrays("matmul", a=a, b=b)
    if mode == "sdd":
        x, y = _turned(a, trans_a), _turned(b, trans_b)
        return _sdd(*((y.mT, x.mT) if trans_c else (x, y)), layout, precision)
    if mode == "dsd":
        return _dsd(a, _turned(b, trans_b), layout, trans_a, trans_c, precision, "b")
    return _dsd(b, _turned(a, not trans_a), layout, not trans_b, not trans_c, precision, "a")


def check_precision(precision: str) -> None:
    """OptionError for one that does not exist."""
    if precision not in PRECISIONS:
        raise OptionError(f"precision is one of {', '.join(PRECISIONS)}, not {precision!r}")


def cast(*tensors: Tensor) -> list[Tensor]:
    """Under autocast in its dtype, as PyTorch's products are."""
    device = tensors[0].device.type
    if device not in ("cuda", "cpu") or not torch.is_autocast_enabled(device):
        return list(tensors)
    kind = torch.get_autocast_dtype(device)
    return [t.to(kind) if t.dtype in (torch.float16, torch.bfloat16, torch.float32) else t for t in tensors]


def check_arrays(what: str, **arrays: Tensor) -> None:
    """One float dtype and one device, of at least two dimensions."""
    (first, some), *rest = arrays.items()
    if some.dtype not in FLOATS:
        raise TypeError(f"{what} of {some.dtype}; it takes {', '.join(map(str, FLOATS))}")
    for name, t in rest:
        if t.dtype != some.dtype:
            raise TypeError(f"{what}: {name} is {t.dtype}, {first} is {some.dtype}; cast one of them")
        if t.device != some.device:
            raise ValueError(f"{what}: {name} is on {t.device}, {first} is on {some.device}; move one of them")
    for name, t in arrays.items():
        if t.ndim < 2:
            raise ValueError(f"{what}: {name} has {t.ndim} dimensions; it needs at least two")


def _turned(t: Tensor, turn: bool) -> Tensor:
    return t.mT if turn else t


def planes_of(layout: BlockLayout) -> tuple[int, ...]:
    """The axes of dense arrays before their matrices: ([batch,] heads)."""
    return layout.shape[:-2]


def _sdd(x: Tensor, y: Tensor, layout: BlockLayout, precision: str) -> Tensor:
    if x.ndim == y.ndim == 2 and layout.planes == 1:
        x, y = x.reshape(*planes_of(layout), *x.shape), y.reshape(*planes_of(layout), *y.shape)
    planes, (rows, columns) = planes_of(layout), layout.shape[-2:]
    n = len(planes) + 2
    fits = x.ndim >= n and y.ndim >= n and x.shape[-n:-1] == (*planes, rows) and y.shape[-n:-2] == planes
    if not fits or y.shape[-1] != columns or x.shape[-1] != y.shape[-2]:
        want = f"[..., {', '.join(map(str, planes))}, {rows}, K] and [..., K, {columns}]"
        raise ValueError(f"operands of shapes {list(x.shape)} and {list(y.shape)}; this layout takes {want}")
    x, y = _led(x, y, n, n)
    if unknown_derivative(x, y):
        return _sdd_reference(x, y, layout)
    values: Tensor = block_sdd_op(x, y, layout.key, precision)
    return values


def _dsd(
    values: Tensor, d: Tensor, layout: BlockLayout, transposed: bool, flip: bool, precision: str, name: str
) -> Tensor:
    layout.check(values)
    flat = d.ndim == 2 and layout.planes == 1 and values.ndim == 3
    d = d.reshape(*planes_of(layout), *d.shape) if flat else d
    planes = planes_of(layout)
    n, inner = len(planes) + 2, layout.shape[-2 if transposed else -1]
    if d.ndim < n or d.shape[-n:-1] != (*planes, inner):
        want = f"[..., {', '.join(map(str, planes))}, {inner}, N]"
        raise ValueError(f"{name} (as multiplied) has shape {list(d.shape)}; this layout takes {want}")
    values, d = _led(values, d, 3, n)
    if unknown_derivative(values, d):
        out = _dsd_reference(values, d, layout, transposed, flip)
    else:
        out = block_dsd_op(values, d, layout.key, transposed, flip, precision)
    return out.reshape(out.shape[-2:]) if flat else out


def _led(a: Tensor, b: Tensor, m: int, n: int) -> tuple[Tensor, Tensor]:
    """With the same leading axes: those before the last ``m`` of a, ``n`` of b."""
    first, second = a.shape[:-m], b.shape[:-n]
    if first == second:
        return a, b
    lead = torch.broadcast_shapes(first, second)
    return a.expand(*lead, *a.shape[-m:]), b.expand(*lead, *b.shape[-n:])


def _sdd_reference(x: Tensor, y: Tensor, layout: BlockLayout) -> Tensor:
    kind = wide(x.dtype)
    values: Tensor = layout.from_dense(x.to(kind) @ y.to(kind)).to(x.dtype)
    return values


def _dsd_reference(values: Tensor, d: Tensor, layout: BlockLayout, transposed: bool, flip: bool) -> Tensor:
    kind = wide(d.dtype)
    s = _turned(layout.to_dense(values.to(kind)), transposed)
    return _turned(s @ d.to(kind), flip).to(d.dtype)


# --- the operators -----------------------------------------------------------------------------------------


def on_device(layout: BlockLayout, name: Any, array: np.ndarray, device: torch.device) -> Tensor:
    """An int32 table of a layout on a device, copied there at first use and kept with the layout."""
    key = ("torch", str(device), name)
    if key not in layout.kept:
        if device.type == "cuda" and capturing():
            raise RuntimeError(f"{layout} was never used like this on {device}: call the function once before capture")
        layout.kept[key] = torch.from_numpy(np.array(array)).to(device)
    found: Tensor = layout.kept[key]
    return found


def room(device: torch.device) -> int:
    """Bytes of shared memory that a program may have."""
    if device.type != "cuda":
        return matmul_calls.ROOM
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", matmul_calls.ROOM))


def flattened(t: Tensor, planes: int, keep: int) -> Tensor:
    """(batch, planes, ...) with ``keep`` last axes; a copy if it must be, or if no matrix axis has stride 1."""
    t = t.reshape(-1, planes, *t.shape[t.ndim - keep :])
    return t if 1 in t.stride()[-2:] else t.contiguous()


def _views(layout: BlockLayout, *given: Tensor) -> tuple[list[Tensor], list[bool]]:
    """Dense arrays flattened, and which of them had to be copied."""
    views = [flattened(t, layout.planes, 2) for t in given]
    return views, [view.data_ptr() != t.data_ptr() for view, t in zip(views, given)]


@operator("onelaunch::block_sdd")
def block_sdd_op(x: Tensor, y: Tensor, key: str, precision: str) -> Tensor:
    layout = find(key)
    if not by_kernel(x):
        return _sdd_reference(x, y, layout).clone()
    values = _values(x, layout)
    if not values.numel():
        return values
    if not x.shape[-1]:
        return values.zero_()
    signed = ("sdd", precision, matmul_calls.asked("sdd"), signature(x, y))
    copied, launch = planned(layout, signed, lambda: _plan_sdd(layout, x, y, precision))
    x, y = (flattened(t, layout.planes, 2) if copy else t for t, copy in zip((x, y), copied))
    launch({"x": x, "y": y, "values": values})
    return values


def _plan_sdd(layout: BlockLayout, x: Tensor, y: Tensor, precision: str) -> tuple[list[bool], Prepared]:
    (x, y), copied = _views(layout, x, y)
    tile = matmul_calls.sdd_tile(layout, x.dtype.itemsize, room(x.device))
    call, work = matmul_calls.sdd(layout, x.shape[0], x.shape[-1], tile, x.stride(), y.stride(), precision)
    tables = {"work": on_device(layout, ("groups", tile.width), work, x.device)}
    tables["lines"] = on_device(layout, "column", layout.tables.column, x.device)
    return copied, Prepared(call, tables, ["values"])


def _values(x: Tensor, layout: BlockLayout) -> Tensor:
    lead = x.shape[: x.ndim - len(planes_of(layout)) - 2]
    return x.new_empty((*lead, layout.nnz, layout.block, layout.block))


@operator("onelaunch::block_dsd")
def block_dsd_op(values: Tensor, d: Tensor, key: str, transposed: bool, flip: bool, precision: str) -> Tensor:
    layout = find(key)
    if not by_kernel(d):
        return _dsd_reference(values, d, layout, transposed, flip).clone()
    out = _product(d, layout, transposed, flip)
    if out.numel():
        signed = ("dsd", transposed, flip, precision, matmul_calls.asked("dsd"), signature(d))
        plan = planned(layout, signed, lambda: _DsdPlan(layout, d, out, transposed, flip, precision))
        plan(values.contiguous(), d, out)
    return out


class _DsdPlan:
    """The launches of a product of blocks and a dense array, and the pieces of lines between them."""

    def __init__(self, layout: BlockLayout, d: Tensor, out: Tensor, transposed: bool, flip: bool, precision: str):
        (dense, shown), (self.copied, _) = _views(layout, d, out)
        size, columns, device = d.dtype.itemsize, d.shape[-1], d.device
        tile = matmul_calls.dsd_tile(size, layout.block, columns, room(device))
        strides = _turned(shown, flip).stride()
        batch = dense.shape[0]
        first, second, work = matmul_calls.dsd(
            layout, transposed, batch, columns, tile, dense.stride(), strides, precision, size
        )
        t = layout.tables
        name = ("work", transposed, first.numbers["tiles"] * batch)
        lines = "column_row" if transposed else "column"
        tables = {
            "work": on_device(layout, name, work.items, device),
            "lines": on_device(layout, lines, getattr(t, lines), device),
            "where": on_device(layout, "column_block", t.column_block, device) if transposed else None,
        }
        self.planes = layout.planes
        self.pieces = (work.slots, batch, layout.block, columns) if second else None
        self.first, self.second = Prepared(first, tables, ["out", "partial"]), None
        if second:
            cut = on_device(layout, (*name, "cut"), work.cut, device)
            self.second = Prepared(second, {"cut": cut}, ["out"])

    def __call__(self, values: Tensor, d: Tensor, out: Tensor) -> None:
        d = flattened(d, self.planes, 2) if self.copied else d
        partial = None if self.pieces is None else d.new_empty(self.pieces, dtype=wide(d.dtype))
        self.first({"values": values, "dense": d, "out": out, "partial": partial})
        if self.second is not None:
            self.second({"partial": partial, "before": out, "out": out})


def _product(d: Tensor, layout: BlockLayout, transposed: bool, flip: bool) -> Tensor:
    shape = [layout.shape[-1 if transposed else -2], d.shape[-1]]
    return d.new_empty((*d.shape[:-2], *(reversed(shape) if flip else shape)))


@block_sdd_op.register_fake
def _(x: Tensor, y: Any, key: str, precision: Any) -> Tensor:
    return _values(x, find(key, keep=True))


@block_dsd_op.register_fake
def _(values: Any, d: Tensor, key: str, transposed: bool, flip: bool, precision: Any) -> Tensor:
    return _product(d, find(key, keep=True), transposed, flip)


# --- derivatives: each operator's are made of both -----------------------------------------------------------


def _save_sdd(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, y, key, ctx.precision = inputs
    ctx.layout = find(key)
    ctx.save_for_backward(x, y)


def _backward_sdd(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    x, y = ctx.saved_tensors
    key, precision = ctx.layout.key, ctx.precision
    dx = block_dsd_op(g, y.mT, key, False, False, precision) if ctx.needs_input_grad[0] else None
    dy = block_dsd_op(g, x, key, True, True, precision) if ctx.needs_input_grad[1] else None
    return dx, dy, None, None


def _save_dsd(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    values, d, key, ctx.transposed, ctx.flip, ctx.precision = inputs
    ctx.layout = find(key)
    ctx.save_for_backward(values, d)


def _backward_dsd(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    values, d = ctx.saved_tensors
    key, precision, g = ctx.layout.key, ctx.precision, _turned(g, ctx.flip)
    dvalues = dd = None
    if ctx.needs_input_grad[0]:
        dvalues = block_sdd_op(*((d, g.mT) if ctx.transposed else (g, d.mT)), key, precision)
    if ctx.needs_input_grad[1]:
        dd = block_dsd_op(values, g, key, not ctx.transposed, False, precision)
    return dvalues, dd, None, None, None, None


def in_front(info: Any, dims: tuple[Any, ...], tensors: tuple[Any, ...]) -> list[Any]:
    """The batch dimension first in every tensor, repeated where there is none."""
    found = []
    for t, dim in zip(tensors, dims, strict=True):
        if t is not None:
            t = t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
        found.append(t)
    return found


def _batch_sdd(info: Any, dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    return block_sdd_op(*in_front(info, dims[:2], args[:2]), *args[2:]), 0


def _batch_dsd(info: Any, dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    return block_dsd_op(*in_front(info, dims[:2], args[:2]), *args[2:]), 0


block_sdd_op.register_autograd(_backward_sdd, setup_context=_save_sdd)
block_sdd_op.register_vmap(_batch_sdd)
block_dsd_op.register_autograd(_backward_dsd, setup_context=_save_dsd)
block_dsd_op.register_vmap(_batch_dsd)
