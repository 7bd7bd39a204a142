"""Attention over a block-sparse layout, fused: neither scores nor probabilities are written."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from onelaunch.errors import OptionError
from onelaunch.kernels import attention_calls
from onelaunch.kernels.attention_calls import COLUMNS, FORWARD, ROWS, Attention, Sizes
from onelaunch.kernels.matmul_calls import asked
from onelaunch.sparse.layout import BlockLayout
from onelaunch.torch import block_attention_reference as reference
from onelaunch.torch.block_layouts import find, planned
from onelaunch.torch.block_matmul import cast, check_arrays, check_precision, in_front, matmul, on_device, room
from onelaunch.torch.block_reference import shifted
from onelaunch.torch.block_softmax import MASK_MODES, logsumexp, softmax
from onelaunch.torch.launching import Prepared, by_kernel, signature, unknown_derivative
from onelaunch.torch.operator import operator
from onelaunch.torch.reference import wide

#: The largest head dim of the kernels.
LARGEST = 256


def attention(
    q: Tensor, k: Tensor, v: Tensor, layout: BlockLayout, *, scale: float | None = None, softcap: float | None = None,
    rpe: Tensor | None = None, rel_logits: Tensor | None = None, key_padding_mask: Tensor | None = None,
    attn_mask: Tensor | None = None, key_padding_mask_mode: str = "add", attn_mask_mode: str = "add",
    is_causal: bool = False, return_lse: bool = False, precision: str = "ieee",
) -> Any:  # fmt: skip
    """softmax(cap(scale · q kᵀ) + masks) v over the blocks of ``layout``; blocks that are not there count as −inf.

    q: (..., [batch,] heads, queries, dim); k: (..., [batch,] key_heads, keys, dim); v: the same with a dim of its own.
    heads is a multiple of key_heads (grouped heads) and of the layout's heads; queries and keys fill the layout's
    blocks, the last one perhaps in part. Dims up to 256. f16, bf16 (autocast casts to them), f32 or f64; sums are f32
    (f64 for f64). scale: 1/sqrt(dim) if None. softcap: scores are ``cap · tanh(score / cap)`` before masks.

    rpe, rel_logits, attn_mask, key_padding_mask and is_causal are as in ``softmax``. A query that sees no key has
    result 0. Gradients of q, k and v are deterministic; a second derivative raises RuntimeError. rpe, rel_logits and
    masks that need a gradient take the way by products and softmax, which writes the probabilities' blocks.

    Returns out (..., heads, queries, value dim) in q's dtype; with return_lse also the logsumexp of each query's scores
    (f32 or f64, −inf where it sees no key), differentiable too. precision: of f32 products, as in ``matmul``. Raises
    ValueError, TypeError or OptionError, in one line, for what does not fit.
    """
    check_precision(precision)
    modes = (key_padding_mask_mode, attn_mask_mode)
    if any(m not in MASK_MODES for m in modes):
        raise OptionError(f"a mask's mode is one of {', '.join(MASK_MODES)}, not {' and '.join(map(repr, modes))}")
    q, k, v = cast(q, k, v)
    check_arrays("attention", q=q, k=k, v=v)
    q, k, v = _broadcast(q, k, v, layout)
    pad_add, mask_add = (_added(t, m) for t, m in zip((key_padding_mask, attn_mask), modes))
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    options = Attention(
        scale, None if softcap is None else float(softcap), bool(is_causal), pad_add, mask_add, precision
    )
    full = (*q.shape[:-1], k.shape[-2])
    pad, mask = key_padding_mask, attn_mask
    if pad is not None:
        pad = _fitted(pad, q, (*q.shape[:-3], k.shape[-2]), "key_padding_mask")
    if mask is not None:
        mask = _fitted(mask, q, full, "attn_mask")
    if rpe is not None:
        rpe = _fitted(rpe, q, full, "rpe")
    if rel_logits is not None:
        extent = rel_logits.shape[-1] if rel_logits.ndim else 0
        rel_logits = _fitted(rel_logits, q, (*q.shape[:-1], extent), "rel_logits")
        if mask is None and rpe is None and extent:
            mask, options = rel_logits, dataclasses.replace(options, mask_add=True, extent=extent)
        else:  # one array of all that is added
            bias = shifted(rel_logits.expand(*rel_logits.shape[:-2], *q.shape[-2:-1], extent), k.shape[-2])
            rpe = bias if rpe is None else rpe + bias
    if rpe is not None:
        mask, options = reference.merged(rpe, mask, options)
    out, lse = _call(q, k, v, pad, mask, layout, options)
    return (out, lse) if return_lse else out


def _call(
    q: Tensor, k: Tensor, v: Tensor, pad: Tensor | None, mask: Tensor | None, layout: BlockLayout, options: Attention
) -> tuple[Tensor, Tensor]:
    added = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (pad, mask))
    whole = (q.shape[-2], k.shape[-2]) == layout.shape[-2:]
    if unknown_derivative(q, k, v, pad, mask) or (added and not whole):
        return reference.attention(q, k, v, pad, mask, layout, options)
    if added:
        return composed(q, k, v, pad, mask, layout, options)
    found: tuple[Tensor, Tensor] = block_attention_op(q, k, v, pad, mask, layout.key, *options.plain)
    return found


def composed(
    q: Tensor, k: Tensor, v: Tensor, pad: Tensor | None, mask: Tensor | None, layout: BlockLayout, options: Attention
) -> tuple[Tensor, Tensor]:
    """By products and softmax, which have gradients of all that is added to scores; writes blocks of probabilities."""
    heads, group = q.shape[-3], q.shape[-3] // k.shape[-3]
    key = ("repeated", heads)
    if key not in layout.kept:
        layout.kept[key] = BlockLayout(layout.mask.repeat(heads // layout.heads, -3), layout.block)
    spread: BlockLayout = layout.kept[key]
    k, v = k.repeat_interleave(group, -3), v.repeat_interleave(group, -3)
    s, scale = matmul(q, k, spread, "sdd", trans_b=True, precision=options.precision), options.scale
    if options.cap is not None:
        s, scale = torch.tanh(s.to(wide(s.dtype)) * (scale / options.cap)) * options.cap, 1.0
    given: dict[str, Any] = {"key_padding_mask": pad, "is_causal": options.causal}
    given["attn_mask" if options.extent is None else "rel_logits"] = mask
    given |= {"key_padding_mask_mode": MASK_MODES[not options.pad_add]}
    given |= {"attn_mask_mode": MASK_MODES[not options.mask_add]}
    p = softmax(s, spread, scale, **given).to(q.dtype)
    lse = logsumexp(s, spread, scale, dtype=wide(q.dtype), **given)
    return matmul(p, v, spread, "dsd", precision=options.precision), lse


def _broadcast(q: Tensor, k: Tensor, v: Tensor, layout: BlockLayout) -> list[Tensor]:
    """With equal leading axes. Raises ValueError where heads, lengths or dims don't fit the layout or each other."""
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
    leads = [t.shape[:-3] for t in (q, k, v)]
    alike = leads[0] == leads[1] == leads[2]
    lead = leads[0] if alike else torch.broadcast_shapes(*leads)
    if layout.batch is not None and lead[-1] != layout.batch:
        raise ValueError(f"a batch of {lead[-1]}; this layout has {layout.batch} batch items")
    return [q, k, v] if alike else [t.expand(*lead, *t.shape[-3:]) for t in (q, k, v)]


