"""cross_entropy, and optax's two names for it."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from onelaunch.errors import OptionError
from onelaunch.kernels import tiles
from onelaunch.kernels.calls import Loss
from onelaunch.nn.cross_entropy_rows import Gradient, Losses, by_xla
from onelaunch.nn.primitive import bind
from onelaunch.nn.softmax import wide


class CrossEntropyOutput(NamedTuple):
    """The loss, with whatever else was asked for (None otherwise). lse and z_loss are differentiable."""

    loss: jax.Array
    lse: jax.Array | None = None
    z_loss: jax.Array | None = None
    predicted_tokens: jax.Array | None = None
    token_accuracy: jax.Array | None = None


def softmax_cross_entropy_with_integer_labels(logits: Any, labels: Any, axis: int = -1, where: Any = None) -> jax.Array:
    """Losses of all rows, as optax's; a label outside [0, classes) gives NaN. where: the classes that take part."""
    return cross_entropy(_within(logits, where), labels, axis=axis, ignore_index=None, reduction="none")


def softmax_cross_entropy(logits: Any, labels: Any, axis: int = -1, where: Any = None) -> jax.Array:
    """Losses of all rows for labels that are probabilities, as optax's. where: the classes that take part."""
    if where is not None:
        labels = jnp.where(where, labels, 0)
    return cross_entropy(_within(logits, where), labels, axis=axis, reduction="none")


def _within(logits: Any, where: Any) -> Any:
    return logits if where is None else jnp.where(where, logits, -jnp.inf)


def cross_entropy(
    logits: Any, labels: Any, *, axis: int = -1, weight: Any = None, ignore_index: int | None = -100,
    reduction: str = "mean", label_smoothing: float = 0.0, lse_square_scale: float = 0.0,
    softcap: float | None = None, logit_scale: float = 1.0, num_items: Any = None, empty_mean: str = "zero",
    grad_in_forward: bool | None = None, return_lse: bool = False, return_z_loss: bool = False,
    return_predicted_tokens: bool = False, return_token_accuracy: bool = False,
) -> Any:  # fmt: skip
    """Cross-entropy of scores ``softcap * tanh(logit_scale * logits / softcap)`` along ``axis``.

    logits: float, any shape. labels: integers of the shape without ``axis``, or probabilities (float) of the whole
    shape. weight: (classes), without derivative, as in PyTorch. The loss (f32, f64 for f64) is PyTorch's for these
    options, plus ``lse_square_scale * lse²`` for each row that counts (not weighted). A label outside [0, classes),
    other than ignore_index, gives NaN.

    reduction: "mean" (over the weights of what counts), "sum" or "none". num_items: divide the sum by this instead.
    empty_mean: the mean of nothing is 0 ("zero") or NaN ("nan"). grad_in_forward: under differentiation make the
    gradient with the loss, in one launch, and multiply it by the cotangent (default where it can: mean and sum, not for
    f16, nor with lse or z_loss as outputs).

    Returns the loss, or a CrossEntropyOutput if any ``return_...`` is set: lse (like labels), z_loss (as the loss is
    reduced), predicted_tokens (int32) and token_accuracy. Raises OptionError, TypeError or ValueError.
    """
    logits, labels = jnp.asarray(logits), jnp.asarray(labels)
    soft = bool(jnp.issubdtype(labels.dtype, jnp.floating))
    axis = _check(logits, labels, axis, soft, reduction, empty_mean, label_smoothing, num_items)
    # Without an ignore_index one that no label has: labels are int32 or int64.
    ignore = ignore_index if ignore_index is not None and not soft else -(2**31)
    labels, weight = _settled(labels, weight, soft, logits.shape[axis])
    options = Loss(ignore, float(label_smoothing), float(lse_square_scale), float(logit_scale),
                   None if softcap is None else float(softcap), soft)  # fmt: skip
    shape = logits.shape[:axis] + logits.shape[axis + 1 :]
    valid = jnp.ones(shape, bool) if soft else labels != ignore
    factor, zfactor = _factors(logits, labels, weight, valid, soft, reduction, num_items, empty_mean)
    argmax = return_predicted_tokens or return_token_accuracy
    whole = reduction != "none" and not (return_lse or return_z_loss)
    if grad_in_forward and not whole:
        raise OptionError("grad_in_forward needs reduction mean or sum, and neither lse nor z_loss")
    if grad_in_forward is None:
        grad_in_forward = whole and logits.dtype != jnp.float16
    lse = z = None
    if logits.size == 0:
        losses, lse, _, best = by_xla(options, axis, logits, labels, weight, argmax)
        loss = (losses * factor).sum() if reduction != "none" else losses * factor
        z = jnp.zeros_like(loss)
    elif grad_in_forward:
        loss, best = _whole(options, axis, argmax, logits, labels, weight, factor, zfactor)
    else:
        losses, lse, best = _rows(options, axis, argmax, return_lse, logits, labels, weight)
        loss, z = losses * factor, jnp.where(valid, lse, 0) ** 2 * (lse_square_scale * zfactor)
        loss = loss + z if lse_square_scale else loss
        if reduction != "none":
            loss, z = loss.sum(), z.sum()
    if not (argmax or return_lse or return_z_loss):
        return loss
    tokens = best if return_predicted_tokens else None
    accuracy = _accuracy(best, labels, valid, axis, soft) if return_token_accuracy else None
    return CrossEntropyOutput(loss, lse if return_lse else None, z if return_z_loss else None, tokens, accuracy)


