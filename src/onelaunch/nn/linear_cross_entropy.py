"""linear_cross_entropy: the cross-entropy of ``hidden @ weight.T + bias`` without ever holding all those logits."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from onelaunch.errors import OptionError
from onelaunch.kernels.calls import Loss
from onelaunch.nn import chunks, vocabulary
from onelaunch.nn.cross_entropy import gradient_of, known, losses_of, sum_of
from onelaunch.nn.cross_entropy_rows import Ask, by_xla
from onelaunch.nn.primitive import ruled
from onelaunch.nn.reduction import Request, finish, output, settle, together
from onelaunch.nn.softmax import wide


@dataclass(frozen=True)
class Plan:
    """What is static: options, rows of a chunk, the products' precision, the dtype in which the weight's gradient is
    summed over chunks, the dtypes of hidden, weight and bias, which their gradients have, and the axis of the parts."""

    options: Loss
    ask: Ask
    size: int
    precision: Any
    accum: Any
    dtypes: tuple[Any, ...]
    axis_name: Any


class Head(NamedTuple):
    """The projection and what the kernel needs of the classes: weight (classes, features), bias, class weights and
    width, each but the first may be None."""

    weight: Any
    bias: Any
    classes: Any
    width: Any


def linear_cross_entropy(
    hidden: Any, weight: Any, labels: Any, bias: Any = None, *, class_weight: Any = None,
    ignore_index: int | None = -100, reduction: str = "mean", label_smoothing: float = 0.0,
    lse_square_scale: float = 0.0, softcap: float | None = None, logit_scale: float = 1.0, num_items: Any = None,
    empty_mean: str = "zero", grad_in_forward: bool | None = None, axis_name: Any = None,
    vocab_size: int | None = None, precision: Any = None, accum_dtype: Any = None, chunk: int | None = None,
    return_lse: bool = False, return_z_loss: bool = False, return_predicted_tokens: bool = False,
    return_token_accuracy: bool = False, return_entropy: bool = False,
) -> Any:  # fmt: skip
    """``cross_entropy(hidden @ weight.T + bias, labels, ...)``, a chunk of tokens at a time.

    hidden: float (..., features). weight: (classes, features), as of an embedding; a kernel of (features, classes) is
    given as ``kernel.T``, which XLA folds into the products. bias: (classes). Products and logits have hidden's dtype
    and sum in f32; the weight's gradient has the weight's. labels: integers (...) or probabilities (..., classes),
    which get no gradient here. The options, outputs and errors are those of ``cross_entropy``; class_weight is its
    ``weight``.

    With reduction mean or sum and no lse, z_loss or entropy as outputs, under differentiation the gradients are made
    with the loss: three matrix products, by XLA, and one launch a chunk (two, and an exchange of a few numbers a token,
    with axis_name). Otherwise (for f16 or with ``grad_in_forward=False``) backward makes the logits again, a fourth
    product, and keeps the inputs alone. The products of what is not differentiated (``lax.stop_gradient``) are left
    out. Memory: the gradients, the sum of the weight's in accum_dtype, and the logits of one chunk. Second derivatives
    are XLA's and hold all logits.

    axis_name: as in ``cross_entropy``; weight, bias and class_weight are split by classes, hidden is whole on each
    device. chunk: tokens at once (default: a rule, ``chunks.length``). accum_dtype: in which the weight's gradient is
    summed over chunks, f32 (f64 for f64) unless given. precision: of the products, as in ``jax.lax.dot_general``.
    """
    hidden, weight, labels = jnp.asarray(hidden), jnp.asarray(weight), jnp.asarray(labels)
    bias = None if bias is None else jnp.asarray(bias)
    _check(hidden, weight, bias, chunk)
    request = Request(
        ignore_index, reduction, label_smoothing, lse_square_scale, softcap, logit_scale, empty_mean, grad_in_forward,
        axis_name, vocab_size, return_lse, return_z_loss, return_predicted_tokens, return_token_accuracy,
        return_entropy,
    )  # fmt: skip
    lead, classes = hidden.shape[:-1], weight.shape[0]
    job = settle(request, hidden.dtype, (*lead, classes), len(lead), labels, class_weight, num_items)
    flat = hidden.reshape(-1, hidden.shape[-1])
    target = job.labels.reshape(-1, classes) if job.options.soft else job.labels.reshape(-1)
    given = (flat, weight, bias, target, job.weight, job.width, job.factor, job.zfactor)
    flat, weight, bias, target, class_weight, width, factor, zfactor = together(*given)
    limit = chunks.length(flat.shape[1], flat.dtype.itemsize) if chunk is None else chunk
    plan = Plan(
        job.options, job.ask, chunks.size_of(flat.shape[0], limit, chunk is not None), precision,
        jnp.dtype(wide(hidden.dtype) if accum_dtype is None else accum_dtype),
        (hidden.dtype, weight.dtype, None if bias is None else bias.dtype), axis_name,
    )  # fmt: skip
    head = Head(weight, bias, class_weight, width)
    if job.whole and flat.shape[0] and classes:
        rows = (jnp.broadcast_to(a, lead).reshape(-1) for a in (factor, zfactor))
        loss, best, peak = ruled(_whole, plan)(flat, *head[:2], target, *head[2:], *rows)
        if axis_name is not None:
            loss = lax.psum(loss, axis_name)
            best = vocabulary.largest(lax.stop_gradient(peak), best, classes, axis_name)
        return output(job, loss, None, None, best.reshape(lead) if request.argmax else None, None)
    if flat.shape[0] and classes:
        found = ruled(_rows, plan)(flat, *head[:2], target, *head[2:])
    else:
        x = _scores(plan, flat, head)
        found = by_xla(plan.options, plan.ask, 1, x, target, class_weight, width)
    losses, lse, mass, best, peak, entropy = (a.reshape(lead + a.shape[1:]) for a in found)
    if axis_name is not None:
        losses, lse, entropy = vocabulary.combine(axis_name, losses, lse, mass, entropy)
        best = vocabulary.largest(lax.stop_gradient(peak), best, classes, axis_name)
    return finish(job, losses, lse, best, entropy)


def _check(hidden: jax.Array, weight: jax.Array, bias: Any, chunk: int | None) -> None:
    if not jnp.issubdtype(hidden.dtype, jnp.floating):
        raise TypeError(f"hidden is floating-point, not {hidden.dtype}")
    if not jnp.issubdtype(weight.dtype, jnp.floating):
        raise TypeError(f"weight is floating-point, not {weight.dtype}")
    if hidden.ndim == 0:
        raise ValueError("hidden has a last dimension of features; it is a scalar")
    if weight.ndim != 2 or weight.shape[1] != hidden.shape[-1]:
        raise ValueError(f"weight has shape {weight.shape}, not (classes, {hidden.shape[-1]}), for hidden's features")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias has shape {bias.shape}, not {weight.shape[:1]}")
    if chunk is not None and chunk < 1:
        raise OptionError(f"chunk is a number of tokens, at least 1, not {chunk}")


# --- products ------------------------------------------------------------------------------------------------


def _product(plan: Plan, a: jax.Array, b: jax.Array, along: tuple[int, int], dtype: Any) -> jax.Array:
    """The matrix product that sums over the dimensions ``along``, rounded once, to ``dtype``."""
    numbers = (((along[0],), (along[1],)), ((), ()))
    wanted = jnp.promote_types(dtype, a.dtype)
    return lax.dot_general(a, b, numbers, plan.precision, preferred_element_type=wanted).astype(dtype)


def _scores(plan: Plan, hidden: jax.Array, head: Head) -> jax.Array:
    """Logits of some rows, in hidden's dtype."""
    x = _product(plan, hidden, head.weight.astype(hidden.dtype), (1, 1), hidden.dtype)
    return x if head.bias is None else x + head.bias.astype(x.dtype)


