"""The operators behind cross_entropy, registered with torch.library: fake, autograd and vmap.

``loss_op`` gives the summed loss and the gradient in one launch; ``rows_op`` gives every row's loss, lse and entropy,
and its gradient is a second launch, ``rows_backward_op``, which folds in any upstream gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from onelaunch.kernels.calls import Loss
from onelaunch.torch import reference
from onelaunch.torch.operator import operator
from onelaunch.torch.reference import Upstream
from onelaunch.torch.rows import (
    Wanted,
    by_axis,
    count,
    empty,
    evaluate,
    may_overwrite,
    problem,
    rescaled,
)  # fmt: skip
from onelaunch.torch.softmax import refuse_derivative, refuse_twice
from onelaunch.torch.split import Split, find, pull_back

# Arguments ignore, smooth, zscale, scale, cap, soft are those of kernels.calls.Loss; group, part, first: of Split.


@operator("onelaunch::cross_entropy")
def loss_op(
    x: Tensor, axis: int, target: Tensor, weight: Tensor | None, factor: Tensor, zfactor: Tensor, examples: int,
    want_best: bool, width: int, ignore: int, smooth: float, zscale: float, scale: float, cap: float | None, soft: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Losses summed for each example, the gradients, the largest logits' places.

    The rows are those of so many examples one after another; factor, zfactor: one number, or one for each example.
    width: how many columns are classes, or 0: all.
    """
    grad = torch.empty_like(x)
    options = Loss(ignore, smooth, zscale, scale, cap, soft)
    factor, zfactor = (_each_row(t, examples, count(x, axis)) for t in (factor, zfactor))
    found = evaluate(x, axis, target, weight, factor, zfactor, options, Wanted(want_best, want_best), grad, width)
    return found.loss.reshape(examples, -1).sum(1), grad, found.best


