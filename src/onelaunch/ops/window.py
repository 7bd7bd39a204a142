"""Windowed reductions, pooling gradients and convolutions, as plain JAX over shifted slices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import reduce as fold
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

from onelaunch.ir.builder import Builder
from onelaunch.ir.nodes import Value
from onelaunch.ops.matmul import tensor_precision
from onelaunch.ops.table import REFUSED, Params, Rule, refuse, retrace, rule

#: windows are written out up to this many elements
UNROLLED = 128
TOO_WIDE = (f"its window has more than {UNROLLED} elements", "It stays in XLA; use cumsum differences or a loop.")

REFUSED["select_and_scatter"] = ("JAX itself only reaches it by tracing internals", "It stays in XLA.")
REFUSED["select_and_gather_add"] = ("the tangent of a max pool has no rule", "Use reverse mode.")

Pairs = Sequence[tuple[int, int]]


def jaxpr_function(closed: core.ClosedJaxpr, rank: int) -> Callable[..., list[jax.Array]]:
    """A scalar jaxpr as a function of arrays of one shape."""
    fun = core.jaxpr_as_fun(closed)
    for _ in range(rank):
        fun = jax.vmap(fun)
    return fun


# --- general reductions --------------------------------------------------------------------------------------


def fold_rows(*operands: jax.Array, body: core.ClosedJaxpr, axes: tuple[int, ...]) -> list[jax.Array]:
    """Reduce over ``axes`` one element at a time by a jaxpr of (accumulators, elements)."""
    half = len(operands) // 2
    xs, inits = operands[:half], operands[half:]
    kept = [d for d in range(xs[0].ndim) if d not in axes]
    shape = tuple(xs[0].shape[d] for d in kept)
    lines = [x.transpose(*axes, *kept).reshape(-1, *shape) for x in xs]
    combine = jaxpr_function(body, len(shape))

    def step(accumulators: list[jax.Array], items: list[jax.Array]) -> tuple[list[jax.Array], None]:
        return list(combine(*accumulators, *items)), None

    return lax.scan(step, [jnp.broadcast_to(i, shape) for i in inits], lines)[0]


NAMED = ("add", "mul", "max", "min", "and", "or", "xor")


def named_monoid(jaxpr: core.Jaxpr) -> str | None:
    """The monoid of a jaxpr that is one primitive of its two operands."""
    if len(jaxpr.eqns) != 1 or len(jaxpr.invars) != 2 or jaxpr.eqns[0].primitive.name not in NAMED:
        return None
    eqn = jaxpr.eqns[0]
    whole = set(eqn.invars) == set(jaxpr.invars) and eqn.outvars == jaxpr.outvars
    return eqn.primitive.name if whole else None


@rule("reduce")
def reduce(b: Builder, params: Params, *operands: Value) -> Sequence[Value]:
    closed, axes = params["jaxpr"], tuple(sorted(params["dimensions"]))
    closed = closed if isinstance(closed, core.ClosedJaxpr) else core.ClosedJaxpr(closed, params["consts"])
    monoid = named_monoid(closed.jaxpr)
    if monoid is not None:
        x, init = operands
        return [b.map(monoid, b.reduce(monoid, x, axes), init)]
    return retrace(b, fold_rows, *operands, body=closed, axes=axes)


# --- windows ---------------------------------------------------------------------------------------------------


def shifted(x: jax.Array, sizes: Sequence[int], strides: Sequence[int], dilation: Sequence[int]) -> Iterator[jax.Array]:
    """For each place in the window, row-major, the element of ``x`` (padded already) there in every window."""
    counts = [(n - (w - 1) * d - 1) // s + 1 for n, w, s, d in zip(x.shape, sizes, strides, dilation, strict=True)]
    for place in itertools.product(*(range(w) for w in sizes)):
        starts = [p * d for p, d in zip(place, dilation, strict=True)]
        limits = [f + (c - 1) * s + 1 for f, c, s in zip(starts, counts, strides, strict=True)]
        yield lax.slice(x, starts, limits, strides)


def pad_with(x: jax.Array, fill: jax.Array, padding: Pairs, dilation: Sequence[int]) -> jax.Array:
    return lax.pad(x, fill, [(lo, hi, d - 1) for (lo, hi), d in zip(padding, dilation, strict=True)])


def window_rows(*operands: jax.Array, combine: Any, rank: int, **how: Any) -> list[jax.Array]:
    """Windowed reduction of several arrays; ``combine`` is a function of two arrays or a closed jaxpr."""
    half = len(operands) // 2
    padded = [
        pad_with(x, i, how["padding"], how["base_dilation"])
        for x, i in zip(operands[:half], operands[half:], strict=True)
    ]
    sizes, strides, dilation = how["window_dimensions"], how["window_strides"], how["window_dilation"]
    join = jaxpr_function(combine, rank) if isinstance(combine, core.ClosedJaxpr) else combine
    places = zip(*(shifted(x, sizes, strides, dilation) for x in padded), strict=True)
    first = next(places)
    start = [jnp.broadcast_to(i, f.shape) for i, f in zip(operands[half:], first, strict=True)]
    joined = list(join(*start, *first))
    for items in places:
        joined = list(join(*joined, *items))
    return joined


def window_params(b: Builder, params: Params) -> Params:
    if math.prod(params["window_dimensions"]) > UNROLLED:
        refuse(b, "reduce_window", *TOO_WIDE)
    names = ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")
    return {name: tuple(params[name]) for name in names}


@rule("reduce_window")
def reduce_window(b: Builder, params: Params, *operands: Value) -> Sequence[Value]:
    closed = params["jaxpr"]
    closed = closed if isinstance(closed, core.ClosedJaxpr) else core.ClosedJaxpr(closed, params["consts"])
    how = window_params(b, params)
    if 0 in params["_out"][0].shape:
        return [b.full(v.shape, 0, np.dtype(v.dtype)) for v in params["_out"]]
    return retrace(b, window_rows, *operands, combine=closed, rank=operands[0].ndim, **how)


def add_pair(x: jax.Array, y: jax.Array) -> list[jax.Array]:
    return [x + y]


def max_pair(x: jax.Array, y: jax.Array) -> list[jax.Array]:
    return [jnp.maximum(x, y)]


def min_pair(x: jax.Array, y: jax.Array) -> list[jax.Array]:
    return [jnp.minimum(x, y)]


def bound(dtype: np.dtype, least: bool) -> Any:
    """The identity of max (``least``) or of min."""
    if jnp.issubdtype(dtype, jnp.floating):
        return -np.inf if least else np.inf
    if np.dtype(dtype).kind == "b":
        return not least
    return jnp.iinfo(dtype).min if least else jnp.iinfo(dtype).max


def windowed(join: Callable[..., Any], least: bool | None) -> Rule:
    def reduce_window_named(b: Builder, params: Params, x: Value) -> Sequence[Value]:
        how = window_params(b, params)
        if 0 in params["_out"][0].shape:
            return [b.full(params["_out"][0].shape, 0, x.dtype)]
        init = b.const(0 if least is None else bound(x.dtype, least), x.dtype)
        return retrace(b, window_rows, x, init, combine=join, rank=x.ndim, **how)

    return reduce_window_named


rule("reduce_window_sum")(windowed(add_pair, None))
rule("reduce_window_max")(windowed(max_pair, True))
rule("reduce_window_min")(windowed(min_pair, False))


def scatter_rows(source: jax.Array, x: jax.Array, *, select: str, sizes: Any, strides: Any, padding: Any) -> jax.Array:
    """Add each element of ``source`` to the place of ``x`` that its window selects (the first of equals)."""
    ones = (1,) * x.ndim
    wins = {"ge": lax.ge, "gt": lax.gt, "le": lax.le, "lt": lax.lt}[select]
    padded = pad_with(x, jnp.zeros((), x.dtype), padding, ones)
    real = pad_with(jnp.ones(x.shape, bool), jnp.zeros((), bool), padding, ones)
    best, winner = jnp.zeros(source.shape, x.dtype), jnp.full(source.shape, -1, jnp.int32)
    places = zip(shifted(padded, sizes, strides, ones), shifted(real, sizes, strides, ones), strict=True)
    for at, (value, inside) in enumerate(places):
        taken = inside & ((winner < 0) | ~wins(best, value))
        best, winner = jnp.where(taken, value, best), jnp.where(taken, at, winner)
    total = jnp.zeros(padded.shape, source.dtype)
    for at, place in enumerate(itertools.product(*(range(w) for w in sizes))):
        part = jnp.where(winner == at, source, jnp.zeros_like(source))
        room = [
            n - p - ((c - 1) * s + 1) for n, p, c, s in zip(padded.shape, place, source.shape, strides, strict=True)
        ]
        config = [(p, r, s - 1) for p, r, s in zip(place, room, strides, strict=True)]
        total = total + lax.pad(part, jnp.zeros((), source.dtype), config)
    starts = [lo for lo, _ in padding]
    return lax.slice(total, starts, [lo + n for lo, n in zip(starts, x.shape, strict=True)])


@rule("select_and_scatter_add")
def select_and_scatter_add(b: Builder, params: Params, source: Value, x: Value) -> Sequence[Value]:
    sizes, strides = tuple(params["window_dimensions"]), tuple(params["window_strides"])
    if math.prod(sizes) > UNROLLED:
        refuse(b, "select_and_scatter_add", *TOO_WIDE)
    padding, select = tuple(map(tuple, params["padding"])), params["select_prim"].name
    return retrace(b, scatter_rows, source, x, select=select, sizes=sizes, strides=strides, padding=padding)


# --- convolution ---------------------------------------------------------------------------------------------


def convolve(
    x: jax.Array, kernel: jax.Array, *, specs: Any, how: Any, groups: int, precision: Any, dtype: Any
) -> jax.Array:
    """A convolution as one dot for each place of the kernel."""
    strides, padding, lhs_dilation, rhs_dilation = how
    x = x.transpose(specs[0])  # batch, channels, space...
    kernel = kernel.transpose(specs[1])  # out channels, in channels of a group, space...
    space = kernel.shape[2:]
    x = pad_with(x, jnp.zeros((), x.dtype), ((0, 0), (0, 0), *padding), (1, 1, *lhs_dilation))
    x = x.reshape(x.shape[0], groups, -1, *x.shape[2:])
    kernel = kernel.reshape(groups, -1, *kernel.shape[1:])
    ones = (1,) * 3
    places = shifted(x, ones + space, ones + tuple(strides), ones + tuple(rhs_dilation))
    terms = []
    for part, place in zip(places, itertools.product(*(range(w) for w in space)), strict=True):
        weights = kernel[(..., *place)]  # groups, out, in
        numbers = (((2,), (2,)), ((1,), (0,)))
        terms.append(lax.dot_general(part, weights, numbers, precision=precision, preferred_element_type=dtype))
    out = fold(jnp.add, terms)  # groups, batch, space..., out
    out = jnp.moveaxis(out, (0, -1), (1, 2))
    out = out.reshape(out.shape[0], -1, *out.shape[3:])
    return out.transpose(np.argsort(specs[2]))


@rule("conv_general_dilated")
def conv_general_dilated(b: Builder, params: Params, x: Value, kernel: Value) -> Sequence[Value]:
    numbers = params["dimension_numbers"]
    space = [kernel.shape[d] for d in numbers.rhs_spec[2:]]
    if params["batch_group_count"] != 1 or math.prod(space) > UNROLLED:
        refuse(b, "conv_general_dilated", "it is too large, or groups its batch", "It stays in XLA.")
    if not math.prod(params["_out"][0].shape) or not x.size or not kernel.size:
        return [b.full(params["_out"][0].shape, 0, np.dtype(params["_out"][0].dtype))]
    how = tuple(
        tuple(map(tuple, v)) if k == "padding" else tuple(v)
        for k, v in ((k, params[k]) for k in ("window_strides", "padding", "lhs_dilation", "rhs_dilation"))
    )
    precision = params["precision"] if tensor_precision(params["precision"]) == "tf32" else None
    specs, groups = (numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec), params["feature_group_count"]
    dtype = np.dtype(params["_out"][0].dtype)
    return retrace(b, convolve, x, kernel, specs=specs, how=how, groups=groups, precision=precision, dtype=dtype)
