"""A vocabulary whose columns are split over the processes of a group, or padded.

Every process holds as many columns, in the order of its rank; those beyond the true number of classes are padding and
have no mass. It finds losses, log-sum-exps and masses of its own classes; one all_gather of a few numbers a row then
makes them those of all classes (Milakov and Gimelshein 2018, over processes instead of blocks).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from onelaunch.errors import OptionError
from onelaunch.kernels.calls import Loss
from onelaunch.torch.operator import operator
from onelaunch.torch.reference import Upstream
from onelaunch.torch.rows import Found, Wanted, backward, count, empty, evaluate

#: The label of a row that does not count, and of one whose class another process has.
IGNORE, ELSEWHERE = -(2**31), -1


@dataclass(frozen=True)
class Split:
    """Which columns are held here: of ``part`` classes (0: all, and no padding) those from ``first`` on.

    group: the name of the group of processes, or "".
    """

    group: str = ""
    part: int = 0
    first: int = 0

    @classmethod
    def of(cls, columns: int, group: dist.ProcessGroup | None, vocab_size: int | None) -> Split:
        """The split of so many columns a process; OptionError where they are too few for ``vocab_size``."""
        if group is None and vocab_size is None:
            return cls()
        size, rank = (1, 0) if group is None else (dist.get_world_size(group), dist.get_rank(group))
        if rank < 0:
            raise OptionError("this process is not in the group")
        part = size * columns if vocab_size is None else vocab_size
        if not 0 < part <= size * columns:
            raise OptionError(f"vocab_size is between 1 and {size * columns}, the columns that there are, not {part}")
        name = "" if group is None or size == 1 else group.group_name
        return cls() if part == columns and size == 1 else cls(name, part, rank * columns)

    def width(self, columns: int) -> int:
        """How many of the columns here are classes."""
        return min(max(self.part - self.first, 0), columns) if self.part else columns

    def padded(self, columns: int) -> int:
        """The same where there is padding, else 0 (also where all is padding)."""
        width = self.width(columns)
        return width if width < columns else 0


def _group(name: str) -> dist.ProcessGroup:
    resolve: Any = getattr(dist.distributed_c10d, "_resolve_process_group")  # noqa: B009
    found: dist.ProcessGroup = resolve(name)
    return found


@operator("onelaunch::sum_over_group")
def sum_over(t: Tensor, group: str) -> Tensor:
    """The sum of every process's tensor; no derivative."""
    total = t.clone()
    if group:
        dist.all_reduce(total, group=_group(group))
    return total


@sum_over.register_fake
def _(t: Tensor, group: str) -> Tensor:
    return torch.empty_like(t)


def local(target: Tensor, options: Loss, width: int, first: int) -> Tensor:
    """Labels as columns here; IGNORE and ELSEWHERE for others."""
    column = target.long() - first
    mine = (column >= 0) & (column < width)
    return torch.where(target == options.ignore, IGNORE, torch.where(mine, column, ELSEWHERE))


def strange(target: Tensor, options: Loss, part: int) -> Tensor:
    """Which rows' labels count and are no class at all."""
    return ((target != options.ignore) & ((target < 0) | (target >= part))).reshape(-1)


def _here(x: Tensor, axis: int, target: Tensor, options: Loss, split: Split) -> tuple[Tensor, Loss]:
    """Target and options for the classes of this process."""
    if options.soft:
        return target, replace(options, part=split.part)
    labels = local(target, options, split.width(x.shape[axis]), split.first)
    return labels, replace(options, part=split.part, ignore=IGNORE)


def find(
    x: Tensor, axis: int, target: Tensor, weight: Tensor | None, options: Loss, wanted: Wanted, split: Split
) -> Found:
    """What ``evaluate`` finds, over the classes of all processes."""
    padded, bad = split.padded(x.shape[axis]), None
    if split.group:
        bad = None if options.soft else strange(target, options, split.part)
        target, options = _here(x, axis, target, options, split)
    if split.width(x.shape[axis]) and x.numel():
        found = evaluate(x, axis, target, weight, None, None, options, wanted, None, padded)
    else:
        found = _nothing(x, axis, wanted)
    if split.group and x.numel():
        found = _combined(found, x.shape[axis], wanted, split.group)
    if bad is None:
        return found
    nan = float("nan")
    return found._replace(loss=torch.where(bad, nan, found.loss), mass=torch.where(bad, nan, found.mass))


def _nothing(x: Tensor, axis: int, wanted: Wanted) -> Found:
    """Of no classes."""
    low = float("-inf")
    for t, value in zip(found := empty(x, count(x, axis), wanted), (0.0, low, 0.0, 0, low, 0.0)):
        t.fill_(value)
    return found


def _combined(found: Found, columns: int, wanted: Wanted, name: str) -> Found:
    """Found of all processes: one collective."""
    kind = found.loss.dtype
    packed = [found.loss, found.lse, found.mass]
    packed += [found.peak, found.best.to(kind)] if wanted.best else []
    packed += [found.entropy] if wanted.entropy else []
    group = _group(name)
    mine = torch.stack(packed)
    every = mine.new_empty(dist.get_world_size(group), *mine.shape)
    dist.all_gather(list(every.unbind(0)), mine, group=group)
    loss, lse, mass = every[:, 0], every[:, 1], every[:, 2]
    loss, whole, log, shift = _together(loss, lse, mass)
    found = found._replace(loss=loss, lse=whole, mass=mass.sum(0))
    if wanted.best:
        # The first of the largest; NaN is the largest.
        rank = every[:, 3].argmax(0, keepdim=True)
        best = every[:, 4].gather(0, rank)[0].long() + rank[0] * columns
        found = found._replace(best=best, peak=every[:, 3].gather(0, rank)[0])
    if wanted.entropy:
        bare = lse == float("-inf")
        away = log + (shift - torch.where(bare, shift, lse))
        share = torch.where(bare, 0.0, torch.exp(-away))
        entropy = (share * (every[:, -1] + away)).sum(0)
        found = found._replace(entropy=torch.where(whole.isinf(), float("nan"), entropy))
    return found


def _together(loss: Tensor, lse: Tensor, mass: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Loss and lse over all parts, from those of each (parts, rows); lse is ``log + shift``."""
    top = lse.amax(0)
    shift = torch.where(top.isinf(), 0.0, top)
    log = torch.log(torch.exp(lse - shift).sum(0))
    bare, weightless = lse == float("-inf"), mass == 0
    # log + (shift - lse), not whole - lse: exact where scores are large.
    away = log + (shift - torch.where(bare | weightless, shift, lse))
    # A label whose score is -inf has infinite loss; where the largest score is infinite there is no softmax.
    away = torch.where(bare, float("inf"), away)
    away = torch.where(top.isinf(), float("nan"), away)
    own = torch.where(bare & ~weightless, 0.0, loss)
    return (own + torch.where(weightless, 0.0, mass * away)).sum(0), log + shift, log, shift


def pull_back(
    x: Tensor, axis: int, target: Tensor, weight: Tensor | None, lse: Tensor, mass: Tensor, up: Upstream,
    options: Loss, dx: Tensor, split: Split,
) -> Tensor:  # fmt: skip
    """``backward`` for the columns here, without a collective; the gradient of padding is 0."""
    if split.group:
        target, options = _here(x, axis, target, options, split)
    if not split.width(x.shape[axis]):
        return dx.zero_()
    return backward(x, axis, target, weight, lse, mass, up, options, dx, split.padded(x.shape[axis]))
