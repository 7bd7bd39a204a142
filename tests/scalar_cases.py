"""The scalar table's test rows: what each row of ``ir.scalars`` is tried on, and how near it must come to JAX."""

from __future__ import annotations

import ast
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax
from jax.extend.core import primitives

from onelaunch.device import closure, library
from onelaunch.emit.kernel import Kernel, Param
from onelaunch.ir.scalars import SCALARS, text
from onelaunch.ir.types import BFLOAT16, TRITON_NAMES, is_bool, is_float

SIZE = 512
BOOL = np.dtype(bool)
SIGNED = tuple(np.dtype(f"int{n}") for n in (8, 16, 32, 64))
UNSIGNED = tuple(np.dtype(f"uint{n}") for n in (8, 16, 32, 64))
INTEGERS = SIGNED + UNSIGNED
I32, U32 = np.dtype("int32"), np.dtype("uint32")
F16, F32, F64 = np.dtype("float16"), np.dtype("float32"), np.dtype("float64")
FLOATS = (F16, BFLOAT16, F32, F64)
NUMBERS = INTEGERS + FLOATS
ALL = (BOOL, *NUMBERS)

SPECIAL = (0.0, -0.0, np.nan, np.inf, -np.inf, 1, -1, 0.5, -0.5, 2, -2, 2.5, -2.5, 1.5, -1.5, 3.5, 1e30, -1e30, 0.1, -7)


@dataclass(frozen=True)
class Case:
    """One row of the table under test.

    dtypes: one walk for each; arity: operands of that dtype. low, high: range of the ordinary inputs, among which are
    SPECIAL values (integers: the extremes). ``jax``: its function of the operands. ulp: distance granted to JAX and to
    numpy, in units of the last place (0: the same bits); far: the same, of 1 rather than of the value (roots).
    ``special``: False leaves out the hostile values, where JAX has no rule that another library keeps.
    """

    name: str
    dtypes: tuple[np.dtype, ...] = FLOATS
    arity: int = 1
    low: float = -10.0
    high: float = 10.0
    ulp: float = 4.0
    far: float = 0.0
    jax: Callable[..., object] | None = None
    special: bool = True


def exact(name: str, dtypes: tuple[np.dtype, ...], arity: int = 2, **kw: object) -> Case:
    return Case(name, dtypes, arity, ulp=0.0, **kw)  # type: ignore[arg-type]


def primitive(name: str) -> Callable[..., object]:
    return getattr(primitives, name + "_p").bind


