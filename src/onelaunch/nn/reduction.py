"""What the cross-entropies share: arguments checked and settled, losses of rows reduced to what was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from onelaunch.errors import OptionError
from onelaunch.kernels.calls import Loss
from onelaunch.nn import vocabulary
from onelaunch.nn.cross_entropy_rows import Ask
from onelaunch.nn.primitive import alike
from onelaunch.nn.softmax import wide


class CrossEntropyOutput(NamedTuple):
    """The loss, with whatever else was asked for (None otherwise). lse, z_loss and entropy are differentiable."""

    loss: jax.Array
    lse: jax.Array | None = None
    z_loss: jax.Array | None = None
    predicted_tokens: jax.Array | None = None
    token_accuracy: jax.Array | None = None
    entropy: jax.Array | None = None


@dataclass(frozen=True)
class Request:
    """The options of a call that are no arrays, as the user gave them."""

    ignore_index: int | None = -100
    reduction: str = "mean"
    label_smoothing: float = 0.0
    lse_square_scale: float = 0.0
    softcap: float | None = None
    logit_scale: float = 1.0
    empty_mean: str = "zero"
    grad_in_forward: bool | None = None
    axis_name: Any = None
    vocab_size: int | None = None
    return_lse: bool = False
    return_z_loss: bool = False
    return_predicted_tokens: bool = False
    return_token_accuracy: bool = False
    return_entropy: bool = False

    def __post_init__(self) -> None:
        if self.reduction not in ("none", "mean", "sum"):
            raise OptionError(f"reduction is 'none', 'mean' or 'sum', not {self.reduction!r}")
        if self.empty_mean not in ("zero", "nan"):
            raise OptionError(f"empty_mean is 'zero' or 'nan', not {self.empty_mean!r}")
        if not 0.0 <= self.label_smoothing <= 1.0:
            raise OptionError(f"label_smoothing is between 0 and 1, not {self.label_smoothing}")
        if self.grad_in_forward and not self.whole:
            raise OptionError("grad_in_forward needs reduction mean or sum, and neither lse, z_loss nor entropy")

    @property
    def whole(self) -> bool:
        """Whether the summed loss is the only output with a derivative."""
        return self.reduction != "none" and not (self.return_lse or self.return_z_loss or self.return_entropy)

    @property
    def argmax(self) -> bool:
        return self.return_predicted_tokens or self.return_token_accuracy

    @property
    def plain(self) -> bool:
        """Whether the loss is all that is returned."""
        return not (self.argmax or self.return_lse or self.return_z_loss or self.return_entropy)


@dataclass(frozen=True)
class Job:
    """A call as the kernels take it.

    Arrays: labels int32 or int64 among the classes of this device, or probabilities (``original``: among all); weight
    (classes) or None; width i32[1] or None; valid: rows that count; factor, zfactor: what multiplies rows' losses and
    z-losses.
    """

    request: Request
    options: Loss
    ask: Ask
    whole: bool
    axis: int
    labels: jax.Array
    original: jax.Array
    weight: Any
    width: Any
    valid: jax.Array
    factor: jax.Array
    zfactor: jax.Array


def settle(
    request: Request, dtype: Any, shape: tuple[int, ...], axis: int, labels: jax.Array, weight: Any, num_items: Any
) -> Job:
    """The job for logits of a dtype and shape whose axis ``axis`` (from the front) has the classes."""
    classes = shape[axis]
    rows = shape[:axis] + shape[axis + 1 :]
    soft = _check(request, dtype, shape, rows, labels, num_items)
    if not classes:
        raise ValueError(f"logits of shape {shape} have no classes along axis {axis}")
    labels, weight = _settled(labels, weight, soft, classes)
    # Without an ignore_index one that no label has.
    ignore = -(2**31) if request.ignore_index is None or soft else request.ignore_index
    valid = jnp.ones(rows, bool) if soft else labels != ignore
    original = labels
    part, width, bad = 0, None, None
    if request.axis_name is not None or request.vocab_size is not None:
        part, width = vocabulary.share(classes, request.axis_name, request.vocab_size)
        if not soft:
            labels, bad = vocabulary.local(labels, valid, classes, part, request.axis_name)
            ignore = vocabulary.IGNORE
        if width is not None and weight is not None:
            weight = jnp.where(jnp.arange(classes) < width[0], weight, 0)
    factor, zfactor = _factors(request, dtype, labels, weight, valid, soft, num_items)
    if bad is not None:
        factor = factor * jnp.where(bad, jnp.nan, jnp.ones((), factor.dtype))
    options = Loss(
        ignore, float(request.label_smoothing), float(request.lse_square_scale), float(request.logit_scale),
        None if request.softcap is None else float(request.softcap), soft, part,
    )  # fmt: skip
    ask = Ask(request.argmax, request.return_entropy, request.return_lse or request.return_entropy)
    whole = request.whole and request.grad_in_forward is not False
    whole = whole and bool(request.grad_in_forward or dtype != jnp.float16)
    return Job(request, options, ask, whole, axis, labels, original, weight, width, valid, factor, zfactor)


def _check(
    request: Request, dtype: Any, shape: tuple[int, ...], rows: tuple[int, ...], labels: jax.Array, num_items: Any
) -> bool:
    """Whether the labels are probabilities."""
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"logits are floating-point, not {dtype}")
    soft = bool(jnp.issubdtype(labels.dtype, jnp.floating))
    if not soft and not jnp.issubdtype(labels.dtype, jnp.integer):
        raise TypeError(f"labels are integers or floats, not {labels.dtype}")
    if labels.shape != (shape if soft else rows):
        raise ValueError(f"labels have shape {labels.shape}, not {shape if soft else rows}, for logits {shape}")
    if num_items is not None and request.reduction == "none":
        raise OptionError("num_items needs reduction mean or sum")
    if num_items is not None and jnp.shape(num_items) != ():
        raise ValueError(f"num_items is one number, not an array of shape {jnp.shape(num_items)}")
    return soft


def _settled(labels: jax.Array, weight: Any, soft: bool, classes: int) -> tuple[jax.Array, Any]:
    """Labels int32 or int64, weights an array."""
    if not soft and labels.dtype not in (jnp.int32, jnp.int64):
        if labels.dtype == jnp.uint64:
            labels = labels.astype(jnp.int64)
        # A uint32 label beyond int32 is out of range, and becomes a negative one that is, too.
        labels = jnp.where(labels > 2**31 - 1, -1, labels.astype(jnp.int32)) if labels.dtype == jnp.uint32 else labels
        labels = labels if labels.dtype == jnp.int64 else labels.astype(jnp.int32)
    if weight is not None:
        weight = jax.lax.stop_gradient(jnp.asarray(weight))
        if weight.shape != (classes,):
            raise ValueError(f"weight has shape {weight.shape}, not ({classes},)")
    return labels, weight


def _factors(
    request: Request, dtype: Any, labels: jax.Array, weight: Any, valid: jax.Array, soft: bool, num_items: Any
) -> tuple[jax.Array, jax.Array]:
    """What multiplies a row's loss and its z-loss: scalars without derivative."""
    kind = wide(dtype)
    empty = 0.0 if request.empty_mean == "zero" else jnp.nan

    def inverse(total: Any) -> jax.Array:
        total = jax.lax.stop_gradient(jnp.asarray(total, kind))
        return jnp.where(total == 0, empty, 1 / jnp.where(total == 0, 1, total)).astype(kind)

    if num_items is not None:
        return inverse(num_items), inverse(num_items)
    if request.reduction != "mean":
        return jnp.ones((), kind), jnp.ones((), kind)
    number = inverse(valid.sum())
    if weight is None or soft:
        return number, number
    inside = valid & (labels >= 0) & (labels < weight.size)
    total = jnp.where(inside, weight[jnp.where(inside, labels, 0)], 0).sum()
    return inverse(vocabulary.add(total, request.axis_name)), number


