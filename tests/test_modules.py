"""Callables of other libraries: what they pass to jax.jit they pass to fuse."""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import onelaunch
from test_compose import fused_equations, same

X = jnp.linspace(-1, 1, 12).reshape(4, 3)


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")


def check(fn: Any, *args: Any) -> None:
    """A loss of (parameters, ...) and its gradient, fused inside and around."""
    same(onelaunch.fuse(fn, fallback="error")(*args), jax.jit(fn)(*args))
    want = jax.jit(jax.value_and_grad(fn))(*args)
    same(onelaunch.fuse(jax.value_and_grad(fn), fallback="error")(*args), want)
    around = jax.value_and_grad(onelaunch.fuse(fn, fallback="error"))
    same(around(*args), want)
    assert fused_equations(jax.make_jaxpr(around)(*args).jaxpr) == 2


def test_equinox() -> None:
    eqx = pytest.importorskip("equinox")

    class Net(eqx.Module):
        cell: Any
        head: Any
        name: str = eqx.field(static=True, default="net")

        def __init__(self, key: jax.Array):
            self.cell = eqx.nn.GRUCell(3, 2, key=key)
            self.head = eqx.nn.MLP(2, 1, 3, 1, key=key)

        def __call__(self, xs: jax.Array) -> jax.Array:
            last, _ = jax.lax.scan(lambda h, x: (self.cell(x, h), None), jnp.zeros(2), xs)
            return self.head(last)[0]

    net = Net(jax.random.key(0))
    arrays, static = eqx.partition(net, eqx.is_inexact_array)

    def loss(arrays: Any, xs: jax.Array) -> jax.Array:
        return jnp.square(eqx.combine(arrays, static)(xs) - 1)

    check(loss, arrays, X)
    fused = onelaunch.fuse(loss, fallback="error")
    of_module = lambda m, xs: fused(eqx.filter(m, eqx.is_inexact_array), xs)  # noqa: E731
    same(eqx.filter_jit(of_module)(net, X), loss(arrays, X))
    same(eqx.filter_grad(of_module)(net, X).cell, jax.grad(loss)(arrays, X).cell)


def test_flax_linen() -> None:
    nn = pytest.importorskip("flax.linen")

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            return nn.Dense(1)(nn.tanh(nn.LayerNorm()(nn.Dense(3)(x))))

    net = Net()
    params = net.init(jax.random.key(0), X)
    check(lambda params, x: jnp.mean(jnp.square(net.apply(params, x) - 1)), params, X)


def test_flax_nnx() -> None:
    nnx = pytest.importorskip("flax.nnx")
    net = nnx.Sequential(nnx.Linear(3, 3, rngs=nnx.Rngs(0)), nnx.tanh, nnx.Linear(3, 1, rngs=nnx.Rngs(1)))
    graph, state = nnx.split(net)
    check(lambda state, x: jnp.mean(jnp.square(nnx.merge(graph, state)(x) - 1)), state, X)


def test_haiku() -> None:
    hk = pytest.importorskip("haiku")

    def forward(xs: jax.Array) -> jax.Array:
        cell = hk.LSTM(2)
        out, _ = hk.dynamic_unroll(cell, xs[:, None], cell.initial_state(1))
        return jnp.mean(jnp.square(hk.Linear(1)(out) - 1))

    net = hk.without_apply_rng(hk.transform(forward))
    params = net.init(jax.random.key(0), X)
    check(net.apply, params, X)


def test_optax_training_is_one_launch() -> None:
    optax = pytest.importorskip("optax")
    tx = optax.adam(1e-2)

    def train(w: jax.Array, xs: jax.Array) -> Any:
        def step(carry: Any, x: jax.Array) -> Any:
            w, state = carry
            loss, slope = jax.value_and_grad(lambda w: jnp.square(w @ x - 1))(w)
            change, state = tx.update(slope, state)
            return (optax.apply_updates(w, change), state), loss

        return jax.lax.scan(step, (w, tx.init(w)), xs)

    w = jnp.ones(3)
    same(onelaunch.fuse(train, fallback="error")(w, X), jax.jit(train)(w, X))


def test_shapes_without_running() -> None:
    fused = onelaunch.fuse(lambda p, x: {"y": p["w"] @ x, "n": x.size})
    args = ({"w": jax.ShapeDtypeStruct((2, 3), jnp.float32)}, jax.ShapeDtypeStruct((3,), jnp.float32))
    want = jax.eval_shape(jax.jit(lambda p, x: {"y": p["w"] @ x, "n": x.size}), *args)
    assert jax.eval_shape(fused, *args) == fused.eval_shape(*args) == want
    assert fused_equations(jax.make_jaxpr(fused)(*args).jaxpr) == 1


def test_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU what is exported is XLA's own program, with its derivative."""
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "0")
    fn = lambda x: jnp.cumsum(jnp.sin(x))  # noqa: E731
    exported = jax.export.export(jax.jit(onelaunch.fuse(fn)))(jax.ShapeDtypeStruct((3,), jnp.float32))
    same(exported.call(X[0]), fn(X[0]))
    same(jax.grad(lambda x: exported.call(x).sum())(X[0]), jax.grad(lambda x: fn(x).sum())(X[0]))
    pytest.importorskip("flatbuffers")
    again = jax.export.deserialize(exported.serialize(vjp_order=1))
    same(again.call(X[0]), fn(X[0]))


def test_export_for_a_gpu() -> None:
    """Lowered for CUDA from a machine without: the module holds one call of the kernel."""
    assert os.environ["ONELAUNCH_INTERPRET"] == "1"
    exported = jax.export.export(
        jax.jit(onelaunch.fuse(lambda x: jnp.cumsum(jnp.sin(x)))),
        platforms=["cuda"],
        disabled_checks=[jax.export.DisabledSafetyCheck.custom_call("triton_kernel_call_ffi")],
    )(jax.ShapeDtypeStruct((3,), jnp.float32))
    assert exported.mlir_module().count("@triton_kernel_call_ffi") == 1


def test_a_gradient_step_over_a_list_of_dicts() -> None:
    params = [{"w": jnp.ones((3, 2)) * 0.3, "b": jnp.zeros(2)}, {"w": jnp.ones((2, 1)), "b": jnp.zeros(1)}]

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        for layer in params:
            x = jnp.tanh(x @ layer["w"] + layer["b"])
        return jnp.mean((x[:, 0] - y) ** 2)

    check(loss, params, X, np.ones(4, np.float32))
