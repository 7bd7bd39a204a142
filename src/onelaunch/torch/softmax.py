"""softmax, log_softmax and logsumexp: names and arguments as in torch.nn.functional, and some more."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from onelaunch.errors import OptionError
from onelaunch.kernels import calls
from onelaunch.kernels.calls import LOG_SOFTMAX, LOGSUMEXP, SOFTMAX, Scores
from onelaunch.torch import reference
from onelaunch.torch.launching import by_kernel, launch, machine_of, rows_of, unknown_derivative
from onelaunch.torch.operator import operator

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None, *,
    scale: float = 1.0, softcap: float | None = None, mask: Tensor | None = None, where: Tensor | None = None,
    causal_offset: int | None = None,
) -> Tensor:  # fmt: skip
    """Softmax along ``dim`` of ``softcap * tanh(scale * input / softcap) + mask``, as ``torch.nn.functional.softmax``.

    input: float, any shape and strides; the result has its shape, and ``dtype`` or its dtype (f32 under autocast).
    mask: float, added, broadcasts to input. where: bool, broadcasts to input; entries that are False get 0, also where
    a whole row is. causal_offset: with ``dim`` the last, query i (of the dimension before) sees keys up to
    i + causal_offset. Scale, softcap and offset are compiled in. A row of −inf alone, or with +inf, gives NaN, as in
    PyTorch. Sums are f32 (f64 for f64). Raises TypeError for other dtypes, OptionError for a causal_offset with another
    dim.
    """
    return _apply(SOFTMAX, input, dim, dtype, scale, softcap, mask, where, causal_offset)


def log_softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None, *,
    scale: float = 1.0, softcap: float | None = None, mask: Tensor | None = None, where: Tensor | None = None,
    causal_offset: int | None = None,
) -> Tensor:  # fmt: skip
    """Logarithm of ``softmax``, same arguments; entries left out by ``where`` or the diagonal are −inf."""
    return _apply(LOG_SOFTMAX, input, dim, dtype, scale, softcap, mask, where, causal_offset)


def logsumexp(
    input: Tensor, dim: int | Sequence[int], keepdim: bool = False, *,
    scale: float = 1.0, softcap: float | None = None, mask: Tensor | None = None, where: Tensor | None = None,
    causal_offset: int | None = None,
) -> Tensor:  # fmt: skip
    """log(sum(exp(scores))) along ``dim`` (one or several), as ``torch.logsumexp``; options as in ``softmax``.

    A row of which nothing takes part gives −inf. Several dims are copied into one unless there is only one of them.
    """
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    if any(not -max(input.ndim, 1) <= d < max(input.ndim, 1) for d in dims):
        raise IndexError(f"dim {dim} of a tensor with {input.ndim} dimensions")
    axes = sorted(d % max(input.ndim, 1) for d in dims)
    if len(set(axes)) < len(axes):
        raise ValueError(f"dim {dim} names a dimension twice")
    if len(axes) == 1 or input.ndim == 0:
        y = _apply(LOGSUMEXP, input, axes[0] if axes else 0, None, scale, softcap, mask, where, causal_offset)
        return y.unsqueeze(axes[0]) if keepdim and input.ndim else y
    if causal_offset is not None:
        raise OptionError("causal_offset needs one dim, the last")
    axes = axes or list(range(input.ndim))
    order = [d for d in range(input.ndim) if d not in axes] + axes

    def flat(t: Tensor | None) -> Tensor | None:
        return None if t is None else t.expand(input.shape).permute(order).flatten(-len(axes))

    y = _apply(LOGSUMEXP, input.permute(order).flatten(-len(axes)), -1, None, scale, softcap, flat(mask), flat(where),
               None)  # fmt: skip
    for axis in axes if keepdim else ():
        y = y.unsqueeze(axis)
    return y


def _apply(
    mode: int, x: Tensor, dim: int | None, dtype: torch.dtype | None, scale: float, cap: float | None,
    mask: Tensor | None, where: Tensor | None, offset: int | None,
) -> Tensor:  # fmt: skip
    """Check, settle the result's dtype, and call the operator."""
    if dtype is not None and x.dtype not in FLOATS:
        x = x.to(dtype)
    if x.dtype not in FLOATS:
        raise TypeError(f"softmax of {x.dtype}; it takes {', '.join(map(str, FLOATS))}")
    out = dtype or (torch.float32 if _autocast(x) else x.dtype)
    if out not in FLOATS:
        raise TypeError(f"softmax as {out}; dtype is one of {', '.join(map(str, FLOATS))}")
    if x.ndim == 0:
        return _apply(mode, x.reshape(1), 0, out, scale, cap, mask, where, offset).reshape(())
    axis = _dim(x) if dim is None else dim
    if not -x.ndim <= axis < x.ndim:
        raise IndexError(f"dim {axis} of a tensor with {x.ndim} dimensions")
    axis %= x.ndim
    if offset is not None and (axis != x.ndim - 1 or x.ndim < 2):
        raise OptionError("causal_offset needs a last dim of keys after one of queries")
    options = Scores(mode, float(scale), None if cap is None else float(cap), offset)
    mask, where = _ranked(mask, x), _ranked(where, x)
    if where is not None and where.dtype != torch.bool:
        raise TypeError(f"where is bool, not {where.dtype}")
    if mask is not None and mask.dtype == torch.bool:
        raise TypeError("mask is added to the scores; a bool mask of what takes part is the argument where")
    if x.numel() == 0 or (mask is not None and mask.requires_grad) or unknown_derivative(x):
        # Nothing to launch; or a gradient that the kernels do not give.
        return reference.softmax(x, mask, where, axis, options).to(out)
    y: Tensor = softmax_op(x, mask, where, axis, mode, options.scale, options.cap, offset, out)
    return y