class Needs(NamedTuple):
    """Which gradients are wanted."""

    hidden: bool
    weight: bool
    bias: bool


def _project(
    plan: Plan, needs: Needs, several: bool, d: jax.Array, hidden: jax.Array, head: Head, sums: Any
) -> tuple[Any, Any]:
    """The gradient of hidden from that of its logits, and the sums of weight's and bias' with theirs added."""
    dh = dw = db = None
    if needs.hidden:
        dh = _product(plan, d, head.weight.astype(d.dtype), (1, 0), plan.dtypes[0])
    if needs.weight:
        # One chunk is summed by the product alone; f16 waits for the upstream gradient in f32.
        rounded = not several and plan.dtypes[1] != jnp.float16
        dw = _product(plan, d, hidden, (0, 0), plan.dtypes[1] if rounded else plan.accum)
    if needs.bias:
        db = d.astype(wide(d.dtype)).sum(0)
    if sums is not None:
        dw, db = (None if a is None else total + a for total, a in zip(sums, (dw, db)))
    return dh, (dw, db)


# --- derivatives ---------------------------------------------------------------------------------------------


def _needs(hidden: Any, weight: Any, bias: Any, target: Any) -> Needs:
    """From what ``custom_vjp`` says is differentiated."""
    if target.perturbed and jnp.issubdtype(target.value.dtype, jnp.floating):
        raise OptionError(
            "linear_cross_entropy gives no gradient for probabilities: pass lax.stop_gradient(labels), or use "
            "cross_entropy on the logits"
        )
    return Needs(hidden.perturbed, weight.perturbed, bias is not None and bias.perturbed)


def _values(*arrays: Any) -> list[Any]:
    return [None if a is None else a.value for a in arrays]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rows(plan: Plan, hidden: Any, weight: Any, bias: Any, target: Any, classes: Any, width: Any) -> Any:
    """What ``cross_entropy_rows.by_xla`` gives, of all rows."""
    head = Head(weight, bias, classes, width)

    def step(rows: Any, state: Any) -> Any:
        x = _scores(plan, rows[0], head)
        return losses_of(plan.options, plan.ask, 1, x, rows[1], classes, width), state

    return chunks.walk(step, plan.size, (hidden, target))[0]