CASES: tuple[Case, ...] = (
    *(exact(name, NUMBERS) for name in ("add", "sub", "mul", "div", "rem")),
    exact("identity", ALL, 1, jax=lambda x: x),
    exact("neg", NUMBERS, 1),
    exact("abs", SIGNED + FLOATS, 1),
    exact("sign", NUMBERS, 1),
    exact("square", NUMBERS, 1),
    exact("max", ALL),
    exact("min", ALL),
    exact("clamp", ALL, 3),
    exact("mul_high", INTEGERS, jax=lax.mulhi),
    *(exact(name, FLOATS, 1) for name in ("floor", "ceil", "is_finite", "sqrt")),
    exact("round_even", FLOATS, 1, jax=lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)),
    exact("round_away", FLOATS, 1, jax=lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO)),
    exact("nextafter", FLOATS),
    *(exact(name, ALL) for name in ("eq", "ne", "lt", "le", "gt", "ge")),
    *(exact(name, ALL, jax=primitive(name)) for name in ("eq_to", "lt_to", "le_to")),
    exact("and", (BOOL, *INTEGERS), jax=lax.bitwise_and),
    exact("or", (BOOL, *INTEGERS), jax=lax.bitwise_or),
    exact("xor", (BOOL, *INTEGERS), jax=lax.bitwise_xor),
    exact("not", (BOOL, *INTEGERS), 1, jax=lax.bitwise_not),
    *(exact(name, INTEGERS) for name in ("shift_left", "shift_right_logical", "shift_right_arithmetic")),
    *(exact(name, INTEGERS, 1) for name in ("population_count", "clz")),
    exact("threefry2x32", (U32,), 4, jax=primitive("threefry2x32")),
    Case("exp", low=-100, high=100),
    Case("exp2", low=-120, high=140, ulp=250),
    Case("expm1", low=-20, high=100, ulp=6),
    Case("log", low=0, high=1e5),
    Case("log1p", low=-1, high=10, ulp=64),
    Case("rsqrt", low=0, high=100),
    Case("cbrt", low=-100, high=100),
    Case("logistic", low=-50, high=50),
    Case("sin"),
    Case("cos"),
    Case("tan", ulp=6),
    Case("asin", low=-1, high=1),
    Case("acos", low=-1, high=1),
    Case("atan"),
    Case("sinh", ulp=150),
    Case("cosh", ulp=150),
    Case("tanh", ulp=6),
    Case("asinh", low=-100, high=100),
    Case("acosh", low=1, high=100, ulp=6),
    Case("atanh", low=-1, high=1, ulp=128),
    Case("erf", low=-4, high=4, ulp=6),
    Case("erfc", low=-4, high=9, ulp=40),
    Case("erf_inv", low=-1, high=1, ulp=32),
    Case("lgamma", low=-5, high=20, ulp=16, far=64),
    Case("digamma", low=-5, high=20, ulp=64, far=64),
    Case("bessel_i0e", low=-30, high=30, ulp=8),
    Case("bessel_i1e", low=-30, high=30, ulp=8),
    Case("pow", arity=2, low=0, high=5, ulp=6),
    Case("atan2", arity=2),
    Case("logaddexp", arity=2, jax=jnp.logaddexp, far=4),
    Case("igamma", (F32, F64), arity=2, low=0.1, high=20, ulp=2000, special=False),
    Case("igammac", (F32, F64), arity=2, low=0.1, high=20, ulp=2000, special=False),
    Case("igamma_grad_a", (F32, F64), arity=2, low=0.1, high=20, ulp=10000, far=100, special=False),
    Case("random_gamma_grad", (F32, F64), arity=2, low=0.2, high=20, ulp=10000, far=100, special=False),
    Case("betainc", (F32, F64), arity=3, low=0.1, high=1, ulp=2000, special=False),
    Case("zeta", arity=2, low=1.1, high=20, ulp=16, special=False),
    Case("polygamma", arity=2, low=0.1, high=20, ulp=200, special=False),
)

#: Rows with tests of their own, for their operands or results have several dtypes.
OTHERS = ("cast", "select", "reduce_precision")


def reference(case: Case) -> Callable[..., object]:
    """JAX's own function of a case; an inexact one of 16-bit floats in f32 (XLA rounds inside its own expansions)."""
    function = case.jax or getattr(lax, case.name)

    def in_f32(*args: jnp.ndarray) -> jnp.ndarray:
        wide = [lax.convert_element_type(a, F32) for a in args]
        return lax.convert_element_type(function(*wide), args[0].dtype)

    def call(*args: jnp.ndarray) -> object:
        half = case.ulp > 0 and args[0].dtype in (F16, BFLOAT16)
        return in_f32(*args) if half else function(*args)

    return jax.jit(call)


def inputs(case: Case, dtype: np.dtype) -> list[np.ndarray]:
    """The operands of a case: hostile values against each other first, then ordinary ones."""
    rng = np.random.default_rng(zlib.crc32(case.name.encode()))
    return [operand(case, dtype, position, rng) for position in range(case.arity)]


def operand(case: Case, dtype: np.dtype, position: int, rng: np.random.Generator) -> np.ndarray:
    if is_bool(dtype):
        return rng.integers(0, 2, SIZE).astype(bool)
    if not is_float(dtype):
        hostile, values = whole(case, dtype, position, rng)
    else:
        hostile, values = np.array(SPECIAL if case.special else ()), rng.uniform(case.low, case.high, SIZE)
        if case.name == "polygamma" and position == 0:
            values = rng.integers(1, 5, SIZE).astype(float)
    square = [g.ravel() for g in np.meshgrid(*[hostile] * min(case.arity, 2))][min(position, 1) % case.arity]
    with np.errstate(all="ignore"):
        count = min(square.size, SIZE - 96)
        return np.concatenate([square[:count], values[count:]]).astype(dtype)


