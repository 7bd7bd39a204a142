"""softmax, log_softmax and logsumexp: arguments as in jax.nn, and some more."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from onelaunch.emit.kernel import Kernel
from onelaunch.errors import OptionError
from onelaunch.kernels import calls, tiles
from onelaunch.kernels.calls import LOG_SOFTMAX, LOGSUMEXP, SOFTMAX, Scores
from onelaunch.kernels.layout import Rows, broadcast, collapse, contiguous
from onelaunch.nn.primitive import assemble, bind, front, machine, ruled

Axis = int | Sequence[int] | None


def softmax(
    x: Any, axis: Axis = -1, where: Any = None, *, scale: float = 1.0, softcap: float | None = None,
    mask: Any = None, causal_offset: int | None = None,
) -> jax.Array:  # fmt: skip
    """Softmax along ``axis`` of ``softcap * tanh(scale * x / softcap) + mask``, as ``jax.nn.softmax``.

    x: float, any shape; the result has its shape and dtype. where: bool, broadcasts to x; entries that are False get 0,
    also where a whole row is. mask: float, added, broadcasts to x. causal_offset: with ``axis`` the last, query i (of
    the dimension before) sees keys up to i + causal_offset. A row of −inf alone, or with +inf, gives NaN, as in JAX.
    Sums are f32 (f64 for f64). Raises TypeError for other dtypes, OptionError for a causal_offset with another axis.
    """
    return _apply(SOFTMAX, x, axis, where, scale, softcap, mask, causal_offset)


def log_softmax(
    x: Any, axis: Axis = -1, where: Any = None, *, scale: float = 1.0, softcap: float | None = None,
    mask: Any = None, causal_offset: int | None = None,
) -> jax.Array:  # fmt: skip
    """Logarithm of ``softmax``, same arguments; entries left out are −inf."""
    return _apply(LOG_SOFTMAX, x, axis, where, scale, softcap, mask, causal_offset)


def logsumexp(
    a: Any, axis: Axis = None, keepdims: bool = False, where: Any = None, *, scale: float = 1.0,
    softcap: float | None = None, mask: Any = None, causal_offset: int | None = None,
) -> jax.Array:  # fmt: skip
    """log(sum(exp(scores))) along ``axis`` (None: all), as ``jax.nn.logsumexp``; options as in ``softmax``."""
    y = _apply(LOGSUMEXP, a, axis, where, scale, softcap, mask, causal_offset)
    return jnp.expand_dims(y, _axes(axis, jnp.ndim(a))) if keepdims else y


def _axes(axis: Axis, ndim: int) -> tuple[int, ...]:
    axes = range(ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
    if any(not -ndim <= a < ndim for a in axes):
        raise ValueError(f"axis {axis} of an array with {ndim} dimensions")
    found = tuple(sorted(a % ndim for a in axes))
    if len(set(found)) < len(found):
        raise ValueError(f"axis {axis} names an axis twice")
    return found


def _apply(
    mode: int, x: Any, axis: Axis, where: Any, scale: float, cap: float | None, mask: Any, offset: int | None
) -> jax.Array:
    x = jnp.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"softmax of {x.dtype}; it takes floating-point arrays")
    axes = _axes(axis, x.ndim)
    if offset is not None and (x.ndim < 2 or axes != (x.ndim - 1,)):
        raise OptionError("causal_offset needs a last axis of keys after one of queries")
    options = Scores(mode, float(scale), None if cap is None else float(cap), offset)
    mask, keep = _ranked(mask, x), _ranked(where, x)
    keep = None if keep is None else keep.astype(bool)
    if mask is not None and mask.dtype == bool:
        raise TypeError("mask is added to the scores; a bool mask of what takes part is the argument where")
    if len(axes) == 1:
        return _call(options, axes[0], x, mask, keep)
    rest = [a for a in range(x.ndim) if a not in axes]
    order = (*rest, *axes)
    sizes = [x.shape[a] for a in order]
    short = [*sizes[: len(rest)], math.prod(sizes[len(rest) :])]

    def flat(a: Any) -> Any:
        return None if a is None else jnp.broadcast_to(a, x.shape).transpose(order).reshape(short)

    y = _call(options, len(rest), flat(x), flat(mask), flat(keep))
    if mode == LOGSUMEXP:
        return y
    inverse = [order.index(a) for a in range(x.ndim)]
    return y.reshape(sizes).transpose(inverse)


def _ranked(a: Any, x: jax.Array) -> Any:
    """With as many dimensions as ``x``; ValueError where it does not broadcast to it."""
    if a is None:
        return None
    a = jnp.asarray(a)
    fits = a.ndim <= x.ndim and all(n in (1, m) for n, m in zip(a.shape[::-1], x.shape[::-1]))
    if not fits:
        raise ValueError(f"a mask of shape {a.shape} does not broadcast to {x.shape}")
    return a.reshape((1,) * (x.ndim - a.ndim) + a.shape)


def _call(options: Scores, axis: int, x: jax.Array, mask: Any, keep: Any) -> jax.Array:
    if x.size == 0:
        return by_xla(options, axis, x, mask, keep)
    return ruled(_rows, options, axis)(x, mask, keep)


def by_xla(options: Scores, axis: int, x: jax.Array, mask: Any, keep: Any) -> jax.Array:
    """The function in JAX's own operations, differentiable by JAX."""
    z, use = scores(options, x, mask, keep)
    if options.mode == LOGSUMEXP:
        return jax.nn.logsumexp(z, axis, where=use).astype(x.dtype)
    function = jax.nn.softmax if options.mode == SOFTMAX else jax.nn.log_softmax
    return function(z, axis, where=use).astype(x.dtype)


