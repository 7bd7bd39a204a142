"""From losses of rows to what a caller asked for: factors, sums, z-loss, predictions. Small operations, no waiting."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from onelaunch.errors import OptionError
from onelaunch.kernels import calls
from onelaunch.kernels.calls import Loss
from onelaunch.torch.launching import by_kernel, launch
from onelaunch.torch.operator import operator
from onelaunch.torch.split import Split, sum_over


class CrossEntropyOutput(NamedTuple):
    """The loss, with whatever else was asked for (None otherwise). lse, z_loss and entropy are differentiable."""

    loss: Tensor
    lse: Tensor | None = None
    z_loss: Tensor | None = None
    predicted_tokens: Tensor | None = None
    token_accuracy: Tensor | None = None
    entropy: Tensor | None = None


class Returned(NamedTuple):
    """Which outputs beside the loss were asked for."""

    lse: bool = False
    z_loss: bool = False
    predicted_tokens: bool = False
    token_accuracy: bool = False
    entropy: bool = False

    @property
    def every(self) -> bool:
        """Whether rows that do not count are looked at, too."""
        return self.lse or self.entropy

    @property
    def rows(self) -> bool:
        """Whether something beside the loss has a derivative."""
        return self.lse or self.z_loss or self.entropy

    @property
    def best(self) -> bool:
        """Whether the largest logit's place is needed."""
        return self.predicted_tokens or self.token_accuracy


class Reduction(NamedTuple):
    """How rows become one loss: "none", "mean" or "sum"; the number to divide by instead; the mean of nothing."""

    kind: str = "mean"
    num_items: Tensor | float | None = None
    empty_mean: str = "zero"

    def check(self, smoothing: float) -> None:
        """Raise OptionError for what does not exist."""
        if self.kind not in ("none", "mean", "sum"):
            raise OptionError(f"reduction is 'none', 'mean' or 'sum', not {self.kind!r}")
        if self.empty_mean not in ("zero", "nan"):
            raise OptionError(f"empty_mean is 'zero' or 'nan', not {self.empty_mean!r}")
        if self.num_items is not None and self.kind == "none":
            raise OptionError("num_items needs reduction mean or sum")
        if isinstance(self.num_items, Tensor) and self.num_items.numel() != 1:
            raise OptionError(f"num_items is one number, not a tensor of shape {list(self.num_items.shape)}")
        if not 0.0 <= smoothing <= 1.0:
            raise OptionError(f"label_smoothing is between 0 and 1, not {smoothing}")


def legacy(size_average: bool | None, reduce: bool | None, reduction: str) -> str:
    """PyTorch's two old arguments as the new one."""
    if size_average is None and reduce is None:
        return reduction
    if reduce is False:
        return "none"
    return "sum" if size_average is False else "mean"


def counted(target: Tensor, options: Loss) -> Tensor:
    """Which rows count, flat (one True for all rows of probabilities)."""
    if options.soft:
        return torch.ones((), dtype=torch.bool, device=target.device)
    return target.reshape(-1) != options.ignore


def factors(
    target: Tensor, columns: int, weight: Tensor | None, options: Loss, how: Reduction, kind: torch.dtype,
    split: Split,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What multiplies a row's loss and its z-loss: 0-d tensors, made on the device.

    columns: of target, where that has probabilities; weight: of the columns here.
    """
    device = target.device
    if how.num_items is not None:
        n = how.num_items
        if isinstance(n, Tensor):
            factor = _inverse(n.detach().reshape(()).to(device, kind), how.empty_mean)
        else:
            factor = torch.full((), 1.0 / n if n else _empty(how.empty_mean), dtype=kind, device=device)
        return factor, factor
    if how.kind != "mean":
        one = torch.ones((), dtype=kind, device=device)
        return one, one
    if options.soft:
        rows = target.numel() // max(columns, 1)
        factor = torch.full((), 1.0 / rows if rows else _empty(how.empty_mean), dtype=kind, device=device)
        return factor, factor
    if how.empty_mean == "zero":  # as are the losses of ignored rows: any factor will do
        number = mean_factor(target, options.ignore, kind)
    else:
        number = _inverse((target != options.ignore).sum().to(kind), how.empty_mean)
    if weight is None:
        return number, number
    valid = target != options.ignore
    column = target.long() - split.first
    inside = valid & (column >= 0) & (column < split.width(columns))
    total = torch.where(inside, weight.to(kind)[torch.where(inside, column, 0)], 0.0).sum()
    return _inverse(sum_over(total, split.group) if split.group else total, how.empty_mean), number


@operator("onelaunch::mean_factor")
def mean_factor(target: Tensor, ignore: int, kind: torch.dtype) -> Tensor:
    """1 over the number of labels other than ``ignore``, or 1 where there are none."""
    if by_kernel(target) and 0 < target.numel() <= calls.COUNTED:
        factor = torch.empty((), dtype=kind, device=target.device)
        launch(calls.mean_factor(target.numel(), ignore), {"target": target.contiguous()}, {"factor": factor})
        return factor
    return (target != ignore).sum().clamp(min=1).to(kind).reciprocal()


@mean_factor.register_fake
def _(target: Tensor, ignore: int, kind: torch.dtype) -> Tensor:
    return target.new_empty((), dtype=kind)


@mean_factor.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], target: Tensor, ignore: int, kind: torch.dtype) -> Any:
    assert in_dims[0] is not None
    each = (target != ignore).movedim(in_dims[0], 0).reshape(info.batch_size, -1)
    return each.sum(1).clamp(min=1).to(kind).reciprocal(), 0


def _empty(empty_mean: str) -> float:
    return 0.0 if empty_mean == "zero" else float("nan")


def _inverse(total: Tensor, empty_mean: str) -> Tensor:
    return torch.where(total == 0, _empty(empty_mean), 1.0 / total).to(total.dtype)


def reduced(
    losses: Tensor, lse: Tensor, entropy: Tensor, best: Tensor | None, target: Tensor, options: Loss, factor: Tensor,
    zfactor: Tensor, how: Reduction, shape: list[int], wanted: Returned,
) -> CrossEntropyOutput:  # fmt: skip
    """The output from what was found of every row, by differentiable operations; z-loss is added here."""
    z = None
    losses = losses * factor
    if options.zscale or wanted.z_loss:
        z = torch.where(counted(target, options), lse, 0.0) ** 2 * (options.zscale * zfactor)
        losses = losses + z
    if how.kind == "none":
        losses, z = losses.reshape(shape), None if z is None else z.reshape(shape)
    else:
        losses, z = losses.sum(), None if z is None else z.sum()
    return CrossEntropyOutput(
        losses, lse.reshape(shape) if wanted.lse else None, z if wanted.z_loss else None,
        best if wanted.best else None, entropy=entropy.reshape(shape) if wanted.entropy else None,
    )  # fmt: skip


def finish(
    output: CrossEntropyOutput, target: Tensor, axis: int, options: Loss, shape: list[int], wanted: Returned
) -> Any:
    """The loss alone where nothing else was asked for; shapes and accuracy of the predictions."""
    best = output.predicted_tokens
    mean = None
    if wanted.token_accuracy and best is not None:
        label = (target.argmax(axis) if options.soft else target).reshape(-1)
        valid = torch.ones_like(label, dtype=torch.bool) if options.soft else label != options.ignore
        mean = ((best == label) & valid).sum().float() / valid.sum().clamp(min=1)
    best = best.reshape(shape) if wanted.predicted_tokens and best is not None else None
    output = output._replace(predicted_tokens=best, token_accuracy=mean)
    return output.loss if all(t is None for t in output[1:]) else output
