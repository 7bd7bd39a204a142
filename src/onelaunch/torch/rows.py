"""Losses and gradients of rows of logits: by our kernels where they run, else by PyTorch's own operations."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from onelaunch.kernels import calls
from onelaunch.kernels.calls import Loss
from onelaunch.torch import reference
from onelaunch.torch.launching import by_kernel, launch, machine_of, rows_of
from onelaunch.torch.reference import Upstream


class Wanted(NamedTuple):
    """What to find beside losses, lse and mass. ``every``: lse of ignored rows too."""

    every: bool = False
    best: bool = False
    entropy: bool = False


class Found(NamedTuple):
    """One entry a row; those not wanted are empty. best: where the largest score is; peak: that score."""

    loss: Tensor
    lse: Tensor
    mass: Tensor
    best: Tensor
    peak: Tensor
    entropy: Tensor


def by_row(t: Tensor, axis: int) -> Tensor:
    """(rows, classes)."""
    return t.movedim(axis, -1).reshape(-1, t.shape[axis])


def by_axis(d: Tensor, x: Tensor, axis: int) -> Tensor:
    """(rows, classes) in the shape of ``x``."""
    return d.reshape(x.movedim(axis, -1).shape).movedim(-1, axis)


def count(x: Tensor, axis: int) -> int:
    """The number of rows."""
    return x.numel() // x.shape[axis]


def empty(x: Tensor, rows: int, wanted: Wanted) -> Found:
    """Room for what is found."""
    kind = reference.wide(x.dtype)
    loss, lse, mass = (x.new_empty(rows, dtype=kind) for _ in range(3))
    best = x.new_empty(rows if wanted.best else 0, dtype=torch.int64)
    peak, entropy = (x.new_empty(rows if there else 0, dtype=kind) for there in (wanted.best, wanted.entropy))
    return Found(loss, lse, mass, best, peak, entropy)


def problem(x: Tensor, axis: int, target: Tensor, weight: Tensor | None, options: Loss) -> reference.Rows:
    """The rows for PyTorch's own operations."""
    labels = by_row(target, axis) if options.soft else target.reshape(-1)
    return reference.Rows(by_row(x, axis), labels, weight, options)


def evaluate(
    x: Tensor, axis: int, target: Tensor, weight: Tensor | None, factor: Tensor | None, zfactor: Tensor | None,
    options: Loss, wanted: Wanted, grad: Tensor | None, width: int = 0,
) -> Found:  # fmt: skip
    """Find what is wanted of all rows; fill ``grad`` (which may be ``x``) where given.

    factor, zfactor: one number, or one for each row. width: how many columns are classes, if not all; the rest is
    padding, whose gradient is 0.
    """
    if by_kernel(x):
        return _launch(x, axis, target, weight, factor, zfactor, options, wanted, grad, width)
    if width:
        x, target, weight, grad = narrowed(x, axis, target, weight, options, grad, width)
    rows = problem(x, axis, target, weight, options)
    loss, lse, mass = rows.losses()
    scale = torch.ones_like(loss) if factor is None else factor.expand_as(loss)
    valid = torch.ones_like(loss, dtype=torch.bool) if rows.valid is None else rows.valid
    loss, push = loss * scale, torch.where(valid, mass * scale, 0.0)
    if options.zscale and zfactor is not None:
        square = torch.where(valid, zfactor * options.zscale, 0.0)
        loss = loss + torch.where(valid, square * lse * lse, 0.0)
        push = push + torch.where(valid, 2 * square * lse, 0.0)
    found = empty(x, 0, Wanted())._replace(loss=loss, lse=lse, mass=mass)
    if wanted.best:
        peak, best = rows.z.max(1)
        found = found._replace(peak=peak, best=best)
    if wanted.entropy:
        found = found._replace(entropy=rows.entropy(lse))
    if grad is not None:
        grad.copy_(by_axis(rows.gradient(push, scale), x, axis))
    return found


