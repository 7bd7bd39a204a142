"""cross_entropy: arguments as torch.nn.functional.cross_entropy, and those of fused losses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from onelaunch.errors import OptionError
from onelaunch.kernels.calls import Loss
from onelaunch.torch import reference
from onelaunch.torch.cross_entropy_ops import loss_op, rows_op
from onelaunch.torch.launching import forward_mode, transformed, unknown_derivative
from onelaunch.torch.reducing import CrossEntropyOutput, Reduction, Returned, factors, finish, legacy, reduced
from onelaunch.torch.rows import Wanted, evaluate, may_overwrite, rescaled
from onelaunch.torch.softmax import FLOATS, refuse_twice
from onelaunch.torch.split import Split


def cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None,
    ignore_index: int = -100, reduce: bool | None = None, reduction: str = "mean", label_smoothing: float = 0.0, *,
    lse_square_scale: float = 0.0, softcap: float | None = None, logit_scale: float = 1.0,
    num_items: Tensor | float | None = None, empty_mean: str = "zero", inplace: bool = False,
    grad_in_forward: bool | None = None, return_lse: bool = False, return_z_loss: bool = False,
    return_predicted_tokens: bool = False, return_token_accuracy: bool = False, return_entropy: bool = False,
    group: ProcessGroup | None = None, vocab_size: int | None = None,
) -> Any:  # fmt: skip
    """Cross-entropy of logits ``softcap * tanh(logit_scale * input / softcap)``.

    input: float (C), (N, C) or (N, C, d1, ...), any strides. target: int32 or int64 labels without the class dimension,
    or probabilities like input. weight: (C). Loss (f32, f64 for f64): PyTorch's, plus ``lse_square_scale * lse²`` for
    each row that counts (not weighted). A label outside [0, C) other than ignore_index gives NaN, in that row's
    gradient too; nothing is read outside. Never waits for the device.

    reduction: "mean" (over the weights of what counts; the z-loss over its number), "sum" or "none". num_items: divide
    the sum by this number (or 0-d tensor) instead. empty_mean: the mean of nothing is 0 ("zero") or NaN ("nan");
    gradients are 0. grad_in_forward: make the gradient with the loss in one launch (default where it can: mean and sum,
    not for f16, whose gradients need their scale first, nor with lse or z_loss as outputs). inplace: the gradient takes
    the logits' memory, which is marked as changed; under torch.compile it has no effect. Without a gradient to make
    nothing is written.

    group: processes that hold the vocabulary's columns, as many each, in the order of their ranks; input (and weight,
    and probabilities) are this process's columns, labels are those of the whole vocabulary and the same everywhere,
    and so is what is returned; one all_gather of a few numbers a row. vocab_size: the columns from there on, in the
    whole, are padding without mass.

    Returns the loss, or a CrossEntropyOutput if any ``return_...`` is set: lse and entropy (like labels), z_loss (as
    the loss is reduced), predicted_tokens (int64, like labels) and token_accuracy (mean over what counts); the last two
    without derivative. Weights and, in the kernels, probabilities get no gradient: probabilities that require one take
    PyTorch's own operations, as do torch.func's gradients, and gradients made with ``create_graph=True``. Second
    derivatives need ``grad_in_forward=False`` where loss and gradient would be one launch, else raise RuntimeError.
    Raises OptionError, TypeError or ValueError.
    """
    axis = 0 if input.ndim == 1 else 1
    soft = target.is_floating_point()
    how = Reduction(legacy(size_average, reduce, reduction), num_items, empty_mean)
    how.check(label_smoothing)
    _check(input, target, weight, axis, soft, inplace)
    options = Loss(-1 if soft else ignore_index, float(label_smoothing), float(lse_square_scale), float(logit_scale),
                   None if softcap is None else float(softcap), soft)  # fmt: skip
    wanted = Returned(return_lse, return_z_loss, return_predicted_tokens, return_token_accuracy, return_entropy)
    split = Split.of(input.shape[axis], group, vocab_size)
    refuse(split, wanted, soft, target)
    kind = reference.wide(input.dtype)
    factor, zfactor = factors(target, input.shape[axis], weight, options, how, kind, split)
    shape = [n for i, n in enumerate(input.shape) if i != axis]
    if not split.part and (target.requires_grad or input.numel() == 0 or unknown_derivative(input)):
        losses, lse, entropy, best = by_reference(input, axis, target, weight, options)
    elif (
        torch.is_grad_enabled()
        and input.requires_grad
        and _at_once(input, how, wanted, split, grad_in_forward, inplace)
    ):
        width = split.padded(input.shape[axis])
        output = _whole(input, axis, target, weight, factor, zfactor, options, wanted.best, inplace, width)
        return finish(output, target, axis, options, shape, wanted)
    else:
        losses, lse, entropy, _, best = rows_op(
            input, axis, target, weight, wanted.every, wanted.best, wanted.entropy,
            options.ignore, options.smooth, options.scale, options.cap, soft, split.group, split.part, split.first,
        )  # fmt: skip
    output = reduced(losses, lse, entropy, best, target, options, factor, zfactor, how, shape, wanted)
    return finish(output, target, axis, options, shape, wanted)


def _at_once(x: Tensor, how: Reduction, wanted: Returned, split: Split, asked: bool | None, inplace: bool) -> bool:
    """Whether one launch gives loss and gradient; OptionError where it was asked for and can't."""
    able = how.kind != "none" and not wanted.rows and not split.group
    if asked is None and not inplace:
        return able and x.dtype != torch.float16
    if (asked or inplace) and not able:
        raise OptionError(
            "grad_in_forward and inplace need reduction mean or sum, all classes on one device, and none of lse, "
            "z_loss and entropy as outputs"
        )
    return bool(asked or inplace)