def _check(
    logits: jax.Array, labels: jax.Array, axis: int, soft: bool, reduction: str, empty_mean: str, smoothing: float,
    num_items: Any,
) -> int:  # fmt: skip
    """The axis counted from the front."""
    if reduction not in ("none", "mean", "sum"):
        raise OptionError(f"reduction is 'none', 'mean' or 'sum', not {reduction!r}")
    if empty_mean not in ("zero", "nan"):
        raise OptionError(f"empty_mean is 'zero' or 'nan', not {empty_mean!r}")
    if num_items is not None and reduction == "none":
        raise OptionError("num_items needs reduction mean or sum")
    if not 0.0 <= smoothing <= 1.0:
        raise OptionError(f"label_smoothing is between 0 and 1, not {smoothing}")
    if not jnp.issubdtype(logits.dtype, jnp.floating):
        raise TypeError(f"logits are floating-point, not {logits.dtype}")
    if not soft and not jnp.issubdtype(labels.dtype, jnp.integer):
        raise TypeError(f"labels are integers or floats, not {labels.dtype}")
    if not -logits.ndim <= axis < logits.ndim:
        raise ValueError(f"axis {axis} of logits with {logits.ndim} dimensions")
    axis %= logits.ndim
    wanted = logits.shape if soft else logits.shape[:axis] + logits.shape[axis + 1 :]
    if labels.shape != wanted:
        raise ValueError(f"labels have shape {labels.shape}, not {wanted}, for logits {logits.shape}")
    return axis


def _settled(labels: jax.Array, weight: Any, soft: bool, classes: int) -> tuple[jax.Array, Any]:
    """Labels int32 or int64, weights an array."""
    if not soft and labels.dtype not in (jnp.int32, jnp.int64):
        labels = labels.astype(jnp.int32)
    if weight is not None:
        weight = jax.lax.stop_gradient(jnp.asarray(weight))
        if weight.shape != (classes,):
            raise ValueError(f"weight has shape {weight.shape}, not ({classes},)")
    return labels, weight


def _factors(
    logits: jax.Array, labels: jax.Array, weight: Any, valid: jax.Array, soft: bool, reduction: str, num_items: Any,
    empty_mean: str,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """What multiplies a row's loss and its z-loss: scalars without derivative."""
    kind = wide(logits.dtype)
    empty = 0.0 if empty_mean == "zero" else jnp.nan

    def inverse(total: Any) -> jax.Array:
        total = jax.lax.stop_gradient(jnp.asarray(total, kind))
        return jnp.where(total == 0, empty, 1 / jnp.where(total == 0, 1, total)).astype(kind)

    if num_items is not None:
        return inverse(num_items), inverse(num_items)
    if reduction != "mean":
        return jnp.ones((), kind), jnp.ones((), kind)
    number = inverse(valid.sum())
    if weight is None or soft:
        return number, number
    inside = valid & (labels >= 0) & (labels < weight.size)
    return inverse(jnp.where(inside, weight[jnp.where(inside, labels, 0)], 0).sum()), number


def _accuracy(best: jax.Array, labels: jax.Array, valid: jax.Array, axis: int, soft: bool) -> jax.Array:
    label = labels.argmax(axis) if soft else labels
    return ((best == label) & valid).sum().astype(jnp.float32) / jnp.maximum(valid.sum(), 1)


# --- derivatives -------------------------------------------------------------------------------------------


def _losses(options: Loss, axis: int, argmax: bool, every: bool, x: Any, target: Any, weight: Any) -> list[jax.Array]:
    given = {"x": x, "target": target, "weight": weight, "total_weight": _total(options, x, weight)}
    return bind(Losses(options, axis, _present(given), argmax, every, False, tiles.current()), **given)


def _total(options: Loss, x: Any, weight: Any) -> Any:
    """The sum of the weights, where label smoothing wants it."""
    return weight.astype(wide(x.dtype)).sum(keepdims=True) if weight is not None and options.smooth else None


def _present(given: dict[str, Any]) -> tuple[str, ...]:
    return tuple(name for name, a in given.items() if a is not None)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2, 3))
