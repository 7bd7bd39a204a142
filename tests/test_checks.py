"""Run-time checks that raise on the host do not stop fusion: the kernel says which failed, and it raises as in JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import onelaunch as ol

MESSAGES = ("negative", "too large", "not finite")


def check(x: jax.Array, failed: Any, number: Any) -> jax.Array:
    """x; an error if ``failed`` (what equinox's ``error_if`` makes)."""

    def raises(k: np.ndarray) -> np.ndarray:
        raise RuntimeError(f"check: {MESSAGES[int(k)]}")

    def fails(x: jax.Array, k: jax.Array) -> jax.Array:
        return jax.pure_callback(raises, jax.ShapeDtypeStruct(x.shape, x.dtype), k)

    return lax.cond(failed, fails, lambda x, k: x, x, jnp.int32(number))


def straight(x: jax.Array) -> jax.Array:
    return check(2 * x, (x < 0).any(), 0).sum()


def looped(x: jax.Array) -> Any:
    """A check in each kind of control flow, one with a number known at run time."""

    def step(c: jax.Array, t: jax.Array) -> tuple[jax.Array, jax.Array]:
        return check(c + t, c.sum() > 100, jnp.where(jnp.isfinite(c.sum()), 1, 2)), c[0]

    y, ys = lax.scan(step, check(x, (x < 0).any(), 0), jnp.arange(4.0))
    y = lax.while_loop(lambda c: c[0] < 20, lambda c: check(2 * c + 1, c[1] > 60, 1), y)
    return lax.cond(y[0] > 22, lambda y: check(y, y[2] > 70, 1), lambda y: y, y), ys


def message(fn: Any, x: jax.Array) -> str:
    with pytest.raises(Exception, match="check: ") as caught:
        jax.block_until_ready(fn(x))
    return str(caught.value).partition("check: ")[2].partition("\n")[0].strip()


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")


@pytest.mark.parametrize("fn", [straight, looped])
def test_values_where_no_check_fails(fn: Any) -> None:
    x = jnp.asarray([1.0, 2.0, 3.0])
    fused = ol.fuse(fn, fallback="error")
    assert fused.lower(x).launches == 1
    jax.tree.map(np.testing.assert_allclose, fused(x), jax.jit(fn)(x))


@pytest.mark.parametrize(
    ("fn", "x"),
    [
        (straight, [1, -1, 1]),
        (looped, [-1, 1, 1]),
        (looped, [90, 9, 9]),
        (looped, [1, 30, 1]),
        (looped, [np.inf, 1, 1]),
    ],
)
def test_a_failed_check_raises_its_error(fn: Any, x: list[float]) -> None:
    given = jnp.asarray(x, jnp.float32)
    assert message(ol.fuse(fn, fallback="error"), given) == message(jax.jit(fn), given)


def test_a_callback_that_gives_values_is_refused() -> None:
    def fn(x: jax.Array) -> jax.Array:
        return lax.cond(x.sum() > 0, lambda x: jax.pure_callback(np.sin, x, x), lambda x: x, x)

    (refusal,) = ol.fuse(fn).lower(jnp.ones(3)).refusals
    assert "callback" in refusal.what
    np.testing.assert_allclose(ol.fuse(fn)(jnp.ones(3)), np.sin(np.ones(3)), rtol=1e-6)


@pytest.mark.parametrize("place", ["in the loop", "after it"])
def test_a_check_over_a_batch(place: str) -> None:
    """Equinox's own, on a batch whose members stop at different times."""
    error_if = pytest.importorskip("equinox").error_if

    def member(x: jax.Array, n: jax.Array) -> jax.Array:
        def body(c: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            y = 1.5 * c[1] + 1
            return c[0] + 1, error_if(y, y > 1e4, "check: big") if place == "in the loop" else y

        y = lax.while_loop(lambda c: c[0] < n, body, (jnp.int32(0), x))[1]
        return error_if(y, y > 1e4, "check: big") if place == "after it" else y

    x, n = jnp.ones(300), jnp.arange(300) % 7
    fused = ol.fuse(jax.vmap(member), fallback="error")
    np.testing.assert_allclose(fused(x, n), jax.vmap(member)(x, n), rtol=1e-6)
    assert message(lambda x: fused(x, n), x.at[299].set(1e6)) == "big"
