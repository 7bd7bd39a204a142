"""Random programs with callbacks, effects and transforms in them: values and effects are those of jax.jit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import onelaunch
from onelaunch import single
from onelaunch.partition import parts
from random_programs import Maker


def host(x: jax.Array) -> jax.Array:
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.pure_callback(lambda v: np.cos(np.asarray(v)), shape, x, vmap_method="expand_dims")


def fourier(x: jax.Array) -> jax.Array:
    return jnp.tanh(jnp.fft.fft(x.ravel()).real.reshape(x.shape) * 0.1)


class Mixed(Maker):
    """Programs in which about one step of five stays in XLA; ``log`` gets what ordered callbacks were given."""

    def __init__(self, seed: int, effects: bool):
        super().__init__(seed)
        self.effects = effects
        self.log: list[tuple[int, Any]] = []
        self.notes = 0

    def step(self, shapes: Any, depth: int) -> Any:
        if self.random.random() > 0.2:
            return super().step(shapes, depth)
        k = self.random.randrange(len(shapes))
        fn = self.random.choice([host, fourier, *([self.noted()] if self.effects else [])])
        return (lambda xs: fn(xs[k])), shapes[k]

    def noted(self) -> Any:
        self.notes += 1
        tag = self.notes

        def note(x: jax.Array) -> jax.Array:
            jax.experimental.io_callback(lambda v: self.log.append((tag, float(v))), None, x.sum(), ordered=True)
            return x * 0.5

        return note


def check(seed: int) -> int:
    """Compare one program, a third of them under vmap; returns how many kernels it has."""
    maker = Mixed(seed, effects=seed % 3 != 2)
    fn, args = maker.program()
    if not maker.effects:
        args = [np.stack([x, x * 0.5, -x]) for x in args]
        fn = jax.vmap(fn)
    want = jax.jit(fn)(*args)
    jax.effects_barrier()
    seen, maker.log[:] = list(maker.log), []
    fused = onelaunch.fuse(fn)
    got = fused(*args)
    jax.effects_barrier()
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert jax.typeof(x) == jax.typeof(y)
        np.testing.assert_allclose(x, y, rtol=2e-3, atol=2e-4, err_msg=f"seed {seed}")
    assert [tag for tag, _ in maker.log] == [tag for tag, _ in seen]
    np.testing.assert_allclose([v for _, v in maker.log], [v for _, v in seen], rtol=2e-3, atol=2e-3)
    low = fused.lower(*args)
    assert all(r.stage in ("trace", "cost") for r in low.refusals), low.refusals
    return low.launches


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of everything that can be one, however little it gains."""
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")
    monkeypatch.setattr(parts, "LEAST_LAUNCHES", 0)
    monkeypatch.setattr(single, "SLOWER_PART", 1e9)


@pytest.mark.parametrize("seed", range(4))
def test_values_and_effects(seed: int, eager: None) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4, 204))
def test_many_values_and_effects(seed: int, eager: None) -> None:
    check(seed)
