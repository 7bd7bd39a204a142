"""softmax, log_softmax and logsumexp of block-sparse scores: as in onelaunch.torch.block_sparse."""

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
from onelaunch.kernels import block_calls, tiles
from onelaunch.kernels.block_calls import BlockScores
from onelaunch.kernels.calls import LOG_SOFTMAX, LOGSUMEXP, SOFTMAX
from onelaunch.kernels.layout import broadcast
from onelaunch.nn import block_reference
from onelaunch.nn.primitive import assemble, bind, ruled
from onelaunch.nn.softmax import wide
from onelaunch.sparse.layout import BlockLayout

MASK_MODES = ("add", "mul")
_DENSE = ("rpe", "attn", "pad", "rel")
_TABLES = ("row_start", "order", "column")


def softmax(
    x: Any, layout: BlockLayout, scale: float = 1.0, *, rpe: Any = None, rel_logits: Any = None,
    key_padding_mask: Any = None, attn_mask: Any = None, key_padding_mask_mode: str = "add",
    attn_mask_mode: str = "add", is_causal: bool = False, inplace: bool = False,
) -> jax.Array:  # fmt: skip
    """Softmax along the rows of block-sparse matrices; blocks that are not there count as −inf.

    x: float values (..., nnz, block, block) of ``layout``; the result has its shape and dtype. Scores are
    ``scale * x`` plus what else is given, in f32 (f64 for f64):

    - rpe: a dense array that broadcasts to (..., [batch,] heads, queries, keys), added
    - rel_logits: (..., [batch,] heads, queries, extent); key k of query q gets entry ``k - q + extent - 1`` of row q
      where there is one: the last entry is the query's own place, the one before the key before it
    - attn_mask: broadcasts as rpe does, usually (queries, keys); key_padding_mask: broadcasts to (..., [batch,] keys)

    A mask is added (mode "add"), or leaves out what is 0 in it (mode "mul", and any bool mask). is_causal leaves out
    keys after the query. What is left out, or has score −inf, gets 0, also where that is the whole row. Gradients: of
    x, and of dense arrays that are added. inplace: on a GPU the result takes x's memory where nothing else needs that.
    Raises ValueError, TypeError or OptionError, in one line.
    """
    dense = (rpe, attn_mask, key_padding_mask, rel_logits)
    return _apply(SOFTMAX, x, layout, scale, dense, (attn_mask_mode, key_padding_mask_mode), is_causal, inplace)


def log_softmax(
    x: Any, layout: BlockLayout, scale: float = 1.0, *, rpe: Any = None, rel_logits: Any = None,
    key_padding_mask: Any = None, attn_mask: Any = None, key_padding_mask_mode: str = "add",
    attn_mask_mode: str = "add", is_causal: bool = False, inplace: bool = False,
) -> jax.Array:  # fmt: skip
    """Logarithm of ``softmax``, same arguments; what is left out is −inf and has gradient 0."""
    dense = (rpe, attn_mask, key_padding_mask, rel_logits)
    return _apply(LOG_SOFTMAX, x, layout, scale, dense, (attn_mask_mode, key_padding_mask_mode), is_causal, inplace)


def logsumexp(
    x: Any, layout: BlockLayout, scale: float = 1.0, *, rpe: Any = None, rel_logits: Any = None,
    key_padding_mask: Any = None, attn_mask: Any = None, key_padding_mask_mode: str = "add",
    attn_mask_mode: str = "add", is_causal: bool = False,
) -> jax.Array:  # fmt: skip
    """log(sum(exp(scores))) of every row, (..., [batch,] heads, queries); −inf where nothing takes part."""
    dense = (rpe, attn_mask, key_padding_mask, rel_logits)
    return _apply(LOGSUMEXP, x, layout, scale, dense, (attn_mask_mode, key_padding_mask_mode), is_causal, False)


def _apply(
    mode: int, x: Any, layout: BlockLayout, scale: float, dense: Sequence[Any], modes: tuple[str, str], causal: bool,
    inplace: bool,
) -> jax.Array:  # fmt: skip
    """Check, bring leading axes into one, and call the function behind."""
    x = jnp.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"softmax of {x.dtype}; it takes floating-point arrays")
    if any(m not in MASK_MODES for m in modes):
        raise OptionError(f"a mask's mode is one of {', '.join(MASK_MODES)}, not {' and '.join(map(repr, modes))}")
    layout.check(x)
    lead = x.shape[:-3]
    rpe, attn, pad, rel = (None if a is None else jnp.asarray(a) for a in dense)
    extent = None if rel is None or rel.ndim == 0 else rel.shape[-1]
    fitted = (
        _five(rpe, lead, layout, "rpe"),
        _five(attn, lead, layout, "attn_mask"),
        _five(pad, lead, layout, "key_padding_mask", between=2),
        _five(rel, lead, layout, "rel_logits", last=extent),
    )
    multiply = [a is not None and (m == "mul" or a.dtype == bool) for a, m in zip((attn, pad), modes)]
    options = BlockScores(mode, float(scale), bool(causal), *multiply)
    flat = x.reshape(math.prod(lead), *x.shape[-3:])
    if x.size == 0:
        y = block_reference.softmax(flat, fitted, layout, options).astype(x.dtype)
    else:
        y = ruled(_rows, options, layout, inplace)(flat, *fitted)
    return y.reshape(*lead, *layout.shape[:-1]) if mode == LOGSUMEXP else y.reshape(x.shape)


