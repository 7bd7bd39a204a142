"""linear_cross_entropy: the cross-entropy of ``hidden @ weight.T + bias`` without ever holding all those logits."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn import functional

from onelaunch.errors import OptionError
from onelaunch.kernels.calls import Loss
from onelaunch.torch import reference
from onelaunch.torch.cross_entropy import by_reference, refuse
from onelaunch.torch.launching import unknown_derivative
from onelaunch.torch.linear_ops import linear_loss_op, linear_rows_op
from onelaunch.torch.reducing import CrossEntropyOutput, Reduction, Returned, factors, finish, reduced
from onelaunch.torch.softmax import FLOATS
from onelaunch.torch.split import Split


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None, *,
    class_weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean",
    label_smoothing: float = 0.0, lse_square_scale: float = 0.0, softcap: float | None = None,
    logit_scale: float = 1.0, num_items: Tensor | float | None = None, empty_mean: str = "zero",
    grad_in_forward: bool | None = None, accum_dtype: torch.dtype | None = None, chunk: int | None = None,
    return_lse: bool = False, return_z_loss: bool = False, return_predicted_tokens: bool = False,
    return_token_accuracy: bool = False, return_entropy: bool = False, group: ProcessGroup | None = None,
    vocab_size: int | None = None,
) -> Any:  # fmt: skip
    """``cross_entropy(hidden @ weight.T + bias, target, ...)``, a chunk of tokens at a time.

    hidden: float (..., features). weight: (classes, features), bias: (classes), of hidden's dtype; under autocast all
    are multiplied in its dtype and get gradients of their own. target: int32 or int64 labels (...), or probabilities
    (..., classes). The options, outputs and errors are those of ``cross_entropy``; class_weight is its ``weight``.

    With reduction mean or sum and no lse or entropy as outputs, the gradients of hidden, weight and bias are made with
    the loss: three matrix products, by PyTorch's own, and one launch a chunk. Otherwise (or with
    ``grad_in_forward=False``) backward makes the logits again, a fourth product, and saves the inputs alone. What
    needs no gradient costs nothing. Memory: the gradients, and the logits of one chunk.

    chunk: tokens at once (default: 4,096 to 8,192, by ``products.length``). accum_dtype: in which the weight's gradient
    is summed over chunks, f32 (f64 for f64) unless given; the gradient itself has the weight's dtype.

    group, vocab_size: as for ``cross_entropy``: weight and bias are those of this process's classes; hidden is the
    same in every process, and so is its gradient, which all_reduce sums.

    Probabilities that require a gradient, torch.func's gradients, and gradients made with ``create_graph=True`` take
    PyTorch's own operations on whole logits. Second derivatives need ``grad_in_forward=False`` where the gradient would
    be made with the loss, else they raise RuntimeError. Raises OptionError, TypeError or ValueError.
    """
    soft = target.is_floating_point()
    how = Reduction(reduction, num_items, empty_mean)
    how.check(label_smoothing)
    kind = _kind(hidden)
    accum = reference.wide(kind) if accum_dtype is None else accum_dtype
    _check(hidden, weight, target, bias, class_weight, soft, kind, accum, chunk)
    options = Loss(-1 if soft else ignore_index, float(label_smoothing), float(lse_square_scale), float(logit_scale),
                   None if softcap is None else float(softcap), soft)  # fmt: skip
    wanted = Returned(return_lse, return_z_loss, return_predicted_tokens, return_token_accuracy, return_entropy)
    classes, shape = weight.shape[0], list(hidden.shape[:-1])
    split = Split.of(classes, group, vocab_size)
    refuse(split, wanted, soft, target)
    factor, zfactor = factors(target, classes, class_weight, options, how, reference.wide(kind), split)
    flat = hidden.reshape(math.prod(shape), hidden.shape[-1])
    labels = target.reshape(math.prod(shape), classes) if soft else target.reshape(-1)
    needs = [torch.is_grad_enabled() and t is not None and t.requires_grad for t in (hidden, weight, bias)]
    tail = (options.scale, options.cap, soft, split.group, split.part, split.first)
    if not split.part and (target.requires_grad or unknown_derivative(hidden, weight, bias)):
        logits = functional.linear(flat, weight, bias)
        losses, lse, entropy, best = by_reference(logits, 1, labels, class_weight, options)
    elif any(needs) and _at_once(how, wanted, grad_in_forward):
        # For f16 the factor, small for many tokens, comes after the products: gradients must not vanish before.
        outer = torch.maximum(factor, zfactor).nan_to_num() if kind == torch.float16 else None
        inner = (factor, zfactor) if outer is None else (_ratio(factor, outer), _ratio(zfactor, outer))
        loss, *_, best = linear_loss_op(
            flat, weight, bias, labels, class_weight, *inner, *needs, kind, accum, chunk, wanted.best,
            options.ignore, options.smooth, options.zscale, *tail,
        )  # fmt: skip
        output = CrossEntropyOutput(
            loss if outer is None else loss * outer, predicted_tokens=best if wanted.best else None
        )
        return finish(output, labels, 1, options, shape, wanted)
    else:
        losses, lse, entropy, _, best = linear_rows_op(
            flat, weight, bias, labels, class_weight, wanted.every, wanted.best, wanted.entropy, kind, accum, chunk,
            options.ignore, options.smooth, *tail,
        )  # fmt: skip
    output = reduced(losses, lse, entropy, best, labels, options, factor, zfactor, how, shape, wanted)
    return finish(output, labels, 1, options, shape, wanted)


def _kind(hidden: Tensor) -> torch.dtype:
    """The dtype of the products."""
    device = hidden.device.type
    if hidden.dtype != torch.float64 and hidden.is_floating_point() and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return hidden.dtype


def _at_once(how: Reduction, wanted: Returned, asked: bool | None) -> bool:
    able = how.kind != "none" and not wanted.rows
    if asked and not able:
        raise OptionError("grad_in_forward needs reduction mean or sum, and none of lse, z_loss and entropy as outputs")
    return able if asked is None else asked


def _ratio(factor: Tensor, outer: Tensor) -> Tensor:
    return torch.where(outer == 0, factor, factor / outer)


def _check(
    hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, class_weight: Tensor | None, soft: bool,
    kind: torch.dtype, accum: torch.dtype, chunk: int | None,
) -> None:  # fmt: skip
    """Raise for what does not fit together."""
    if hidden.dtype not in FLOATS:
        raise TypeError(f"hidden states are {', '.join(map(str, FLOATS))}, not {hidden.dtype}")
    if hidden.ndim == 0:
        raise ValueError("hidden states need a dimension of features")
    if weight.ndim != 2 or weight.shape[1] != hidden.shape[-1]:
        wanted = f"[classes, {hidden.shape[-1]}]"
        raise ValueError(f"weight has shape {list(weight.shape)}, not {wanted}; gather it first if it is sharded")
    classes = weight.shape[0]
    if not classes:
        raise ValueError("weight has no classes")
    for name, t in (("bias", bias), ("class_weight", class_weight)):
        if t is not None and t.shape != (classes,):
            raise ValueError(f"{name} has shape {list(t.shape)}, not [{classes}]")
    for name, t in (("weight", weight), ("bias", bias)):
        if t is not None and t.dtype != hidden.dtype and kind == hidden.dtype and not _autocast(hidden):
            raise TypeError(f"{name} is {t.dtype} and hidden {hidden.dtype}: convert one, or use torch.autocast")
    if not soft and target.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"labels are int32 or int64, not {target.dtype}")
    shape = [*hidden.shape[:-1], *([classes] if soft else [])]
    if list(target.shape) != shape:
        raise ValueError(f"target has shape {list(target.shape)}, not {shape}, for hidden {list(hidden.shape)}")
    for name, t in (("weight", weight), ("target", target), ("bias", bias), ("class_weight", class_weight)):
        if t is not None and t.device != hidden.device:
            raise ValueError(f"{name} is on {t.device}, hidden on {hidden.device}")
    if chunk is not None and chunk < 1:
        raise OptionError(f"chunk is a number of tokens, at least 1, not {chunk}")
    if not accum.is_floating_point:
        raise OptionError(f"accum_dtype is a float dtype, not {accum}")


def _autocast(hidden: Tensor) -> bool:
    return torch.is_autocast_enabled(hidden.device.type)
