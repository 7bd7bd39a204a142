"""matmul with a block-sparse operand or result: as in onelaunch.torch.block_sparse."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from onelaunch.emit.kernel import Kernel
from onelaunch.errors import OptionError
from onelaunch.kernels import matmul_calls
from onelaunch.kernels.layout import contiguous
from onelaunch.kernels.matmul_calls import PRECISIONS
from onelaunch.launch.jax import device_target
from onelaunch.nn.primitive import assemble, bind
from onelaunch.nn.softmax import wide
from onelaunch.sparse.layout import BlockLayout

MODES = ("sdd", "dsd", "dds")


def matmul(
    a: Any, b: Any, layout: BlockLayout, mode: str, *, trans_a: bool = False, trans_b: bool = False,
    trans_c: bool = False, precision: str = "ieee",
) -> jax.Array:  # fmt: skip
    """c = a @ b, one of the three block-sparse in ``layout``: c in mode "sdd", a in "dsd", b in "dds".

    Dense arrays are (..., [batch,] heads, rows, columns), or two-dimensional for a layout of one head; sparse ones are
    values (..., nnz, block, block) of ``layout``. trans_a, trans_b: that operand is given transposed; trans_c: the
    result is. The layout is that of the array as it is given or returned. Leading axes broadcast.

    f16, bf16, f32 or f64, the same for both; sums in f32 (f64 for f64), on tensor cores. precision: of f32 products on
    a GPU, "ieee", "tf32" or "tf32x3". Reverse-mode differentiable, any number of times. Raises ValueError for shapes
    that do not fit, TypeError for dtypes, OptionError for another mode or precision, in one line.
    """
    if mode not in MODES:
        raise OptionError(f"mode is one of {', '.join(MODES)}, not {mode!r}")
    check_precision(precision)
    a, b = jnp.asarray(a), jnp.asarray(b)
    check_arrays("matmul", a=a, b=b)
    if mode == "sdd":
        x, y, flips = (b, a, (not trans_b, not trans_a)) if trans_c else (a, b, (trans_a, trans_b))
        return _sparse_result(layout, x, y, flips, precision)
    if mode == "dsd":
        return _dense_result(layout, a, b, (trans_a, trans_b, trans_c), precision, "b")
    return _dense_result(layout, b, a, (not trans_b, not trans_a, not trans_c), precision, "a")


def check_precision(precision: str) -> None:
    """OptionError for one that does not exist."""
    if precision not in PRECISIONS:
        raise OptionError(f"precision is one of {', '.join(PRECISIONS)}, not {precision!r}")


def check_arrays(what: str, **arrays: jax.Array) -> None:
    """One float dtype, at least two dimensions."""
    (first, some), *rest = arrays.items()
    if not jnp.issubdtype(some.dtype, jnp.floating):
        raise TypeError(f"{what} of {some.dtype}; it takes floating-point arrays")
    for name, a in rest:
        if a.dtype != some.dtype:
            raise TypeError(f"{what}: {name} is {a.dtype}, {first} is {some.dtype}; cast one of them")
    for name, a in arrays.items():
        if a.ndim < 2:
            raise ValueError(f"{what}: {name} has {a.ndim} dimensions; it needs at least two")


def _sparse_result(
    layout: BlockLayout, x: jax.Array, y: jax.Array, flips: tuple[bool, bool], precision: str
) -> jax.Array:
    if x.ndim == y.ndim == 2 and layout.planes == 1:
        x, y = (a.reshape(*layout.shape[:-2], *a.shape) for a in (x, y))
    planes, (rows, columns), n = layout.shape[:-2], layout.shape[-2:], len(layout.shape)
    x_shape, y_shape = (_turned(a.shape, flip) for a, flip in zip((x, y), flips))
    fits = x.ndim >= n and y.ndim >= n and x_shape[-n:-1] == (*planes, rows) and y_shape[-n:-2] == planes
    if not fits or y_shape[-1] != columns or x_shape[-1] != y_shape[-2]:
        want = f"[..., {', '.join(map(str, planes))}, {rows}, K] and [..., K, {columns}]"
        raise ValueError(f"operands of shapes {list(x_shape)} and {list(y_shape)}; this layout takes {want}")
    lead = jnp.broadcast_shapes(x.shape[:-n], y.shape[:-n])
    x, y = (
        jnp.broadcast_to(a, (*lead, *a.shape[-n:])).reshape(math.prod(lead), layout.planes, *a.shape[-2:])
        for a in (x, y)
    )
    shape = (*lead, layout.nnz, layout.block, layout.block)
    if 0 in shape or 0 in x.shape:
        return jnp.zeros(shape, x.dtype)
    return sdd(layout, *flips, precision, x, y).reshape(shape)


def _dense_result(
    layout: BlockLayout, values: jax.Array, d: jax.Array, flips: tuple[bool, bool, bool], precision: str, name: str
) -> jax.Array:
    layout.check(values)
    flat = d.ndim == 2 and layout.planes == 1 and values.ndim == 3
    d = d.reshape(*layout.shape[:-2], *d.shape) if flat else d
    transposed, d_flip, flip = flips
    planes, n = layout.shape[:-2], len(layout.shape)
    rows, inner = layout.shape[-2:][:: -1 if transposed else 1]
    shape = _turned(d.shape, d_flip)
    if d.ndim < n or shape[-n:-1] != (*planes, inner):
        want = f"[..., {', '.join(map(str, planes))}, {inner}, N]"
        raise ValueError(f"{name} (as multiplied) has shape {list(shape)}; this layout takes {want}")
    lead = jnp.broadcast_shapes(values.shape[:-3], d.shape[:-n])
    values = jnp.broadcast_to(values, (*lead, *values.shape[-3:])).reshape(math.prod(lead), *values.shape[-3:])
    d = jnp.broadcast_to(d, (*lead, *d.shape[-n:])).reshape(math.prod(lead), layout.planes, *d.shape[-2:])
    result = (*(() if flat else (*lead, *planes)), *_turned((rows, shape[-1]), flip))
    if 0 in result or layout.nnz == 0:
        return jnp.zeros(result, d.dtype)
    return dsd(layout, transposed, d_flip, flip, precision, values, d).reshape(result)


def _turned(shape: Sequence[int], turn: bool) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1], shape[-2]) if turn else tuple(shape)


# --- the functions behind the primitive ----------------------------------------------------------------------


@dataclass(frozen=True)
class Sdd:
    """values (items, nnz, block, block) of x @ y, arrays (items, planes, ., .) given transposed where flipped."""

    layout: BlockLayout
    x_flip: bool
    y_flip: bool
    precision: str
    names: ClassVar[tuple[str, ...]] = ("x", "y", "work", "lines")
    inplace: ClassVar[bool] = False

    def by_xla(self, x: jax.Array, y: jax.Array, **_: Any) -> list[jax.Array]:
        kind = wide(x.dtype)
        x_, y_ = (a.astype(kind).mT if flip else a.astype(kind) for a, flip in ((x, self.x_flip), (y, self.y_flip)))
        dense = jnp.matmul(x_, y_, precision="highest").reshape(x.shape[0], *self.layout.shape)
        return [self.layout.from_dense(dense).astype(x.dtype)]

    def kernel(self, shapes: Mapping[str, Any], results: Sequence[Any]) -> Kernel:
        x, y = shapes["x"], shapes["y"]
        depth = x.shape[-2 if self.x_flip else -1]
        x_strides, y_strides = (_turned(contiguous(a.shape), f) for a, f in ((x, self.x_flip), (y, self.y_flip)))
        tile = self.tile(x.dtype)
        call, _ = matmul_calls.sdd(self.layout, x.shape[0], depth, tile, x_strides, y_strides, self.precision)
        return assemble(call, shapes, {"values": results[0]})

    def tile(self, dtype: Any) -> matmul_calls.ProductTile:
        return matmul_calls.sdd_tile(self.layout, dtype.itemsize, room())

    def batched(self, arrays: Any, dims: Any, size: int) -> list[jax.Array]:
        return merged(self, arrays, dims, size, ("x", "y"))


@dataclass(frozen=True)
class Dsd:
    """op(values) @ d and the partial sums of lines that are cut; a line's sum is that of its slots."""

    layout: BlockLayout
    transposed: bool
    d_flip: bool
    flip: bool
    precision: str
    names: tuple[str, ...]
    inplace: ClassVar[bool] = False

    def by_xla(self, values: jax.Array, dense: jax.Array, **_: Any) -> list[jax.Array]:
        kind, layout = wide(dense.dtype), self.layout
        s = layout.to_dense(values.astype(kind)).reshape(dense.shape[0], layout.planes, *layout.shape[-2:])
        d = dense.astype(kind)
        out = jnp.matmul(s.mT if self.transposed else s, d.mT if self.d_flip else d, precision="highest")
        work = self.work(dense)
        return [(out.mT if self.flip else out).astype(dense.dtype), *([self.parts(out, work)] if work.slots else [])]

    def parts(self, out: jax.Array, work: matmul_calls.Work) -> jax.Array:
        """Partial sums that make up the lines of ``out`` (not flipped): all in the first slot."""
        lines = out.reshape(out.shape[0], -1, self.layout.block, out.shape[-1])[:, work.cut[:, 0]].swapaxes(0, 1)
        zeros = jnp.zeros((work.slots, *lines.shape[1:]), wide(out.dtype))
        return zeros.at[work.cut[:, 1]].set(lines.astype(zeros.dtype))

    def kernel(self, shapes: Mapping[str, Any], results: Sequence[Any]) -> Kernel:
        d, out = shapes["dense"], results[0]
        d_strides, strides = (_turned(contiguous(a.shape), f) for a, f in ((d, self.d_flip), (out, self.flip)))
        columns, size = self.columns(d), np.dtype(d.dtype).itemsize
        tile = matmul_calls.dsd_tile(size, self.layout.block, columns, room())
        call, _, _ = matmul_calls.dsd(
            self.layout, self.transposed, d.shape[0], columns, tile, d_strides, strides, self.precision, size
        )
        outputs = {"out": out, "partial": results[1] if len(results) > 1 else None}
        return assemble(call, {**shapes, "where": shapes.get("where")}, outputs)

    def columns(self, dense: Any) -> int:
        return int(dense.shape[-2 if self.d_flip else -1])

    def work(self, dense: Any) -> matmul_calls.Work:
        """The lines and pieces for a dense operand."""
        columns = self.columns(dense)
        tile = matmul_calls.dsd_tile(np.dtype(dense.dtype).itemsize, self.layout.block, columns, room())
        return matmul_calls.work(self.layout, self.transposed, dense.shape[0] * -(-columns // tile.width))

    def batched(self, arrays: Any, dims: Any, size: int) -> list[jax.Array]:
        items = arrays["dense"].shape[0 if dims["dense"] is None else int(dims["dense"] == 0)]
        whole = {n: _whole(arrays[n], dims[n], size, items) for n in ("values", "dense")}
        out = product(self, whole["values"], whole["dense"])
        found = [out.reshape(size, items, *out.shape[1:])]
        work = self.work(jax.ShapeDtypeStruct((items, *whole["dense"].shape[1:]), out.dtype))
        if work.slots:  # the batch has put its own pieces together
            parts = self.parts(out.mT if self.flip else out, work)
            found.append(jnp.moveaxis(parts.reshape(work.slots, size, items, *parts.shape[2:]), 1, 0))
        return found


def product(function: Dsd, values: jax.Array, dense: jax.Array) -> jax.Array:
    """The result of a function whose lines that were cut have been put together."""
    work, t = function.work(dense), function.layout.tables
    given = {"values": values, "dense": dense, "work": work.items}
    given |= {"lines": t.column_row, "where": t.column_block} if function.transposed else {"lines": t.column}
    arrays = {name: jnp.asarray(np.array(a) if isinstance(a, np.ndarray) else a) for name, a in given.items()}
    out, *partial = bind(function, **arrays)
    return _gathered(function, work, out, partial[0]) if partial else out


def _gathered(function: Dsd, work: matmul_calls.Work, out: jax.Array, partial: jax.Array) -> jax.Array:
    """``out`` with the lines that were cut, each the sum of its slots in order."""
    line, first, end = work.cut.T
    slots = first[:, None] + np.arange(int((end - first).max()))
    there = slots < end[:, None]
    sums = jnp.where(there[..., None, None, None], partial[np.minimum(slots, end[:, None] - 1)], 0).sum(1)
    rows = out.mT if function.flip else out
    whole = rows.reshape(out.shape[0], -1, function.layout.block, rows.shape[-1])
    whole = whole.at[:, line].set(sums.swapaxes(0, 1).astype(out.dtype)).reshape(rows.shape)
    return whole.mT if function.flip else whole


def room() -> int:
    """Bytes of shared memory that a program may have on this process' GPU."""
    return matmul_calls.room_of(device_target().arch)


def merged(function: Any, arrays: Mapping[str, jax.Array], dims: Any, size: int, whole: Sequence[str]) -> Any:
    """A batch becomes part of the items; tables stay."""
    items = arrays[whole[0]].shape[0 if dims[whole[0]] is None else int(dims[whole[0]] == 0)]
    found = {n: _whole(a, dims[n], size, items) if n in whole else table(a, dims[n]) for n, a in arrays.items()}
    return [r.reshape(size, items, *r.shape[1:]) for r in bind(function, **found)]


def _whole(a: jax.Array, dim: int | None, size: int, items: int) -> jax.Array:
    a = a[None] if dim is None else jnp.moveaxis(a, dim, 0)
    return jnp.broadcast_to(a, (size, items, *a.shape[2:])).reshape(size * items, *a.shape[2:])


def table(a: jax.Array, dim: int | None) -> jax.Array:
    """A table, which has no batch of its own."""
    return a if dim is None else jnp.moveaxis(a, dim, 0)[0]


# --- derivatives: each function's are made of both -----------------------------------------------------------


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2, 3))
def sdd(layout: BlockLayout, x_flip: bool, y_flip: bool, precision: str, x: jax.Array, y: jax.Array) -> jax.Array:
    """Values of x @ y."""
    function = Sdd(layout, x_flip, y_flip, precision)
    work = matmul_calls.groups(layout, function.tile(x.dtype).width)
    tables = {"work": jnp.asarray(np.array(work)), "lines": jnp.asarray(np.array(layout.tables.column))}
    values: jax.Array = bind(function, x=x, y=y, **tables)[0]
    return values


