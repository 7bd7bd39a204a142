"""cross_entropy, and optax's two names for it."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from onelaunch.errors import OptionError
from onelaunch.kernels import tiles
from onelaunch.kernels.calls import Loss
from onelaunch.nn import vocabulary
from onelaunch.nn.cross_entropy_rows import Ask, Gradient, Losses, by_xla
from onelaunch.nn.primitive import bind, ruled
from onelaunch.nn.reduction import CrossEntropyOutput, Request, finish, output, settle, together
from onelaunch.nn.softmax import wide


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
    grad_in_forward: bool | None = None, axis_name: Any = None, vocab_size: int | None = None,
    return_lse: bool = False, return_z_loss: bool = False, return_predicted_tokens: bool = False,
    return_token_accuracy: bool = False, return_entropy: bool = False,
) -> Any:  # fmt: skip
    """Cross-entropy of scores ``softcap * tanh(logit_scale * logits / softcap)`` along ``axis``.

    logits: float, any shape. labels: integers of the shape without ``axis``, or probabilities (float) of the whole
    shape. weight: (classes), without derivative, as in PyTorch. The loss (f32, f64 for f64) is PyTorch's for these
    options, plus ``lse_square_scale * lse²`` for each row that counts (not weighted). A label outside [0, classes),
    other than ignore_index, gives NaN.

    reduction: "mean" (over the weights of what counts), "sum" or "none". num_items: divide the sum by this instead.
    empty_mean: the mean of nothing is 0 ("zero") or NaN ("nan"). grad_in_forward: under differentiation make the
    gradient with the loss, in one launch, and multiply it by the cotangent (default where it can: mean and sum, not for
    f16, nor with lse, z_loss or entropy as outputs, nor with axis_name).

    axis_name: a mesh axis (or several) of ``shard_map`` whose device i has classes [i n, (i+1) n) of logits, of
    probabilities and of weight; labels are of all classes and the same on each device, as the results are. vocab_size:
    the number of classes, where the columns (of all devices) are more; the others are padding, with gradient 0.

    Returns the loss, or a CrossEntropyOutput if any ``return_...`` is set: lse and entropy (like labels), z_loss (as
    the loss is reduced), predicted_tokens (int32) and token_accuracy. Raises OptionError, TypeError or ValueError.
    """
    logits, labels = jnp.asarray(logits), jnp.asarray(labels)
    if not -logits.ndim <= axis < logits.ndim:
        raise ValueError(f"axis {axis} of logits with {logits.ndim} dimensions")
    request = Request(
        ignore_index, reduction, label_smoothing, lse_square_scale, softcap, logit_scale, empty_mean, grad_in_forward,
        axis_name, vocab_size, return_lse, return_z_loss, return_predicted_tokens, return_token_accuracy,
        return_entropy,
    )  # fmt: skip
    if grad_in_forward and axis_name is not None:
        raise OptionError("grad_in_forward needs all classes on one device; leave it out with axis_name")
    axis %= logits.ndim
    job = settle(request, logits.dtype, logits.shape, axis, labels, weight, num_items)
    logits, labels, weight, width = together(logits, job.labels, job.weight, job.width)
    rows = logits.shape[:axis] + logits.shape[axis + 1 :]
    if job.whole and axis_name is None and logits.size:
        factor, zfactor = together(logits, job.factor, job.zfactor)[1:]
        loss, best = ruled(_whole, job.options, axis, job.ask)(
            logits, labels, weight, width, jnp.broadcast_to(factor, rows), zfactor
        )
        return output(job, loss, None, None, best, None)
    if logits.size:
        found = ruled(_rows, job.options, axis, job.ask)(logits, labels, weight, width)
    else:
        found = by_xla(job.options, job.ask, axis, logits, labels, weight, width)
    losses, lse, mass, best, peak, entropy = found
    if axis_name is not None:
        losses, lse, entropy = vocabulary.combine(axis_name, losses, lse, mass, entropy)
        best = vocabulary.largest(jax.lax.stop_gradient(peak), best, logits.shape[axis], axis_name)
    return finish(job, losses, lse, best, entropy)


# --- derivatives -------------------------------------------------------------------------------------------


def losses_of(
    options: Loss, ask: Ask, axis: int, x: Any, target: Any, weight: Any, width: Any, factor: Any = None,
    zfactor: Any = None, inplace: bool = False,
) -> list[jax.Array]:  # fmt: skip
    """What ``cross_entropy_rows.by_xla`` gives, by the kernel; with factors also the gradient (``inplace``: in the
    memory of x)."""
    total = weight.astype(wide(x.dtype)).sum(keepdims=True) if weight is not None and options.smooth else None
    given = {"x": x, "target": target, "weight": weight, "total_weight": total, "factor": factor, "width": width}
    given["zfactor"] = zfactor if options.zscale else None
    names = present(given)
    return bind(Losses(options, ask, axis, names, factor is not None, tiles.current(), inplace), **given)


def present(given: dict[str, Any]) -> tuple[str, ...]:
    """The names of the arrays that are there."""
    return tuple(name for name, a in given.items() if a is not None)


def known(cotangents: Any) -> list[Any]:
    """Cotangents, None for those that are symbolically 0."""
    symbolic = jax.custom_derivatives.SymbolicZero
    return [None if type(c) is symbolic else c for c in cotangents]


def gradient_of(
    options: Loss, axis: int, x: Any, target: Any, weight: Any, width: Any, lse: Any, mass: Any, entropy: Any,
    cotangents: Any, inplace: bool = False,
) -> jax.Array:  # fmt: skip
    """dx from the cotangents (or None) of losses, lse and entropy."""
    up, extra, bend = cotangents
    given = {"x": x, "target": target, "weight": weight, "lse": lse, "mass": mass}
    given |= {"up": jnp.zeros_like(lse) if up is None else up, "extra": extra, "width": width}
    given |= {"entropy": None if bend is None else entropy, "bend": bend}
    return bind(Gradient(options, axis, present(given), tiles.current(), inplace), **given)[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _rows(options: Loss, axis: int, ask: Ask, x: Any, target: Any, weight: Any, width: Any) -> list[jax.Array]:
    return losses_of(options, ask, axis, x, target, weight, width)


def _rows_fwd(
    options: Loss, axis: int, ask: Ask, x: Any, target: Any, weight: Any, width: Any
) -> tuple[list[jax.Array], Any]:
    other = target.perturbed
    x, target, weight, width = (None if a is None else a.value for a in (x, target, weight, width))
    found = losses_of(options, ask, axis, x, target, weight, width)
    _, lse, mass, _, _, entropy = found
    return found, (x, target, weight, width, lse, mass, entropy, jnp.zeros(()) if other else None)


def _rows_bwd(options: Loss, axis: int, ask: Ask, saved: Any, cotangents: Any) -> tuple[Any, ...]:
    x, target, weight, width, lse, mass, entropy, other = saved
    up, extra, heavier, _, _, bend = known(cotangents)
    bend = bend if ask.entropy else None
    dx = gradient_of(options, axis, x, target, weight, width, lse, mass, entropy, (up, extra, bend))
    dtarget = None if other is None else _of_target(options, axis, x, target, weight, width, up, heavier)
    return dx, dtarget, None, None


def _of_target(
    options: Loss, axis: int, x: Any, target: Any, weight: Any, width: Any, up: Any, heavier: Any
) -> jax.Array:
    """The gradient of probabilities, by XLA, where someone wants it; from the cotangents of losses and mass."""

    def parts(q: Any) -> Any:
        loss, _, mass, *_ = by_xla(options, Ask(), axis, x, q, weight, width)
        return loss, mass

    (loss, mass), back = jax.vjp(parts, target)
    up, heavier = (jnp.zeros_like(y) if c is None else c for y, c in ((loss, up), (mass, heavier)))
    found: jax.Array = back((up, heavier))[0]
    return found


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _whole(
    options: Loss, axis: int, ask: Ask, x: Any, target: Any, weight: Any, width: Any, factor: Any, zfactor: Any
) -> tuple[jax.Array, jax.Array]:
    losses, lse, _, best, _, _ = losses_of(options, ask, axis, x, target, weight, width)
    return sum_of(options, losses, lse, target, factor, zfactor), best


def sum_of(options: Loss, losses: Any, lse: Any, target: Any, factor: Any, zfactor: Any) -> jax.Array:
    """The reduced loss, z-loss included."""
    loss = losses * factor
    if options.zscale:
        valid = True if options.soft else target != options.ignore
        loss += jnp.where(valid, lse, 0) ** 2 * (options.zscale * zfactor)
    found: jax.Array = loss.sum()
    return found


def _whole_fwd(
    options: Loss, axis: int, ask: Ask, x: Any, target: Any, weight: Any, width: Any, factor: Any, zfactor: Any
) -> tuple[Any, Any]:
    other = target.perturbed
    x, target, weight, width, factor, zfactor = (
        None if a is None else a.value for a in (x, target, weight, width, factor, zfactor)
    )
    zfactor = jnp.broadcast_to(zfactor, factor.shape)
    losses, _, _, best, _, _, grad = losses_of(options, ask, axis, x, target, weight, width, factor, zfactor)
    return (losses.sum(), best), (grad, *((x, target, weight, width, factor) if other else (None,) * 5))


def _whole_bwd(options: Loss, axis: int, ask: Ask, saved: Any, cotangents: Any) -> tuple[Any, ...]:
    grad, x, target, weight, width, factor = saved
    g = known(cotangents)[0]
    g = jnp.zeros((), wide(grad.dtype)) if g is None else g
    dtarget = None if x is None else _of_target(options, axis, x, target, weight, width, g * factor, None)
    return (grad * g).astype(grad.dtype), dtarget, None, None, None, None


_rows.defvjp(_rows_fwd, _rows_bwd, symbolic_zeros=True)
_whole.defvjp(_whole_fwd, _whole_bwd, symbolic_zeros=True)

__all__ = [
    "CrossEntropyOutput",
    "cross_entropy",
    "softmax_cross_entropy",
    "softmax_cross_entropy_with_integer_labels",
]