def _launch(
    x: Tensor, axis: int, target: Tensor, weight: Tensor | None, factor: Tensor | None, zfactor: Tensor | None,
    options: Loss, wanted: Wanted, grad: Tensor | None, width: int,
) -> Found:  # fmt: skip
    kind = reference.wide(x.dtype)
    found = empty(x, count(x, axis), wanted)
    rows, (x_, t_, _) = rows_of(axis, x.shape, (x, target if options.soft else None, grad))
    stride = 0 if factor is None or factor.numel() == 1 else 1
    gradient = None
    if grad is not None:
        gradient = calls.Gradient(x.element_size(), weight is not None, wanted.best, wanted.entropy, machine_of(x))
    call = calls.cross_entropy(rows, options, kind == torch.float64, wanted.every, stride, width > 0, gradient)
    total = weight[: width or None].sum(dtype=kind) if weight is not None and options.smooth else None
    labels = t_ if options.soft else target.contiguous()
    given = {"x": x_, "target": labels, "weight": _dense(weight), "total_weight": total, "width": _number(width, x)}
    given |= {"factor": _dense(factor), "zfactor": _dense(zfactor) if options.zscale else None}
    made: dict[str, Tensor | None] = {"loss": found.loss, "lse": found.lse, "mass": found.mass, "grad": grad}
    made |= {"best": found.best, "peak": found.peak} if wanted.best else {"best": None, "peak": None}
    launch(call, given, made | {"entropy": found.entropy if wanted.entropy else None})
    return found


def _number(width: int, x: Tensor) -> Tensor | None:
    return torch.full((1,), width, dtype=torch.int32, device=x.device) if width else None


def narrowed(
    x: Tensor, axis: int, target: Tensor, weight: Tensor | None, options: Loss, grad: Tensor | None, width: int
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Logits, probabilities, class weights and room for the gradient without the padding, where that gets 0."""
    columns = x.shape[axis]
    if grad is not None:
        grad.narrow(axis, width, columns - width).zero_()
        grad = grad.narrow(axis, 0, width)
    target = target.narrow(axis, 0, width) if options.soft else target
    return x.narrow(axis, 0, width), target, None if weight is None else weight[:width], grad


def _dense(t: Tensor | None) -> Tensor | None:
    return None if t is None else t.contiguous()


def backward(
    x: Tensor, axis: int, target: Tensor, weight: Tensor | None, lse: Tensor, mass: Tensor, up: Upstream,
    options: Loss, dx: Tensor, width: int = 0,
) -> Tensor:  # fmt: skip
    """Fill ``dx``, which may be ``x``; lse and mass are those of all classes where ``x`` has a part of them.

    width: as for ``evaluate``.
    """
    kind = reference.wide(x.dtype)
    bend = None if up.entropy is None or up.entropies is None else up.entropy.expand_as(lse).to(kind).contiguous()
    if not by_kernel(x):
        to: Tensor | None = dx
        if width:
            x, target, weight, to = narrowed(x, axis, target, weight, options, dx, width)
        assert to is not None
        d = problem(x, axis, target, weight, options).pulled(lse, mass, up._replace(entropy=bend))
        to.copy_(by_axis(d, x, axis))
        return dx
    rows, (x_, t_, _) = rows_of(axis, x.shape, (x, target if options.soft else None, dx))
    loss, us = _spread(up.loss)
    extra, es = (None, 0) if up.lse is None else _spread(up.lse)
    call = calls.cross_entropy_backward(rows, options, kind == torch.float64, us, es, width > 0)
    labels = t_ if options.soft else target.contiguous()
    given = {"x": x_, "target": labels, "weight": _dense(weight), "lse": lse.contiguous(), "mass": mass.contiguous()}
    given |= {"up": loss, "extra": extra, "width": _number(width, x), "bend": bend}
    launch(call, given | {"entropy": None if bend is None else _dense(up.entropies)}, {"grad": dx})
    return dx


def _spread(t: Tensor) -> tuple[Tensor, int]:
    """One number for all rows stays one (stride 0), also where it comes expanded."""
    if t.ndim == 0 or t.numel() == 1 or t.stride(0) == 0:
        return t.reshape(-1)[:1], 0
    return t.contiguous(), 1


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
