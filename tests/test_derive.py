"""Derivatives around a fused function: what is saved, what is linear, what stays zero, and how often it is traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.test_util import check_grads

import onelaunch
from onelaunch.derive import linearized, transposed
from onelaunch.primitive import Program
from test_compose import fused_equations, same

X = jnp.array([0.5, -0.25, 1.5])


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")


def program(fn: Callable[..., Any], *args: Any) -> Program:
    return Program(jax.make_jaxpr(fn)(*args), "fn", False, False)


def saved_bytes(fn: Callable[..., Any], *args: Any) -> int:
    """What the forward program gives out besides the results."""
    whole = program(fn, *args)
    forward = linearized(whole, (True,) * len(args)).forward
    return sum(a.size * a.dtype.itemsize for a in forward.closed.out_avals[len(whole.closed.out_avals) :])


def loop(w: jax.Array, x: jax.Array) -> jax.Array:
    return lax.scan(lambda c, _: (jnp.tanh(w * c), None), x, None, length=5)[0]


# --- what is saved ---------------------------------------------------------------------------------------


def test_a_linear_function_saves_nothing_and_is_its_own_forward_program() -> None:
    whole = program(lambda x, y: 3 * x - y, X, X)
    derived = linearized(whole, (True, True))
    assert derived.forward is whole and derived.saved == ()


def test_arguments_and_results_are_not_given_out_again() -> None:
    whole = program(lambda x, y: (x * y, jnp.exp(x)), X, X)
    derived = linearized(whole, (True, True))
    assert derived.forward is whole
    assert sorted(derived.saved) == [(False, 1), (True, 0), (True, 1)]


def test_a_derivative_in_one_argument_saves_only_what_that_needs() -> None:
    whole = program(lambda w, x: w * jnp.sin(x), X, X)
    assert linearized(whole, (False, True)).linear.closed.jaxpr.invars[1:]
    in_w = linearized(whole, (True, False))
    assert len(in_w.saved) == 1 and len(in_w.linear.closed.in_avals) == 2


def test_checkpoint_inside_saves_less() -> None:
    stage = jax.checkpoint(loop)
    assert saved_bytes(lambda w, x: stage(w, stage(w, x)), X, X) < saved_bytes(lambda w, x: loop(w, loop(w, x)), X, X)
    want = jax.grad(lambda w: loop(w, loop(w, X)).sum())(X)
    fused = onelaunch.fuse(lambda w: stage(w, stage(w, X)).sum(), fallback="error")
    same(jax.grad(fused)(X), want)


def test_a_loop_saves_rows_of_its_turns() -> None:
    assert 5 * X.nbytes <= saved_bytes(loop, X, X) <= 3 * 5 * X.nbytes  # the carry, and what JAX's tanh saves


# --- what is linear, and what is zero ----------------------------------------------------------------------


def test_integer_arguments_and_results() -> None:
    def fn(n: jax.Array, x: jax.Array, flag: jax.Array) -> Any:
        return x * n, n + 1, jnp.where(flag, x, 0), flag, jnp.argmax(x)

    fused, args = onelaunch.fuse(fn, fallback="error"), (jnp.arange(3), X, X > 0)
    same(
        jax.grad(lambda x: sum(y.sum() for y in fused(args[0], x, args[2])[::2]))(X),
        jax.grad(lambda x: sum(y.sum() for y in fn(args[0], x, args[2])[::2]))(X),
    )
    zero = tuple(np.zeros(a.shape, jax.dtypes.float0) for a in (args[0], args[2]))
    for push in (lambda f: jax.jvp(f, args, (zero[0], X, zero[1])),):
        got, want = push(fused), push(fn)
        assert [t.dtype for t in got[1]] == [t.dtype for t in want[1]]
        same([*got[0], got[1][0], got[1][2]], [*want[0], want[1][0], want[1][2]])
    pull = jax.vjp(fused, *args)[1]
    found = pull((X, zero[0], X, zero[1], np.zeros((), jax.dtypes.float0)))
    assert [g.dtype for g in found] == [jax.dtypes.float0, np.float32, jax.dtypes.float0]


def test_a_zero_that_is_known_stays_known() -> None:
    """0 * inf would be NaN: the derivative of sqrt at 0 must not be asked for."""

    def fn(t: jax.Array, x: jax.Array) -> Any:
        return t * 2, x, lax.fori_loop(0, 2, lambda _, c: (c[0] * t, c[1]), (x, x))[1]

    fused = onelaunch.fuse(fn, fallback="error")
    for f in (fn, fused):
        slope = jax.grad(lambda t, f=f: jnp.sum(jnp.sqrt(f(t, jnp.zeros(3))[1]) + jnp.sqrt(f(t, jnp.zeros(3))[2]) + t))
        assert jnp.array_equal(slope(X), jnp.ones(3))


def test_an_argument_that_no_cotangent_reaches_has_no_cotangent() -> None:
    whole = linearized(program(lambda x, y: (x * 2, y * 3), X, X), (True, True)).linear
    aval = whole.closed.out_avals[0]
    derived = transposed(whole, (True, True), (aval, None))
    assert derived.reached == (True, False) and len(derived.program.closed.out_avals) == 1


def test_while_goes_forward_and_refuses_to_go_back_as_in_jax() -> None:
    def fn(x: jax.Array) -> jax.Array:
        return lax.while_loop(lambda s: s[0].sum() < 9, lambda s: (s[0] * 1.5 + 0.5, s[1] + 1), (x, 0))[0]

    fused = onelaunch.fuse(fn, fallback="error")
    same(jax.jvp(fused, (X,), (X,)), jax.jvp(fn, (X,), (X,)))
    same(jax.jacfwd(fused)(X), jax.jacfwd(fn)(X))
    texts = []
    for f in (fn, fused):
        with pytest.raises(ValueError, match="Reverse-mode differentiation does not work") as error:
            jax.grad(lambda x, f=f: f(x).sum())(X)
        texts.append(str(error.value))
    assert texts[0] == texts[1]


def test_an_argument_used_by_a_loop_it_does_not_change() -> None:
    def fn(w: jax.Array, x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 3, lambda i, c: c.at[i].set(jnp.sin(w[i] * c[2 - i])), x)

    fused = onelaunch.fuse(fn, fallback="error")
    same(jax.jacrev(fused, (0, 1))(X, X), jax.jacrev(fn, (0, 1))(X, X))
    same(jax.jacfwd(fused, (0, 1))(X, X), jax.jacfwd(fn, (0, 1))(X, X))


# --- rules of the user's own -------------------------------------------------------------------------------


def test_rules_inside_are_kept() -> None:
    @jax.custom_vjp
    def clipped(x: jax.Array) -> jax.Array:
        return jnp.sum(x * x)

    clipped.defvjp(lambda x: (clipped(x), x), lambda x, g: (jnp.clip(g * 2 * x, -1, 1),))

    @jax.custom_jvp
    def root(x: jax.Array) -> jax.Array:
        return jnp.sqrt(x)

    root.defjvp(lambda p, t: (root(*p), t[0] * 7))
    for fn in (
        clipped,
        lambda x: root(x * x).sum(),
        lambda x: lax.scan(lambda c, v: (c + root(v * v), None), 0.0, x)[0],
    ):
        same(jax.grad(onelaunch.fuse(fn, fallback="error"))(X), jax.grad(fn)(X))


def test_a_rule_with_integer_residuals_and_none() -> None:
    @jax.custom_vjp
    def pick(x: jax.Array, n: jax.Array) -> jax.Array:
        return x[n]

    pick.defvjp(lambda x, n: (x[n], (x, n, None)), lambda res, g: (jnp.zeros_like(res[0]).at[res[1]].set(g), None))
    fn = lambda x: pick(x, jnp.argmin(x)) * 3  # noqa: E731
    same(jax.grad(onelaunch.fuse(fn, fallback="error"))(X), jax.grad(fn)(X))


# --- derived programs are programs -------------------------------------------------------------------------


def test_a_derivative_is_traced_once() -> None:
    runs = []

    def fn(x: jax.Array) -> jax.Array:
        runs.append(1)
        return loop(x, x).sum()

    slope = jax.grad(onelaunch.fuse(fn))
    slope(X)
    count = len(runs)
    slope(X + 1), slope(X + 2)
    assert len(runs) == count


def test_jit_outside_and_repeated_use_share_the_programs() -> None:
    fused = onelaunch.fuse(loop)

    def twice(x: jax.Array) -> jax.Array:
        return fused(x, x) * fused(x, x + 1)

    text = jax.make_jaxpr(jax.grad(lambda x: twice(x).sum()))(X)
    assert fused_equations(text.jaxpr) == 4


def test_a_derivative_that_can_not_be_a_kernel() -> None:
    @jax.custom_vjp
    def logged(x: jax.Array) -> jax.Array:
        return x * 2

    def backward(_: None, g: jax.Array) -> tuple[jax.Array]:
        return (jax.pure_callback(lambda g: np.asarray(g) * 2, g, g, vmap_method="sequential"),)

    logged.defvjp(lambda x: (x * 2, None), backward)
    fn = lambda x: logged(x).sum()  # noqa: E731
    same(jax.grad(onelaunch.fuse(fn))(X), jax.grad(fn)(X))
    with pytest.raises(onelaunch.FusionError) as error:
        jax.grad(onelaunch.fuse(fn, fallback="error"))(X)
    assert error.value.what == "pure_callback"


@pytest.mark.parametrize("x64", [False, True])
def test_against_finite_differences(x64: bool) -> None:
    with jax.enable_x64(x64):
        x = np.array([0.3, -0.2, 0.7])
        fused = onelaunch.fuse(loop, fallback="error")
        loose = {"rtol": 1e-6, "atol": 1e-6} if x64 else {"rtol": 2e-2, "atol": 2e-2}
        check_grads(fused, (jnp.asarray(x), jnp.asarray(x)), order=2, **loose)


# --- batches -----------------------------------------------------------------------------------------------


def test_what_depends_on_no_batched_argument_is_computed_once() -> None:
    fused = onelaunch.fuse(lambda w, x: (jnp.sin(w), w * x), fallback="error")
    batched = jax.make_jaxpr(jax.vmap(fused, (None, 0), (None, 0)))(X, jnp.ones((4, 3)))
    assert [a.shape for a in batched.out_avals] == [(3,), (4, 3)]
    (call,) = batched.jaxpr.eqns
    (inner,) = call.params["jaxpr"].jaxpr.eqns if call.primitive.name == "jit" else (call,)
    assert [v.aval.shape for v in inner.outvars] == [(3,), (4, 3)]


@pytest.mark.parametrize("members", [3, 70])
def test_weights_shared_by_a_batch(members: int) -> None:
    """Their gradient is a sum over the batch, in the same launch, in a fixed order."""

    def loss(w: jax.Array, xs: jax.Array) -> jax.Array:
        return jnp.mean(jax.vmap(lambda x: jnp.sum(jnp.square(rollout(w, x))))(xs))

    def rollout(w: jax.Array, x: jax.Array) -> jax.Array:
        return lax.scan(lambda c, _: (jnp.tanh(w @ c), c), x, None, length=3)[0]

    w, xs = jnp.eye(2) * 0.7 + 0.1, jnp.sin(jnp.arange(2.0 * members)).reshape(members, 2)
    want = jax.value_and_grad(loss)(w, xs)
    around = jax.value_and_grad(onelaunch.fuse(loss, fallback="error"))
    inside = onelaunch.fuse(jax.value_and_grad(loss), fallback="error")
    same(around(w, xs), want)
    first = inside(w, xs)
    same(first, want)
    assert jnp.array_equal(first[1], inside(w, xs)[1])
    per_member = onelaunch.fuse(
        lambda w, xs: jax.vmap(jax.grad(lambda w, x: loss(w, x[None])), (None, 0))(w, xs).mean(0)
    )
    same(per_member(w, xs), want[1])


def test_a_weight_updated_in_each_step_from_a_whole_batch() -> None:
    """A sum over the batch inside a loop: right, whatever the plan."""

    def train(w: jax.Array, xs: jax.Array) -> Any:
        def step(w: jax.Array, _: None) -> Any:
            loss, slope = jax.value_and_grad(
                lambda w: jnp.mean(jax.vmap(lambda x: jnp.square(jnp.tanh(w @ x) - 0.3).sum())(xs))
            )(w)
            return w - 0.5 * slope, loss

        return lax.scan(step, w, None, length=4)

    w, xs = jnp.eye(2) * 0.7, jnp.cos(jnp.arange(140.0)).reshape(70, 2)
    same(onelaunch.fuse(train, fallback="error")(w, xs), jax.jit(train)(w, xs))
    same(
        jax.grad(lambda w: onelaunch.fuse(train, fallback="error")(w, xs)[1].sum())(w),
        jax.grad(lambda w: train(w, xs)[1].sum())(w),
    )
