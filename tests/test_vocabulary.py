"""Split vocabularies: eight forced devices in a process of their own, and a mapped axis in the interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vocabulary_checks
from jax_rows import expected, in_float64, kernel, labels, seeded  # noqa: F401
from onelaunch import nn
from onelaunch.errors import OptionError

TESTS = Path(__file__).parent


def run_checks(*arguments, **environment):
    # Compilation is most of the time.
    quick = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count=8 {quick}", "JAX_PLATFORMS": "cpu"}
    paths = os.pathsep.join(map(str, [TESTS.parent / "src", TESTS]))
    result = subprocess.run(
        [sys.executable, str(TESTS / "vocabulary_checks.py"), *arguments],
        env={**os.environ, **flags, "PYTHONPATH": paths, **environment}, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    return [line for line in result.stdout.splitlines() if line.startswith("ok ")]


def test_on_eight_devices():
    assert len(run_checks()) == len(vocabulary_checks.checks())


@pytest.mark.slow
def test_on_eight_devices_every_option():
    assert len(run_checks("--full")) == len(vocabulary_checks.checks(full=True))


@pytest.mark.slow
def test_on_eight_devices_by_the_kernel():
    """In the interpreter, one device at a time."""
    assert run_checks(ONELAUNCH_INTERPRET="1")


def parts(a, n=4):
    """The last dimension cut into n, in front."""
    return jnp.moveaxis(a.reshape(*a.shape[:-1], n, -1), -2, 0)


@pytest.mark.parametrize("options", [{}, {"reduction": "none", "softcap": 3.0}, {"label_smoothing": 0.2}], ids=str)
@pytest.mark.parametrize("soft", [False, True], ids=["labels", "probabilities"])
def test_kernel_against_float64(kernel, soft, options):  # noqa: F811
    """Parts of a vocabulary of 17, padded to 20, under vmap with an axis name."""
    x = seeded(6, 20).at[:, 17:].set(9.0)
    t = jnp.abs(seeded(6, 20, seed=2)) if soft else labels(6, classes=17)

    def ours(x):
        one = lambda x, t: nn.cross_entropy(x, t, axis_name="v", vocab_size=17, **options).sum()  # noqa: E731
        return jax.vmap(one, (0, 0 if soft else None), axis_name="v")(parts(x), parts(t) if soft else t)[0]

    def theirs(x, t):
        return expected(x[:, :17], t[:, :17] if soft else t, **options).sum()

    found = jax.jit(jax.value_and_grad(ours))(x)
    for a, r in zip(found, in_float64(jax.value_and_grad(theirs), x, t)):
        np.testing.assert_allclose(a, r, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{"lse_square_scale": 0.1, "label_smoothing": 0.1}, {"reduction": "none"}], ids=str)
def test_linear_by_the_kernel_against_float64(kernel, options):  # noqa: F811
    """Gradients with the loss (global lse, the parts' own labels), and after it."""
    h, w, t = seeded(6, 4, scale=1), seeded(20, 4, seed=4, scale=1), labels(6, classes=17)

    def ours(h, w):
        one = lambda w: nn.linear_cross_entropy(h, w, t, axis_name="v", vocab_size=17, chunk=4, **options)  # noqa: E731
        return jax.vmap(one, axis_name="v")(w.reshape(4, 5, 4))[0].sum()

    def theirs(h, w, t):
        return expected(h @ w[:17].T, t, **options).sum()

    found = jax.jit(jax.value_and_grad(ours, (0, 1)))(h, w)
    want = in_float64(jax.value_and_grad(theirs, (0, 1)), h, w, t)
    for a, r in zip(jax.tree.leaves(found), jax.tree.leaves(want)):
        np.testing.assert_allclose(a, r, rtol=2e-5, atol=2e-6)


def test_padded_vocabulary_on_one_device():
    """13: a label of the padding is NaN, and what the padding holds does not matter."""
    x = seeded(4, 20).at[:, 17:].set(jnp.inf)
    t = jnp.asarray([16, 17, -100, 3])
    found, grad = jax.value_and_grad(lambda x: jnp.nansum(nn.cross_entropy(x, t, vocab_size=17, reduction="none")))(x)
    want = expected(x[:, :17], jnp.asarray([16, -100, -100, 3]), reduction="sum")
    np.testing.assert_allclose(found, want, rtol=1e-5)
    assert jnp.isnan(nn.cross_entropy(x, t, vocab_size=17))
    assert not grad[:, 17:].any() and not grad[2].any()


def test_wrong_sizes():
    with pytest.raises(OptionError, match="between 1 and 20"):
        nn.cross_entropy(seeded(4, 20), jnp.zeros(4, int), vocab_size=21)
    with pytest.raises(OptionError, match="axis_name"):
        nn.cross_entropy(seeded(4, 20), jnp.zeros(4, int), axis_name="v", grad_in_forward=True)