def _autocast(x: Tensor) -> bool:
    """Autocast makes softmax f32, as it does PyTorch's."""
    return x.dtype in (torch.float16, torch.bfloat16) and torch.is_autocast_enabled(x.device.type) and x.is_cuda


def _dim(x: Tensor) -> int:
    warnings.warn("softmax without dim: give dim, PyTorch deprecates the choice made here", stacklevel=4)
    return 0 if x.ndim in (0, 1, 3) else 1


def _ranked(t: Tensor | None, x: Tensor) -> Tensor | None:
    """With as many dimensions as ``x``; ValueError where it does not broadcast to it."""
    if t is None:
        return None
    wrong = t.ndim > x.ndim or any(n not in (1, m) for n, m in zip(reversed(t.shape), reversed(x.shape)))
    if wrong:
        raise ValueError(f"a mask of shape {list(t.shape)} does not broadcast to {list(x.shape)}")
    return t.reshape((1,) * (x.ndim - t.ndim) + tuple(t.shape))


# --- the operators -----------------------------------------------------------------------------------------


@operator("onelaunch::softmax")
def softmax_op(
    x: Tensor, mask: Tensor | None, keep: Tensor | None, axis: int, mode: int, scale: float, cap: float | None,
    offset: int | None, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    options = Scores(mode, scale, cap, offset)
    if not by_kernel(x):
        return reference.softmax(x, mask, keep, axis, options).to(dtype, copy=True)
    y = _empty(x, axis, mode, dtype)
    shown = y.unsqueeze(axis) if mode == LOGSUMEXP else y
    rows, (x_, mask_, keep_, _) = rows_of(axis, x.shape, (x, mask, keep, shown))
    masked = mask is not None or keep is not None
    call = calls.softmax(rows, options, _queries(x), False, x.element_size(), masked, machine_of(x))
    launch(call, {"x": x_, "mask": mask_, "keep": keep_}, {"y": y})
    return y


@operator("onelaunch::softmax_backward")
def softmax_backward_op(
    y: Tensor, g: Tensor, x: Tensor | None, mask: Tensor | None, keep: Tensor | None, axis: int, mode: int,
    scale: float, cap: float | None, offset: int | None, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    options = Scores(mode, scale, cap, offset)
    if not by_kernel(y):
        return reference.softmax_backward(y, g, x, mask, keep, axis, options).to(dtype, copy=True)
    like = y if x is None else x
    dx = torch.empty(like.shape, dtype=dtype, device=y.device)
    ys, gs = (y.unsqueeze(axis), g.unsqueeze(axis)) if mode == LOGSUMEXP else (y, g)
    rows, (y_, g_, x_, mask_, keep_, _) = rows_of(axis, like.shape, (ys, gs, x, mask, keep, dx))
    call = calls.softmax(rows, options, _queries(like), True, y.element_size(), keep is not None, machine_of(y))
    launch(call, {"y": y_, "g": g_, "x": x_, "mask": mask_, "keep": keep_}, {"dx": dx})
    return dx


def _empty(x: Tensor, axis: int, mode: int, dtype: torch.dtype) -> Tensor:
    shape = [n for i, n in enumerate(x.shape) if i != axis] if mode == LOGSUMEXP else x.shape
    return torch.empty(shape, dtype=dtype, device=x.device)


def _queries(x: Tensor) -> int:
    return x.shape[-2] if x.ndim > 1 else 1


@softmax_op.register_fake
def _(x: Tensor, mask: Any, keep: Any, axis: int, mode: int, scale: Any, cap: Any, offset: Any, dtype: Any) -> Tensor:
    return _empty(x, axis, mode, dtype)


@softmax_backward_op.register_fake
def _(
    y: Tensor, g: Any, x: Any, mask: Any, keep: Any, axis: Any, mode: Any, scale: Any, cap: Any, offset: Any,
    dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    return torch.empty((y if x is None else x).shape, dtype=dtype, device=y.device)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, mask, keep, axis, mode, scale, cap, offset, _ = inputs
    ctx.settings = (axis, mode, scale, cap, offset, x.dtype)
    saved = reference.saves_input(Scores(mode, scale, cap, offset))
    ctx.save_for_backward(output, x if saved else None, mask if mode == LOGSUMEXP else None, keep)


def _backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    y, x, mask, keep = ctx.saved_tensors
    if torch.is_grad_enabled():
        # This gradient is to have a derivative, which PyTorch's operations have.
        axis, *options, dtype = ctx.settings
        return (reference.softmax_backward(y, g, x, mask, keep, axis, Scores(*options)).to(dtype), *(None,) * 8)
    return (softmax_backward_op(y, g, x, mask, keep, *ctx.settings), *(None,) * 8)


def refuse_twice(ctx: Any, *gradients: Any) -> NoReturn:
    """The derivative of a gradient that was made with the loss."""
    raise RuntimeError(
        "this gradient was made with the loss and has no derivative: pass grad_in_forward=False for second derivatives"
    )


def refuse_derivative(ctx: Any, *gradients: Any) -> NoReturn:
    """The derivative of a kernel's gradient, where PyTorch's own operations did not take its place."""
    raise RuntimeError(
        "a kernel's gradient has no derivative: take second derivatives outside of torch.compile and without group or "
        "vocab_size, so that PyTorch's own operations make the gradient"
    )


def _batch(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    """The batch dimension becomes the first; the kernel takes any number of them."""
    x, mask, keep = (_front(t, d, info.batch_size, i == 0) for i, (t, d) in enumerate(zip(args[:3], in_dims[:3])))
    return softmax_op(x, mask, keep, args[3] + 1, *args[4:]), 0


def _batch_backward(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    found = [_front(t, d, info.batch_size, i < 3) for i, (t, d) in enumerate(zip(args[:5], in_dims[:5]))]
    return softmax_backward_op(*found, args[5] + 1, *args[6:]), 0


def _front(t: Tensor | None, dim: int | None, size: int, whole: bool) -> Tensor | None:
    if t is None:
        return None
    t = t.unsqueeze(0) if dim is None else t.movedim(dim, 0)
    return t.expand(size, *t.shape[1:]) if whole else t


softmax_op.register_autograd(_backward, setup_context=_save)
softmax_op.register_vmap(_batch)
softmax_backward_op.register_autograd(refuse_derivative, setup_context=lambda ctx, inputs, output: None)
softmax_backward_op.register_vmap(_batch_backward)
