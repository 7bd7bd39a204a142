"""Whatever jax.jit takes, returns and closes over: fuse gives the same values, dtypes, weak types and structure."""

from __future__ import annotations

import functools
import threading
import warnings
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import onelaunch

Jit = Callable[..., Any]
X = jnp.arange(6.0) * 0.3
Pair = namedtuple("Pair", "left right")
KEYS = jax.random.split(jax.random.key(3))
BIG = np.linspace(0, 1, 4096, dtype=np.float32)
ZERO_TANGENT = np.zeros((2,), jax.dtypes.float0)


@jax.tree_util.register_dataclass
@dataclass
class Point:
    """A pytree of the user's own, with a static field."""

    x: jax.Array
    y: jax.Array
    name: str = field(default="p", metadata={"static": True})


class Counter:
    """A method that is compiled, on an object that is static by identity."""

    def __init__(self, step: float):
        self.step = step

    def bump(self, x: Any) -> Any:
        return x + self.step


def moved(p: Point) -> Point:
    return Point(p.x + 1, p.y * p.x, p.name)


def defaults(x: Any, scale: float = 2.0, *rest: Any, shift: Any = 0.5, **more: Any) -> Any:
    return x * scale + sum(rest) + shift + sum(more.values())


def powers(x: Any, n: int) -> Any:
    for _ in range(n):
        x = x * x
    return x


def traced_once(jit: Jit) -> list[int]:
    """How often Python runs a function called twice at one type and once at another."""
    seen: list[int] = []

    def fn(x: Any) -> Any:
        seen.append(1)
        return x + 1

    fast = jit(fn)
    fast(X), fast(X), fast(X[:2])
    return [int(len(seen) > 0)]


