"""The scalar functions that a Map may apply: numpy meaning, Triton text, and the JAX primitive they implement.

Adding an element-wise primitive is one row here and one row in ``tests/scalar_cases.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.special as special  # type: ignore[import-untyped]

from onelaunch.ir import incomplete
from onelaunch.ir.numeric import (
    bessel_i1e,
    cast,
    clz,
    digamma,
    divide,
    erf_inv,
    halves,
    lgamma,
    maximum,
    minimum,
    mul_high,
    nextafter,
    order_key,
    population_count,
    quiet,
    reduce_precision,
    remainder,
    round_away,
    shift_left,
    shift_right_arithmetic,
    shift_right_logical,
    sign,
    threefry2x32,
    wide,
)
from onelaunch.ir.types import BFLOAT16, TRITON_NAMES, is_bool, is_float, is_unsigned

#: Triton text of a row: a template over ``{0}``, ``{1}``...; or a function giving one, of the dtypes of the operands
#: followed by the dtype of the (first) output.
Template = str | Callable[[tuple[np.dtype, ...]], str]


@dataclass(frozen=True)
class Scalar:
    """One row.

    numpy: the exact meaning, vectorised: arrays in, array (or tuple of arrays) out, dtypes as the Map says. ``cast``
        alone takes the output dtype as a second argument. 16-bit floats are welcome: they are computed in f32.
    triton: text of the Triton expression. Names it calls (``tanh(...)``) are functions of ``onelaunch.device``.
        Operands are atoms (names or calls); the result is not in parentheses. Several outputs come as a tuple.
    result: "same" (dtype of the first operand), "bool", or "out" (the Map's output dtype decides; ``{out}`` in the
        template is its Triton name).
    half: "f32" if 16-bit floats are computed in f32 and rounded once (as XLA does), "native" if the operation is
        exact in any dtype and its text takes 16-bit floats as they are (moves, casts).
    prims: JAX primitives that are exactly this function of their operands, with no parameter that matters.
    outs: number of outputs.
    """

    name: str
    numpy: Callable[..., object]
    triton: Template
    result: str = "same"
    half: str = "f32"
    prims: tuple[str, ...] = ()
    outs: int = 1


SCALARS: dict[str, Scalar] = {}


def row(name: str, numpy: Callable[..., object], triton: Template, **kw: object) -> None:
    """Add one row to the table."""
    assert name not in SCALARS, name
    SCALARS[name] = Scalar(name, numpy, triton, **kw)  # type: ignore[arg-type]


def text(name: str, operands: Sequence[str], dtypes: Sequence[np.dtype], out: np.dtype) -> str:
    """The Triton expression of a row on ``operands`` (atoms); under an "f32" row 16-bit floats are f32 already."""
    template = SCALARS[name].triton
    if callable(template):
        template = template((*dtypes, out))
    return template.format(*operands, out=f"tl.{TRITON_NAMES[out]}")


# --- which text a dtype takes -----------------------------------------------------------------------------------------


def by_kind(
    real: Template, integer: Template, boolean: Template | None = None, unsigned: Template | None = None
) -> Template:
    """A template that depends on the kind of the first operand: float, integer, bool, unsigned."""

    def choose(dtypes: tuple[np.dtype, ...]) -> str:
        first = dtypes[0]
        found = real if is_float(first) else integer
        if is_bool(first) and boolean is not None:
            found = boolean
        if is_unsigned(first) and unsigned is not None:
            found = unsigned
        return found(dtypes) if callable(found) else found

    return choose


def divide_text(dtypes: tuple[np.dtype, ...]) -> str:
    return "{0} / {1}" if dtypes[0].itemsize == 8 else "tl.div_rn({0}, {1})"


def cast_text(dtypes: tuple[np.dtype, ...]) -> str:
    """16-bit floats go through f32, floats become integers by ``to_int``."""
    source, out = dtypes
    x = "{0}.to(tl.float32)" if is_float(source) and source.itemsize == 2 else "{0}"
    if is_bool(out):
        return "{0}" if is_bool(source) else f"{x} != 0"
    if is_float(source) and not is_float(out):
        return f"to_int({x}, {{out}})"
    if is_float(out) and out.itemsize == 2 and x == "{0}" and source != np.float32:
        return "{0}.to(tl.float32).to({out})"
    return f"{x}.to({{out}})" if out != np.float32 or x == "{0}" else x


def all_bits_text(dtypes: tuple[np.dtype, ...]) -> str:
    """``~`` of an unsigned integer, which the interpreter of Triton 3.6 refuses."""
    return f"{{0}} ^ 0x{'FF' * dtypes[0].itemsize}"


def nextafter_text(dtypes: tuple[np.dtype, ...]) -> str:
    if dtypes[0] == BFLOAT16:
        return "nextafter_bfloat16({0}.to(tl.float32), {1}.to(tl.float32))"
    return "nextafter({0}, {1})"


# --- arithmetic -------------------------------------------------------------------------------------------------------

row("identity", lambda x: x, "{0}", half="native")
row("add", halves(np.add), by_kind("{0} + {1}", "{0} + {1}", "{0} | {1}"), prims=("add", "add_any"))
row("sub", halves(np.subtract), by_kind("{0} - {1}", "{0} - {1}", "{0} ^ {1}"), prims=("sub",))
row("mul", halves(np.multiply), by_kind("{0} * {1}", "{0} * {1}", "{0} & {1}"), prims=("mul",))
row("div", halves(divide), by_kind(divide_text, "int_div({0}, {1})"), prims=("div",))
row("rem", halves(remainder), by_kind("fmod({0}, {1})", "int_rem({0}, {1})"), prims=("rem",))
row("neg", halves(np.negative), by_kind("{0} * -1.0", "-{0}", unsigned="0 - {0}"), prims=("neg",))
row("abs", halves(np.abs), by_kind("tl.abs({0})", "tl.abs({0})", "{0}", "{0}"), prims=("abs",))
row("sign", halves(sign), by_kind("sign({0})", "int_sign({0})", "{0}", "({0} != 0).to({out})"), prims=("sign",))
row("max", halves(maximum), by_kind("maximum({0}, {1})", "tl.maximum({0}, {1})", "{0} | {1}"), prims=("max",))
row("min", halves(minimum), by_kind("minimum({0}, {1})", "tl.minimum({0}, {1})", "{0} & {1}"), prims=("min",))
row("square", halves(np.square), "{0} * {0}", prims=("square",))
row("mul_high", mul_high, "mul_high({0}, {1})", prims=("mulhi",))
row(
    "clamp",
    halves(lambda low, x, high: minimum(maximum(x, low), high)),
    by_kind("minimum(maximum({1}, {0}), {2})", "tl.minimum(tl.maximum({1}, {0}), {2})", "({1} | {0}) & {2}"),
    prims=("clamp",),
)

# --- rounding and the shape of floats --------------------------------------------------------------------------------

row("floor", halves(np.floor), "tl.floor({0})", prims=("floor",))
row("ceil", halves(np.ceil), "tl.ceil({0})", prims=("ceil",))
row("round_even", halves(np.rint), "round_even({0})")
row("round_away", halves(round_away), "round_away({0})")
row("is_finite", quiet(np.isfinite), "is_finite({0})", result="bool", prims=("is_finite",))
row("nextafter", quiet(nextafter), nextafter_text, half="native", prims=("nextafter",))
row("reduce_precision", quiet(reduce_precision), "reduce_precision({0}, {1}, {2})", half="native")

# --- comparisons ------------------------------------------------------------------------------------------------------

row("eq", quiet(np.equal), by_kind("{0} == {1}", "{0} == {1}", "({0} ^ {1}) == 0"), result="bool", prims=("eq",))
row("ne", quiet(np.not_equal), by_kind("{0} != {1}", "{0} != {1}", "{0} ^ {1}"), result="bool", prims=("ne",))
row("lt", quiet(np.less), by_kind("{0} < {1}", "{0} < {1}", "({0} == 0) & {1}"), result="bool", prims=("lt",))
row("le", quiet(np.less_equal), by_kind("{0} <= {1}", "{0} <= {1}", "({0} == 0) | {1}"), result="bool", prims=("le",))
row("gt", quiet(np.greater), by_kind("{0} > {1}", "{0} > {1}", "{0} & ({1} == 0)"), result="bool", prims=("gt",))
row(
    "ge", quiet(np.greater_equal), by_kind("{0} >= {1}", "{0} >= {1}", "{0} | ({1} == 0)"), result="bool", prims=("ge",)
)
for name, compare, sign_text in (("eq_to", np.equal, "=="), ("lt_to", np.less, "<"), ("le_to", np.less_equal, "<=")):
    row(
        name,
        lambda x, y, compare=compare: compare(order_key(x), order_key(y)),
        by_kind(f"order_key({{0}}) {sign_text} order_key({{1}})", SCALARS[name[:2]].triton, SCALARS[name[:2]].triton),
        result="bool",
        prims=(name,),
    )

# --- logic and bits ---------------------------------------------------------------------------------------------------

row("and", np.bitwise_and, "{0} & {1}", prims=("and",))
row("or", np.bitwise_or, "{0} | {1}", prims=("or",))
row("xor", np.bitwise_xor, "{0} ^ {1}", prims=("xor",))
row("not", np.invert, by_kind("~{0}", "~{0}", "{0} == 0", all_bits_text), prims=("not",))
row("shift_left", shift_left, "shift_left({0}, {1})", prims=("shift_left",))
row("shift_right_logical", shift_right_logical, "shift_right_logical({0}, {1})", prims=("shift_right_logical",))
row(
    "shift_right_arithmetic",
    shift_right_arithmetic,
    "shift_right_arithmetic({0}, {1})",
    prims=("shift_right_arithmetic",),
)
row("population_count", population_count, "population_count({0})", prims=("population_count",))
row("clz", clz, "clz({0})", prims=("clz",))
row("threefry2x32", threefry2x32, "threefry2x32({0}, {1}, {2}, {3})", prims=("threefry2x32",), outs=2)

# --- choice and conversion --------------------------------------------------------------------------------------------

row("select", np.where, "tl.where({0}, {1}, {2})", result="out", half="native")
row("cast", cast, cast_text, result="out", half="native")
for dtype, triton_name in TRITON_NAMES.items():
    if not is_bool(dtype):
        row(
            f"bitcast_{triton_name}",
            lambda x, dtype=dtype: x.view(dtype),
            "{0}.to({out}, bitcast=True)",
            result="out",
            half="native",
        )

# --- functions of floats ----------------------------------------------------------------------------------------------

for name, meaning in {
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "cbrt": np.cbrt,
    "logistic": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "erf": special.erf,
    "erfc": special.erfc,
    "lgamma": lgamma,
    "digamma": digamma,
    "bessel_i0e": special.i0e,
    "bessel_i1e": bessel_i1e,
}.items():
    row(name, wide(meaning), f"{name}({{0}})", prims=(name,))

row("erf_inv", halves(erf_inv), "erf_inv({0})", prims=("erf_inv",))
row("pow", wide(np.power), "power({0}, {1})")
row("atan2", wide(np.arctan2), "atan2({0}, {1})", prims=("atan2",))
row("logaddexp", wide(np.logaddexp), "logaddexp({0}, {1})", prims=("logaddexp",))
row("igamma", wide(special.gammainc), "igamma({0}, {1})", prims=("igamma",))
row("igammac", wide(special.gammaincc), "igammac({0}, {1})", prims=("igammac",))
row("igamma_grad_a", wide(incomplete.igamma_grad_a), "igamma_grad_a({0}, {1})", prims=("igamma_grad_a",))
row(
    "random_gamma_grad", wide(incomplete.random_gamma_grad), "random_gamma_grad({0}, {1})", prims=("random_gamma_grad",)
)
row("betainc", wide(special.betainc), "betainc({0}, {1}, {2})", prims=("regularized_incomplete_beta",))
row("zeta", wide(incomplete.zeta), "zeta({0}, {1})", prims=("zeta",))
row("polygamma", wide(incomplete.polygamma), "polygamma({0}, {1})", prims=("polygamma",))
