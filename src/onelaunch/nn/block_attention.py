"""Attention over a block-sparse layout, fused: as in onelaunch.torch.block_sparse."""

from __future__ import annotations

import dataclasses
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
from onelaunch.kernels import attention_calls
from onelaunch.kernels.attention_calls import COLUMNS, FORWARD, ROWS, Attention, Sizes
from onelaunch.kernels.layout import broadcast, contiguous
from onelaunch.nn import block_attention_reference as reference
from onelaunch.nn.block_matmul import check_arrays, check_precision, room, table
from onelaunch.nn.block_reference import shifted
from onelaunch.nn.primitive import assemble, bind, ruled
from onelaunch.nn.softmax import wide
from onelaunch.sparse.layout import BlockLayout

MASK_MODES = ("add", "mul")

#: The largest head dim of the kernels.
LARGEST = 256

_TABLES = ("order", "bounds", "lines")
_MASKS = ("pad", "mask")


def attention(
    q: Any, k: Any, v: Any, layout: BlockLayout, *, scale: float | None = None, softcap: float | None = None,
    rpe: Any = None, rel_logits: Any = None, key_padding_mask: Any = None, attn_mask: Any = None,
    key_padding_mask_mode: str = "add", attn_mask_mode: str = "add", is_causal: bool = False, return_lse: bool = False,
    precision: str = "ieee",
) -> Any:  # fmt: skip
    """softmax(cap(scale · q kᵀ) + masks) v over the blocks of ``layout``; blocks that are not there count as −inf.

    q: (..., [batch,] heads, queries, dim); k: (..., [batch,] key_heads, keys, dim); v: the same with a dim of its own.
    heads is a multiple of key_heads (grouped heads) and of the layout's heads; queries and keys fill the layout's
    blocks, the last one perhaps in part. Dims up to 256. f16, bf16, f32 or f64; sums are f32 (f64 for f64). scale:
    1/sqrt(dim) if None. softcap: scores are ``cap · tanh(score / cap)`` before masks.

    rpe, rel_logits, attn_mask, key_padding_mask and is_causal are as in ``softmax``. A query that sees no key has
    result 0. Gradients: of q, k and v by kernels, deterministic; of what is added to scores by XLA, on dense scores.

    Returns out (..., heads, queries, value dim) in q's dtype; with return_lse also the logsumexp of each query's scores
    (f32 or f64, −inf where it sees no key), differentiable too. precision: of f32 products, as in ``matmul``. Raises
    ValueError, TypeError or OptionError, in one line, for what does not fit.
    """
    check_precision(precision)
    modes = (key_padding_mask_mode, attn_mask_mode)
    if any(m not in MASK_MODES for m in modes):
        raise OptionError(f"a mask's mode is one of {', '.join(MASK_MODES)}, not {' and '.join(map(repr, modes))}")
    q, k, v = (jnp.asarray(a) for a in (q, k, v))
    check_arrays("attention", q=q, k=k, v=v)
    lead = check_shapes(q, k, v, layout)
    q4, k4, v4 = (
        jnp.broadcast_to(a, (*lead, *a.shape[-3:])).reshape(math.prod(lead), *a.shape[-3:]) for a in (q, k, v)
    )
    full = (*lead, *q.shape[-3:-1], k.shape[-2])
    pad, mask, rpe, rel = (
        None if a is None else jnp.asarray(a) for a in (key_padding_mask, attn_mask, rpe, rel_logits)
    )
    pad_add, mask_add = (m == "add" and (a is None or a.dtype != bool) for a, m in zip((pad, mask), modes))
    cap = None if softcap is None else float(softcap)
    number = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    options = Attention(number, cap, bool(is_causal), bool(pad_add), bool(mask_add), precision)
    pad = None if pad is None else fitted(pad, (*lead, k.shape[-2]), 1, "key_padding_mask")
    mask = None if mask is None else fitted(mask, full, 3, "attn_mask")
    rpe = None if rpe is None else fitted(rpe, full, 3, "rpe")
    if rel is not None:
        extent = rel.shape[-1] if rel.ndim else 0
        rel = fitted(rel, (*full[:-1], extent), 3, "rel_logits")
        if mask is None and rpe is None and extent:
            mask, options = rel, dataclasses.replace(options, mask_add=True, extent=extent)
        elif extent:  # one array of all that is added
            bias = shifted(jnp.broadcast_to(rel, (*rel.shape[:2], q.shape[-2], extent)), k.shape[-2])
            rpe = bias if rpe is None else rpe + bias
    if rpe is not None:
        mask, options = reference.merged(rpe, mask, options)
    if 0 in (*q4.shape, *v4.shape):
        out, lse = reference.attention(q4, k4, v4, pad, mask, layout, options)
    else:
        out, lse = ruled(_attention, options, layout)(q4, k4, v4, pad, mask)
    out, lse = out.reshape(*full[:-1], v.shape[-1]), lse.reshape(full[:-1])
    return (out, lse) if return_lse else out