def finish(job: Job, losses: jax.Array, lse: jax.Array, best: jax.Array, entropy: jax.Array) -> Any:
    """The result from losses (without factor), lse, argmax and entropy of rows over all classes."""
    zscale = job.options.zscale
    loss, z = losses * job.factor, jnp.where(job.valid, lse, 0) ** 2 * (zscale * job.zfactor)
    loss = loss + z if zscale else loss
    if job.request.reduction != "none":
        loss, z = loss.sum(), z.sum()
    return output(job, loss, lse, z, best, entropy)


def output(job: Job, loss: jax.Array, lse: Any, z: Any, best: Any, entropy: Any) -> Any:
    """The loss alone, or with what else was asked for."""
    request = job.request
    if request.plain:
        return loss
    return CrossEntropyOutput(
        loss,
        lse if request.return_lse else None,
        z if request.return_z_loss else None,
        best if request.return_predicted_tokens else None,
        _accuracy(job, best) if request.return_token_accuracy else None,
        entropy if request.return_entropy else None,
    )


def _accuracy(job: Job, best: jax.Array) -> jax.Array:
    label = job.original
    if job.options.soft:
        highest, column = jax.lax.stop_gradient(label.max(job.axis)), label.argmax(job.axis).astype(jnp.int32)
        label = vocabulary.largest(highest, column, label.shape[job.axis], job.request.axis_name)
    return ((best == label) & job.valid).sum().astype(jnp.float32) / jnp.maximum(job.valid.sum(), 1)


def together(*arrays: Any) -> list[Any]:
    """The arrays that are there, said to differ along the same mesh axes; None stays None."""
    found = iter(alike([a for a in arrays if a is not None]))
    return [None if a is None else next(found) for a in arrays]
