"""Every row of the scalar table: numpy == JAX, Triton's interpreter == JAX, and it compiles for every kind of GPU."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

import jax
import numpy as np
import pytest
from jax import lax
from jax.extend.core import primitives

from onelaunch import build, device
from onelaunch.ir.builder import Builder
from onelaunch.ir.interpret import run as interpret
from onelaunch.ir.nodes import Block, Graph
from onelaunch.ir.scalars import SCALARS
from onelaunch.ir.types import TRITON_NAMES, is_bool, is_float
from onelaunch.launch.interpreter import run
from onelaunch.ops.table import RULES, inline
from onelaunch.target import parse
from scalar_cases import (
    ALL,
    BOOL,
    CASES,
    F32,
    F64,
    FLOATS,
    I32,
    OTHERS,
    SIZE,
    SPECIAL,
    Case,
    agree,
    inputs,
    kernel,
    operand,
    reference,
)

#: Primitives of jax.extend.core.primitives that are element-wise but complex: a rewrite before this table's rules.
COMPLEX = {"complex", "conj", "imag", "real"}
PARAMETRISED = {
    *("convert_element_type", "integer_pow", "select_n", "round", "reduce_precision", "bitcast_convert_type", "pow"),
}


@pytest.fixture(autouse=True)
def x64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def result_dtypes(name: str, args: list[np.ndarray]) -> list[np.dtype]:
    return [BOOL if SCALARS[name].result == "bool" else args[0].dtype] * SCALARS[name].outs


def tupled(x: object) -> tuple[np.ndarray, ...]:
    return tuple(np.asarray(y) for y in x) if isinstance(x, tuple | list) else (np.asarray(x),)


def report(
    case: str, dtype: np.dtype, args: list[np.ndarray], got: np.ndarray, want: np.ndarray, ok: np.ndarray
) -> str:
    lines = [f"{case} {dtype}: {np.sum(~ok)} of {ok.size} differ"]
    for i in np.flatnonzero(~ok)[:8]:
        lines.append(f"  ({', '.join(str(a[i]) for a in args)}) gives {got[i]!r}, not {want[i]!r}")
    return "\n".join(lines)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_row(case: Case) -> None:
    """numpy meaning == jax.jit == Triton's interpreter, on hostile inputs, in every dtype."""
    jitted = reference(case)
    for dtype in case.dtypes:
        args = inputs(case, dtype)
        wants = tupled(jitted(*args))
        meanings = tupled(SCALARS[case.name].numpy(*args))
        gots = run(kernel([(case.name, args, result_dtypes(case.name, args))]), args)
        # At 0 JAX's digamma is NaN or -inf by its version: the rule's business, not the row's.
        skipped = (args[0] == 0) if case.name == "digamma" else np.False_
        for want, meaning, got in zip(wants, meanings, gots, strict=True):
            ok = skipped | agree(meaning.astype(want.dtype), want, case.ulp, case.far)
            assert ok.all(), "numpy: " + report(case.name, dtype, args, meaning, want, ok)
            ok = skipped | agree(got, want, case.ulp, case.far)
            assert ok.all(), "Triton: " + report(case.name, dtype, args, got, want, ok)
            ok = agree(got, meaning.astype(got.dtype), 4, case.far) | (dtype == F64)
            assert ok.all(), "Triton and numpy: " + report(case.name, dtype, args, got, meaning, ok)


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_denormals(dtype: np.dtype) -> None:
    """Denormals count as what they are (XLA:CPU takes them for zeros, so numpy says what is right)."""
    tiny = np.finfo(dtype).tiny
    x = np.array([s * tiny * f for s in (1, -1) for f in (0.75, 0.5, 1e-3, 2.0**-20)] * 2, dtype)
    names = [
        c.name
        for c in CASES
        if dtype in c.dtypes and c.arity == 1 and c.name not in ("bessel_i1e", "lgamma", "digamma")
    ]
    gots = run(kernel([(name, [x], result_dtypes(name, [x])) for name in names]), [x] * len(names))
    for name, got in zip(names, gots, strict=True):
        want = np.asarray(SCALARS[name].numpy(x)).astype(got.dtype)
        ok = agree(got, want, 4)
        assert ok.all(), report(name, dtype, [x], got, want, ok)


@pytest.mark.parametrize("source", ALL, ids=str)
def test_cast(source: np.dtype) -> None:
    """Every pair of dtypes: saturation, NaN, rounding."""
    case = Case("cast", low=-300, high=300)
    x = operand(case, source, 0, np.random.default_rng(3))
    if is_float(source):
        edges = [
            s * (2.0**n + d) for n in (7, 8, 15, 16, 31, 32, 63, 64) for s in (1, -1) for d in (-1, -0.5, 0, 0.5, 1)
        ]
        with np.errstate(all="ignore"):
            x[-len(edges) :] = np.array(edges).astype(source)
    wants = tupled(jax.jit(lambda x: [lax.convert_element_type(x, out) for out in ALL])(x))
    for out, want in zip(ALL, wants, strict=True):
        meaning = SCALARS["cast"].numpy(x, out)
        ok = agree(np.asarray(meaning), want, 0)
        assert ok.all(), "numpy: " + report(f"cast to {out}", source, [x], meaning, want, ok)
        (got,) = run(kernel([("cast", [x], [out])]), [x])
        ok = agree(got, want, 0)
        assert ok.all(), "Triton: " + report(f"cast to {out}", source, [x], got, want, ok)


