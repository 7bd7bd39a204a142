"""fuse among JAX's transformations: outer(fuse(inner(f))) is outer(jit(inner(f))), in the fewest launches."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import onelaunch
from cases import is_jaxpr

Fn = Callable[[jax.Array, jax.Array], jax.Array]

W = jnp.array([[0.6, -0.4], [0.3, 0.8]])
X = jnp.array([0.5, -0.25])


def base(w: jax.Array, x: jax.Array) -> jax.Array:
    """A recurrence with carried state and stacked outputs: f32[2, 2], f32[2] -> f32[2]."""

    def step(c: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        c = jnp.tanh(w @ c + x)
        return c, c * jnp.sin(c)

    last, seen = lax.scan(step, x, None, length=3)
    return last + seen.sum(0)


# --- each transformation, as one from functions of (w, x) to functions of (w, x) ---------------------------------


def grad(f: Fn) -> Fn:
    return lambda w, x: jax.grad(lambda x: f(w, x).sum())(x)


def value_and_grad(f: Fn) -> Fn:
    def fn(w: jax.Array, x: jax.Array) -> jax.Array:
        value, slope = jax.value_and_grad(lambda w: f(w, x).sum())(w)
        return value + slope.sum(0)

    return fn


def vjp(f: Fn) -> Fn:
    def fn(w: jax.Array, x: jax.Array) -> jax.Array:
        y, pull = jax.vjp(f, w, x)
        dw, dx = pull(y)
        return dx + dw[0]

    return fn


def jvp(f: Fn) -> Fn:
    return lambda w, x: sum(jax.jvp(f, (w, x), (x * w, w[0])))


def linearize(f: Fn) -> Fn:
    def fn(w: jax.Array, x: jax.Array) -> jax.Array:
        y, push = jax.linearize(f, w, x)
        return y + push(w, x)

    return fn


def hessian(f: Fn) -> Fn:
    return lambda w, x: jax.hessian(lambda x: f(w, x).sum())(x) @ x


def vmap(f: Fn) -> Fn:
    """The weights unbatched, the batch last."""
    return lambda w, x: jax.vmap(f, (None, 1), 1)(w, jnp.stack([x, 2 * x, -x], 1)).sum(1)


def nested_vmap(f: Fn) -> Fn:
    """Two batches, one over each argument."""
    inner = jax.vmap(f, (0, None))
    return lambda w, x: jax.vmap(inner, (None, 0), -1)(jnp.stack([w, -w]), jnp.stack([x, 2 * x, -x])).sum((0, 2))


def custom_jvp(f: Fn) -> Fn:
    """A rule of the user's own: twice the derivative."""
    fn = jax.custom_jvp(f)
    fn.defjvp(lambda primals, tangents: (f(*primals), 2 * jax.jvp(f, primals, tangents)[1]))
    return fn


def custom_vjp(f: Fn) -> Fn:
    """A rule of the user's own: three times the gradient."""

    def backward(saved: Any, g: jax.Array) -> Any:
        return jax.vjp(f, *saved)[1](3 * g)

    fn = jax.custom_vjp(f)
    fn.defvjp(lambda w, x: (f(w, x), (w, x)), backward)
    return fn


def scan(f: Fn) -> Fn:
    return lambda w, x: lax.scan(lambda c, _: (c + 0.1 * f(w, c), None), x, None, length=2)[0]


TRANSFORMATIONS: dict[str, Callable[[Fn], Fn]] = {
    "jit": jax.jit,
    "grad": grad,
    "value_and_grad": value_and_grad,
    "vjp": vjp,
    "jvp": jvp,
    "linearize": linearize,
    "jacfwd": lambda f: lambda w, x: jax.jacfwd(f, 1)(w, x) @ x,
    "jacrev": lambda f: lambda w, x: jax.jacrev(f)(w, x).sum((0, 1)),
    "hessian": hessian,
    "vmap": vmap,
    "nested_vmap": nested_vmap,
    "checkpoint": jax.checkpoint,
    "custom_jvp": custom_jvp,
    "custom_vjp": custom_vjp,
    "scan": scan,
}
#: launches of outer(fuse(f)); of fuse(inner(f)) it is always one
LAUNCHES = dict.fromkeys(TRANSFORMATIONS, 1) | dict.fromkeys(
    ("grad", "value_and_grad", "vjp", "jvp", "linearize", "jacfwd", "jacrev"), 2
)
LAUNCHES["hessian"] = 4  # forward and linear part, each with their own
#: reverse mode of forward mode of a custom_vjp is an error of JAX's own
FORWARD = {"jvp", "linearize", "jacfwd", "hessian"}
PAIRS = [(a, b) for a, b in itertools.product(TRANSFORMATIONS, repeat=2) if not (b == "custom_vjp" and a in FORWARD)]
#: each transformation once outside and once inside
FEW = [p for k, p in enumerate(PAIRS) if k % 13 == 0]


def fused_equations(jaxpr: Any) -> int:
    """How many equations of fused programs are in a jaxpr: launches, where no loop repeats them."""
    total = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "onelaunch_fused":
            total += 1
            continue
        for inner in jax.tree.leaves(list(eqn.params.values()), is_leaf=is_jaxpr):
            if is_jaxpr(inner):
                total += fused_equations(getattr(inner, "jaxpr", inner))
    return total


def same(got: Any, want: Any, rtol: float = 2e-4, atol: float = 2e-5) -> None:
    """Equal structure, dtypes, shapes and (nearly) values."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        np.testing.assert_allclose(x, y, rtol=rtol, atol=atol)


def check_pair(outer: str, inner: str) -> None:
    plain = TRANSFORMATIONS[inner](base)
    fused = TRANSFORMATIONS[outer](onelaunch.fuse(plain, fallback="error"))
    same(fused(W, X), TRANSFORMATIONS[outer](jax.jit(plain))(W, X))


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_launches(name: str) -> None:
    """Derivatives around are one launch forward and one backward; anything inside is part of one launch."""
    transform = TRANSFORMATIONS[name]
    around = jax.make_jaxpr(transform(onelaunch.fuse(base)))(W, X)
    assert fused_equations(around.jaxpr) == LAUNCHES[name]
    inside = jax.make_jaxpr(onelaunch.fuse(transform(base)))(W, X)
    assert fused_equations(inside.jaxpr) == 1


@pytest.mark.parametrize("outer, inner", FEW)
def test_pair(outer: str, inner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")
    check_pair(outer, inner)


@pytest.mark.slow
@pytest.mark.parametrize("outer, inner", [p for p in PAIRS if p not in FEW])
def test_every_pair(outer: str, inner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")
    check_pair(outer, inner)


@pytest.mark.gpu
@pytest.mark.parametrize("outer, inner", PAIRS)
def test_pair_on_a_gpu(outer: str, inner: str) -> None:
    check_pair(outer, inner)