def _added(mask: Tensor | None, mode: str) -> bool:
    """Whether a mask is added to scores; a bool one never is."""
    return mode == "add" and (mask is None or mask.dtype != torch.bool)


def _fitted(t: Tensor, q: Tensor, full: tuple[int, ...], name: str) -> Tensor:
    """With as many dimensions as ``full``, to which it broadcasts."""
    if t.device != q.device:
        raise ValueError(f"{name} is on {t.device}, q is on {q.device}; move one of them")
    if t.ndim > len(full) or any(n not in (1, m) for n, m in zip(reversed(t.shape), reversed(full))):
        raise ValueError(f"{name} of shape {list(t.shape)} does not broadcast to {list(full)}")
    return t.reshape((1,) * (len(full) - t.ndim) + tuple(t.shape))


# --- the operators -----------------------------------------------------------------------------------------


#: The passes' results, and by array the letter that begins its strides' names in kernels.
_RESULTS = {FORWARD: ("out", "lse"), ROWS: ("dq",), COLUMNS: ("dk", "dv")}
_LETTERS = {FORWARD: {"out": "o"}, ROWS: {"dout": "g", "dq": "r"}, COLUMNS: {"dout": "g", "dk": "s", "dv": "t"}}

Arrays = dict[str, Tensor | None]