def whole(case: Case, dtype: np.dtype, position: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Extremes and random integers; second operands of shifts are counts about the width."""
    info = np.iinfo(dtype)
    edges = [0, 1, 2, 3, 5, 100, info.max, info.max - 1, info.min, info.min + 1, info.bits, info.bits - 1]
    edges += [-1 % (info.max + 1) if info.min == 0 else -1, info.max // 2]
    values = rng.integers(info.min, info.max, SIZE, dtype=dtype, endpoint=True)
    if case.name.startswith("shift") and position == 1:
        values = rng.integers(0, info.bits + 2, SIZE).astype(dtype)
    elif rng.integers(2):
        values = values >> rng.integers(0, info.bits - 1, SIZE).astype(dtype)
    return np.array(edges, dtype), values


def agree(got: np.ndarray, want: np.ndarray, ulp: float, far: float = 0.0) -> np.ndarray:
    """Where results agree: same bits, or within ``ulp``; NaNs are alike; denormals are zeros (XLA:CPU flushes)."""
    if not is_float(want.dtype):
        return got == want
    eps = float(ml_dtypes.finfo(want.dtype).eps)
    tiny = float(np.finfo(np.float64 if want.dtype == F64 else np.float32).tiny)
    g, w = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(all="ignore"):
        flushed = (np.abs(g) <= tiny) & (np.abs(w) <= tiny)
        same = (g == w) & ((np.signbit(g) == np.signbit(w)) | (w != 0))
        steps = ulp if want.dtype.itemsize > 2 else min(ulp, 1.0)
        near = np.abs(g - w) <= eps * (steps * np.abs(w) + far)
        return same | (np.isnan(g) & np.isnan(w)) | (near & np.isfinite(g)) | flushed


def kernel(calls: Sequence[tuple[str, Sequence[np.ndarray], Sequence[np.dtype]]], scalar: bool = False) -> Kernel:
    """A kernel that applies rows: (name, operands of one length, output dtypes); ``scalar``: to 0-d values."""
    lines, params, expressions = [], [], []
    for k, (name, args, outs) in enumerate(calls):
        half = SCALARS[name].half == "f32"
        operands, dtypes = [], []
        for j, arg in enumerate(args):
            params.append(Param(f"x{k}_{j}", arg.dtype, arg.shape, "in"))
            widened = half and is_float(arg.dtype) and arg.dtype.itemsize == 2
            suffix = " != 0" if is_bool(arg.dtype) else ".to(tl.float32)" if widened else ""
            lines.append(f"a{k}_{j} = tl.load(x{k}_{j} + i){suffix}")
            operands.append(f"a{k}_{j}")
            dtypes.append(F32 if widened else arg.dtype)
        inner = F32 if half and is_float(outs[0]) and outs[0].itemsize == 2 else outs[0]
        expressions.append(text(name, operands, dtypes, inner))
        results = [f"r{k}_{j}" for j in range(len(outs))]
        lines.append(f"{', '.join(results)} = {expressions[-1]}")
        for j, out in enumerate(outs):
            params.append(Param(f"o{k}_{j}", out, args[0].shape, "out"))
            stored = "int8" if is_bool(out) else TRITON_NAMES[out]
            lines.append(f"tl.store(o{k}_{j} + i, {results[j]}.to(tl.{stored}))")
    used = {n.id for e in expressions for n in ast.walk(ast.parse(e)) if isinstance(n, ast.Name)} & set(library())
    index = "0" if scalar else f"tl.arange(0, {params[0].shape[0]})"
    body = "\n    ".join([f"i = {index}", *lines])
    head = f"import triton\nimport triton.language as tl\n\n\n{closure(used)}\n\n@triton.jit\n"
    source = f"{head}def rows({', '.join(p.name for p in params)}):\n    {body}\n"
    return Kernel("rows", source, tuple(params), (1,))
