"""The operators behind linear_cross_entropy, registered with torch.library: fake, autograd and vmap.

Both walk over chunks of tokens: a product makes the chunk's logits, the kernel its losses. ``linear_loss_op`` has the
kernel leave the gradient in the logits' place, and two more products make of it the gradients of hidden states and
weight: three products a chunk. ``linear_rows_op`` gives the losses of rows alone; its gradient makes the logits again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from onelaunch.kernels.calls import Loss
from onelaunch.torch import reference
from onelaunch.torch.cross_entropy_ops import one_by_one
from onelaunch.torch.operator import operator
from onelaunch.torch.products import accumulate, chunks, length, product
from onelaunch.torch.reference import Upstream
from onelaunch.torch.rows import Found, Wanted, empty, evaluate, may_overwrite, problem, rescaled
from onelaunch.torch.softmax import refuse_derivative, refuse_twice
from onelaunch.torch.split import Split, find, pull_back, sum_over

# hidden (tokens, features), weight (classes, features), bias (classes) or None; ``kind`` is the dtype of logits and
# products. Arguments ignore, smooth, zscale, scale, cap, soft are those of kernels.calls.Loss; group, part, first: of
# Split, where weight and bias are those of the classes here and hidden is the same in every process.


class Head(NamedTuple):
    """The projection in the dtype of its products."""

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None, kind: torch.dtype) -> Head:
        return cls(weight.detach().to(kind), None if bias is None else bias.detach().to(kind))

    def logits(self, hidden: Tensor, out: Tensor) -> Tensor:
        if self.bias is None:
            return torch.mm(hidden, self.weight.t(), out=out)
        return torch.addmm(self.bias, hidden, self.weight.t(), out=out)


class Gradients:
    """Gradients of hidden states, weight and bias, of those that are needed: filled chunk by chunk."""

    def __init__(self, hidden: Tensor, head: Head, needs: tuple[bool, bool, bool], dtypes: tuple[torch.dtype, ...],
                 accum: torch.dtype, several: bool):  # fmt: skip
        self.head, self.needs, self.dtypes = head, needs, dtypes
        # One chunk needs no accumulation: the product itself sums in f32.
        self.accum = accum if several else dtypes[1]
        self.hidden = hidden.new_empty(hidden.shape if needs[0] else 0, dtype=dtypes[0])
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None

    def add(self, part: slice, hidden: Tensor, g: Tensor) -> None:
        """``g`` is the gradient of the logits of the tokens ``part``, in the products' dtype."""
        if self.needs[0]:
            product(g, self.head.weight, self.dtypes[0], out=self.hidden[part])
        if self.needs[1] and self.weight is None:
            self.weight = product(g.t(), hidden, self.accum)
        elif self.weight is not None:
            accumulate(self.weight, g.t(), hidden)
        if self.needs[2]:
            total = g.sum(0, dtype=reference.wide(g.dtype))
            self.bias = total if self.bias is None else self.bias.add_(total)

    def result(self, group: str) -> tuple[Tensor, Tensor, Tensor]:
        """All three; empty where not needed, zero where there were no tokens. Hidden states': of all processes."""
        found = [sum_over(self.hidden, group) if group and self.needs[0] else self.hidden]
        for grad, need, dtype, like in zip(
            (self.weight, self.bias), self.needs[1:], self.dtypes[1:], (self.head.weight, self.head.bias)
        ):
            if grad is None:
                grad = self.hidden.new_zeros(like.shape if need and like is not None else 0)
            found.append(grad.to(dtype))
        return found[0], found[1], found[2]


