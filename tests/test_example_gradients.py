"""Gradients of the examples: through 200 steps of RK4, a GRU, a Lorenz ensemble; against JAX and finite differences."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import onelaunch
from test_compose import fused_equations, same
from test_examples import example

#: the functions that make an example at full and at small size
CASES = {
    "neural_ode": ("make", "make_small"),
    "gru": ("make_training", "make_training_small"),
    "lorenz_gradient": ("make", "make_small"),
}


def loss_of(name: str, m: Any, args: tuple[Any, ...]) -> Any:
    """The example's loss as a function of its first two arguments."""
    rest = (4,) if name == "lorenz_gradient" else ()
    return lambda p, start: m.loss(p, start, args[2], *rest)


@pytest.mark.parametrize("name", CASES)
def test_gradient_inside_and_around(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")
    m = example(name)
    fn, args = getattr(m, CASES[name][1])()
    want = jax.jit(fn)(*args)
    fused = onelaunch.fuse(fn, fallback="error")
    same(fused(*args), want, rtol=1e-4, atol=1e-6)
    loss = loss_of(name, m, args)
    around = jax.value_and_grad(onelaunch.fuse(loss, fallback="error"), (0, 1))
    same(around(*args[:2]), want, rtol=1e-4, atol=1e-6)
    assert fused_equations(jax.make_jaxpr(fused)(*args).jaxpr) == 1
    assert fused_equations(jax.make_jaxpr(around)(*args[:2]).jaxpr) == 2


@pytest.mark.parametrize("name", CASES)
def test_gradient_against_finite_differences(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64, by every parameter and by the state that the loop carries, along a random direction each."""
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")
    with jax.enable_x64(True):
        m = example(name)
        args = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), getattr(m, CASES[name][1])()[1])
        loss = loss_of(name, m, args)
        slopes = jax.grad(onelaunch.fuse(loss, fallback="error"), (0, 1))(*args[:2])
        leaves, tree = jax.tree.flatten(args[:2])
        value, rng = jax.jit(loss), np.random.default_rng(0)
        for k, (leaf, slope) in enumerate(zip(leaves, jax.tree.leaves(slopes), strict=True)):
            step = rng.standard_normal(leaf.shape)
            moved = [[*leaves[:k], leaf + h * step, *leaves[k + 1 :]] for h in (1e-6, -1e-6)]
            ends = [value(*jax.tree.unflatten(tree, xs)) for xs in moved]
            np.testing.assert_allclose(np.vdot(slope, step), (ends[0] - ends[1]) / 2e-6, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("name", ["gru", "lorenz_gradient"])
def test_gradient_is_one_launch_at_full_size(name: str) -> None:
    fn, args = getattr(example(name), CASES[name][0])()
    low = onelaunch.fuse(fn).lower(*args)
    assert (low.launches, low.refusals) == (1, ())
    if name == "lorenz_gradient":
        assert low.plan.grid > 1  # the sums over the ensemble stand after its loops


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_gradient_on_a_gpu(name: str) -> None:
    """At full size against JAX on the CPU; around, the same numbers from two launches; twice, the same bits."""
    m = example(name)
    fn, args = getattr(m, CASES[name][0])()
    cpu = jax.devices("cpu")[0]
    with jax.default_device(cpu):
        want = jax.device_get(jax.jit(fn)(*jax.device_put(args, cpu)))
    fused = onelaunch.fuse(fn, fallback="error")
    first, again = jax.device_get(fused(*args)), jax.device_get(fused(*args))
    scale = max(float(np.abs(x).max()) for x in jax.tree.leaves(want))
    same(first, want, rtol=1e-3, atol=1e-5 * scale)
    jax.tree.map(np.testing.assert_array_equal, first, again)
    if name != "lorenz_gradient":
        around = jax.value_and_grad(onelaunch.fuse(m.loss, fallback="error"), (0, 1))
        same(jax.device_get(around(*args)), want, rtol=1e-3, atol=1e-5 * scale)
