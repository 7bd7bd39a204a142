"""The examples: their kernels, interpreted, give what jax.jit gives; on a GPU the sampler is exact at full length."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import ModuleType

import jax
import numpy as np
import pytest

import onelaunch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "bench"))

from agree import compare  # noqa: E402
from process import load_file  # noqa: E402

NAMES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))
# Chaos and step control amplify the last digits; the rest is held to a few units of them.
BOUND = {4: 2e-5, 8: 1e-12}


def example(name: str) -> ModuleType:
    """An example, executed anew: it may set x64, which the test's end puts back."""
    return load_file(ROOT / "examples" / f"{name}.py")


@pytest.mark.parametrize("name", NAMES)
def test_example_agrees_with_jax_in_the_interpreter(name, monkeypatch):
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")
    fn, args = example(name).make_small()
    fused = onelaunch.fuse(fn, fallback="error")
    assert compare(fused(*args), jax.jit(fn)(*args), BOUND).problems == ()
    low = fused.lower(*args)
    assert (low.launches, low.refusals) == (1, ())


@pytest.mark.parametrize("name", NAMES)
def test_example_is_one_launch_at_full_size(name):
    fn, args = example(name).make()
    low = onelaunch.fuse(fn).lower(*args)
    assert (low.launches, low.refusals) == (1, ())


@pytest.mark.parametrize("chains", [1, 5])
@pytest.mark.parametrize("static", [False, True])
def test_sampler_of_some_chains_with_steps_traced_and_static(chains, static, monkeypatch):
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")
    fn, args = example("sampler").make_chains(chains, 7)
    options = {"static_argnums": 2} if static else {}
    got = onelaunch.fuse(fn, fallback="error", **options)(*args)
    assert compare(got, jax.jit(fn, **options)(*args), {8: 1e-13}).problems == ()


def test_lorenz_step_control_meets_its_tolerance():
    m = example("lorenz")
    rho = np.linspace(0.0, 21.0, 7)
    coarse, fine = (abs(np.asarray(m.ensemble(rho, tol, tol * 1e-3)) - m.reference(rho)).max() for tol in (1e-4, 1e-8))
    assert coarse < 1e-2 and fine < 1e-6


@pytest.mark.parametrize("name", NAMES)
def test_example_runs_as_a_script(name, monkeypatch, capsys):
    """In this process: to start one takes longer than most examples."""
    path = str(ROOT / "examples" / f"{name}.py")
    monkeypatch.setattr(sys, "argv", [path, "--small"])
    runpy.run_path(path, run_name="__main__")
    assert " ms" in capsys.readouterr().out


@pytest.mark.gpu
@pytest.mark.parametrize("chains", [1, 1_024, 65_536])
def test_sampler_is_exact_after_8000_steps(chains):
    fn, (weights, keys, n) = example("sampler").make_chains(chains)
    got_keys, got = jax.device_get(onelaunch.fuse(fn, fallback="error")(weights, keys, n))
    picked = np.linspace(0, chains - 1, min(chains, 64)).astype(int)
    cpu = jax.devices("cpu")[0]
    with jax.default_device(cpu):
        host = jax.device_put((weights, np.asarray(keys)[picked], n), cpu)
        want_keys, want = jax.device_get(jax.jit(fn)(*host))
    assert (got_keys[picked] == want_keys).all()
    assert abs(got[picked] - want).max() <= 1e-12