@pytest.mark.parametrize("name", [n for n in SCALARS if n.startswith("bitcast_")])
def test_bitcast(name: str) -> None:
    out = next(d for d, n in TRITON_NAMES.items() if name == f"bitcast_{n}")
    for dtype in (d for d in ALL if d.itemsize == out.itemsize and not is_bool(d)):
        x = operand(Case(name), dtype, 0, np.random.default_rng(4))
        want = np.asarray(jax.jit(partial(lax.bitcast_convert_type, new_dtype=out))(x))
        (got,) = run(kernel([(name, [x], [out])]), [x])
        bits = np.dtype(f"uint{8 * out.itemsize}")
        assert np.array_equal(got.view(bits), want.view(bits))
        assert np.array_equal(SCALARS[name].numpy(x).view(bits), want.view(bits))


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_select(dtype: np.dtype) -> None:
    rng = np.random.default_rng(5)
    args = [operand(Case("select"), d, 0, rng) for d in (BOOL, dtype, dtype)]
    want = np.where(args[0], args[1].astype(float), args[2].astype(float))
    (got,) = run(kernel([("select", args, [dtype])]), args)
    assert np.array_equal(got.astype(float), want, equal_nan=True)


@pytest.mark.parametrize("bits", [(5, 10), (8, 7), (8, 23), (11, 52), (4, 3), (5, 2), (8, 10), (2, 20)], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_reduce_precision(dtype: np.dtype, bits: tuple[int, int]) -> None:
    rng = np.random.default_rng(6)
    x = rng.standard_normal(SIZE) * np.exp2(rng.integers(-20, 20, SIZE))
    x[: len(SPECIAL)] = SPECIAL
    with np.errstate(all="ignore"):
        x = x.astype(dtype)
    args = [x, *(np.full(SIZE, b, I32) for b in bits)]
    want = np.asarray(jax.jit(partial(lax.reduce_precision, exponent_bits=bits[0], mantissa_bits=bits[1]))(x))
    ok = agree(SCALARS["reduce_precision"].numpy(*args), want, 0)
    assert ok.all(), "numpy: " + report(str(bits), dtype, [x], SCALARS["reduce_precision"].numpy(*args), want, ok)
    (got,) = run(kernel([("reduce_precision", args, [dtype])]), args)
    assert (ok := agree(got, want, 0)).all(), "Triton: " + report(str(bits), dtype, [x], got, want, ok)


def through_rules(f: object, *args: np.ndarray) -> list[np.ndarray]:
    """The numpy meaning of the Graph that the rules make of a JAX function."""
    closed = jax.make_jaxpr(f)(*args)
    b = Builder()
    params = tuple(b.value(a.shape, a.dtype) for a in args)
    results = inline(b, closed.jaxpr, closed.consts, params)
    return interpret(Graph("f", params, tuple(b.consts), Block(tuple(b.nodes), tuple(results))), args)


X = np.array([[0.5, -1.5, 2.5], [3.0, -0.0, 1e3]], np.float32)
RULE_TESTS = {
    "integer_pow": lambda x: [lax.integer_pow(x, n) for n in (0, 1, 2, 3, 7, -1, -3)],
    "integer_pow_int": lambda x: lax.integer_pow(lax.convert_element_type(x, "int8"), 5),
    "pow_int": lambda x: lax.pow(x, lax.convert_element_type(x, "int32")),
    "round": lambda x: [lax.round(x, m) for m in lax.RoundingMethod],
    "select_bool": lambda x: lax.select_n(x > 1, x, -x),
    "select_int": lambda x: lax.select_n(lax.convert_element_type(abs(x), "int32") % 4, x, -x, x * x, x + 1),
    "clamp": lambda x: lax.clamp(np.float32(-1), x, np.float32(2)),
    "reduce_precision": lambda x: lax.reduce_precision(x, 5, 3),
    "bitcast_narrow": lambda x: lax.bitcast_convert_type(x, "uint8"),
    "bitcast_narrow_float": lambda x: lax.bitcast_convert_type(x, "bfloat16"),
    "bitcast_wide": lambda x: lax.bitcast_convert_type(lax.bitcast_convert_type(x, "int16"), "float32"),
    "cast": lambda x: [lax.convert_element_type(x, t) for t in ("int8", "uint8", "bool", "float16", "float64")],
    "grads": lambda x: jax.grad(lambda y: (jax.nn.gelu(y) + jax.nn.softplus(y) + jax.nn.silu(y)).sum())(x),
    "random": lambda x: jax.random.normal(jax.random.key(0), x.shape) * x,
}


@pytest.mark.parametrize("name", RULE_TESTS)
def test_rules(name: str) -> None:
    """The rules of primitives with parameters: the Graph's numpy meaning == jax.jit."""
    f = RULE_TESTS[name]
    wants = jax.tree.leaves(jax.jit(f)(X))
    for got, want in zip(through_rules(f, X), wants, strict=True):
        want = np.asarray(want)
        assert got.shape == want.shape and got.dtype == want.dtype
        ok = agree(got.ravel(), want.ravel(), 16)
        assert ok.all(), report(name, want.dtype, [want.ravel()], got.ravel(), want.ravel(), ok)


def test_every_row_is_tested() -> None:
    bitcasts = {n for n in SCALARS if n.startswith("bitcast_")}
    assert {c.name for c in CASES} | set(OTHERS) | bitcasts == set(SCALARS)


def is_elementwise(name: str) -> bool:
    """Whether JAX's own rule of a primitive's shape is the one of element-wise operations (seen from outside)."""
    return name in {p for s in SCALARS.values() for p in s.prims} | PARAMETRISED


def test_every_elementwise_primitive_has_a_rule() -> None:
    """A list by hand of what is not element-wise; whatever JAX adds must be placed in one list or the other."""
    known = {getattr(primitives, n).name for n in dir(primitives) if n.endswith("_p")}
    listed = {n for n in known if is_elementwise(n)}
    assert listed <= set(RULES)
    assert known - listed - NOT_ELEMENTWISE - COMPLEX == set()


NOT_ELEMENTWISE = {
    *("after_all", "all_gather", "all_to_all", "approx_top_k", "argmax", "argmin", "axis_index"),
    *("broadcast_in_dim", "call", "cholesky", "closed_call", "concatenate", "cond", "conv_general_dilated", "copy"),
    *("create_token", "cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", "custom_jvp_call", "custom_lin"),
    *("custom_linear_solve", "custom_vjp_call", "device_put", "dot_general", "dynamic_slice"),
    *("dynamic_update_slice", "eig", "eigh", "empty2", "fft", "gather", "get", "hessenberg", "householder_product"),
    *("iota", "jit", "lu", "name", "pad", "pmax", "pmin", "ppermute", "psum", "qr", "ragged_all_to_all"),
    *("random_bits", "random_fold_in", "random_gamma", "random_seed", "random_split", "reduce", "reduce_and"),
    *("reduce_max", "reduce_min", "reduce_or", "reduce_prod", "reduce_sum", "reduce_window", "reduce_window_max"),
    *("reduce_window_min", "reduce_window_sum", "reduce_xor", "remat2", "reshape", "rev", "rng_bit_generator"),
    *("rng_uniform", "scan", "scatter", "scatter-add", "scatter-max", "scatter-min", "scatter-mul", "schur"),
    *("select_and_gather_add", "select_and_scatter", "select_and_scatter_add", "sharding_constraint", "slice"),
    *("sort", "split", "squeeze", "stop_gradient", "svd", "swap", "top_k", "transpose", "triangular_solve"),
    *("tridiagonal", "tridiagonal_solve", "while"),
    # since JAX 0.11 and 0.12, with rules of their own
    *("eval_jaxpr", "log2", "one_minus_square", "polynomial"),
}


def rows_of(dtype: np.dtype, size: int) -> list[tuple[str, list[np.ndarray], list[np.dtype]]]:
    """Every row that takes ``dtype``, ready for ``kernel``."""
    calls = []
    for case in CASES:
        if dtype in case.dtypes:
            args = [np.zeros(size, dtype)] * case.arity
            calls.append((case.name, args, result_dtypes(case.name, args)))
    return calls


@pytest.mark.parametrize(
    ("target", "dtype"), [("cuda:90", F32), ("cuda:90", F64), ("cuda:80", F32), ("hip:gfx942", F64)], ids=str
)
def test_compiles_as_scalars(target: str, dtype: np.dtype) -> None:
    assert build.compile(kernel(rows_of(dtype, 1), scalar=True), parse(target)).binary


def test_front_end_takes_every_row_as_tensors() -> None:
    for dtype in ALL:
        build.front(kernel(rows_of(dtype, 128)))


def test_compiles_as_tensors() -> None:
    calls = [
        c for c in rows_of(F32, 128) if c[0] in {"exp", "log1p", "tanh", "erf_inv", "pow", "rem", "igamma", "lgamma"}
    ]
    assert build.compile(kernel(calls), parse("cuda:90")).binary


def test_closure_is_in_order_and_complete() -> None:
    """Functions stand after those they call, and nothing but ``tl`` and themselves is global."""
    tree = ast.parse(device.closure(device.library()))
    seen: set[str] = {"tl", "triton", "float"}
    for node in tree.body:
        assert isinstance(node, ast.FunctionDef)
        names = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
        local = {n.id for n in names if isinstance(n.ctx, ast.Store)} | {a.arg for a in node.args.args}
        assert {n.id for n in names} - local - {"range"} <= seen | {node.name}, node.name
        assert ast.get_docstring(node), node.name
        seen.add(node.name)
    assert device.closure([]) == ""
    with pytest.raises(KeyError):
        device.closure(["no_such_function"])
