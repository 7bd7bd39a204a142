"""Rows: element-wise functions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from rows.row import Row, f32, i32, integers, normal, row

BF16 = ml_dtypes.bfloat16
INF, NAN = np.inf, np.nan

#: zeros of both signs, infinities, NaN, a denormal, the ends of the range; 17 elements
EDGES = f32(0, -0.0, 1, -1, 0.5, -2.5, 3.75, 1e-3, 80, -80, INF, -INF, NAN, 1e-37, 1e30, -1e30, 16777216)
SMALL = f32(0, -0.0, 1, -1, 0.5, -2.5, 3.75, 1e-3, -7.25, INF, -INF, NAN, 1e-6)
UNIT = f32(0, -0.0, 1, -1, 0.5, -0.25, 0.999, -0.999, 1e-4, NAN, 1e-10)
POSITIVE = f32(0, 0.5, 1, 1.5, 2, 3.75, 10, 1e-3, 30, INF, NAN)
WHOLE = i32(0, 1, -1, 2, -7, 100, 2**31 - 1, -(2**31), 12345, -54321, 31, 33, 64)
TRUTH = np.asarray([True, False, True, True, False, False, True])

#: name -> (function, inputs)
UNARY: dict[str, tuple[Any, np.ndarray]] = {
    "abs": (lax.abs, EDGES),
    "acos": (lax.acos, UNIT),
    "acosh": (lax.acosh, f32(1, 1.5, 2, 10, 1e5, INF, NAN, 0.5)),
    "asin": (lax.asin, UNIT),
    "asinh": (lax.asinh, SMALL),
    "atan": (lax.atan, EDGES),
    "atanh": (lax.atanh, UNIT),
    "bessel_i0e": (lax.bessel_i0e, SMALL[:9]),
    "bessel_i1e": (lax.bessel_i1e, SMALL[:9]),
    "cbrt": (lax.cbrt, SMALL),
    "ceil": (lax.ceil, EDGES),
    "cos": (lax.cos, SMALL),
    "cosh": (lax.cosh, SMALL),
    "digamma": (lax.digamma, POSITIVE[1:9]),
    "erf": (lax.erf, SMALL),
    "erf_inv": (lax.erf_inv, UNIT),
    "erfc": (lax.erfc, SMALL),
    "exp": (lax.exp, EDGES),
    "exp2": (lax.exp2, SMALL),
    "expm1": (lax.expm1, EDGES),
    "floor": (lax.floor, EDGES),
    "is_finite": (lax.is_finite, EDGES),
    "lgamma": (lax.lgamma, POSITIVE),
    "log": (lax.log, EDGES),
    "log1p": (lax.log1p, f32(0, -0.0, 1, -1, 0.5, -0.999, 1e-10, 1e10, INF, NAN, -2)),
    "logistic": (lax.logistic, EDGES),
    "neg": (lax.neg, EDGES),
    "round_away": (lax.round, f32(0.5, -0.5, 1.5, 2.5, -2.5, 0.49999997, NAN, INF, 8388609)),
    "round_even": (jnp.round, f32(0.5, -0.5, 1.5, 2.5, -2.5, 0.49999997, NAN, INF, 8388609)),
    "rsqrt": (lax.rsqrt, POSITIVE),
    "sign": (lax.sign, EDGES),
    "sin": (lax.sin, SMALL),
    "sinh": (lax.sinh, SMALL),
    "sqrt": (lax.sqrt, EDGES),
    "square": (lax.square, EDGES),
    "tan": (lax.tan, SMALL),
    "tanh": (lax.tanh, EDGES),
    "integer_pow": (lambda x: (lax.integer_pow(x, 3), lax.integer_pow(x, -2), lax.integer_pow(x, 0)), SMALL),
    "cube_of_seven": (lambda x: lax.integer_pow(x, 7), SMALL),
    "not": (lax.bitwise_not, WHOLE),
    "not_bool": (lax.bitwise_not, TRUTH),
    "population_count": (lax.population_count, WHOLE),
    "clz": (lax.clz, WHOLE),
    "abs_int": (lax.abs, WHOLE),
    "neg_int": (lax.neg, WHOLE),
    "neg_unsigned": (lax.neg, WHOLE.astype(np.uint32)),
    "sign_int": (lax.sign, WHOLE),
    "square_int": (lax.square, WHOLE),
    "power_int": (lambda x: lax.integer_pow(x, 5), WHOLE),
    "reduce_precision": (lambda x: lax.reduce_precision(x, 5, 7), SMALL),
    "logsumexp_pair": (lambda x: jnp.logaddexp(x, x[::-1]), SMALL),
    "softplus": (jax.nn.softplus, EDGES),
    "relu_gradient": (jax.grad(lambda x: jax.nn.relu(x).sum()), SMALL),
    "gelu": (jax.nn.gelu, normal(11)),
    "nan_to_num": (jnp.nan_to_num, EDGES),
}

PAIRS = (f32(0, -0.0, 1, -1, 5.5, -5.5, INF, -INF, NAN, 2, 7), f32(-0.0, 0, 2, 3, -2, 2, INF, 1, 1, NAN, 0))
NUMBERS = (i32(7, -7, 7, -7, 0, 5, -(2**31), 2**31 - 1, 1), i32(2, 2, -2, -2, 3, 0, -1, 2, 33))

BINARY: dict[str, tuple[Any, tuple[np.ndarray, np.ndarray]]] = {
    "add": (lax.add, PAIRS),
    "atan2": (lax.atan2, PAIRS),
    "div": (lax.div, PAIRS),
    "max": (lax.max, PAIRS),
    "min": (lax.min, PAIRS),
    "mul": (lax.mul, PAIRS),
    "nextafter": (lax.nextafter, PAIRS),
    "pow": (lax.pow, (f32(2, 0, 0, -2, -8, 0.5, 1, NAN, 3, INF), f32(0.5, 0, -1, 3, 0.5, 20, NAN, 0, -2.5, -1))),
    "rem": (lax.rem, PAIRS),
    "sub": (lax.sub, PAIRS),
    "mod": (jnp.mod, PAIRS),
    "floor_divide": (jnp.floor_divide, NUMBERS),
    "add_int": (lax.add, NUMBERS),
    "sub_int": (lax.sub, NUMBERS),
    "mul_int": (lax.mul, NUMBERS),
    "div_int": (lax.div, NUMBERS),
    "rem_int": (lax.rem, NUMBERS),
    "max_int": (lax.max, NUMBERS),
    "min_int": (lax.min, NUMBERS),
    "and_int": (lax.bitwise_and, NUMBERS),
    "or_int": (lax.bitwise_or, NUMBERS),
    "xor_int": (lax.bitwise_xor, NUMBERS),
    "shift_left": (lax.shift_left, (i32(1, -1, 5, 7, 1, 1), i32(0, 3, 31, 32, 33, -1))),
    "shift_right_logical": (lax.shift_right_logical, (i32(1, -1, 5, -7, -1, -1), i32(0, 3, 31, 32, 33, -1))),
    "shift_right_arithmetic": (lax.shift_right_arithmetic, (i32(1, -1, 5, -7, -1, 9), i32(0, 3, 31, 32, 33, -1))),
    "and_bool": (lax.bitwise_and, (TRUTH, TRUTH[::-1])),
    "or_bool": (lax.bitwise_or, (TRUTH, TRUTH[::-1])),
    "differ": (lax.bitwise_xor, (TRUTH, TRUTH[::-1])),
    "either": (lax.max, (TRUTH, TRUTH[::-1])),
    "div_unsigned": (lax.div, (NUMBERS[0].astype(np.uint32), NUMBERS[1].astype(np.uint32))),
    "compare_unsigned": (lax.lt, (NUMBERS[0].astype(np.uint32), NUMBERS[1].astype(np.uint32))),
    "mul_byte": (lax.mul, (integers(0, 255, 9, dtype=np.uint8), integers(0, 255, 9, seed=1, dtype=np.uint8))),
    "add_short": (lax.add, (integers(-(2**15), 2**15, 9, dtype=np.int16), np.full(9, 30000, np.int16))),
}

SHAPES = (f32(0.5, 1, 2.5, 7, 3), f32(0.2, 1, 3, 5, 9))

#: special functions of f32: XLA and numpy each err by a few units
LOOSE = {"lgamma": 64, "digamma": 64, "erf_inv": 16, "erfc": 32, "bessel_i0e": 16, "bessel_i1e": 16, "gelu": 16}
LOOSE |= {"acosh": 16, "asinh": 16, "atanh": 16, "tan": 16, "sinh": 16, "cosh": 16, "pow": 16, "softplus": 16}
LOOSE |= {"integer_pow": 8, "exp2": 8, "asin": 8, "acos": 8, "logsumexp_pair": 16}


def compare_all(x: Any, y: Any) -> Any:
    return lax.eq(x, y), lax.ne(x, y), lax.lt(x, y), lax.le(x, y), lax.gt(x, y), lax.ge(x, y)


def order_all(x: Any, y: Any) -> Any:
    return lax.eq_to_p.bind(x, y), lax.lt_to_p.bind(x, y), lax.le_to_p.bind(x, y)


def casts(*dtypes: Any) -> Any:
    return lambda x: [x.astype(d) for d in dtypes]


def half_rows(name: str, dtype: Any) -> list[Row]:
    """A few functions in a 16-bit float."""
    with np.errstate(over="ignore"):
        xs, small = EDGES.astype(dtype), SMALL.astype(dtype)
    other = xs[::-1].copy()
    return [
        row(f"add_{name}", lax.add, xs, other),
        row(f"mul_{name}", lax.mul, xs, other),
        row(f"div_{name}", lax.div, xs, other),
        row(f"max_{name}", lax.max, xs, other),
        row(f"exp_{name}", lax.exp, small),
        row(f"tanh_{name}", lax.tanh, small),
        row(f"sqrt_{name}", lax.sqrt, xs),
        row(f"lt_{name}", lax.lt, xs, other),
        row(f"nextafter_{name}", lax.nextafter, small, small[::-1].copy()),
        row(f"cast_{name}", casts(jnp.float32, jnp.int32, jnp.uint8, bool), small),
        row(f"bitcast_{name}", lambda x: lax.bitcast_convert_type(x, jnp.uint16), small),
        row(f"chain_{name}", lambda x: x * x - x / 3, small),
    ]


def double_rows() -> list[Row]:
    xs, ys = PAIRS[0].astype(np.float64), PAIRS[1].astype(np.float64)
    wide = np.asarray([0, 1, -1, 2**40 + 3, -(2**40), 2**63 - 1, -(2**63)], np.int64)
    functions = {"exp": jnp.exp, "log1p": jnp.log1p, "tanh": jnp.tanh, "erf_inv": lax.erf_inv, "expm1": jnp.expm1}
    rows = [row(f"{k}_f64", f, UNIT.astype(np.float64), x64=True, ulps=64) for k, f in functions.items()]
    return [
        *rows,
        row("arithmetic_f64", lambda x, y: (x + y, x * y, x / y, lax.rem(x, y)), xs, ys, x64=True),
        row("constants_f64", lambda x: jnp.where(x > 0, 0.1, 0.2) + x * 0.3, xs, x64=True),
        row("arithmetic_i64", lambda x: (x * x, x + x, lax.div(x, x[::-1]), x >> 3), wide, x64=True),
        row("bits_u64", lambda x: (lax.population_count(x), lax.clz(x), x << 63), wide.astype(np.uint64), x64=True),
        row("cast_f64", casts(jnp.float32, jnp.int64, jnp.int8, jnp.uint64, bool), xs, x64=True),
        row("cast_i64", casts(jnp.float32, jnp.float64, jnp.int32, jnp.uint8), wide, x64=True),
        row("bitcast_f64", lambda x: lax.bitcast_convert_type(x, jnp.int64), xs, x64=True),
        row("words_f64", lambda x: lax.bitcast_convert_type(x, jnp.uint32), xs[:5], x64=True),
        row("nextafter_f64", lax.nextafter, xs, ys, x64=True),
    ]


ROWS: list[Row] = [
    *(row(name, fn, x, ulps=LOOSE.get(name, 4), floor=float(name == "lgamma")) for name, (fn, x) in UNARY.items()),
    *(row(name, fn, *xs, ulps=LOOSE.get(name, 4)) for name, (fn, xs) in BINARY.items()),
    row("igamma", lambda a, x: (lax.igamma(a, x), lax.igammac(a, x)), *SHAPES, ulps=256, floor=1),
    row(
        "igamma_gradient",
        lambda a, x: (lax.igamma_grad_a(a, x), lax.random_gamma_grad(a, x)),
        *SHAPES,
        ulps=512,
        floor=1,
    ),
    row("zeta", lambda s, q: (lax.zeta(s + 1, q), lax.polygamma(jnp.round(s), q)), *SHAPES, ulps=512),
    row("betainc", lambda a, x: lax.betainc(a, x, x / 10), *SHAPES, ulps=512, floor=1),
    row("compare", compare_all, *PAIRS),
    row("compare_int", compare_all, *NUMBERS),
    row("compare_bool", compare_all, TRUTH, TRUTH[::-1]),
    row("total_order", order_all, *PAIRS),
    row("clamp", lambda x: (lax.clamp(-1.0, x, 1.0), lax.clamp(x, 0 * x, x + 1)), SMALL),
    row("clamp_int", lambda x: lax.clamp(np.int32(-5), x, np.int32(50)), WHOLE),
    row("select", lambda x: lax.select(x > 0, x, -x), SMALL),
    row("select_of_three", lambda i, x: lax.select_n(i, x, x * 2, x * 3), i32(0, 1, 2, 1), f32(1, 2, 3, 4)),
    row("select_scalar_choice", lambda p, x: lax.select_n(p, x, -x), np.asarray(True), f32(1, 2)),
    row("select_bool", lambda x: jnp.where(x, ~x, x), TRUTH),
    row("cast_float", casts(jnp.int32, jnp.uint32, jnp.int8, jnp.uint8, jnp.float16, jnp.bfloat16, bool), EDGES),
    row("cast_int", casts(jnp.float32, jnp.int8, jnp.uint16, jnp.uint32, bool), WHOLE),
    row("cast_bool", casts(jnp.float32, jnp.int32, jnp.uint8), TRUTH),
    row("bitcast", lambda x: lax.bitcast_convert_type(x, jnp.int32), EDGES),
    row("bitcast_narrow", lambda x: lax.bitcast_convert_type(x, jnp.uint16), WHOLE),
    row("bitcast_widen", lambda x: lax.bitcast_convert_type(x, jnp.float32), integers(0, 255, 3, 4, dtype=np.uint8)),
    row("denormals", lambda x: (x + x, -x, jnp.abs(x), jnp.maximum(x, 0), x * 2), f32(1e-40, -1e-39, 1e-45)),
    row("size_one_operand", lambda x, y: x * y.reshape(1), f32(1, 2, 3), f32(4)),
    row("scalar_operand", lambda x, y: (x * y, x / 3, 2 - x), f32(1, 2, 3), np.float32(4)),
    row("weak_types", lambda x: x * 2 + jnp.asarray(1) - 0.5, np.float32(3)),
    row("empty_array", lambda x: jnp.exp(x) + 1, np.zeros((0, 3), np.float32)),
    *half_rows("f16", np.float16),
    *half_rows("bf16", BF16),
    *double_rows(),
]