def _rows_fwd(
    plan: Plan, hidden: Any, weight: Any, bias: Any, target: Any, classes: Any, width: Any
) -> tuple[Any, Any]:
    needs = _needs(hidden, weight, bias, target)
    hidden, weight, bias, target, classes, width = _values(hidden, weight, bias, target, classes, width)
    found = _rows(plan, hidden, weight, bias, target, classes, width)
    _, lse, mass, _, _, entropy = found
    wanted = [jnp.zeros(()) if need else None for need in needs]
    return found, (hidden, weight, bias, target, classes, width, lse, mass, entropy, wanted)


def _rows_bwd(plan: Plan, saved: Any, cotangents: Any) -> tuple[Any, ...]:
    hidden, weight, bias, target, classes, width, lse, mass, entropy, wanted = saved
    needs = Needs(*(a is not None for a in wanted))
    head = Head(weight, bias, classes, width)
    up, extra, _, _, _, bend = known(cotangents)
    if not plan.ask.entropy:
        entropy = bend = None
    several = plan.size < hidden.shape[0]

    def step(rows: Any, sums: Any) -> Any:
        h, t, lse, mass, entropy, *cotangents = rows
        x = _scores(plan, h, head)
        d = gradient_of(plan.options, 1, x, t, classes, width, lse, mass, entropy, cotangents, inplace=True)
        return _project(plan, needs, several, d, h, head, sums)

    dh, sums = chunks.walk(step, plan.size, (hidden, target, lse, mass, entropy, up, extra, bend))
    dw, db = (None if a is None else a.astype(kind) for a, kind in zip(sums, plan.dtypes[1:]))
    return dh, dw, db, None, None, None


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _whole(
    plan: Plan, hidden: Any, weight: Any, bias: Any, target: Any, classes: Any, width: Any, factor: Any, zfactor: Any
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The reduced loss (this part's share of it) and, where asked for, argmax of rows and its score."""
    losses, lse, mass, best, peak, _ = _rows(plan, hidden, weight, bias, target, classes, width)
    if plan.axis_name is not None:
        losses, lse, _ = vocabulary.parts(plan.axis_name, losses, lse, mass)
        zfactor = jnp.where(vocabulary.first(plan.axis_name), zfactor, 0)
    return sum_of(plan.options, losses, lse, target, factor, zfactor), best, peak


def _gradients(plan: Plan, x: Any, target: Any, head: Head, factor: Any, zfactor: Any) -> tuple[Any, ...]:
    """Losses with their factors, argmax, its score, and the gradient of a chunk's logits in their memory."""
    options, name = plan.options, plan.axis_name
    if name is None:
        found = losses_of(options, plan.ask, 1, x, target, head.classes, head.width, factor, zfactor, inplace=True)
        return found[0], found[3], found[4], found[-1]
    losses, lse, mass, best, peak, _ = losses_of(options, plan.ask, 1, x, target, head.classes, head.width)
    losses, lse, mass = vocabulary.parts(name, losses, lse, mass)
    losses, extra = losses * factor, None
    if options.zscale:
        valid = True if options.soft else target != options.ignore
        safe = jnp.where(valid, lse, 0)
        extra = 2 * options.zscale * zfactor * safe
        losses += jnp.where(vocabulary.first(name), options.zscale * zfactor * safe**2, 0)
    cotangents = (factor, extra, None)
    d = gradient_of(options, 1, x, target, head.classes, head.width, lse, mass, None, cotangents, inplace=True)
    return losses, best, peak, d


def _whole_fwd(
    plan: Plan, hidden: Any, weight: Any, bias: Any, target: Any, classes: Any, width: Any, factor: Any, zfactor: Any
) -> tuple[Any, Any]:
    needs = _needs(hidden, weight, bias, target)
    given = (hidden, weight, bias, target, classes, width, factor, zfactor)
    hidden, weight, bias, target, classes, width, factor, zfactor = _values(*given)
    head = Head(weight, bias, classes, width)
    several = plan.size < hidden.shape[0]

    def step(rows: Any, sums: Any) -> Any:
        h, t, factor, zfactor = rows
        losses, best, peak, d = _gradients(plan, _scores(plan, h, head), t, head, factor, zfactor)
        dh, sums = _project(plan, needs, several, d, h, head, sums)
        return (losses, best, peak, dh), sums

    (losses, best, peak, dh), sums = chunks.walk(step, plan.size, (hidden, target, factor, zfactor))
    return (losses.sum(), best, peak), (dh, *sums)


def _whole_bwd(plan: Plan, saved: Any, cotangents: Any) -> tuple[Any, ...]:
    g = known(cotangents)[0]
    if g is None:
        g = jnp.zeros((), plan.accum)
    scaled = [None if a is None else (a * g).astype(kind) for a, kind in zip(saved, plan.dtypes)]
    return (*scaled, None, None, None, None, None)


_rows.defvjp(_rows_fwd, _rows_bwd, symbolic_zeros=True)
_whole.defvjp(_whole_fwd, _whole_bwd, symbolic_zeros=True)

__all__ = ["linear_cross_entropy"]