def refuse(split: Split, wanted: Returned, soft: bool, target: Tensor) -> None:
    """OptionError for what a split vocabulary has not."""
    if not split.part:
        return
    if transformed() or forward_mode():
        raise OptionError(
            "torch.func's gradients and forward-mode derivatives need all classes on one device: leave out group and "
            "vocab_size"
        )
    if soft and target.requires_grad:
        raise OptionError("probabilities get no gradient where the vocabulary is split or padded")
    if soft and split.group and wanted.token_accuracy:
        raise OptionError("token_accuracy of probabilities needs all classes on one device")


def _check(x: Tensor, target: Tensor, weight: Tensor | None, axis: int, soft: bool, inplace: bool) -> None:
    if x.dtype not in FLOATS:
        raise TypeError(f"logits are {', '.join(map(str, FLOATS))}, not {x.dtype}")
    if not soft and target.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"labels are int32 or int64, not {target.dtype}")
    if x.ndim == 0:
        raise ValueError("logits need a class dimension")
    wanted = x.shape if soft else x.shape[:axis] + x.shape[axis + 1 :]
    if target.shape != wanted:
        raise ValueError(f"target has shape {list(target.shape)}, not {list(wanted)}, for logits {list(x.shape)}")
    if weight is not None and weight.shape != x.shape[axis : axis + 1]:
        raise ValueError(f"weight has shape {list(weight.shape)}, not [{x.shape[axis]}]")
    if inplace and x.is_leaf and x.requires_grad and torch.is_grad_enabled():
        raise ValueError("inplace would overwrite a leaf that requires a gradient")
    if inplace and any(n > 1 and s == 0 for n, s in zip(x.shape, x.stride())):
        raise ValueError("inplace would write several gradients to one place of expanded logits")


def _whole(
    x: Tensor, axis: int, target: Tensor, weight: Tensor | None, factor: Tensor, zfactor: Tensor, options: Loss,
    argmax: bool, inplace: bool, width: int,
) -> CrossEntropyOutput:  # fmt: skip
    if inplace and not torch.compiler.is_compiling():
        loss = torch.empty((), dtype=factor.dtype, device=x.device)
        best = torch.empty(x.numel() // x.shape[axis] if argmax else 0, dtype=torch.int64, device=x.device)
        grad = _InPlace.apply(x, axis, target, weight, factor, zfactor, options, best if argmax else None, loss, width)
        loss = _Attach.apply(grad, loss)
    else:
        loss, _, best = loss_op(
            x, axis, target, weight, factor, zfactor, 1, argmax, width,
            options.ignore, options.smooth, options.zscale, options.scale, options.cap, options.soft,
        )  # fmt: skip
        loss = loss.reshape(())
    return CrossEntropyOutput(loss, predicted_tokens=best if argmax else None)


def by_reference(
    x: Tensor, axis: int, target: Tensor, weight: Tensor | None, options: Loss
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Losses, lse, entropy and argmax by PyTorch's own operations, which have every derivative."""
    classes = x.shape[axis]
    flat = x.movedim(axis, -1).reshape(-1, classes)
    if not classes and flat.shape[0]:
        raise ValueError("logits without classes")
    labels = target.movedim(axis, -1).reshape(-1, classes) if options.soft else target.reshape(-1)
    rows = reference.Rows(flat, labels, weight, options)
    loss, lse, _ = rows.losses()
    return loss, lse, rows.entropy(lse), rows.z.detach().argmax(1)


class _InPlace(torch.autograd.Function):
    """The gradient in the logits' memory; PyTorch is told, so that whoever needs the logits gets an error.

    It returns the logits alone, as views of other tensors demand; the loss goes to ``loss``, which ``_Attach`` derives.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: int, target: Tensor, weight: Tensor | None, factor: Tensor,
                zfactor: Tensor, options: Loss, best: Tensor | None, loss: Tensor, width: int) -> Tensor:  # fmt: skip
        found = evaluate(
            x, axis, target, weight, factor, zfactor, options, Wanted(best is not None, best is not None), x
        )
        loss.copy_(found.loss.sum())
        if best is not None:
            best.copy_(found.best)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        return (g, *(None,) * 9)


class _Attach(torch.autograd.Function):
    """The loss as a function of logits that hold its gradient."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, loss: Tensor) -> Tensor:
        ctx.save_for_backward(grad)
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = ctx.saved_tensors
        return (rescaled(grad, g) if may_overwrite(grad, g) else _Once.apply(grad, g)), None


class _Once(torch.autograd.Function):
    """grad * g; refuses a derivative."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, g: Tensor) -> Tensor:
        return grad * g

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        refuse_twice(ctx)