class Passes:
    """What is launched for arrays of one signature: of the forward pass or, where they have ``dq``, of the backward."""

    def __init__(self, arrays: Arrays, layout: BlockLayout, options: Attention):
        q, k, v = (arrays[name] for name in "qkv")
        assert q is not None and k is not None and v is not None
        self.device, self.itemsize = q.device, q.dtype.itemsize
        self.masks = arrays["pad"] is not None or arrays["mask"] is not None
        shapes = _shapes(q, k)
        views = {n: None if t is None else shapes.get(n, _four)(t) for n, t in arrays.items()}
        self.strides = {n: t.stride() for n, t in views.items() if t is not None}
        #: Arrays that kernels can't read or write as they are, and how they are copied.
        self.copied: dict[str, Callable[[Any], Tensor]] = {
            n: shapes.get(n, _four)
            for n, t in arrays.items()
            if t is not None and t.data_ptr() != views[n].data_ptr()  # type: ignore[union-attr]
        }
        lead = math.prod(q.shape[:-3])
        self.sizes = Sizes(lead, q.shape[-3], k.shape[-3], q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1])
        if "dq" in arrays:
            delta = attention_calls.delta(self.sizes, self.strides["out"], self.strides["dout"])
            backward = [self.prepared(kind, layout, options) for kind in (ROWS, COLUMNS)]
            self.launches = [Prepared(delta, {}, ["delta"]), *backward]
        else:
            self.launches = [self.prepared(FORWARD, layout, options)]

    def __call__(self, arrays: Arrays) -> None:
        """Launch."""
        arrays |= {name: function(arrays[name]) for name, function in self.copied.items()}
        for launch in self.launches:
            launch(arrays)

    def prepared(self, kind: str, layout: BlockLayout, options: Attention) -> Prepared:
        """The launch of a pass."""
        columns, sizes = kind == COLUMNS, self.sizes
        width = max(sizes.dim, sizes.value_dim)
        tile = attention_calls.tile_of(kind, self.itemsize, layout.block, width, room(self.device))
        found = attention_calls.lines(layout, sizes, options.causal, self.masks, tile.depth, columns)
        strides = {n[0]: self.strides.get(n, (0,) * (3 if n == "pad" else 4)) for n in ("q", "k", "v", "pad", "mask")}
        strides |= {letter: self.strides[name] for name, letter in _LETTERS[kind].items()}
        call = attention_calls.launch_of(kind, layout, sizes, options, found, tile, strides)
        name = ("lines", sizes.heads, sizes.key_heads, sizes.keys, options.causal, found.tested, columns)
        table = "column_row" if columns else "column"
        tables = {
            "order": on_device(layout, (*name, "order"), found.order, self.device),
            "bounds": on_device(layout, (*name, "bounds"), found.bounds, self.device),
            "lines": on_device(layout, table, getattr(layout.tables, table), self.device),
        }
        return Prepared(call, tables, _RESULTS[kind])


def _shapes(q: Tensor, k: Tensor) -> dict[str, Callable[[Tensor], Tensor]]:
    """How arrays other than those of heads, rows and dims become what kernels take."""
    lead, full = q.shape[:-3], (*q.shape[:-1], k.shape[-2])

    def pad(t: Tensor) -> Tensor:
        spread = t.expand(*lead, t.shape[-1] if t.shape[-1] > 1 else full[-1])
        return spread.reshape(-1, full[-1])[:, None, :].expand(-1, full[-3], -1)

    def mask(t: Tensor) -> Tensor:
        whole = (*full[:-1], t.shape[-1] if t.shape[-1] > 1 else full[-1])  # or relative logits' extent
        return t.expand(whole).reshape(-1, *whole[-3:])

    return {"pad": pad, "mask": mask, **dict.fromkeys(("lse", "dlse", "delta"), Tensor.contiguous)}


def _four(t: Tensor) -> Tensor:
    """In four dimensions."""
    t = t.reshape(-1, *t.shape[-3:])
    return t if t.stride(-1) == 1 else t.contiguous()