def _rows(
    options: Loss, axis: int, argmax: bool, every: bool, x: Any, target: Any, weight: Any
) -> tuple[Any, Any, Any]:
    losses, lse, _, best = _losses(options, axis, argmax, every, x, target, weight)
    return losses, lse, best


def _rows_fwd(options: Loss, axis: int, argmax: bool, every: bool, x: Any, target: Any, weight: Any) -> tuple[Any, Any]:
    other = target.perturbed
    x, target, weight = x.value, target.value, None if weight is None else weight.value
    losses, lse, mass, best = _losses(options, axis, argmax, every, x, target, weight)
    return (losses, lse, best), (x, target, weight, lse, mass, jnp.zeros(()) if other else None)


def _rows_bwd(options: Loss, axis: int, argmax: bool, every: bool, saved: Any, cotangents: Any) -> tuple[Any, ...]:
    x, target, weight, lse, mass, other = saved
    symbolic = jax.custom_derivatives.SymbolicZero
    up, extra = (None if type(c) is symbolic else c for c in cotangents[:2])
    up = jnp.zeros_like(lse) if up is None else up
    given = {"x": x, "target": target, "weight": weight, "lse": lse, "mass": mass, "up": up, "extra": extra}
    dx = bind(Gradient(options, axis, _present(given), tiles.current()), **given)[0]
    dtarget = None if other is None else _of_target(options, axis, x, target, weight, up)
    return dx, dtarget, None


def _of_target(options: Loss, axis: int, x: Any, target: Any, weight: Any, up: Any) -> jax.Array:
    """The gradient of probabilities, by XLA, where someone wants it."""
    found: jax.Array = jax.vjp(lambda q: by_xla(options, axis, x, q, weight, False)[0], target)[1](up)[0]
    return found


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _whole(
    options: Loss, axis: int, argmax: bool, x: Any, target: Any, weight: Any, factor: Any, zfactor: Any
) -> tuple[jax.Array, jax.Array]:
    losses, lse, _, best = _losses(options, axis, argmax, False, x, target, weight)
    loss = losses * factor
    if options.zscale:
        valid = True if options.soft else target != options.ignore
        loss += jnp.where(valid, lse, 0) ** 2 * (options.zscale * zfactor)
    return loss.sum(), best


def _whole_fwd(
    options: Loss, axis: int, argmax: bool, x: Any, target: Any, weight: Any, factor: Any, zfactor: Any
) -> tuple[Any, Any]:
    other = target.perturbed
    x, target, factor, zfactor = x.value, target.value, factor.value, zfactor.value
    weight = None if weight is None else weight.value
    shape = x.shape[:axis] + x.shape[axis + 1 :]
    given = {"x": x, "target": target, "weight": weight, "total_weight": _total(options, x, weight)}
    given["factor"] = jnp.broadcast_to(factor, shape)
    given["zfactor"] = jnp.broadcast_to(zfactor, shape) if options.zscale else None
    function = Losses(options, axis, _present(given), argmax, False, True, tiles.current())
    losses, _, _, best, grad = bind(function, **given)
    return (losses.sum(), best), (grad, *((x, target, weight, factor) if other else (None,) * 4))


def _whole_bwd(options: Loss, axis: int, argmax: bool, saved: Any, cotangents: Any) -> tuple[Any, ...]:
    grad, x, target, weight, factor = saved
    g = cotangents[0]
    if type(g) is jax.custom_derivatives.SymbolicZero:
        g = jnp.zeros((), wide(grad.dtype))
    dtarget = None
    if x is not None:
        up = jnp.broadcast_to(g * factor, x.shape[:axis] + x.shape[axis + 1 :])
        dtarget = _of_target(options, axis, x, target, weight, up)
    return (grad * g).astype(grad.dtype), dtarget, None, None, None


_rows.defvjp(_rows_fwd, _rows_bwd, symbolic_zeros=True)
_whole.defvjp(_whole_fwd, _whole_bwd, symbolic_zeros=True)

__all__ = [
    "CrossEntropyOutput",
    "cross_entropy",
    "softmax_cross_entropy",
    "softmax_cross_entropy_with_integer_labels",
]
