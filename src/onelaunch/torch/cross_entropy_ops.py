"""The operators behind cross_entropy, registered with torch.library: fake, autograd and vmap.

``loss_op`` gives the summed loss and the gradient in one launch; ``rows_op`` gives every row's loss and lse, and its
gradient is a second launch, ``rows_backward_op``, which folds in any upstream gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from onelaunch.kernels import calls
from onelaunch.kernels.calls import Loss
from onelaunch.torch import reference
from onelaunch.torch.launching import by_kernel, launch, machine_of, rows_of
from onelaunch.torch.softmax import refuse_twice

# The last arguments of every operator: ignore, smooth, zscale, scale, cap, soft.


def _rows(t: Tensor, axis: int) -> Tensor:
    """(rows, classes)."""
    return t.movedim(axis, -1).reshape(-1, t.shape[axis])


def _flat(target: Tensor, axis: int, soft: bool) -> Tensor:
    return _rows(target, axis) if soft else target.reshape(-1)


def _count(x: Tensor, axis: int) -> int:
    return x.numel() // x.shape[axis]


def evaluate(
    x: Tensor, axis: int, target: Tensor, weight: Tensor | None, factor: Tensor | None, zfactor: Tensor | None,
    options: Loss, every: bool, best: Tensor | None, grad: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Losses, lse, mass of all rows; fills ``best`` and ``grad`` (which may be ``x``) where given.

    factor, zfactor: one number, or one for each row. ``every`` makes lse of ignored rows too.
    """
    if by_kernel(x):
        return _launch(x, axis, target, weight, factor, zfactor, options, every, best, grad)
    rows = reference.Rows(_rows(x, axis), _flat(target, axis, options.soft), weight, options)
    loss, lse, mass = rows.losses()
    scale = torch.ones_like(loss) if factor is None else factor.expand_as(loss)
    valid = torch.ones_like(loss, dtype=torch.bool) if rows.valid is None else rows.valid
    loss, push = loss * scale, torch.where(valid, mass * scale, 0.0)
    if options.zscale and zfactor is not None:
        square = torch.where(valid, zfactor * options.zscale, 0.0)
        loss = loss + torch.where(valid, square * lse * lse, 0.0)
        push = push + torch.where(valid, 2 * square * lse, 0.0)
    if best is not None:
        best.copy_(rows.z.argmax(1))
    if grad is not None:
        grad.copy_(_unrows(rows.gradient(push, scale), x, axis))
    return loss, lse, mass