def _five(
    a: Any, lead: Sequence[int], layout: BlockLayout, name: str, last: int | None = None, between: int = 0
) -> Any:
    """A dense array as (items, batch items, heads, queries, last axis), of size 1 where it broadcasts."""
    if a is None:
        return None
    full = (*lead, *layout.shape[:-1], layout.shape[-1] if last is None else last)
    want = full[: len(full) - 1 - between] + full[-1:]
    while a.ndim > len(want) and a.shape[0] == 1:
        a = a[0]
    if a.ndim > len(want) or any(n not in (1, m) for n, m in zip(reversed(a.shape), reversed(want))):
        raise ValueError(f"{name} of shape {list(a.shape)} does not broadcast to {list(want)}")
    a = a.reshape((1,) * (len(want) - a.ndim) + a.shape)
    a = a.reshape(*a.shape[:-1], *(1,) * between, a.shape[-1])
    own = a.shape[: len(lead)]
    if math.prod(own) > 1:
        a = jnp.broadcast_to(a, (*lead, *a.shape[len(lead) :]))
        own = tuple(lead)
    return a.reshape(math.prod(own), *(() if layout.batch is not None else (1,)), *a.shape[len(lead) :])


# --- the functions behind the primitive ----------------------------------------------------------------------


@dataclass(frozen=True)
class Forward:
    """y from x and, where there are, dense arrays; the tables are for the kernel."""

    options: BlockScores
    layout: BlockLayout
    names: tuple[str, ...]
    tile: Any
    inplace: bool = False

    def by_xla(self, x: jax.Array, **arrays: Any) -> list[jax.Array]:
        dense = [arrays.get(name) for name in _DENSE]
        return [block_reference.softmax(x, dense, self.layout, self.options).astype(x.dtype)]

    def kernel(self, shapes: Mapping[str, Any], results: Sequence[Any]) -> Kernel:
        x = shapes["x"]
        strides, extent = _strides(shapes, x.shape[0], self.layout)
        call = block_calls.forward(self.layout, x.shape[0], self.options, strides, extent)
        return assemble(call, _inputs(shapes, *_TABLES, *_DENSE), {"y": results[0]})

    def batched(self, arrays: Any, dims: Any, size: int) -> list[jax.Array]:
        return _merged(self, arrays, dims, size, "x")


@dataclass(frozen=True)
class Backward:
    """dx from the output y of softmax or log-softmax and its cotangent g, times ``factor``, of dtype ``kind``."""

    mode: int
    layout: BlockLayout
    factor: float
    kind: Any
    names: tuple[str, ...]
    tile: Any
    inplace: ClassVar[bool] = False

    def by_xla(self, y: jax.Array, g: jax.Array, **_: Any) -> list[jax.Array]:
        return [block_reference.backward(y, g, self.layout, self.mode, self.factor).astype(self.kind)]

    def kernel(self, shapes: Mapping[str, Any], results: Sequence[Any]) -> Kernel:
        call = block_calls.backward(self.layout, shapes["y"].shape[0], self.mode, self.factor)
        return assemble(call, _inputs(shapes, "order"), {"dx": results[0]})

    def batched(self, arrays: Any, dims: Any, size: int) -> list[jax.Array]:
        return _merged(self, arrays, dims, size, "yg")


@dataclass(frozen=True)
class LogsumexpBackward:
    """dx from x, the dense arrays, logsumexp y and its cotangent g, times ``factor``, of dtype ``kind``."""

    options: BlockScores
    layout: BlockLayout
    factor: float
    kind: Any
    names: tuple[str, ...]
    tile: Any
    inplace: ClassVar[bool] = False

    def by_xla(self, x: jax.Array, y: jax.Array, g: jax.Array, **arrays: Any) -> list[jax.Array]:
        dense = [arrays.get(name) for name in _DENSE]
        found = block_reference.logsumexp_backward(x, dense, y, g, self.layout, self.options, self.factor)
        return [found.astype(self.kind)]

    def kernel(self, shapes: Mapping[str, Any], results: Sequence[Any]) -> Kernel:
        items = shapes["x"].shape[0]
        strides, extent = _strides(shapes, items, self.layout)
        call = block_calls.logsumexp_backward(self.layout, items, self.options, strides, extent, self.factor)
        return assemble(call, _inputs(shapes, *_TABLES, *_DENSE), {"dx": results[0]})

    def batched(self, arrays: Any, dims: Any, size: int) -> list[jax.Array]:
        return _merged(self, arrays, dims, size, "xyg")


def _inputs(shapes: Mapping[str, Any], *optional: str) -> dict[str, Any]:
    """The kernel's arrays in the primitive's order, None for those of ``optional`` that are not there."""
    return {**shapes, **{name: None for name in optional if name not in shapes}}


