"""Complex numbers: pairs of real arrays, in plain JAX traced again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from onelaunch.ir.builder import Builder
from onelaunch.ir.nodes import Value
from onelaunch.ops import control, foreign, shape
from onelaunch.ops.table import COMPLEX, RULES, Params, over_words, retrace
from onelaunch.ops.words import is_complex

Pair = tuple[jax.Array, jax.Array]
Function = Callable[..., Any]

#: primitive -> function of its parameters and operands, where a complex operand is a pair (real part, imaginary part)
FUNCTIONS: dict[str, Function] = {}

#: primitives that do the same to either part
PARTWISE = ["add", "sub", "neg", "add_any", "reduce_sum", "cumsum", "pad", "scatter-add", "scatter-sub"]
#: rules that hand values on, whatever they are
WHOLE = (
    *(control.call, control.scan, control.while_, control.cond),
    *(shape.identity, shape.empty, foreign.call_hi_primitive),
)


def function(*names: str) -> Callable[[Function], Function]:
    def register(fn: Function) -> Function:
        FUNCTIONS.update(dict.fromkeys(names, fn))
        return fn

    return register


def simple(name: str, fn: Callable[..., Any]) -> None:
    """A function without parameters."""
    FUNCTIONS[name] = lambda params, *xs: fn(*xs)


def partwise(b: Builder, params: Params, *args: Value) -> list[Value]:
    return over_words(b, params["_eqn"], list(args))


def pairwise(b: Builder, params: Params, *args: Value) -> list[Value]:
    return retrace(b, on_pairs, *args, eqn=params["_eqn"])


def on_pairs(*xs: jax.Array, eqn: core.JaxprEqn) -> list[jax.Array]:
    """A function of pairs on the words of complex operands."""
    operands = [(x[..., 0], x[..., 1]) if is_complex(v.aval) else x for x, v in zip(xs, eqn.invars, strict=True)]
    out = FUNCTIONS[eqn.primitive.name](eqn.params, *operands)
    aval: Any = eqn.outvars[0].aval
    return [jnp.stack([jnp.broadcast_to(p, aval.shape) for p in out], axis=-1) if isinstance(out, tuple) else out]


# --- arithmetic ------------------------------------------------------------------------------------------------


def multiply(x: Pair, y: Pair) -> Pair:
    return x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]


def divide(x: Pair, y: Pair) -> Pair:
    """By the larger part of the divisor first (Smith's method), so that nothing overflows too early."""
    flat = jnp.abs(y[0]) >= jnp.abs(y[1])
    large, small = jnp.where(flat, y[0], y[1]), jnp.where(flat, y[1], y[0])
    ratio = small / large
    scale = large + small * ratio
    real = jnp.where(flat, x[0] + x[1] * ratio, x[0] * ratio + x[1])
    imag = jnp.where(flat, x[1] - x[0] * ratio, x[1] * ratio - x[0])
    return real / scale, imag / scale


def magnitude(x: Pair) -> jax.Array:
    """|x| without overflow."""
    large = jnp.maximum(jnp.abs(x[0]), jnp.abs(x[1]))
    small = jnp.minimum(jnp.abs(x[0]), jnp.abs(x[1]))
    ratio = small / jnp.where(large == 0, jnp.ones_like(large), large)
    return jnp.where(jnp.isinf(large), large, large * jnp.sqrt(1 + ratio * ratio))


def exponential(x: Pair) -> Pair:
    scale = jnp.exp(x[0])
    return scale * jnp.cos(x[1]), scale * jnp.sin(x[1])


def logarithm(x: Pair) -> Pair:
    return jnp.log(magnitude(x)), jnp.arctan2(x[1], x[0])


def root(x: Pair) -> Pair:
    """The square root with the non-negative real part."""
    half = jnp.sqrt((magnitude(x) + jnp.abs(x[0])) / 2)
    other = jnp.abs(x[1]) / (2 * jnp.where(half == 0, jnp.ones_like(half), half))
    right = x[0] >= 0
    return jnp.where(right, half, other), jnp.where(x[1] < 0, -1, 1) * jnp.where(right, other, half)


def power(x: Pair, y: Pair | jax.Array) -> Pair:
    exponent = y if isinstance(y, tuple) else (y.astype(x[0].dtype), jnp.zeros_like(x[0]))
    return exponential(multiply(logarithm(x), exponent))


def hyperbolic_tangent(x: Pair) -> Pair:
    scale = jnp.cosh(2 * x[0]) + jnp.cos(2 * x[1])
    return jnp.sinh(2 * x[0]) / scale, jnp.sin(2 * x[1]) / scale


def sign(x: Pair) -> Pair:
    size = magnitude(x)
    safe = jnp.where(size == 0, jnp.ones_like(size), size)
    return x[0] / safe, x[1] / safe


simple("mul", multiply)
simple("div", divide)
simple("square", lambda x: multiply(x, x))
simple("abs", magnitude)
simple("real", lambda x: x[0])
simple("imag", lambda x: x[1])
simple("complex", lambda re, im: (re, im))
simple("exp", exponential)
simple("log", logarithm)
simple("sqrt", root)
simple("rsqrt", lambda x: divide((jnp.ones_like(x[0]), jnp.zeros_like(x[0])), root(x)))
simple("pow", power)
simple("sign", sign)
simple("sin", lambda x: (jnp.sin(x[0]) * jnp.cosh(x[1]), jnp.cos(x[0]) * jnp.sinh(x[1])))
simple("cos", lambda x: (jnp.cos(x[0]) * jnp.cosh(x[1]), -jnp.sin(x[0]) * jnp.sinh(x[1])))
simple("sinh", lambda x: (jnp.sinh(x[0]) * jnp.cos(x[1]), jnp.cosh(x[0]) * jnp.sin(x[1])))
simple("cosh", lambda x: (jnp.cosh(x[0]) * jnp.cos(x[1]), jnp.sinh(x[0]) * jnp.sin(x[1])))
simple("tanh", hyperbolic_tangent)
simple("eq", lambda x, y: (x[0] == y[0]) & (x[1] == y[1]))
simple("ne", lambda x, y: (x[0] != y[0]) | (x[1] != y[1]))
simple("is_finite", lambda x: jnp.isfinite(x[0]) & jnp.isfinite(x[1]))


@function("conj")
def conjugate(params: Params, x: Pair | jax.Array) -> Pair:
    return (x[0], -x[1]) if isinstance(x, tuple) else (x, jnp.zeros_like(x))


@function("integer_pow")
def integer_power(params: Params, x: Pair) -> Pair:
    result, n = (jnp.ones_like(x[0]), jnp.zeros_like(x[0])), abs(params["y"])
    for bit in reversed(range(n.bit_length())):
        result = multiply(result, result)
        result = multiply(result, x) if n >> bit & 1 else result
    return divide((jnp.ones_like(x[0]), jnp.zeros_like(x[0])), result) if params["y"] < 0 else result


@function("convert_element_type")
def convert(params: Params, x: Pair | jax.Array) -> Any:
    dtype = jnp.dtype(params["new_dtype"])
    if dtype.kind != "c":
        return x[0].astype(dtype)
    part = jnp.finfo(dtype).dtype
    pair = x if isinstance(x, tuple) else (x, jnp.zeros(x.shape, part))
    return pair[0].astype(part), pair[1].astype(part)


@function("one_minus_square")
def one_minus_square(params: Params, x: Pair) -> Pair:
    return multiply((1 + x[0], x[1]), (1 - x[0], -x[1]))


@function("log2")
def logarithm_to_2(params: Params, x: Pair) -> Pair:
    real, imag = logarithm(x)
    return real * 1.4426950408889634, imag * 1.4426950408889634


@function("polynomial")
def polynomial(params: Params, x: Pair, *coefficients: Pair) -> Pair:
    """Horner's rule."""
    real, imag = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        real, imag = multiply((real, imag), x)
        real, imag = real + c[0], imag + c[1]
    return real, imag


@function("dot_general")
def dot_general(params: Params, x: Pair | jax.Array, y: Pair | jax.Array) -> Pair:
    """Products of the parts."""

    def dot(a: jax.Array, b: jax.Array) -> jax.Array:
        return lax.dot_general(a, b, params["dimension_numbers"], precision=params["precision"])

    xs = x if isinstance(x, tuple) else (x, jnp.zeros_like(x))
    ys = y if isinstance(y, tuple) else (y, jnp.zeros_like(y))
    return dot(xs[0], ys[0]) - dot(xs[1], ys[1]), dot(xs[0], ys[1]) + dot(xs[1], ys[0])


@function("reduce_prod")
def product(params: Params, x: Pair) -> Pair:
    """One element after the other."""
    axes = tuple(params["axes"])
    kept = [d for d in range(x[0].ndim) if d not in axes]
    shape = [x[0].shape[d] for d in kept]
    parts = tuple(p.transpose(*axes, *kept).reshape(-1, *shape) for p in x)
    result = (jnp.ones(shape, x[0].dtype), jnp.zeros(shape, x[0].dtype))
    for i in range(parts[0].shape[0]):
        result = multiply(result, (parts[0][i], parts[1][i]))
    return result


COMPLEX.update({name: fn for name, fn in RULES.items() if fn in WHOLE})
COMPLEX.update(dict.fromkeys(PARTWISE, partwise))
COMPLEX.update(dict.fromkeys(FUNCTIONS, pairwise))