def check_shapes(q: jax.Array, k: jax.Array, v: jax.Array, layout: BlockLayout) -> tuple[int, ...]:
    """The leading axes. Raises ValueError where heads, lengths or dims don't fit the layout or each other."""
    n = len(layout.shape)
    if min(q.ndim, k.ndim, v.ndim) < n:
        raise ValueError(f"q, k and v have {q.ndim}, {k.ndim} and {v.ndim} dimensions; this layout takes at least {n}")
    heads, key_heads = q.shape[-3], k.shape[-3]
    if v.shape[-3:-1] != k.shape[-3:-1] or k.shape[-1] != q.shape[-1]:
        raise ValueError(f"k of shape {list(k.shape)} and v of shape {list(v.shape)} don't fit q of {list(q.shape)}")
    if not heads or not key_heads or heads % key_heads or heads % layout.heads:
        raise ValueError(
            f"{heads} query heads are no multiple of {key_heads} key heads and {layout.heads} of the layout"
        )
    for name, size, blocks in (("queries", q.shape[-2], layout.rows), ("keys", k.shape[-2], layout.columns)):
        if not (blocks - 1) * layout.block < size <= blocks * layout.block:
            raise ValueError(f"{size} {name}; this layout has {blocks} blocks of {layout.block} for them")
    if max(q.shape[-1], v.shape[-1]) > LARGEST or 0 in (q.shape[-1], v.shape[-1]):
        raise ValueError(f"head dims {q.shape[-1]} and {v.shape[-1]}; they may be 1 to {LARGEST}")
    lead = jnp.broadcast_shapes(*(a.shape[:-3] for a in (q, k, v)))
    if layout.batch is not None and lead[-1] != layout.batch:
        raise ValueError(f"a batch of {lead[-1]}; this layout has {layout.batch} batch items")
    return lead


def fitted(a: jax.Array, full: Sequence[int], keep: int, name: str) -> jax.Array:
    """(items or 1, ...) with ``keep`` last axes, each of size 1 where it broadcasts to ``full``."""
    if a.ndim > len(full) or any(n not in (1, m) for n, m in zip(reversed(a.shape), reversed(full))):
        raise ValueError(f"{name} of shape {list(a.shape)} does not broadcast to {list(full)}")
    a = a.reshape((1,) * (len(full) - a.ndim) + a.shape)
    lead = len(full) - keep
    if math.prod(a.shape[:lead]) > 1:
        a = jnp.broadcast_to(a, (*full[:lead], *a.shape[lead:]))
    return a.reshape(math.prod(a.shape[:lead]), *a.shape[lead:])


# --- the functions behind the primitive ----------------------------------------------------------------------