def wide(dtype: Any) -> Any:
    """The dtype in which sums are made: f64 for f64, else f32."""
    return jnp.float64 if dtype == jnp.float64 else jnp.float32


def capped(x: jax.Array, scale: float, cap: float | None) -> jax.Array:
    """``cap * tanh(scale * x / cap)`` in the wide dtype."""
    z = x.astype(wide(x.dtype)) * scale
    return z if cap is None else cap * jnp.tanh(z / cap)


def scores(options: Scores, x: jax.Array, mask: Any, keep: Any) -> tuple[jax.Array, Any]:
    """What softmax is taken of, and which entries take part (None: all)."""
    z = capped(x, options.scale, options.cap)
    z = z if mask is None else z + mask.astype(z.dtype)
    return z, allowed(options, x.shape, keep)


def allowed(options: Scores, shape: tuple[int, ...], keep: Any) -> Any:
    """Which entries of scores of a shape take part (None: all)."""
    if options.offset is not None:
        causal = jnp.arange(shape[-1]) <= jnp.arange(shape[-2])[:, None] + options.offset
        keep = causal if keep is None else keep & causal
    return None if keep is None else jnp.broadcast_to(keep, shape)


# --- the functions behind the primitive ----------------------------------------------------------------------


@dataclass(frozen=True)
class Forward:
    """y from x and, where there are, mask and keep."""

    options: Scores
    axis: int
    names: tuple[str, ...]
    tile: Any

    def by_xla(self, x: jax.Array, mask: Any = None, keep: Any = None) -> list[jax.Array]:
        return [by_xla(self.options, self.axis, x, mask, keep)]

    def kernel(self, shapes: Mapping[str, Any], results: Sequence[Any]) -> Kernel:
        inputs = {name: shapes.get(name) for name in ("x", "mask", "keep")}
        y = results[0]
        full = shapes["x"].shape
        rows = _layout(full, self.axis, [*inputs.values(), y], self.options.mode, (3,))
        queries = full[-2] if len(full) > 1 else 1
        masked = "mask" in shapes or "keep" in shapes
        size = shapes["x"].dtype.itemsize
        call = calls.softmax(rows, self.options, queries, False, size, masked, machine())
        return assemble(call, inputs, {"y": y})

    def batched(self, arrays: Any, dims: Any, size: int) -> list[jax.Array]:
        return bind(dataclasses.replace(self, axis=self.axis + 1), **_moved(self.axis, arrays, dims, size))


@dataclass(frozen=True)
class Backward:
    """dx from y, its cotangent g and what else the mode needs."""

    options: Scores
    axis: int
    names: tuple[str, ...]
    tile: Any

    def by_xla(self, y: jax.Array, g: jax.Array, x: Any = None, mask: Any = None, keep: Any = None) -> list[jax.Array]:
        options, axis = self.options, self.axis
        kind = wide(y.dtype)
        out, up = y.astype(kind), g.astype(kind)
        use = allowed(options, y.shape if x is None else x.shape, keep)
        if options.mode == LOGSUMEXP:
            z, _ = scores(options, x, mask, keep)
            dz = jnp.expand_dims(up, axis) * jnp.exp(z - jnp.expand_dims(out, axis))
        else:
            up = up if use is None else jnp.where(use, up, 0)
            if options.mode == LOG_SOFTMAX:
                dz = up - jnp.exp(out) * up.sum(axis, keepdims=True)
            else:
                dz = out * (up - (up * out).sum(axis, keepdims=True))
        dz = dz * options.scale
        if options.cap is not None:
            dz = dz * (1 - (capped(x, options.scale, options.cap) / options.cap) ** 2)
        return [(dz if use is None else jnp.where(use, dz, 0)).astype(y.dtype)]

    def kernel(self, shapes: Mapping[str, Any], results: Sequence[Any]) -> Kernel:
        inputs = {name: shapes.get(name) for name in ("y", "g", "x", "mask", "keep")}
        full = results[0].shape
        rows = _layout(full, self.axis, [*inputs.values(), results[0]], self.options.mode, (0, 1))
        queries = full[-2] if len(full) > 1 else 1
        size = shapes["y"].dtype.itemsize
        call = calls.softmax(rows, self.options, queries, True, size, "keep" in shapes, machine())
        return assemble(call, inputs, {"dx": results[0]})

    def batched(self, arrays: Any, dims: Any, size: int) -> list[jax.Array]:
        return bind(dataclasses.replace(self, axis=self.axis + 1), **_moved(self.axis, arrays, dims, size))


