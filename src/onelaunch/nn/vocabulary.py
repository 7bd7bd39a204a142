"""A vocabulary split over the devices of a mesh axis, or padded: labels of one part, and the parts' rows put together.

Every device computes the losses of its own classes by the kernel; a few numbers a row then go round: the log-sum-exps'
maximum and sum (Milakov and Gimelshein 2018, over devices instead of blocks), and the sum of the parts' losses. All of
it is JAX's own operations, so that JAX transposes the collectives, with ``check_vma`` or without.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from onelaunch.errors import OptionError

#: The label of a row that does not count, and of one whose class another part has.
IGNORE, ELSEWHERE = -(2**31), -1


def share(classes: int, axis_name: Any, vocab_size: int | None) -> tuple[int, jax.Array | None]:
    """The number of classes altogether, and how many columns of this device are classes (i32[1]; None: all).

    Devices have ``classes`` columns each, in the order of their index along the axis; what is beyond vocab_size is
    padding. Raises OptionError where the columns are too few.
    """
    held = classes * (1 if axis_name is None else jax.lax.axis_size(axis_name))
    if vocab_size is None or vocab_size == held:
        return held, None
    if not 0 < vocab_size <= held:
        raise OptionError(f"vocab_size is between 1 and {held}, the columns that there are, not {vocab_size}")
    width = jnp.clip(vocab_size - _index(axis_name) * classes, 0, classes)
    return vocab_size, jnp.asarray(width, jnp.int32).reshape(1)


def _index(axis_name: Any) -> Any:
    return 0 if axis_name is None else jax.lax.axis_index(axis_name)


def local(labels: jax.Array, valid: jax.Array, classes: int, part: int, axis_name: Any) -> tuple[jax.Array, jax.Array]:
    """Labels as columns of this device (IGNORE and ELSEWHERE for others), and which rows' are no class at all."""
    inside = valid & (labels >= 0) & (labels < part)
    column = labels - jnp.asarray(_index(axis_name) * classes, labels.dtype)
    mine = inside & (column >= 0) & (column < classes)
    return jnp.where(mine, column, jnp.where(valid, ELSEWHERE, IGNORE)).astype(labels.dtype), valid & ~inside


def add(x: jax.Array, axis_name: Any) -> jax.Array:
    """The sum over the axis, or x where there is none."""
    return x if axis_name is None else jax.lax.psum(x, axis_name)


def largest(value: jax.Array, column: jax.Array, classes: int, axis_name: Any) -> jax.Array:
    """The first class with the largest value, from every part's own largest and its column."""
    if axis_name is None:
        return column
    highest = jax.lax.pmax(value, axis_name)
    mine = column + jnp.asarray(_index(axis_name) * classes, column.dtype)
    last = jnp.iinfo(column.dtype).max
    return jax.lax.pmin(jnp.where(value == highest, mine, last), axis_name)


def combine(
    axis_name: Any, losses: jax.Array, lse: jax.Array, mass: jax.Array, entropy: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Losses, lse and entropy (if its size is not 0) of all classes from those of every part.

    mass: the weight of lse in a part's losses. Of a row that no part has read the loss is 0.
    """
    top, shift, total = _sum(axis_name, lse)
    own = contribution(losses, lse, mass, top, total)
    losses, whole = jax.lax.psum(own, axis_name), whole_lse(shift, total)
    if entropy.size == 0:
        return losses, whole, jnp.zeros_like(losses)
    bare = lse == -jnp.inf
    safe = jnp.where(bare, shift, lse)
    weight = jnp.where(bare, 0, jnp.exp(safe - shift) / jnp.where(total == 0, 1, total))
    entropy = jax.lax.psum(weight * (entropy + _log(total) + (shift - safe)), axis_name)
    return losses, whole, jnp.where(jnp.isinf(top), jnp.nan, entropy)


def parts(axis_name: Any, losses: jax.Array, lse: jax.Array, mass: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """This part's share of the losses (their sum over the axis is the loss), and lse and mass of all classes.

    Without a softmax (the largest score is infinite) the mass of what has one is NaN.
    """
    top, shift, total = _sum(axis_name, lse)
    weights = jax.lax.psum(mass, axis_name)
    weights = jnp.where(jnp.isinf(top) & (weights != 0), jnp.nan, weights)
    return contribution(losses, lse, mass, top, total), whole_lse(shift, total), weights


def first(axis_name: Any) -> jax.Array:
    """Whether this device is the first of the axis."""
    return jnp.asarray(_index(axis_name) == 0)


def _sum(axis_name: Any, lse: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The largest of the parts' lse, that or 0 where it is infinite, and Σ exp(lse - it)."""
    top = jax.lax.pmax(jax.lax.stop_gradient(lse), axis_name)
    shift = jnp.where(jnp.isfinite(top), top, 0)
    return top, shift, jax.lax.psum(jnp.exp(lse - shift), axis_name)


def _log(total: jax.Array) -> jax.Array:
    return jnp.log(jnp.where(total == 0, 1, total))


def whole_lse(shift: jax.Array, total: jax.Array) -> jax.Array:
    """The log-sum-exp of all classes; −inf of a row that no part has read."""
    return jnp.where(total == 0, -jnp.inf, _log(total) + shift)


def contribution(losses: jax.Array, lse: jax.Array, mass: jax.Array, top: jax.Array, total: jax.Array) -> jax.Array:
    """A part's losses with the lse of all classes in place of its own."""
    shift = jnp.where(jnp.isfinite(top), top, 0)
    # log + (shift - lse), not whole - lse: exact where scores are large.
    bare, weightless = lse == -jnp.inf, mass == 0
    away = _log(total) + (shift - jnp.where(bare | weightless, shift, lse))
    # A label whose score is -inf has infinite loss; where the largest score is infinite there is no softmax.
    away = away + jnp.where(bare, jnp.inf, 0)
    away = jnp.where(jnp.isinf(top), jnp.nan, away)
    own = jnp.where(bare & ~weightless, 0, losses)
    return own + jnp.where(weightless, 0, mass * jnp.where(weightless, 0, away))
