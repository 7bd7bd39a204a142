"""What the tests of onelaunch.nn's row functions share: data, references, fixtures for kernel and XLA."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onelaunch.kernels import tiles

MODES = ("softmax", "log_softmax", "logsumexp")


@pytest.fixture
def kernel(monkeypatch):
    """The kernel in the interpreter, with steps of 8 columns."""
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")
    with tiles.forced(2, 8):
        yield


@pytest.fixture(params=["kernel", "xla"])
def path(request):
    """The kernel in the interpreter (with steps of 8 columns), or XLA."""
    if request.param == "kernel":
        request.getfixturevalue("kernel")
    return request.param


def seeded(*shape, dtype=np.float32, seed=0, scale=2.0):
    """Normal numbers, the same at each call."""
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape) * scale, dtype)


def labels(*shape, classes, ignore=-100, seed=1):
    """Labels of which every third is ignored."""
    t = np.random.default_rng(seed).integers(0, classes, shape)
    t.reshape(-1)[1::3] = ignore
    return jnp.asarray(t, jnp.int32)


def expected(x, t, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0, lse_square_scale=0.0,
             softcap=None, logit_scale=1.0, num_items=None):  # fmt: skip
    """PyTorch's definition of the loss in plain JAX, last axis."""
    z = x * logit_scale
    z = z if softcap is None else softcap * jnp.tanh(z / softcap)
    classes, soft = x.shape[-1], jnp.issubdtype(t.dtype, jnp.floating)
    w = jnp.ones(classes, z.dtype) if weight is None else weight
    valid = jnp.ones(x.shape[:-1], bool) if soft else t != ignore_index
    q = t if soft else jax.nn.one_hot(jnp.where(valid, t, 0), classes, dtype=z.dtype)
    mixed = q * (1 - label_smoothing) + label_smoothing / classes
    loss = -(mixed * w * jax.nn.log_softmax(z)).sum(-1)
    square = jax.nn.logsumexp(z, -1) ** 2 * lse_square_scale
    n = valid.sum() if soft else (valid * w[jnp.where(valid, t, 0)]).sum()
    if reduction == "none":
        return jnp.where(valid, loss + square, 0)
    loss, square = (loss * valid).sum(), (square * valid).sum()
    if num_items is not None:
        return (loss + square) / num_items
    return loss / n + square / valid.sum() if reduction == "mean" else loss + square


def expected_softmax(mode, x, axis, where=None, scale=1.0, softcap=None, mask=None, causal_offset=None):
    """jax.nn's function of the scores."""
    z = x * scale
    z = z if softcap is None else softcap * jnp.tanh(z / softcap)
    z = z if mask is None else z + mask
    use = None if where is None else jnp.broadcast_to(where, z.shape)
    if causal_offset is not None:
        causal = jnp.tri(*z.shape[-2:], causal_offset, dtype=bool)
        use = causal if use is None else use & causal
    return getattr(jax.nn, mode)(z, axis, where=use)


def in_float64(function, *arrays):
    """``function`` of the arrays, floats among them widened, computed in float64; numpy arrays."""

    def wide(a):
        a = np.asarray(a)
        return a if a.dtype.kind in "iub" else a.astype(np.float64)

    before = jax.config.jax_enable_x64
    given = [wide(a) for a in arrays]
    jax.config.update("jax_enable_x64", True)
    try:
        return jax.tree.map(np.asarray, jax.jit(function)(*map(jnp.asarray, given)))
    finally:
        jax.config.update("jax_enable_x64", before)


def covering(factors, seed=0):
    """Rows of one value for each factor such that every pair of values of two factors is in some row (greedily)."""
    names = list(factors)
    left = {
        (a, x, b, y) for a, b in itertools.combinations(names, 2) for x in range(len(factors[a]))
        for y in range(len(factors[b]))
    }  # fmt: skip
    generator, rows = np.random.default_rng(seed), []
    while left:
        tries = [{n: int(generator.integers(len(factors[n]))) for n in names} for _ in range(200)]
        a, x, b, y = min(left)
        tries = [{**row, a: x, b: y} for row in tries]
        gains = [sum((a, row[a], b, row[b]) in left for a, b in itertools.combinations(names, 2)) for row in tries]
        best = tries[int(np.argmax(gains))]
        left -= {(a, best[a], b, best[b]) for a, b in itertools.combinations(names, 2)}
        rows.append({n: factors[n][i] for n, i in best.items()})
    return rows
