"""Element-wise primitives: every row of ``ir.scalars`` that is a primitive, and those whose parameters matter."""

from __future__ import annotations

import jax
import numpy as np

from onelaunch.ir.builder import Builder
from onelaunch.ir.nodes import Value
from onelaunch.ir.scalars import SCALARS
from onelaunch.ir.types import TRITON_NAMES, is_bool
from onelaunch.ops.table import Params, Rule, rule
from onelaunch.ops.words import key_shape

INT32 = np.dtype("int32")


def of_row(name: str) -> Rule:
    """The rule of a primitive that is a row and nothing else."""

    def apply(b: Builder, params: Params, *args: Value) -> tuple[Value, ...]:
        return b.maps(name, args, [key_shape(aval)[1] for aval in params["_out"]])

    return apply


for scalar in SCALARS.values():
    for prim in scalar.prims:
        if prim != "digamma":
            rule(prim)(of_row(scalar.name))


@rule("digamma")
def digamma(b: Builder, params: Params, x: Value) -> Value:
    """The row, but JAX gives -inf at 0 since 0.11, and NaN before."""
    result = b.map("digamma", x)
    if jax.__version_info__ < (0, 11):
        return result
    pole = b.map("eq", x, b.const(0, x.dtype), dtype=np.dtype(bool))
    return b.map("select", pole, b.const(-np.inf, x.dtype), result, dtype=x.dtype)


@rule("convert_element_type")
def convert_element_type(b: Builder, params: Params, x: Value) -> Value:
    return b.cast(x, np.dtype(params["new_dtype"]))


@rule("pow")
def power(b: Builder, params: Params, x: Value, y: Value) -> Value:
    return b.map("pow", x, b.cast(y, x.dtype))


@rule("integer_pow")
def integer_pow(b: Builder, params: Params, x: Value) -> Value:
    """Repeated squaring; a negative exponent inverts the power."""
    n = abs(params["y"])
    if n == 0:
        return b.full(x.shape, 1, x.dtype)
    result, factor = None, x
    while n:
        if n & 1:
            result = factor if result is None else b.map("mul", result, factor)
        n >>= 1
        if n:
            factor = b.map("square", factor)
    assert result is not None
    return b.map("div", b.const(1, x.dtype), result) if params["y"] < 0 else result


@rule("log2")
def log2(b: Builder, params: Params, x: Value) -> Value:
    """As JAX lowers it: the natural logarithm over log 2."""
    return b.map("mul", b.map("log", x), b.const(1.4426950408889634, x.dtype))


@rule("one_minus_square")
def one_minus_square(b: Builder, params: Params, x: Value) -> Value:
    """(1 + x) (1 - x): exact where x is near 1."""
    one = b.const(1, x.dtype)
    return b.map("mul", b.map("add", one, x), b.map("sub", one, x))


@rule("polynomial")
def polynomial(b: Builder, params: Params, x: Value, *coefficients: Value) -> Value:
    """Horner's rule; of more terms than it unrolls, JAX starts at zero (infinite x shows it)."""
    *lower, result = coefficients
    unroll = params.get("unroll")
    if len(coefficients) > (8 if unroll is None else unroll):
        lower, result = [*coefficients], b.const(0, x.dtype)
    for c in reversed(lower):
        result = b.map("add", b.map("mul", result, x), c)
    return result


@rule("select_n")
def select_n(b: Builder, params: Params, which: Value, *cases: Value) -> Value:
    """cases[which], for a bool or an integer selector inside its range."""
    if len(cases) == 1:
        return cases[0]
    if is_bool(which.dtype):
        return b.map("select", which, cases[1], cases[0], dtype=cases[0].dtype)
    result = cases[-1]
    for i in reversed(range(len(cases) - 1)):
        here = b.map("eq" if i else "le", which, b.const(i, which.dtype), dtype=np.dtype(bool))
        result = b.map("select", here, cases[i], result, dtype=result.dtype)
    return result


@rule("round")
def round_(b: Builder, params: Params, x: Value) -> Value:
    """Halves away from zero (0) or to even (1)."""
    return b.map("round_even" if int(params["rounding_method"]) == 1 else "round_away", x)


@rule("reduce_precision")
def reduce_precision(b: Builder, params: Params, x: Value) -> Value:
    bits = [b.const(params[name], INT32) for name in ("exponent_bits", "mantissa_bits")]
    return b.map("reduce_precision", x, *bits)


def bitcast(b: Builder, x: Value, dtype: np.dtype) -> Value:
    """The same bits as another dtype of the same width."""
    return x if x.dtype == dtype else b.map(f"bitcast_{TRITON_NAMES[dtype]}", x, dtype=dtype)


def unsigned(size: int) -> np.dtype:
    return np.dtype(f"uint{8 * size}")


@rule("bitcast_convert_type")
def bitcast_convert_type(b: Builder, params: Params, x: Value) -> Value:
    """Between widths the smaller elements lie along a trailing dim, lowest bits first."""
    dtype = np.dtype(params["new_dtype"])
    old, new = unsigned(x.dtype.itemsize), unsigned(dtype.itemsize)
    if old == new:
        return bitcast(b, x, dtype)
    if is_bool(x.dtype) or is_bool(dtype):
        return b.cast(x, dtype)
    bits = bitcast(b, x, old)
    if new.itemsize < old.itemsize:
        return bitcast(b, split_words(b, bits, new), dtype)
    return bitcast(b, join_words(b, bits, new), dtype)


def split_words(b: Builder, x: Value, small: np.dtype) -> Value:
    """x as words of ``small``, along a new last dim."""
    count = x.dtype.itemsize // small.itemsize
    words = []
    for i in range(count):
        shift = b.const(8 * small.itemsize * i, x.dtype)
        word = b.cast(b.map("shift_right_logical", x, shift), small)
        words.append(b.reshape(word, (*x.shape, 1)))
    return b.concatenate(words, x.ndim)


def join_words(b: Builder, x: Value, large: np.dtype) -> Value:
    """The words of the last dim as one value of ``large``."""
    count, width = x.shape[-1], 8 * x.dtype.itemsize
    result = None
    for i in range(count):
        starts, limits = [0] * x.ndim, list(x.shape)
        starts[-1], limits[-1] = i, i + 1
        word = b.cast(b.reshape(b.slice(x, starts, limits), x.shape[:-1]), large)
        word = b.map("shift_left", word, b.const(width * i, large)) if i else word
        result = word if result is None else b.map("or", result, word)
    assert result is not None
    return result
