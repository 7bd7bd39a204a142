"""softmax, log_softmax and logsumexp of block-sparse scores: the options of triton.ops.blocksparse's two versions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onelaunch.errors import OptionError
from onelaunch.kernels import block_calls
from onelaunch.kernels.block_calls import BlockScores
from onelaunch.kernels.calls import LOG_SOFTMAX, LOGSUMEXP, SOFTMAX
from onelaunch.sparse.layout import BlockLayout
from onelaunch.torch import block_layouts, block_reference
from onelaunch.torch.block_layouts import find, fitted, five, lead_of, planned, tables
from onelaunch.torch.launching import Prepared, by_kernel, signature, transformed, unknown_derivative
from onelaunch.torch.operator import operator
from onelaunch.torch.softmax import FLOATS, refuse_derivative

MASK_MODES = ("add", "mul")


def softmax(
    x: Tensor, layout: BlockLayout, scale: float = 1.0, *, rpe: Tensor | None = None, rel_logits: Tensor | None = None,
    key_padding_mask: Tensor | None = None, attn_mask: Tensor | None = None, key_padding_mask_mode: str = "add",
    attn_mask_mode: str = "add", is_causal: bool = False, dtype: torch.dtype | None = None, inplace: bool = False,
) -> Tensor:  # fmt: skip
    """Softmax along the rows of block-sparse matrices; blocks that are not there count as −inf.

    x: float values (..., nnz, block, block) of ``layout``; the result has its shape and dtype (f32 under autocast, or
    ``dtype``). Scores are ``scale * x`` plus what else is given, in f32 (f64 for f64):

    - rpe: a dense array that broadcasts to (..., [batch,] heads, queries, keys), added
    - rel_logits: (..., [batch,] heads, queries, extent); key k of query q gets entry ``k - q + extent - 1`` of row q
      where there is one: the last entry is the query's own place, the one before the key before it
    - attn_mask: broadcasts as rpe does, usually (queries, keys); key_padding_mask: broadcasts to (..., [batch,] keys)

    A mask is added (mode "add"), or leaves out what is 0 in it (mode "mul", and any bool mask). is_causal leaves out
    keys after the query. What is left out, or has score −inf, gets 0, also where that is the whole row. Gradients: of
    x, and of dense arrays that are added. The scale is compiled in. inplace: the result takes x's memory, and PyTorch
    is told. Raises ValueError, TypeError or OptionError, in one line, for what does not fit.
    """
    dense = (rpe, attn_mask, key_padding_mask, rel_logits)
    modes = (attn_mask_mode, key_padding_mask_mode)
    return _apply(SOFTMAX, x, layout, scale, dense, modes, is_causal, dtype, inplace)


def log_softmax(
    x: Tensor, layout: BlockLayout, scale: float = 1.0, *, rpe: Tensor | None = None, rel_logits: Tensor | None = None,
    key_padding_mask: Tensor | None = None, attn_mask: Tensor | None = None, key_padding_mask_mode: str = "add",
    attn_mask_mode: str = "add", is_causal: bool = False, dtype: torch.dtype | None = None, inplace: bool = False,
) -> Tensor:  # fmt: skip
    """Logarithm of ``softmax``, same arguments; what is left out is −inf and has gradient 0."""
    dense = (rpe, attn_mask, key_padding_mask, rel_logits)
    modes = (attn_mask_mode, key_padding_mask_mode)
    return _apply(LOG_SOFTMAX, x, layout, scale, dense, modes, is_causal, dtype, inplace)


def logsumexp(
    x: Tensor, layout: BlockLayout, scale: float = 1.0, *, rpe: Tensor | None = None, rel_logits: Tensor | None = None,
    key_padding_mask: Tensor | None = None, attn_mask: Tensor | None = None, key_padding_mask_mode: str = "add",
    attn_mask_mode: str = "add", is_causal: bool = False, dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """log(sum(exp(scores))) of every row, (..., [batch,] heads, queries); −inf where nothing takes part."""
    dense = (rpe, attn_mask, key_padding_mask, rel_logits)
    modes = (attn_mask_mode, key_padding_mask_mode)
    return _apply(LOGSUMEXP, x, layout, scale, dense, modes, is_causal, dtype, False)


def _apply(
    mode: int, x: Tensor, layout: BlockLayout, scale: float, dense: Sequence[Tensor | None], modes: tuple[str, str],
    causal: bool, dtype: torch.dtype | None, inplace: bool,
) -> Tensor:  # fmt: skip
    """Check, settle the result's dtype, and call the operator."""
    if x.dtype not in FLOATS:
        raise TypeError(f"softmax of {x.dtype}; it takes {', '.join(map(str, FLOATS))}")
    if any(m not in MASK_MODES for m in modes):
        raise OptionError(f"a mask's mode is one of {', '.join(MASK_MODES)}, not {' and '.join(map(repr, modes))}")
    rpe, attn, pad, rel = dense
    extent = None if rel is None or rel.ndim == 0 else rel.shape[-1]
    dense = (
        fitted(rpe, x, layout, "rpe"),
        fitted(attn, x, layout, "attn_mask"),
        fitted(pad, x, layout, "key_padding_mask", between=2),
        fitted(rel, x, layout, "rel_logits", last=extent),
    )
    lead_of(x, layout)
    autocast = x.is_cuda and x.dtype in (torch.float16, torch.bfloat16) and torch.is_autocast_enabled("cuda")
    out = dtype or (torch.float32 if autocast else x.dtype)
    multiply = [t is not None and (m == "mul" or t.dtype == torch.bool) for t, m in zip((attn, pad), modes)]
    options = BlockScores(mode, float(scale), bool(causal), *multiply)
    if inplace:
        _check_inplace(x, out)
    if unknown_derivative(x, *dense):
        return block_reference.softmax(x, dense, layout, options).to(out)
    if inplace and not torch.compiler.is_compiling() and not transformed():
        whole: Tensor = _InPlace.apply(x, *dense, layout, options)
        return whole
    y: Tensor = block_softmax_op(x, *dense, layout.key, *_plain(options), out)
    return y