def _strides(shapes: Mapping[str, Any], items: int, layout: BlockLayout) -> tuple[dict[str, Any], int]:
    """Strides of row-major dense arrays (0 where they broadcast), and the extent of relative logits."""
    full = (items, layout.batch or 1, layout.heads, layout.shape[-2])
    found: dict[str, Any] = {}
    for letter, name in zip("rapl", _DENSE):
        a = shapes.get(name)
        last = a.shape[-1] if a is not None and letter == "l" else layout.shape[-1]
        found[letter] = None if a is None else broadcast(a.shape, (*full, last))
    rel = shapes.get("rel")
    return found, 0 if rel is None else rel.shape[-1]


def _merged(function: Any, arrays: Mapping[str, jax.Array], dims: Any, size: int, whole: str) -> list[jax.Array]:
    """A batch becomes part of the items; dense arrays without a batch or items of their own stay as they are."""
    first = arrays[whole[0]]
    items = first.shape[0 if dims[whole[0]] is None else int(dims[whole[0]] == 0)]
    merged: dict[str, jax.Array] = {}
    for name, a in arrays.items():
        dim = dims[name]
        if name in _TABLES:
            merged[name] = a if dim is None else jnp.moveaxis(a, dim, 0)[0]
            continue
        a = a[None] if dim is None else jnp.moveaxis(a, dim, 0)
        if name in whole or a.shape[0] * a.shape[1] > 1:
            a = jnp.broadcast_to(a, (size, items, *a.shape[2:]))
        merged[name] = a.reshape(a.shape[0] * a.shape[1], *a.shape[2:])
    found = bind(function, **merged)
    return [r.reshape(size, items, *r.shape[1:]) for r in found]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _rows(
    options: BlockScores, layout: BlockLayout, inplace: bool, x: Any, rpe: Any, attn: Any, pad: Any, rel: Any
) -> jax.Array:
    return _forward(options, layout, inplace, x, (rpe, attn, pad, rel))


def _forward(options: BlockScores, layout: BlockLayout, inplace: bool, x: jax.Array, dense: Sequence[Any]) -> jax.Array:
    given = {"x": x, **dict(zip(_DENSE, dense)), **_tables(layout, *_TABLES)}
    y: jax.Array = bind(Forward(options, layout, _present(given), tiles.current(), inplace), **given)[0]
    return y


def _tables(layout: BlockLayout, *names: str) -> dict[str, Any]:
    """The tables as constants, without an order of lines where they are much alike."""
    found = {"row_start": layout.tables.row_start, "column": layout.tables.column, "order": layout.tables.row_order}
    skewed = block_calls.skewed(layout)
    return {n: None if n == "order" and not skewed else jnp.asarray(np.array(found[n])) for n in names}


def _present(arrays: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(name for name, a in arrays.items() if a is not None)


def _fwd(options: BlockScores, layout: BlockLayout, inplace: bool, x: Any, *dense: Any) -> tuple[jax.Array, Any]:
    plain = tuple(None if a is None else a.value for a in dense)
    adds = (True, not options.attn_mul, not options.pad_mul, True)
    # What a gradient is asked of, as zeros: residuals are arrays.
    wanted = tuple(jnp.zeros(()) if a is not None and a.perturbed and add else None for a, add in zip(dense, adds))
    y = _forward(options, layout, inplace, x.value, plain)
    whole = options.mode == LOGSUMEXP
    kept = tuple(a if whole or w is not None else None for a, w in zip(plain, wanted))
    return y, (y, x.value if whole else jnp.zeros((), x.value.dtype), kept, wanted)


def _bwd(options: BlockScores, layout: BlockLayout, inplace: bool, saved: Any, g: Any) -> tuple[Any, ...]:
    y, x, dense, wanted = saved
    g = jnp.zeros_like(y) if type(g) is jax.custom_derivatives.SymbolicZero else g
    asked = any(w is not None for w in wanted)
    # Scores have the gradient that dense arrays need; x has it times the scale.
    factor, kind = (1.0, wide(x.dtype)) if asked else (options.scale, x.dtype)
    given: dict[str, Any] = {"y": y, "g": g}
    if options.mode == LOGSUMEXP:
        given |= {"x": x, **dict(zip(_DENSE, dense)), **_tables(layout, *_TABLES)}
        function: Any = LogsumexpBackward(options, layout, factor, kind, _present(given), tiles.current())
    else:
        given |= _tables(layout, "row_start", "order")
        function = Backward(options.mode, layout, factor, kind, _present(given), tiles.current())
    dz = bind(function, **given)[0]
    dx = (dz * options.scale).astype(x.dtype) if asked else dz
    found = []
    for name, a, w in zip(_DENSE, dense, wanted):
        gather = block_reference.summed_by_distance if name == "rel" else block_reference.summed
        found.append(None if w is None else gather(dz, layout, a.shape).astype(a.dtype))
    return (dx, *found)


_rows.defvjp(_fwd, _bwd, symbolic_zeros=True)
