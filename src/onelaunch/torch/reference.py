"""The row functions in PyTorch's own operations, for tensors where no kernel runs, with the kernels' definitions."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from onelaunch.kernels.calls import LOG_SOFTMAX, LOGSUMEXP, SOFTMAX, Loss, Scores


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which sums are made: f64 for f64, else f32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def capped(x: Tensor, scale: float, cap: float | None) -> Tensor:
    """``cap * tanh(scale * x / cap)`` in the wide dtype."""
    z = x.to(wide(x.dtype)) * scale
    return z if cap is None else cap * torch.tanh(z / cap)


def allowed(shape: torch.Size, keep: Tensor | None, offset: int | None, device: torch.device) -> Tensor | None:
    """Which entries take part (None: all)."""
    if offset is not None:
        key = torch.arange(shape[-1], device=device)
        causal = key <= torch.arange(shape[-2], device=device)[:, None] + offset
        return causal if keep is None else keep & causal
    return keep


def scores(x: Tensor, mask: Tensor | None, keep: Tensor | None, options: Scores) -> tuple[Tensor, Tensor | None]:
    """What softmax is taken of, and which entries take part."""
    z = capped(x, options.scale, options.cap)
    if mask is not None:
        z = z + mask.to(z.dtype)
    use = allowed(z.shape, keep, options.offset, x.device)
    return (z if use is None else torch.where(use, z, float("-inf"))), use


def softmax(x: Tensor, mask: Tensor | None, keep: Tensor | None, axis: int, options: Scores) -> Tensor:
    """softmax, log-softmax or logsumexp (without its axis) in the wide dtype; differentiable by PyTorch."""
    z, use = scores(x, mask, keep, options)
    if options.mode == LOGSUMEXP:
        return torch.logsumexp(z, axis)
    y = torch.softmax(z, axis) if options.mode == SOFTMAX else torch.log_softmax(z, axis)
    empty = 0.0 if options.mode == SOFTMAX else float("-inf")
    return y if use is None else torch.where(use, y, empty)


def softmax_backward(
    y: Tensor, g: Tensor, x: Tensor | None, mask: Tensor | None, keep: Tensor | None, axis: int, options: Scores
) -> Tensor:
    """The gradient with respect to x, in the wide dtype; x where ``saves_input`` says so."""
    kind = wide(y.dtype if x is None else x.dtype)
    out, up = y.to(kind), g.to(kind)
    if options.mode == LOGSUMEXP:
        assert x is not None
        z, use = scores(x, mask, keep, options)
        dz = up.unsqueeze(axis) * torch.exp(z - out.unsqueeze(axis))
    else:
        use = allowed(y.shape, keep, options.offset, y.device)
        up = up if use is None else torch.where(use, up, 0.0)
        if options.mode == LOG_SOFTMAX:
            dz = up - torch.exp(out) * up.sum(axis, keepdim=True)
        else:
            dz = out * (up - (up * out).sum(axis, keepdim=True))
    dz = dz * options.scale
    if options.cap is not None:
        assert x is not None
        dz = dz * (1 - (capped(x, options.scale, options.cap) / options.cap) ** 2)
    return dz if use is None else torch.where(use, dz, 0.0)


def saves_input(options: Scores) -> bool:
    """Whether backward reads x."""
    return options.mode == LOGSUMEXP or options.cap is not None


class Upstream(NamedTuple):
    """Upstream gradients, one number or one a row: of losses, of lse and of entropies (with the entropies)."""

    loss: Tensor
    lse: Tensor | None = None
    entropy: Tensor | None = None
    entropies: Tensor | None = None


class Rows:
    """Cross-entropy of rows: logits (rows, classes), labels (rows,) or probabilities (rows, classes)."""

    def __init__(self, x: Tensor, target: Tensor, weight: Tensor | None, options: Loss):
        self.options, self.classes = options, x.shape[1]
        each = options.smooth / (options.part or self.classes)
        self.z = capped(x, options.scale, options.cap)
        kind = self.z.dtype
        w = None if weight is None else weight.to(kind)
        self.label = self.valid = self.share = None
        self.pull: Tensor | None = None
        if options.soft:
            q = target.to(kind)
            self.pull = q * (1 - options.smooth) + each if options.smooth else q
            self.pull = self.pull if w is None else self.pull * w
            return
        self.valid = target != options.ignore
        inside = self.valid & (target >= 0) & (target < self.classes)
        self.label = torch.where(inside, target, 0).long()
        share = torch.full_like(self.z[:, 0], 1 - options.smooth)
        share = share if w is None else share * w[self.label]
        elsewhere = 0.0 if options.part else float("nan")  # then it is a class of another part
        self.share = torch.where(inside, share, torch.where(self.valid, elsewhere, 0.0).to(kind))
        if options.smooth:
            ones = torch.ones(self.classes, dtype=kind, device=x.device) if w is None else w
            self.pull = (ones * each).expand_as(self.z)

    def losses(self) -> tuple[Tensor, Tensor, Tensor]:
        """Loss, lse and mass (the weight of lse in the loss) of each row."""
        lse = torch.logsumexp(self.z, 1)
        loss = mass = torch.zeros_like(lse)
        if self.pull is not None:
            drawn = torch.where(self.pull == 0, 0.0, self.pull * self.z).sum(1)
            mass = self.pull.sum(1)
            loss = torch.where(mass == 0, 0.0, mass * lse) - drawn
        if self.label is not None and self.share is not None and self.valid is not None:
            gap = -torch.log_softmax(self.z, 1).gather(1, self.label[:, None])[:, 0]
            loss = loss + torch.where(self.share == 0, 0.0, self.share * gap)
            mass = mass + self.share
            loss, mass = torch.where(self.valid, loss, 0.0), torch.where(self.valid, mass, 0.0)
        return loss, lse, mass

    def softmax(self, lse: Tensor | None = None) -> Tensor:
        """Probabilities: of these classes alone, or with the lse of all."""
        if lse is None:
            return torch.softmax(self.z, 1)
        return torch.exp(self.z - torch.where(lse.isinf(), float("nan"), lse)[:, None])

    def entropy(self, lse: Tensor) -> Tensor:
        """Of the probabilities; 0 where a part's are all 0."""
        p = self.softmax()
        found = lse - torch.where(p == 0, 0.0, p * self.z).sum(1)
        return torch.where(lse == float("-inf"), 0.0, found) if self.options.part else found

    def gradient(self, push: Tensor, scale: Tensor, lse: Tensor | None = None) -> Tensor:
        """``push softmax(z) - scale (weights of z)``, times dz/dx."""
        rows = torch.ones_like(push, dtype=torch.bool) if self.valid is None else self.valid
        scale = torch.where(rows, scale, 0.0)
        d = push[:, None] * self.softmax(lse)
        d = torch.where((push == 0)[:, None] & ~rows[:, None], 0.0, d)
        if self.pull is not None:
            d = d - torch.where(rows[:, None], self.pull * scale[:, None], 0.0)
        if self.label is not None and self.share is not None:
            taken = torch.where(rows, self.share * scale, 0.0)
            d = d.scatter_add(1, self.label[:, None], -taken[:, None])
        return self._through(d)

    def _through(self, d: Tensor) -> Tensor:
        d = d * self.options.scale
        return d if self.options.cap is None else d * (1 - (self.z / self.options.cap) ** 2)

    def pulled(self, lse: Tensor, mass: Tensor, up: Upstream) -> Tensor:
        """The gradient from upstream gradients; differentiable where these are all classes."""
        loss = up.loss.to(mass.dtype).expand_as(mass)
        push = torch.where(mass == 0, 0.0, mass * loss)
        given = lse if self.options.part else None
        d = self.gradient(push if up.lse is None else push + up.lse, loss, given)
        if up.entropy is None or up.entropies is None:
            return d
        p = self.softmax(given)
        z, entropies = self.z - lse[:, None], up.entropies
        if given is None:
            z = torch.log_softmax(self.z, 1)
            entropies = -torch.where(p == 0, 0.0, p * z).sum(1)
        return d - self._through(torch.where(p == 0, 0.0, p * (z + entropies[:, None])) * up.entropy[:, None])