def _plain(options: BlockScores) -> tuple[int, float, bool, bool, bool]:
    return options.mode, options.scale, options.causal, options.attn_mul, options.pad_mul


def _check_inplace(x: Tensor, out: torch.dtype) -> None:
    """Raises OptionError or ValueError where x's memory can't take the result."""
    if out != x.dtype:
        raise OptionError(f"inplace can't make {out} of {x.dtype}")
    if x.is_leaf and x.requires_grad and torch.is_grad_enabled():
        raise ValueError("inplace would overwrite a leaf that requires a gradient")
    if not x.is_contiguous():
        raise ValueError("inplace needs contiguous values")


# --- the operators -----------------------------------------------------------------------------------------


def forward(x: Tensor, dense: Sequence[Tensor | None], layout: BlockLayout, options: BlockScores, y: Tensor) -> None:
    """Fill ``y``, which may be ``x``."""
    if not by_kernel(x):
        y.copy_(block_reference.softmax(x, dense, layout, options))
        return
    if y.numel() == 0:
        return
    if x.numel() == 0:  # rows without a block
        y.fill_(float("-inf"))
        return
    arrays, strides, extent = _arrays(x, dense, layout)

    def make() -> Prepared:
        call = block_calls.forward(layout, math.prod(x.shape[:-3]), options, strides, extent)
        return Prepared(call, _tables(layout, x, "column"), ["y"])

    signed = ("softmax", options, block_calls.choose(layout), y.dtype, signature(x, *arrays.values()))
    planned(layout, signed, make)({"x": x.contiguous(), **arrays, "y": y})


def _arrays(x: Tensor, dense: Sequence[Tensor | None], layout: BlockLayout) -> tuple[Any, Any, int]:
    """The dense arrays in five dimensions, their strides, and the extent of relative logits."""
    extent = 0 if dense[3] is None else dense[3].shape[-1]
    whole = [five(t, x.shape[:-3], layout, extent if i == 3 else None) for i, t in enumerate(dense)]
    strides = {letter: None if t is None else t.stride() for letter, t in zip("rapl", whole)}
    return dict(zip(("rpe", "attn", "pad", "rel"), whole)), strides, extent


def _tables(layout: BlockLayout, x: Tensor, *names: str) -> dict[str, Tensor | None]:
    t = tables(layout, x.device)
    order = t["row_order"] if block_calls.skewed(layout) else None
    return {"row_start": t["row_start"], "order": order} | {n: t[n] for n in names}


def result_shape(x: Tensor, layout: BlockLayout, mode: int) -> list[int]:
    """Of the result: values, or one number for each row."""
    return [*x.shape[:-3], *layout.shape[:-1]] if mode == LOGSUMEXP else list(x.shape)