def in_threads(jit: Jit) -> list[Any]:
    fast, found = jit(lambda x: jnp.cumsum(jnp.sin(x))), [None] * 4

    def work(k: int) -> None:
        found[k] = fast(X * k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return found


def wide_and_narrow(jit: Jit) -> Any:
    """One compiled function under both widths."""
    fast = jit(lambda x: x * 2 + jnp.arange(3))
    narrow = fast(np.arange(3.0))
    with jax.enable_x64(True):
        wide = fast(np.arange(3.0))
    return narrow, wide, fast(np.arange(3.0))


def without_jit(jit: Jit) -> Any:
    with jax.disable_jit():
        return jit(lambda x: lax.fori_loop(0, 3, lambda i, c: jnp.sin(c) + i, x))(X)


def with_nans_checked(jit: Jit) -> Any:
    with jax.debug_nans(True):
        return jit(lambda x: jnp.sqrt(x) / 2)(X)


def on_a_device(jit: Jit) -> Any:
    with jax.default_device(jax.devices()[0]):
        return jit(lambda x: x + 1)(X)


def named_scope(jit: Jit) -> Any:
    def fn(x: Any) -> Any:
        with jax.named_scope("inner"):
            return jnp.sin(x)

    return jit(fn)(X)


def under_psum(jit: Jit) -> Any:
    return jax.vmap(jit(lambda x: x - lax.pmean(x, "i")), axis_name="i")(X)


CALLS: dict[str, Callable[[Jit], Any]] = {
    "no arguments": lambda jit: jit(lambda: jnp.arange(3))(),
    "no results": lambda jit: jit(lambda x: ())(X),
    "none": lambda jit: jit(lambda x, y: None)(X, None),
    "none inside": lambda jit: jit(lambda x, y: {"a": None, "b": x, "c": ()})(X, None),
    "an argument unused": lambda jit: jit(lambda x, y: x + 1)(X, {"a": X, "b": []}),
    "an argument returned": lambda jit: jit(lambda x, y: (x, y, x))(X, 3),
    "one result twice": lambda jit: jit(lambda x: (lambda y: [y, y, (y,)])(jnp.sin(x)))(X),
    "constants": lambda jit: jit(lambda x: (1, 2.5, True, np.float32(3), jnp.ones(2), np.arange(2), 1j))(X),
    "python scalars": lambda jit: jit(lambda a, b, c: (a + 1, b * 2, c, a * b, a / 2, ~c))(3, 2.5, True),
    "weak and strong": lambda jit: jit(lambda a, x: (a * x, a + 1))(2.5, jnp.ones(2, jnp.bfloat16)),
    "numpy": lambda jit: jit(lambda a, b: (a + b, a.T))(np.ones((2, 3), np.int16), np.float16(2)),
    "numpy strided": lambda jit: jit(lambda a: a * 2)(np.arange(12.0, dtype=np.float32).reshape(3, 4)[::2, ::-1]),
    "float64 given without x64": lambda jit: jit(lambda a: a + 1)(np.arange(3.0)),
    "bool": lambda jit: jit(lambda a: (a > 1, ~(a > 1), jnp.any(a > 1)))(X),
    "small ints": lambda jit: jit(lambda a: (a + a, a.astype(jnp.int8) * 3))(np.array([250, 3], np.uint8)),
    "bfloat16 rounds to nearest": lambda jit: jit(lambda a: (a.astype(jnp.bfloat16), (a * 1.1).astype(jnp.bfloat16)))(
        np.array([7e4, 3.3, -2.7e-3, 1e38, 3.39e38, np.nan, -np.inf], np.float32)
    ),
    "no elements joined": lambda jit: jit(lambda a: jnp.concatenate([a, a], 1))(jnp.zeros((0, 1))),
    "no elements solved": lambda jit: jit(
        lambda a: (jnp.linalg.cholesky(a), jnp.linalg.det(a), jnp.linalg.inv(a), jnp.linalg.eigh(a), jnp.linalg.qr(a))
    )(jnp.zeros((0, 0))),
    "a factor without elements": lambda jit: jit(lambda a: (jnp.linalg.qr(a, mode="complete"), a.T @ a))(
        jnp.zeros((3, 0))
    ),
    "no elements": lambda jit: jit(lambda a: (a + 1, a.sum(), jnp.concatenate([a, a]), a.T))(jnp.zeros((0, 3))),
    "some without elements": lambda jit: jit(lambda a, b: (a.sum() + b, a))(jnp.zeros((0,)), X),
    "rank 0": lambda jit: jit(lambda a: (a, a[None], a.reshape(1, 1)))(jnp.float32(2)),
    "typed key": lambda jit: jax.random.key_data(jit(lambda k: jax.random.split(k)[1])(jax.random.key(3))),
    "typed keys returned": lambda jit: jax.random.key_data(
        jit(lambda k: (k, k[::-1]))(jax.random.split(jax.random.key(3)))[1]
    ),
    "raw key": lambda jit: jit(lambda k: jax.random.normal(k, (3,)))(jax.random.PRNGKey(3)),
    "float0": lambda jit: jit(lambda t, x: x + 1)(ZERO_TANGENT, X),
    "complex": lambda jit: jit(lambda z: (z * z, abs(z), z.real, jnp.conj(z)))(X[:3] + 1j * X[3:]),
    "keywords": lambda jit: jit(defaults)(X, shift=X, other=1.0),
    "defaults": lambda jit: jit(defaults)(X),
    "more positional": lambda jit: jit(defaults)(X, 3.0, 1, X),
    "static number": lambda jit: jit(powers, static_argnums=1)(X, 3),
    "static name": lambda jit: jit(powers, static_argnames="n")(X, n=2),
    "static name by position": lambda jit: jit(powers, static_argnames="n")(X, 2),
    "static negative": lambda jit: jit(powers, static_argnums=-1)(X, 2),
    "static function": lambda jit: jit(lambda f, x: f(x), static_argnums=0)(jnp.sin, X),
    "donated": lambda jit: jit(lambda x, y: (x + y, y), donate_argnums=0)(X + 0, X),
    "donated twice": lambda jit: jit(lambda x, y: (x * 2, y * x), donate_argnums=(0, 1))(X + 0, X * 1),
    "donated name": lambda jit: jit(lambda x, y: x * y, donate_argnames="x")(X + 0, y=X),
    "named tuple": lambda jit: jit(lambda p: Pair(p.right, p.left + 1))(Pair(X, 2)),
    "ordered": lambda jit: jit(lambda d: OrderedDict((k, v + 1) for k, v in d.items()))(OrderedDict(b=X, a=1)),
    "dataclass": lambda jit: jax.tree.leaves(jit(moved)(Point(X, X + 1, "q"))),
    "partial": lambda jit: jit(functools.partial(defaults, scale=3.0, shift=X))(X),
    "tree partial": lambda jit: jit(lambda f, x: f(x))(jax.tree_util.Partial(jnp.multiply, X), X),
    "bound method": lambda jit: jit(Counter(2.0).bump)(X),
    "builtin": lambda jit: jit(jnp.linalg.norm)(X),
    "big constant": lambda jit: jit(lambda x: x[0] * BIG.sum() + BIG[:5])(X),
    "jax constant": lambda jit: jit(lambda i: X[i] + X)(2),
    "constant returned": lambda jit: jit(lambda x: (X, BIG, jnp.float16(1)))(X),
    "closure of a closure": lambda jit: jit(lambda a: jit(lambda b: jit(lambda c: a + b * c)(b))(a))(X),
    "side effect": traced_once,
    "threads": in_threads,
    "both widths": wide_and_narrow,
    "disable_jit": without_jit,
    "debug_nans": with_nans_checked,
    "default device": on_a_device,
    "named scope": named_scope,
    "axis name": under_psum,
    "dtype argument": lambda jit: jit(lambda x, dtype: x.astype(dtype), static_argnums=1)(X, jnp.int8),
    "identity": lambda jit: jit(lambda *a, **k: (a, k))(X, 1, z=[X, 2.0]),
    "lower precision": lambda jit: jit(lambda x: (x.astype(jnp.float8_e4m3fn), x.astype(jnp.float16)))(X),
    "int4": lambda jit: jit(lambda x: x.astype(jnp.int4).astype(jnp.int8))(X),
    "print": lambda jit: jit(lambda x: (jax.debug.print("{}", x[0]), x * 2)[1])(X),
    "callback": lambda jit: jit(lambda x: jax.pure_callback(np.sin, x, x) + 1)(X),
    "fft": lambda jit: jit(lambda x: jnp.abs(jnp.fft.fft(x)) + 1)(X),
    "big eigenvalues": lambda jit: jit(lambda x: jnp.linalg.eigvalsh(jnp.outer(x, x)))(jnp.arange(40.0) / 40),
    "vmap of print": lambda jit: jax.vmap(jit(lambda x: (jax.debug.print("{}", x), x * 2)[1]))(X),
    "grad of callback": lambda jit: jax.grad(lambda x: jit(lambda x: x * jax.pure_callback(np.sin, X, X))(x).sum())(X),
    "ref": lambda jit: jit(lambda x: lax.fori_loop(0, 3, lambda i, c: c.at[i].add(1.0), x))(X),
}


@pytest.mark.parametrize("interpret", ["0", "1"])
@pytest.mark.parametrize("name", CALLS)
def test_as_jit(name: str, interpret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONELAUNCH_INTERPRET", interpret)
    want = CALLS[name](jax.jit)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="onelaunch:")  # what falls back for a fault agrees, too
        got = CALLS[name](onelaunch.fuse)
    assert str(jax.tree.structure(got)) == str(jax.tree.structure(want))
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        if not isinstance(y, jax.Array):
            assert x == y
            continue
        assert (x.dtype, x.shape, x.weak_type) == (y.dtype, y.shape, y.weak_type)
        assert x.sharding == y.sharding and x.committed == y.committed
        np.testing.assert_allclose(np.asarray(x, np.complex128), np.asarray(y, np.complex128), rtol=1e-5, atol=1e-6)