def _each_row(t: Tensor, examples: int, rows: int) -> Tensor:
    """One number for each row, where there is one for each example."""
    return t if t.numel() == 1 else t.reshape(examples, 1).expand(examples, rows // examples).reshape(-1)


@operator("onelaunch::cross_entropy_rows")
def rows_op(
    x: Tensor, axis: int, target: Tensor, weight: Tensor | None, every: bool, want_best: bool, want_entropy: bool,
    ignore: int, smooth: float, scale: float, cap: float | None, soft: bool, group: str, part: int, first: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Loss, lse, entropy, mass of every row, and the largest logit's place; over the classes of a group, if any."""
    options, wanted = Loss(ignore, smooth, 0.0, scale, cap, soft), Wanted(every, want_best, want_entropy)
    found = find(x, axis, target, weight, options, wanted, Split(group, part, first))
    return found.loss, found.lse, found.entropy, found.mass, found.best


@operator("onelaunch::cross_entropy_rows_backward")
def rows_backward_op(
    x: Tensor, axis: int, target: Tensor, weight: Tensor | None, lse: Tensor, entropies: Tensor, mass: Tensor,
    up: Tensor, up_lse: Tensor | None, up_entropy: Tensor | None,
    ignore: int, smooth: float, scale: float, cap: float | None, soft: bool, group: str, part: int, first: int,
) -> Tensor:  # fmt: skip
    options, upstream = Loss(ignore, smooth, 0.0, scale, cap, soft), Upstream(up, up_lse, up_entropy, entropies)
    return pull_back(
        x, axis, target, weight, lse, mass, upstream, options, torch.empty_like(x), Split(group, part, first)
    )  # fmt: skip


# --- fakes -------------------------------------------------------------------------------------------------


@loss_op.register_fake
def _(
    x: Tensor, axis: int, target: Any, weight: Any, factor: Any, zfactor: Any, examples: int, want_best: bool, *_: Any
) -> Any:
    losses = x.new_empty(examples, dtype=reference.wide(x.dtype))
    return losses, torch.empty_like(x), empty(x, count(x, axis), Wanted(best=want_best)).best


@rows_op.register_fake
def _(x: Tensor, axis: int, target: Any, weight: Any, every: bool, want_best: bool, want_entropy: bool, *_: Any) -> Any:
    found = empty(x, count(x, axis), Wanted(every, want_best, want_entropy))
    return found.loss, found.lse, found.entropy, found.mass, found.best


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
    each = g.reshape(-1, 1).expand(-1, count(grad, ctx.axis) // ctx.examples)
    return (grad * each.reshape(shape).unsqueeze(ctx.axis).to(grad.dtype), *rest)


def _save_rows(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, axis, target, weight, *_ = inputs
    ctx.set_materialize_grads(False)
    ctx.count, ctx.axis, ctx.settings = len(inputs), axis, inputs[7:]
    ctx.save_for_backward(x, target, weight, *output[1:4])


def _rows_backward(ctx: Any, up: Tensor | None, *more: Tensor | None) -> tuple[Tensor | None, ...]:
    up_lse, up_entropy = more[:2]
    rest = (None,) * (ctx.count - 1)
    if up is None and up_lse is None and up_entropy is None:
        return (None, *rest)
    x, target, weight, lse, entropies, mass = ctx.saved_tensors
    up = lse.new_zeros(1) if up is None else up
    ignore, smooth, scale, cap, soft, _, part, _ = ctx.settings
    if torch.is_grad_enabled() and not part:
        # This gradient is to have a derivative, which PyTorch's operations have.
        rows = problem(x, ctx.axis, target, weight, Loss(ignore, smooth, 0.0, scale, cap, soft))
        d = rows.pulled(lse, mass, Upstream(up, up_lse, up_entropy, entropies))
        return (by_axis(d, x, ctx.axis).to(x.dtype), *rest)
    dx = rows_backward_op(
        x, ctx.axis, target, weight, lse, entropies, mass, up, up_lse, up_entropy, *ctx.settings
    )  # fmt: skip
    return (dx, *rest)


loss_op.register_autograd(_loss_backward, setup_context=_save_loss)
rows_op.register_autograd(_rows_backward, setup_context=_save_rows)
rows_backward_op.register_autograd(refuse_derivative, setup_context=lambda ctx, inputs, output: None)


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


def _vector(t: Tensor | None, dim: int | None, size: int, rows: int) -> Tensor | None:
    """One entry for each of so many rows of every example, flat."""
    return None if t is None else _front(t, dim, size).reshape(size, -1).expand(size, rows).reshape(-1)


def _batch_loss(info: Any, in_dims: Sequence[int | None], *args: Any) -> Any:
    if in_dims[3] is not None:  # every example has class weights of its own
        return one_by_one(loss_op)(info, in_dims, *args)
    n = info.batch_size
    x, axis, target, weight, factor, zfactor, examples, *rest = args
    x, target = _front(x, in_dims[0], n), _front(target, in_dims[2], n)
    numbers = [_vector(t, d, n, examples) for t, d in ((factor, in_dims[4]), (zfactor, in_dims[5]))]
    losses, grad, best = loss_op(x, axis + 1, target, weight, *numbers, n * examples, *rest)
    return (losses.reshape(n, -1), grad, best.reshape(n, -1)), (0, 0, 0)


def _batch_rows(info: Any, in_dims: Sequence[int | None], *args: Any) -> Any:
    if in_dims[3] is not None:
        return one_by_one(rows_op)(info, in_dims, *args)
    n = info.batch_size
    x, axis, target, *rest = args
    found = rows_op(_front(x, in_dims[0], n), axis + 1, _front(target, in_dims[2], n), *rest)
    return tuple(t.reshape(n, -1) for t in found), (0,) * len(found)


def _batch_rows_backward(info: Any, in_dims: Sequence[int | None], *args: Any) -> Any:
    if in_dims[3] is not None:
        return one_by_one(rows_backward_op)(info, in_dims, *args)
    n = info.batch_size
    x, axis, target, weight = args[:4]
    x, target = _front(x, in_dims[0], n), _front(target, in_dims[2], n)
    rows = count(x, axis + 1) // n
    vectors = [
        t if t is not None and t.numel() == 0 else _vector(t, d, n, rows) for t, d in zip(args[4:10], in_dims[4:10])
    ]
    return rows_backward_op(x, axis + 1, target, weight, *vectors, *args[10:]), 0


loss_op.register_vmap(_batch_loss)
rows_op.register_vmap(_batch_rows)
rows_backward_op.register_vmap(_batch_rows_backward)