def run(given: Arrays, results: Arrays, layout: BlockLayout, options: tuple[Any, ...]) -> None:
    """Launch what arrays of this signature need, made ready at the first."""
    arrays = {**given, **results}
    tiles = [asked(kind) for kind in _RESULTS]
    key = ("attention", len(arrays), *options, *tiles, signature(*given.values()))  # type: ignore[arg-type]
    planned(layout, key, lambda: Passes(arrays, layout, Attention(*options)))(arrays)


@operator("onelaunch::block_attention")
def block_attention_op(
    q: Tensor, k: Tensor, v: Tensor, pad: Tensor | None, mask: Tensor | None, key: str, scale: float,
    cap: float | None, causal: bool, pad_add: bool, mask_add: bool, precision: str, extent: int | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    layout, options = find(key), (scale, cap, causal, pad_add, mask_add, precision, extent)
    if not by_kernel(q):
        out, lse = reference.attention(q, k, v, pad, mask, layout, Attention(*options))
        return out.clone(), lse.clone()
    out, lse = _results(q, v)
    if out.numel():
        given = {"q": q, "k": k, "v": v, "pad": pad, "mask": mask}
        run(given, {"out": out, "lse": lse}, layout, options)
    return out, lse


def _results(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    lead = q.shape[:-1]
    return q.new_empty((*lead, v.shape[-1])), q.new_empty(lead, dtype=wide(q.dtype))


@operator("onelaunch::block_attention_backward")
def block_attention_backward_op(
    q: Tensor, k: Tensor, v: Tensor, pad: Tensor | None, mask: Tensor | None, out: Tensor, lse: Tensor,
    dout: Tensor, dlse: Tensor | None, key: str, scale: float, cap: float | None, causal: bool, pad_add: bool,
    mask_add: bool, precision: str, extent: int | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    layout, options = find(key), (scale, cap, causal, pad_add, mask_add, precision, extent)
    if not by_kernel(q):
        return reference.gradients(q, k, v, pad, mask, dout, dlse, layout, Attention(*options))
    dq, dk, dv = q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)
    if not dq.numel():
        return dq, dk.zero_(), dv.zero_()
    given = {"q": q, "k": k, "v": v, "pad": pad, "mask": mask, "out": out, "lse": lse, "dout": dout, "dlse": dlse}
    run(given, {"delta": lse.new_empty(lse.shape), "dq": dq, "dk": dk, "dv": dv}, layout, options)
    return dq, dk, dv


@block_attention_op.register_fake
def _(q: Tensor, k: Any, v: Tensor, pad: Any, mask: Any, key: str, *rest: Any) -> tuple[Tensor, Tensor]:
    find(key, keep=True)
    return _results(q, v)


@block_attention_backward_op.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, pad, mask, key, *ctx.options = inputs
    ctx.layout = find(key)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, pad, mask, *output)


def _backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, pad, mask, out, lse = ctx.saved_tensors
    if dout is None and dlse is None:
        return (None,) * 13
    dout = torch.zeros_like(out) if dout is None else dout
    found = block_attention_backward_op(q, k, v, pad, mask, out, lse, dout, dlse, ctx.layout.key, *ctx.options)
    return (*found, *(None,) * 10)


def _refuse(ctx: Any, *gradients: Any) -> NoReturn:
    """The derivative of the gradients."""
    raise RuntimeError(
        "block_sparse.attention has first derivatives only; take PyTorch's own operations where you need second ones"
    )


def _batch(info: Any, dims: tuple[Any, ...], *args: Any) -> tuple[Any, tuple[int, int]]:
    return block_attention_op(*in_front(info, dims[:5], args[:5]), *args[5:]), (0, 0)


def _batch_backward(info: Any, dims: tuple[Any, ...], *args: Any) -> tuple[Any, tuple[int, int, int]]:
    return block_attention_backward_op(*in_front(info, dims[:9], args[:9]), *args[9:]), (0, 0, 0)


block_attention_op.register_autograd(_backward, setup_context=_save)
block_attention_op.register_vmap(_batch)
block_attention_backward_op.register_autograd(_refuse, setup_context=lambda ctx, inputs, output: None)
block_attention_backward_op.register_vmap(_batch_backward)