def _sdd_fwd(layout: Any, x_flip: bool, y_flip: bool, precision: str, x: Any, y: Any) -> tuple[jax.Array, Any]:
    return sdd(layout, x_flip, y_flip, precision, x, y), (x, y)


def _sdd_bwd(layout: Any, x_flip: bool, y_flip: bool, precision: str, saved: Any, g: Any) -> tuple[Any, ...]:
    x, y = saved
    return (
        dsd(layout, False, not y_flip, x_flip, precision, g, y),
        dsd(layout, True, x_flip, not y_flip, precision, g, x),
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2, 3, 4))
def dsd(
    layout: BlockLayout, transposed: bool, d_flip: bool, flip: bool, precision: str, values: jax.Array, d: jax.Array
) -> jax.Array:
    """op(values) @ d."""
    names = ("values", "dense", "work", "lines", *(("where",) if transposed else ()))
    return product(Dsd(layout, transposed, d_flip, flip, precision, names), values, d)


def _dsd_fwd(
    layout: Any, transposed: bool, d_flip: bool, flip: bool, precision: str, values: Any, d: Any
) -> tuple[jax.Array, Any]:
    return dsd(layout, transposed, d_flip, flip, precision, values, d), (values, d)


def _dsd_bwd(
    layout: Any, transposed: bool, d_flip: bool, flip: bool, precision: str, saved: Any, g: Any
) -> tuple[Any, ...]:
    values, d = saved
    dvalues = sdd(layout, d_flip, not flip, precision, d, g) if transposed else sdd(
        layout, flip, not d_flip, precision, g, d
    )  # fmt: skip
    return dvalues, dsd(layout, not transposed, flip, d_flip, precision, values, g)


sdd.defvjp(_sdd_fwd, _sdd_bwd)
dsd.defvjp(_dsd_fwd, _dsd_bwd)