@dataclass(frozen=True)
class _Pass:
    """A launch over rows or columns; q, k, v are (items, heads, length, dim)."""

    options: Attention
    layout: BlockLayout
    names: tuple[str, ...]
    kind: ClassVar[str]
    inplace: ClassVar[bool] = False

    def call(self, shapes: Mapping[str, Any], letters: Mapping[str, Any], outputs: Mapping[str, Any]) -> Kernel:
        """The kernel. letters: the four-dimensional arrays beside q, k, v and masks by the letter of their strides."""
        sizes = _sizes(shapes)
        pad, mask = (shapes.get(name) for name in _MASKS)
        full = (sizes.batch, sizes.heads, sizes.queries, self.options.extent or sizes.keys)
        strides = {n: contiguous(a.shape) for n, a in {**{n: shapes[n] for n in "qkv"}, **letters}.items()}
        padding = (0, 0) if pad is None else broadcast(pad.shape, (full[0], sizes.keys))
        strides["p"] = (padding[0], 0, padding[1])
        strides["m"] = (0,) * 4 if mask is None else broadcast(mask.shape, full)
        tile, found = _tables(
            self.kind, self.layout, sizes, self.options, shapes["q"].dtype, pad is not None or mask is not None
        )
        call = attention_calls.launch_of(self.kind, self.layout, sizes, self.options, found, tile, strides)
        return assemble(call, {**shapes, "pad": pad, "mask": mask}, outputs)

    def batched(self, arrays: Any, dims: Any, size: int) -> list[jax.Array]:
        """A batch becomes part of the items; masks without a batch or items of their own stay as they are."""
        items = arrays["q"].shape[0 if dims["q"] is None else int(dims["q"] == 0)]
        found = {}
        for name, a in arrays.items():
            if name in _TABLES:
                found[name] = table(a, dims[name])
                continue
            a = a[None] if dims[name] is None else jnp.moveaxis(a, dims[name], 0)
            if name not in _MASKS or a.shape[0] * a.shape[1] > 1:
                a = jnp.broadcast_to(a, (size, items, *a.shape[2:]))
            found[name] = a.reshape(a.shape[0] * a.shape[1], *a.shape[2:])
        return [r.reshape(size, items, *r.shape[1:]) for r in bind(self, **found)]  # type: ignore[arg-type]


@dataclass(frozen=True)
class Forward(_Pass):
    """out and lse."""

    kind: ClassVar[str] = FORWARD

    def by_xla(self, q: jax.Array, k: jax.Array, v: jax.Array, pad: Any = None, mask: Any = None, **_: Any) -> Any:
        return reference.attention(q, k, v, pad, mask, self.layout, self.options)

    def kernel(self, shapes: Mapping[str, Any], results: Sequence[Any]) -> Kernel:
        return self.call(shapes, {"o": results[0]}, {"out": results[0], "lse": results[1]})


@dataclass(frozen=True)
class Dq(_Pass):
    """dq from what forward had, dout, lse and delta."""

    kind: ClassVar[str] = ROWS

    def by_xla(
        self, q: jax.Array, k: jax.Array, v: jax.Array, dout: jax.Array, delta: jax.Array, pad: Any = None,
        mask: Any = None, **_: Any,
    ) -> Any:  # fmt: skip
        return reference.gradients(q, k, v, pad, mask, dout, delta, self.layout, self.options)[:1]

    def kernel(self, shapes: Mapping[str, Any], results: Sequence[Any]) -> Kernel:
        return self.call(shapes, {"g": shapes["dout"], "r": results[0]}, {"dq": results[0]})


@dataclass(frozen=True)
class Dkv(_Pass):
    """dk and dv from the same."""

    kind: ClassVar[str] = COLUMNS

    def by_xla(
        self, q: jax.Array, k: jax.Array, v: jax.Array, dout: jax.Array, delta: jax.Array, pad: Any = None,
        mask: Any = None, **_: Any,
    ) -> Any:  # fmt: skip
        return reference.gradients(q, k, v, pad, mask, dout, delta, self.layout, self.options)[1:]

    def kernel(self, shapes: Mapping[str, Any], results: Sequence[Any]) -> Kernel:
        letters = {"g": shapes["dout"], "s": results[0], "t": results[1]}
        return self.call(shapes, letters, {"dk": results[0], "dv": results[1]})