def _launch(
    x: Tensor, axis: int, target: Tensor, weight: Tensor | None, factor: Tensor | None, zfactor: Tensor | None,
    options: Loss, every: bool, best: Tensor | None, grad: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    kind = reference.wide(x.dtype)
    loss, lse, mass = (torch.empty(_count(x, axis), dtype=kind, device=x.device) for _ in range(3))
    probabilities = target if options.soft else None
    rows, (x_, t_, _) = rows_of(axis, x.shape, (x, probabilities, grad))
    stride = 0 if factor is None or factor.numel() == 1 else 1
    gradient = None
    if grad is not None:
        gradient = calls.Gradient(x.element_size(), weight is not None, best is not None, False, machine_of(x))
    call = calls.cross_entropy(rows, options, kind == torch.float64, every, stride, gradient=gradient)
    total = weight.sum(dtype=kind) if weight is not None and options.smooth else None
    labels = t_ if options.soft else target.contiguous()
    given = {"x": x_, "target": labels, "weight": _dense(weight), "total_weight": total}
    given |= {"factor": _dense(factor), "zfactor": _dense(zfactor) if options.zscale else None}
    given |= {"width": None, "peak": None, "entropy": None}
    launch(call, given, {"loss": loss, "lse": lse, "mass": mass, "best": best, "grad": grad})
    return loss, lse, mass


def _dense(t: Tensor | None) -> Tensor | None:
    return None if t is None else t.contiguous()


def _unrows(d: Tensor, x: Tensor, axis: int) -> Tensor:
    return d.reshape(x.movedim(axis, -1).shape).movedim(-1, axis)


@torch.library.custom_op("onelaunch::cross_entropy", mutates_args=())
def loss_op(
    x: Tensor, axis: int, target: Tensor, weight: Tensor | None, factor: Tensor, zfactor: Tensor, examples: int,
    want_best: bool, ignore: int, smooth: float, zscale: float, scale: float, cap: float | None, soft: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Losses summed for each example, the gradients, the largest logits' places.

    The rows are those of so many examples one after another; factor, zfactor: one number, or one for each example.
    """
    grad = torch.empty_like(x)
    best = torch.empty(_count(x, axis) if want_best else 0, dtype=torch.int64, device=x.device)
    options = Loss(ignore, smooth, zscale, scale, cap, soft)
    factor, zfactor = (_each_row(t, examples, _count(x, axis)) for t in (factor, zfactor))
    losses, _, _ = evaluate(
        x, axis, target, weight, factor, zfactor, options, want_best, best if want_best else None, grad
    )  # fmt: skip
    return losses.reshape(examples, -1).sum(1), grad, best


def _each_row(t: Tensor, examples: int, rows: int) -> Tensor:
    """One number for each row, where there is one for each example."""
    return t if t.numel() == 1 else t.reshape(examples, 1).expand(examples, rows // examples).reshape(-1)


@torch.library.custom_op("onelaunch::cross_entropy_rows", mutates_args=())
def rows_op(
    x: Tensor, axis: int, target: Tensor, weight: Tensor | None, every: bool, want_best: bool,
    ignore: int, smooth: float, zscale: float, scale: float, cap: float | None, soft: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    options = Loss(ignore, smooth, 0.0, scale, cap, soft)
    best = torch.empty(_count(x, axis) if want_best else 0, dtype=torch.int64, device=x.device)
    rows = evaluate(x, axis, target, weight, None, None, options, every, best if want_best else None, None)
    return (*rows, best)


@torch.library.custom_op("onelaunch::cross_entropy_rows_backward", mutates_args=())
def rows_backward_op(
    x: Tensor, axis: int, target: Tensor, weight: Tensor | None, lse: Tensor, mass: Tensor, up: Tensor,
    extra: Tensor | None, ignore: int, smooth: float, scale: float, cap: float | None, soft: bool,
) -> Tensor:  # fmt: skip
    options = Loss(ignore, smooth, 0.0, scale, cap, soft)
    return backward(x, axis, target, weight, lse, mass, up, extra, options, torch.empty_like(x))


def backward(
    x: Tensor, axis: int, target: Tensor, weight: Tensor | None, lse: Tensor, mass: Tensor, up: Tensor,
    extra: Tensor | None, options: Loss, dx: Tensor,
) -> Tensor:  # fmt: skip
    """Fill ``dx``, which may be ``x``, from upstream gradients of losses (``up``) and lse (``extra``)."""
    kind = reference.wide(x.dtype)
    if not by_kernel(x):
        rows = reference.Rows(_rows(x, axis), _flat(target, axis, options.soft), weight, options)
        return dx.copy_(_unrows(rows.pulled(mass, up, extra), x, axis))
    rows_, (x_, t_, _) = rows_of(axis, x.shape, (x, target if options.soft else None, dx))
    up, us = _spread(up)
    extra, es = (None, 0) if extra is None else _spread(extra)
    call = calls.cross_entropy_backward(rows_, options, kind == torch.float64, us, es)
    labels = t_ if options.soft else target.contiguous()
    given = {"x": x_, "target": labels, "weight": _dense(weight), "lse": lse.contiguous()}
    given |= {"width": None, "entropy": None, "bend": None}
    launch(call, given | {"mass": mass.contiguous(), "up": up, "extra": extra}, {"grad": dx})
    return dx


def _spread(t: Tensor) -> tuple[Tensor, int]:
    """One number for all rows stays one (stride 0), also where it comes expanded."""
    if t.ndim == 0 or t.numel() == 1 or t.stride(0) == 0:
        return t.reshape(-1)[:1], 0
    return t.contiguous(), 1


# --- fakes -------------------------------------------------------------------------------------------------


def _fake_rows(x: Tensor, axis: int, want_best: bool) -> tuple[Tensor, ...]:
    n = _count(x, axis)
    row = [x.new_empty(n, dtype=reference.wide(x.dtype)) for _ in range(3)]
    return (*row, x.new_empty(n if want_best else 0, dtype=torch.int64))


@loss_op.register_fake
def _(
    x: Tensor, axis: int, target: Any, weight: Any, factor: Any, zfactor: Any, examples: int, want_best: bool, *_: Any
) -> Any:
    losses = x.new_empty(examples, dtype=reference.wide(x.dtype))
    return losses, torch.empty_like(x), _fake_rows(x, axis, want_best)[3]


@rows_op.register_fake
def _(x: Tensor, axis: int, target: Any, weight: Any, every: bool, want_best: bool, *_: Any) -> Any:
    return _fake_rows(x, axis, want_best)


@rows_backward_op.register_fake
def _(x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x)


# --- derivatives -------------------------------------------------------------------------------------------


def _save_loss(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.count, ctx.axis, ctx.examples = len(inputs), inputs[1], inputs[6]
    ctx.save_for_backward(output[1])


def _loss_backward(ctx: Any, g: Tensor | None, g_grad: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
    if g_grad is not None:
        refuse_twice(ctx)
    rest = (None,) * (ctx.count - 1)
    if g is None:
        return (None, *rest)
    (grad,) = ctx.saved_tensors
    if ctx.examples == 1:
        return (rescaled(grad, g) if may_overwrite(grad, g) else grad * g.reshape(()), *rest)
    shape = [n for i, n in enumerate(grad.shape) if i != ctx.axis]
    each = g.reshape(-1, 1).expand(-1, _count(grad, ctx.axis) // ctx.examples)
    return (grad * each.reshape(shape).unsqueeze(ctx.axis).to(grad.dtype), *rest)


def may_overwrite(*tensors: Tensor) -> bool:
    """Whether this graph is run for the last time, outside any transform: then the gradient's memory may be scaled."""
    keep = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    if keep is None or torch.compiler.is_compiling():
        return False
    return all(type(t) is torch.Tensor and by_kernel(t) and _has_memory(t) for t in tensors) and not keep()


def _has_memory(t: Tensor) -> bool:
    """False for the stand-ins of vmap and other transforms."""
    try:
        t.data_ptr()
    except RuntimeError:
        return False
    return True


def rescaled(grad: Tensor, g: Tensor) -> Tensor:
    """``grad * g`` in grad's memory; where that has no gaps, one launch that reads nothing if g is 1."""
    grad = grad.detach()
    span = 1 + sum((n - 1) * s for n, s in zip(grad.shape, grad.stride()))
    if span != grad.numel():
        return grad.mul_(g)
    flat = grad.as_strided((grad.numel(),), (1,))
    launch(calls.rescale(flat.numel()), {"up": g.reshape(1), "grad": flat}, {"result": flat})
    return grad


def _save_rows(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, axis, target, weight, _, _, ignore, smooth, _, scale, cap, soft = inputs
    ctx.set_materialize_grads(False)
    ctx.settings = (axis, ignore, smooth, scale, cap, soft)
    ctx.save_for_backward(x, target, weight, output[1], output[2])


def _rows_backward(ctx: Any, up: Tensor | None, extra: Tensor | None, _: Any, __: Any) -> tuple[Tensor | None, ...]:
    rest = (None,) * 11
    if up is None and extra is None:
        return (None, *rest)
    x, target, weight, lse, mass = ctx.saved_tensors
    axis, *options = ctx.settings
    up = lse.new_zeros(1) if up is None else up
    if torch.is_grad_enabled():
        # This gradient is to have a derivative, which PyTorch's operations have.
        ignore, smooth, scale, cap, soft = options
        loss = Loss(ignore, smooth, 0.0, scale, cap, soft)
        rows = reference.Rows(_rows(x, axis), _flat(target, axis, soft), weight, loss)
        return (_unrows(rows.pulled(mass, up, extra), x, axis).to(x.dtype), *rest)
    return (rows_backward_op(x, axis, target, weight, lse, mass, up, extra, *options), *rest)


loss_op.register_autograd(_loss_backward, setup_context=_save_loss)
rows_op.register_autograd(_rows_backward, setup_context=_save_rows)
rows_backward_op.register_autograd(refuse_twice, setup_context=lambda ctx, inputs, output: None)


# --- vmap: the batch's rows in one launch ------------------------------------------------------------------


def one_by_one(op: Callable[..., Any]) -> Callable[..., Any]:
    """A vmap rule that calls the operator for each example and stacks what it gives."""

    def rule(info: Any, in_dims: Sequence[int | None], *args: Any) -> Any:
        calls_ = [
            op(*(a if d is None else a.select(d, i) for a, d in zip(args, in_dims))) for i in range(info.batch_size)
        ]
        if isinstance(calls_[0], Tensor):
            return torch.stack(calls_), 0
        return tuple(torch.stack(parts) for parts in zip(*calls_)), (0,) * len(calls_[0])

    return rule


def _front(t: Tensor, dim: int | None, size: int) -> Tensor:
    """The batch dimension first; where there is none, the same for every example."""
    return t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0)


def _batch_loss(info: Any, in_dims: Sequence[int | None], *args: Any) -> Any:
    if in_dims[3] is not None:  # every example has class weights of its own
        return one_by_one(loss_op)(info, in_dims, *args)
    n = info.batch_size
    x, axis, target, weight, factor, zfactor, examples, *rest = args
    x, target = _front(x, in_dims[0], n), _front(target, in_dims[2], n)
    numbers = [_front(t, d, n).reshape(n, -1) for t, d in ((factor, in_dims[4]), (zfactor, in_dims[5]))]
    numbers = [t.expand(n, examples).reshape(-1) for t in numbers]
    losses, grad, best = loss_op(x, axis + 1, target, weight, *numbers, n * examples, *rest)
    return (losses.reshape(n, -1), grad, best.reshape(n, -1)), (0, 0, 0)


def _batch_rows(info: Any, in_dims: Sequence[int | None], *args: Any) -> Any:
    if in_dims[3] is not None:
        return one_by_one(rows_op)(info, in_dims, *args)
    n = info.batch_size
    x, axis, target, *rest = args
    found = rows_op(_front(x, in_dims[0], n), axis + 1, _front(target, in_dims[2], n), *rest)
    return tuple(t.reshape(n, -1) for t in found), (0,) * 4


def _batch_rows_backward(info: Any, in_dims: Sequence[int | None], *args: Any) -> Any:
    if in_dims[3] is not None:
        return one_by_one(rows_backward_op)(info, in_dims, *args)
    n = info.batch_size
    x, axis, target, weight, *vectors, extra_, ignore, smooth, scale, cap, soft = args
    lse, mass, up = (_front(t, d, n) for t, d in zip(vectors, in_dims[4:7]))
    up = up.reshape(n, -1).expand(lse.shape).reshape(-1)
    more = None if extra_ is None else _front(extra_, in_dims[7], n).reshape(n, -1).expand(lse.shape).reshape(-1)
    dx = rows_backward_op(
        _front(x, in_dims[0], n), axis + 1, _front(target, in_dims[2], n), weight, lse.reshape(-1), mass.reshape(-1),
        up, more, ignore, smooth, scale, cap, soft,
    )  # fmt: skip
    return dx, 0


loss_op.register_vmap(_batch_loss)
rows_op.register_vmap(_batch_rows)
rows_backward_op.register_vmap(_batch_rows_backward)