@operator("onelaunch::block_softmax")
def block_softmax_op(
    x: Tensor, rpe: Tensor | None, attn: Tensor | None, pad: Tensor | None, rel: Tensor | None, key: str, mode: int,
    scale: float, causal: bool, attn_mul: bool, pad_mul: bool, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    layout, options = find(key), BlockScores(mode, scale, causal, attn_mul, pad_mul)
    y = torch.empty(result_shape(x, layout, mode), dtype=dtype, device=x.device)
    forward(x, (rpe, attn, pad, rel), layout, options, y)
    return y


@operator("onelaunch::block_softmax_backward")
def block_softmax_backward_op(y: Tensor, g: Tensor, key: str, mode: int, factor: float, dtype: torch.dtype) -> Tensor:
    layout = find(key)
    if not by_kernel(y):
        return block_reference.backward(y, g, layout, mode, factor).to(dtype)
    dx = torch.empty(y.shape, dtype=dtype, device=y.device)
    if dx.numel():

        def make() -> Prepared:
            call = block_calls.backward(layout, math.prod(y.shape[:-3]), mode, factor)
            return Prepared(call, _tables(layout, y), ["dx"])

        signed = ("softmax backward", mode, factor, block_calls.choose(layout), dtype, signature(y, g))
        planned(layout, signed, make)({"y": y.contiguous(), "g": g.contiguous(), "dx": dx})
    return dx


@operator("onelaunch::block_logsumexp_backward")
def block_logsumexp_backward_op(
    x: Tensor, rpe: Tensor | None, attn: Tensor | None, pad: Tensor | None, rel: Tensor | None, y: Tensor, g: Tensor,
    key: str, scale: float, causal: bool, attn_mul: bool, pad_mul: bool, factor: float, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    layout, options = find(key), BlockScores(LOGSUMEXP, scale, causal, attn_mul, pad_mul)
    dense = (rpe, attn, pad, rel)
    if not by_kernel(x):
        return block_reference.logsumexp_backward(x, dense, y, g, layout, options, factor).to(dtype)
    dx = torch.empty(x.shape, dtype=dtype, device=x.device)
    if dx.numel():
        arrays, strides, extent = _arrays(x, dense, layout)

        def make() -> Prepared:
            call = block_calls.logsumexp_backward(layout, math.prod(x.shape[:-3]), options, strides, extent, factor)
            return Prepared(call, _tables(layout, x, "column"), ["dx"])

        signs = signature(x, *arrays.values(), y, g)
        signed = ("logsumexp backward", options, factor, block_calls.choose(layout), dtype, signs)
        given = {"x": x.contiguous(), "y": y.contiguous(), "g": g.contiguous(), **arrays}
        planned(layout, signed, make)({**given, "dx": dx})
    return dx


@operator("onelaunch::block_sums")
def block_sums_op(dz: Tensor, key: str, shape: list[int], by_distance: bool) -> Tensor:
    function = block_layouts.summed_by_distance if by_distance else block_layouts.summed
    return function(dz, find(key), shape).clone()


@block_softmax_op.register_fake
def _(x: Tensor, rpe: Any, attn: Any, pad: Any, rel: Any, key: str, mode: int, *rest: Any) -> Tensor:
    return torch.empty(result_shape(x, find(key, keep=True), mode), dtype=rest[-1], device=x.device)


@block_softmax_backward_op.register_fake
def _(y: Tensor, g: Any, key: str, mode: int, factor: float, dtype: torch.dtype) -> Tensor:
    return torch.empty(y.shape, dtype=dtype, device=y.device)


@block_logsumexp_backward_op.register_fake
def _(x: Tensor, *rest: Any) -> Tensor:
    return torch.empty(x.shape, dtype=rest[-1], device=x.device)


@block_sums_op.register_fake
def _(dz: Tensor, key: str, shape: list[int], by_distance: bool) -> Tensor:
    return dz.new_empty(shape)


# --- derivatives -------------------------------------------------------------------------------------------


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, rpe, attn, pad, rel, key, *options, _ = inputs
    _remember(ctx, x, (rpe, attn, pad, rel), find(key), BlockScores(*options), output)


def _remember(
    ctx: Any, x: Tensor, dense: Sequence[Tensor | None], layout: BlockLayout, options: BlockScores, y: Tensor
) -> None:
    ctx.layout, ctx.options, ctx.dtype = layout, options, x.dtype
    ctx.shapes = [None if t is None else (list(t.shape), t.dtype) for t in dense]
    whole = options.mode == LOGSUMEXP
    ctx.save_for_backward(y, x if whole else None, *(t if whole else None for t in dense))


def _backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    return (*_gradients(ctx, g), *(None,) * 7)


def _gradients(ctx: Any, g: Tensor) -> list[Tensor | None]:
    """Of x, rpe, attn, pad and rel."""
    y, x, *dense = ctx.saved_tensors
    layout, options = ctx.layout, ctx.options
    wanted = any(ctx.needs_input_grad[1:5])
    # Scores have the gradient that dense arrays need; x has it times the scale.
    factor = 1.0 if wanted else options.scale
    kind = ctx.dtype
    if wanted and kind != torch.float64:
        kind = torch.float32
    twice = torch.is_grad_enabled()  # this gradient is to have a derivative, which PyTorch's operations have
    if twice and options.mode == LOGSUMEXP:
        dz = block_reference.logsumexp_backward(x, dense, y, g, layout, options, factor).to(kind)
    elif twice:
        dz = block_reference.backward(y, g, layout, options.mode, factor).to(kind)
    elif options.mode == LOGSUMEXP:
        dz = block_logsumexp_backward_op(x, *dense, y, g, layout.key, *_plain(options)[1:], factor, kind)
    else:
        dz = block_softmax_backward_op(y, g, layout.key, options.mode, factor, kind)
    dx = (dz * options.scale).to(ctx.dtype) if wanted else dz
    found: list[Tensor | None] = [dx]
    for i, known in enumerate(ctx.shapes):
        if (
            known is not None
            and ctx.needs_input_grad[1 + i]
            and not (False, options.attn_mul, options.pad_mul, False)[i]
        ):
            found.append(_summed(dz, layout, known[0], i == 3, twice).to(known[1]))
        else:
            found.append(None)
    return found


def _summed(dz: Tensor, layout: BlockLayout, shape: list[int], by_distance: bool, twice: bool) -> Tensor:
    """The gradient of a dense array that scores were spread from."""
    if not twice:
        summed: Tensor = block_sums_op(dz, layout.key, shape, by_distance)
        return summed
    return (
        block_layouts.summed_by_distance(dz, layout, shape) if by_distance else block_layouts.summed(dz, layout, shape)
    )


class _InPlace(torch.autograd.Function):
    """The result in the memory of x; PyTorch is told, so that whoever needs x gets an error."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rpe: Tensor | None, attn: Tensor | None, pad: Tensor | None, rel: Tensor | None,
                layout: BlockLayout, options: BlockScores) -> Tensor:  # fmt: skip
        forward(x, (rpe, attn, pad, rel), layout, options, x)
        ctx.mark_dirty(x)
        _remember(ctx, x, (rpe, attn, pad, rel), layout, options, x)
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        return (*_gradients(ctx, g), None, None)


def _front(t: Tensor | None, dim: int | None, size: int, whole: bool) -> Tensor | None:
    """The batch dimension first; where there is none, of size 1, or repeated if ``whole``."""
    if t is None:
        return None
    t = t.unsqueeze(0) if dim is None else t.movedim(dim, 0)
    return t.expand(size, *t.shape[1:]) if whole else t


def _batch(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    """The batch becomes the first of the leading axes."""
    arrays = [_front(t, d, info.batch_size, i == 0) for i, (t, d) in enumerate(zip(args[:5], in_dims[:5]))]
    return block_softmax_op(*arrays, *args[5:]), 0


def _batch_backward(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    arrays = [_front(t, d, info.batch_size, True) for t, d in zip(args[:2], in_dims[:2])]
    return block_softmax_backward_op(*arrays, *args[2:]), 0


def _batch_logsumexp(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    arrays = [_front(t, d, info.batch_size, i in (0, 5, 6)) for i, (t, d) in enumerate(zip(args[:7], in_dims[:7]))]
    return block_logsumexp_backward_op(*arrays, *args[7:]), 0


def _batch_sums(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    dz, key, shape, by_distance = args
    return block_sums_op(dz.movedim(in_dims[0], 0), key, [info.batch_size, *shape], by_distance), 0


block_softmax_op.register_autograd(_backward, setup_context=_save)
block_softmax_op.register_vmap(_batch)
block_softmax_backward_op.register_vmap(_batch_backward)
block_logsumexp_backward_op.register_vmap(_batch_logsumexp)
block_sums_op.register_vmap(_batch_sums)
for _op in (block_softmax_backward_op, block_logsumexp_backward_op, block_sums_op):
    _op.register_autograd(refuse_derivative, setup_context=lambda ctx, inputs, output: None)