def _sizes(shapes: Mapping[str, Any]) -> Sizes:
    q, k, v = (shapes[name].shape for name in "qkv")
    return Sizes(q[0], q[1], k[1], q[2], k[2], q[3], v[3])


def _tables(
    kind: str, layout: BlockLayout, sizes: Sizes, options: Attention, dtype: Any, masks: bool
) -> tuple[attention_calls.AttentionTile, attention_calls.Lines]:
    largest = max(sizes.dim, sizes.value_dim)
    tile = attention_calls.tile_of(kind, np.dtype(dtype).itemsize, layout.block, largest, room())
    return tile, attention_calls.lines(layout, sizes, options.causal, masks, tile.depth, kind == COLUMNS)


def _run(function: type[_Pass], options: Attention, layout: BlockLayout, arrays: Mapping[str, Any]) -> list[Any]:
    """Bind a pass with its tables."""
    given = {name: a for name, a in arrays.items() if a is not None}
    masks = any(name in given for name in _MASKS)
    _, found = _tables(function.kind, layout, _sizes(given), options, given["q"].dtype, masks)
    lines = layout.tables.column_row if function.kind == COLUMNS else layout.tables.column
    for name, a in zip(_TABLES, (found.order, found.bounds, lines)):
        given[name] = jnp.asarray(np.array(a))
    return bind(function(options, layout, tuple(given)), **given)  # type: ignore[arg-type]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attention(
    options: Attention, layout: BlockLayout, q: Any, k: Any, v: Any, pad: Any, mask: Any
) -> tuple[jax.Array, jax.Array]:
    out, lse = _run(Forward, options, layout, {"q": q, "k": k, "v": v, "pad": pad, "mask": mask})
    return out, lse


def _fwd(options: Attention, layout: BlockLayout, *inputs: Any) -> tuple[Any, Any]:
    values = tuple(None if a is None else a.value for a in inputs)
    wanted = tuple(jnp.zeros(()) if a is not None and a.perturbed else None for a in inputs[3:])
    arrays = dict(zip(("q", "k", "v", *_MASKS), values))
    out, lse = _run(Forward, options, layout, arrays)
    return (out, lse), (arrays, out, lse, wanted)


def _bwd(options: Attention, layout: BlockLayout, saved: Any, cotangents: Any) -> tuple[Any, ...]:
    arrays, out, lse, wanted = saved
    dout, dlse = (None if type(c) is jax.custom_derivatives.SymbolicZero else c for c in cotangents)
    dout = jnp.zeros_like(out) if dout is None else dout
    kind = wide(out.dtype)
    delta = (out.astype(kind) * dout.astype(kind)).sum(-1)
    delta = delta if dlse is None else delta - dlse
    given = {**arrays, "dout": dout, "lse": lse, "delta": delta}
    (dq,) = _run(Dq, options, layout, given)
    dk, dv = _run(Dkv, options, layout, given)
    masks: list[Any] = [None, None]
    if any(w is not None for w in wanted):

        def of_masks(pad: Any, mask: Any) -> Any:
            return tuple(reference.attention(arrays["q"], arrays["k"], arrays["v"], pad, mask, layout, options))

        found = jax.vjp(of_masks, arrays["pad"], arrays["mask"])[1](
            (dout, jnp.zeros_like(lse) if dlse is None else dlse)
        )
        masks = [None if w is None else g for w, g in zip(wanted, found)]
    return dq, dk, dv, *masks


_attention.defvjp(_fwd, _bwd, symbolic_zeros=True)
