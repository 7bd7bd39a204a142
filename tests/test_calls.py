"""A fused function stands where jax.jit's stands: closures over tracers, derivatives, transposes, any callable."""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import onelaunch
from onelaunch import compat

Jit = Callable[..., Any]
X = jnp.arange(5.0) * 0.2


class Model:
    """A callable whose attributes have the names of fuse's own."""

    def __init__(self) -> None:
        self.fallback, self.interpret, self.shift = "none", 3, 1.0
        self._plain, self._jitted, self._name = None, None, "a b"

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + self.shift


def scaled(theta: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.sqrt(x) * theta  # the derivative in x is infinite at 0


def looped(x: jax.Array) -> jax.Array:
    return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, jnp.sin(s[1])), (0, x))[1]


CALLS: dict[str, Callable[[Jit], Any]] = {
    "closure in jit": lambda jit: jax.jit(lambda a, b: jit(lambda x: x * b + a)(a))(X, X),
    "closure in vmap": lambda jit: jax.vmap(lambda a, b: jit(lambda x: x * b + a)(a))(X, X),
    "closure in grad": lambda jit: jax.grad(lambda b: jit(lambda x: jnp.sum(jnp.sin(x * b)))(X))(X),
    "closure in scan": lambda jit: lax.scan(lambda c, b: (jit(lambda: c * b)(), jit(lambda x: x * c + b)(2.0)), 1.0, X),
    "closure in cond": lambda jit: jax.jit(lambda a: lax.cond(a[1] > 0, jit(lambda x: x * a), jit(jnp.sin), a))(X),
    "jvp of one argument": lambda jit: jax.jvp(lambda theta: jit(scaled)(theta, X), (X,), (X,)),
    "jvp of one result": lambda jit: jax.jvp(lambda t: scaled(*jit(lambda t, x: (t * 2, x))(t, X)), (X,), (X,)),
    "grad past a loop": lambda jit: jax.grad(lambda t: jnp.sum(looped(jit(lambda t, x: (t, x))(t, X)[1]) * t))(X),
    "linear transpose": lambda jit: jax.linear_transpose(jit(lambda a, b: (a * 3 + b, b)), X, X)((X, X)),
    "grad of a solve": lambda jit: jax.grad(lambda b: jax.scipy.sparse.linalg.cg(jit(lambda v: 3 * v), b)[0][1])(X),
    "object": lambda jit: jit(Model())(X),
    "fuse of fuse": lambda jit: jit(jit(lambda x, n: x * n, static_argnums=1), static_argnums=1)(X, 3),
}


@pytest.mark.parametrize("interpret", ["0", "1"])
@pytest.mark.parametrize("name", CALLS)
def test_calls_as_jit(name: str, interpret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONELAUNCH_INTERPRET", interpret)
    want = CALLS[name](jax.jit)
    got = CALLS[name](onelaunch.fuse)
    assert str(jax.tree.structure(got)) == str(jax.tree.structure(want))
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
        assert (x.dtype, x.shape, x.weak_type) == (y.dtype, y.shape, y.weak_type)
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", compat.PRIVATE)
def test_private_names_exist(name: str) -> None:
    assert resolve_name(name) is not None


def test_a_key_closed_over_is_in_the_kernel() -> None:
    key = jax.random.key(3)

    def noisy(x: jax.Array) -> jax.Array:
        return x + jax.random.uniform(key)

    np.testing.assert_array_equal(onelaunch.fuse(noisy, fallback="error")(X), jax.jit(noisy)(X))


def test_typed_keys_compare_by_all_their_words(monkeypatch):
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")
    keys = jax.random.split(jax.random.key(0), 3)
    fn = lambda a, b: (a == b, a != b)  # noqa: E731
    got = onelaunch.fuse(fn, fallback="error")(keys, keys[jnp.array([0, 2, 2])])
    assert [g.tolist() for g in got] == [[True, False, True], [False, True, False]]


def test_a_batch_of_no_lanes(monkeypatch):
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")
    fn = jax.vmap(lambda z: jax.lax.while_loop(lambda s: s.sum() < 3, lambda s: s + 1, z))
    assert onelaunch.fuse(fn, fallback="error")(jnp.zeros((0, 3))).shape == (0, 3)


def test_digamma_at_its_pole_follows_the_version_of_jax(monkeypatch):
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")
    x = jnp.array([0.0, -0.0, -1.0, 2.5])
    got = onelaunch.fuse(jax.lax.digamma, fallback="error")(x)
    assert jnp.allclose(got, jax.jit(jax.lax.digamma)(x), equal_nan=True)