@operator("onelaunch::linear_cross_entropy")
def linear_loss_op(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, class_weight: Tensor | None, factor: Tensor,
    zfactor: Tensor, need_hidden: bool, need_weight: bool, need_bias: bool, kind: torch.dtype, accum: torch.dtype,
    chunk: int | None, want_best: bool, ignore: int, smooth: float, zscale: float, scale: float, cap: float | None,
    soft: bool, group: str, part: int, first: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Summed loss; gradients of hidden, weight and bias (empty where not needed); the largest logits' places."""
    options, split = Loss(ignore, smooth, zscale, scale, cap, soft), Split(group, part, first)
    needs, wanted = (need_hidden, need_weight, need_bias), Wanted(want_best, want_best)
    parts = _parts(hidden, kind, chunk)
    head = Head.of(weight, bias, kind)
    grads = Gradients(hidden, head, needs, _kept(hidden, weight, bias), accum, len(parts) > 1)
    total, best = factor.new_zeros(()), [target.new_empty(0, dtype=torch.int64)]
    z = buffer = _buffer(parts, head)
    for tokens in parts:
        some = hidden[tokens].to(kind)
        z = head.logits(some, buffer[: some.shape[0]])
        found = _in_place(z, target[tokens], class_weight, factor, zfactor, options, wanted, split)
        total += found.loss.sum()
        best.append(found.best)
        grads.add(tokens, some, z)
    del buffer, z  # before the result needs memory
    return (total, *grads.result(group), torch.cat(best))


def _in_place(
    z: Tensor, target: Tensor, weight: Tensor | None, factor: Tensor, zfactor: Tensor, options: Loss, wanted: Wanted,
    split: Split,
) -> Found:  # fmt: skip
    """Losses of a chunk; its logits become their gradient."""
    if not split.group:
        return evaluate(z, 1, target, weight, factor, zfactor, options, wanted, z, split.padded(z.shape[1]))
    found = find(z, 1, target, weight, replace(options, zscale=0.0), wanted, split)
    found = found._replace(loss=found.loss * factor)
    up = Upstream(factor)
    if options.zscale:
        lse = found.lse if options.soft else torch.where(target != options.ignore, found.lse, 0.0)
        square = zfactor * options.zscale
        found, up = found._replace(loss=found.loss + square * lse * lse), Upstream(factor, 2 * square * lse)
    pull_back(z, 1, target, weight, found.lse, found.mass, up, options, z, split)
    return found


def _parts(hidden: Tensor, kind: torch.dtype, chunk: int | None) -> list[slice]:
    return chunks(hidden.shape[0], length(hidden.shape[1], kind.itemsize) if chunk is None else chunk)


def _kept(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[torch.dtype, torch.dtype, torch.dtype]:
    """Dtypes in which gradients wait for the upstream one: f16 sums over tokens may leave its range until scaled."""
    wide = [torch.float32 if t.dtype == torch.float16 else t.dtype for t in (weight, weight if bias is None else bias)]
    return hidden.dtype, wide[0], wide[1]


def _buffer(parts: list[slice], head: Head) -> Tensor:
    """Memory for the logits of the longest chunk."""
    rows = max((p.stop - p.start for p in parts), default=0)
    return torch.empty(rows, head.weight.shape[0], dtype=head.weight.dtype, device=head.weight.device)


@operator("onelaunch::linear_cross_entropy_rows")
def linear_rows_op(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, class_weight: Tensor | None, every: bool,
    want_best: bool, want_entropy: bool, kind: torch.dtype, accum: torch.dtype, chunk: int | None,
    ignore: int, smooth: float, scale: float, cap: float | None, soft: bool, group: str, part: int, first: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Loss, lse, entropy, mass and place of the largest logit of every token."""
    options, split = Loss(ignore, smooth, 0.0, scale, cap, soft), Split(group, part, first)
    wanted = Wanted(every, want_best, want_entropy)
    parts = _parts(hidden, kind, chunk)
    head = Head.of(weight, bias, kind)
    buffer = _buffer(parts, head)
    rows = [empty(buffer, 0, wanted)]
    for tokens in parts:
        some = hidden[tokens].to(kind)
        z = head.logits(some, buffer[: some.shape[0]])
        rows.append(find(z, 1, target[tokens], class_weight, options, wanted, split))
    found = Found(*(torch.cat(column) for column in zip(*rows)))
    return found.loss, found.lse, found.entropy, found.mass, found.best


@operator("onelaunch::linear_cross_entropy_rows_backward")
def linear_rows_backward_op(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, class_weight: Tensor | None, lse: Tensor,
    entropies: Tensor, mass: Tensor, up: Tensor, up_lse: Tensor | None, up_entropy: Tensor | None,
    need_hidden: bool, need_weight: bool, need_bias: bool, kind: torch.dtype, accum: torch.dtype, chunk: int | None,
    ignore: int, smooth: float, scale: float, cap: float | None, soft: bool, group: str, part: int, first: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of hidden, weight and bias; each token's upstream gradients are folded in before the products."""
    options, split = Loss(ignore, smooth, 0.0, scale, cap, soft), Split(group, part, first)
    needs = (need_hidden, need_weight, need_bias)
    parts = _parts(hidden, kind, chunk)
    head = Head.of(weight, bias, kind)
    dtypes = (hidden.dtype, weight.dtype, (weight if bias is None else bias).dtype)
    grads = Gradients(hidden, head, needs, dtypes, accum, len(parts) > 1)
    z = buffer = _buffer(parts, head)
    every = [None if t is None else t.expand_as(lse) for t in (up, up_lse, up_entropy)]
    every.append(entropies if up_entropy is not None else None)
    for tokens in parts:
        some = hidden[tokens].to(kind)
        z = head.logits(some, buffer[: some.shape[0]])
        here = Upstream(*(None if t is None else t[tokens] for t in every))  # type: ignore[arg-type]
        pull_back(z, 1, target[tokens], class_weight, lse[tokens], mass[tokens], here, options, z, split)
        grads.add(tokens, some, z)
    del buffer, z  # before the result needs memory
    return grads.result(group)


# --- fakes -------------------------------------------------------------------------------------------------


def _fake_gradients(tensors: tuple[Tensor, Tensor, Tensor | None], needs: tuple[bool, ...], dtypes: Any) -> Any:
    hidden = tensors[0]
    return tuple(
        hidden.new_empty(t.shape if need and t is not None else 0, dtype=dtype)
        for t, need, dtype in zip(tensors, needs, dtypes)
    )


@linear_loss_op.register_fake
def _(
    hidden: Tensor, weight: Tensor, bias: Any, target: Any, class_weight: Any, factor: Any, zfactor: Any,
    need_hidden: bool, need_weight: bool, need_bias: bool, kind: torch.dtype, accum: Any, chunk: Any, want_best: bool,
    *_: Any,
) -> Any:  # fmt: skip
    grads = _fake_gradients((hidden, weight, bias), (need_hidden, need_weight, need_bias), _kept(hidden, weight, bias))
    best = hidden.new_empty(hidden.shape[0] if want_best else 0, dtype=torch.int64)
    return (hidden.new_empty((), dtype=reference.wide(kind)), *grads, best)


@linear_rows_op.register_fake
def _(
    hidden: Tensor, weight: Any, bias: Any, target: Any, class_weight: Any, every: bool, want_best: bool,
    want_entropy: bool, kind: torch.dtype, *_: Any,
) -> Any:  # fmt: skip
    found = empty(hidden.new_empty(0, dtype=kind), hidden.shape[0], Wanted(every, want_best, want_entropy))
    return found.loss, found.lse, found.entropy, found.mass, found.best


@linear_rows_backward_op.register_fake
def _(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Any, class_weight: Any, lse: Any, entropies: Any,
    mass: Any, up: Any, up_lse: Any, up_entropy: Any, need_hidden: bool, need_weight: bool, need_bias: bool, *_: Any,
) -> Any:  # fmt: skip
    dtypes = (hidden.dtype, weight.dtype, (weight if bias is None else bias).dtype)
    return _fake_gradients((hidden, weight, bias), (need_hidden, need_weight, need_bias), dtypes)


# --- derivatives -------------------------------------------------------------------------------------------


def _save_loss(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.needs, ctx.count = inputs[7:10], len(inputs)
    ctx.dtypes = [None if t is None else t.dtype for t in inputs[:3]]
    ctx.save_for_backward(*output[1:4])


def _loss_backward(ctx: Any, g: Tensor | None, *others: Tensor | None) -> tuple[Tensor | None, ...]:
    if any(t is not None for t in others):
        refuse_twice(ctx)
    found: list[Tensor | None] = [None] * ctx.count
    if g is None:
        return tuple(found)
    for i, (grad, need, dtype) in enumerate(zip(ctx.saved_tensors, ctx.needs, ctx.dtypes)):
        if need:
            found[i] = _scaled(grad, g).to(dtype)
    return tuple(found)


def _scaled(grad: Tensor, g: Tensor) -> Tensor:
    if may_overwrite(grad, g):
        return rescaled(grad, g)
    # A loss scale may be larger than any f16.
    return grad.float() * g if grad.dtype == torch.float16 else grad * g


def _save_rows(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.count, ctx.settings = len(inputs), inputs[8:]
    ctx.save_for_backward(*inputs[:5], *output[1:4])


def _rows_backward(ctx: Any, up: Tensor | None, *more: Tensor | None) -> tuple[Tensor | None, ...]:
    up_lse, up_entropy = more[:2]
    if up is None and up_lse is None and up_entropy is None:
        return (None,) * ctx.count
    *given, lse, entropies, mass = ctx.saved_tensors
    up = lse.new_zeros(1) if up is None else up
    needs = tuple(ctx.needs_input_grad[:3])
    if torch.is_grad_enabled() and not ctx.settings[-2]:
        upstream = Upstream(up, up_lse, up_entropy, entropies)
        grads = _differentiable(given, needs, lse, mass, upstream, ctx.settings)
    else:
        grads = linear_rows_backward_op(
            *given, lse, entropies, mass, up, up_lse, up_entropy, *needs, *ctx.settings
        )  # fmt: skip
    return (*(g if need else None for g, need in zip(grads, needs)), *(None,) * (ctx.count - 3))


def _differentiable(
    given: list[Any], needs: tuple[bool, ...], lse: Tensor, mass: Tensor, up: Upstream, settings: tuple[Any, ...]
) -> list[Tensor | None]:
    """The gradients by PyTorch's operations on whole logits, for gradients that are to have derivatives."""
    hidden, weight, bias, target, class_weight = given
    kind, _, _, ignore, smooth, scale, cap, soft, *_ = settings
    x, w = hidden.to(kind), weight.to(kind)
    z = functional.linear(x, w, None if bias is None else bias.to(kind))
    d = problem(z, 1, target, class_weight, Loss(ignore, smooth, 0.0, scale, cap, soft)).pulled(lse, mass, up)
    d = d.to(kind)
    grads = (lambda: d @ w, lambda: d.t() @ x, lambda: d.sum(0))
    return [grad().to(t.dtype) if need else None for grad, need, t in zip(grads, needs, given)]


linear_loss_op.register_autograd(_loss_backward, setup_context=_save_loss)
linear_rows_op.register_autograd(_rows_backward, setup_context=_save_rows)
linear_rows_backward_op.register_autograd(refuse_derivative, setup_context=lambda ctx, inputs, output: None)

for _op in (linear_loss_op, linear_rows_op, linear_rows_backward_op):
    _op.register_vmap(one_by_one(_op))