def _moved(axis: int, arrays: Mapping[str, jax.Array], dims: Any, size: int) -> dict[str, jax.Array]:
    """The batch dimension first in every array; masks that lack it broadcast, written out where need be."""
    moved = {n: front(a, dims[n], size, n in "xyg") for n, a in arrays.items()}
    like = moved["x"] if "x" in moved else moved["y"]
    masks = _settled(axis + 1, like, moved.get("mask"), moved.get("keep"))
    return moved | {n: a for n, a in zip(("mask", "keep"), masks) if a is not None}


def _layout(full: tuple[int, ...], axis: int, arrays: Sequence[Any], mode: int, reduced: tuple[int, ...]) -> Rows:
    """Rows of row-major arrays; those numbered ``reduced`` have no column dimension under logsumexp."""
    strides = []
    for number, a in enumerate(arrays):
        if a is None:
            strides.append((0,) * len(full))
        elif mode == LOGSUMEXP and number in reduced:
            strides.append((*contiguous(a.shape)[:axis], 0, *contiguous(a.shape)[axis:]))
        else:
            strides.append(broadcast(a.shape, full))
    rows = collapse(full, axis, strides)
    assert rows is not None, "masks are settled before"
    return rows


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _rows(options: Scores, axis: int, x: jax.Array, mask: Any, keep: Any) -> jax.Array:
    return _forward(options, axis, x, mask, keep)


def _forward(options: Scores, axis: int, x: jax.Array, mask: Any, keep: Any) -> jax.Array:
    mask, keep = _settled(axis, x, mask, keep)
    names = _present(x=x, mask=mask, keep=keep)
    y: jax.Array = bind(Forward(options, axis, names, tiles.current()), x=x, mask=mask, keep=keep)[0]
    return y


def _present(**arrays: Any) -> tuple[str, ...]:
    return tuple(name for name, a in arrays.items() if a is not None)


def _settled(axis: int, x: jax.Array, mask: Any, keep: Any) -> tuple[Any, Any]:
    """The masks, written out where three row dimensions do not describe how they broadcast."""
    strides = [(0,) * x.ndim if a is None else broadcast(a.shape, x.shape) for a in (x, mask, keep)]
    if collapse(x.shape, axis, strides) is not None:
        return mask, keep
    mask, keep = (None if a is None else jnp.broadcast_to(a, x.shape) for a in (mask, keep))
    return mask, keep


def _fwd(options: Scores, axis: int, x: Any, mask: Any, keep: Any) -> tuple[jax.Array, Any]:
    masks = None if mask is None else mask.value
    keeps = None if keep is None else keep.value
    y = _forward(options, axis, x.value, masks, keeps)
    wanted = mask is not None and mask.perturbed
    needs_x = options.mode == LOGSUMEXP or options.cap is not None or wanted
    return y, (y, x.value if needs_x else None, masks, keeps, jnp.zeros(()) if wanted else None)


def _bwd(options: Scores, axis: int, saved: Any, g: Any) -> tuple[Any, ...]:
    y, x, mask, keep, wanted = saved
    g = jnp.zeros_like(y) if type(g) is jax.custom_derivatives.SymbolicZero else g
    needs_x = options.mode == LOGSUMEXP or options.cap is not None
    needs_mask = options.mode == LOGSUMEXP
    like = y if x is None else x  # logsumexp has x
    mask_, keep_ = _settled(axis, like, mask, keep)
    given = {"y": y, "g": g, "x": x if needs_x else None, "mask": mask_ if needs_mask else None, "keep": keep_}
    dx = bind(Backward(options, axis, _present(**given), tiles.current()), **given)[0]
    dmask = None
    if wanted is not None:
        dmask = jax.vjp(lambda m: by_xla(options, axis, x, m, keep), mask)[1](g)[0]
    return dx, dmask, None


_rows.defvjp(_fwd, _bwd, symbolic_zeros=True)
