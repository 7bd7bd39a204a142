"""Rows shared by programs. In the interpreter a program can't wait: a second run finds the first one's words."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from onelaunch.emit.kernel import Param
from onelaunch.ir.types import BFLOAT16
from onelaunch.kernels import calls, text, tiles
from onelaunch.kernels.calls import ANYWHERE, LOG_SOFTMAX, SOFTMAX, Gradient, Loss, Scores
from onelaunch.kernels.layout import collapse, contiguous
from onelaunch.launch import interpreter

ROWS, COLUMNS = 4, 61
INF, NAN = np.inf, np.nan


@pytest.fixture(autouse=True)
def four_parts():
    """Pieces of 16 columns; the last of a row has 13."""
    with tiles.forced(1, 16, parts=4, packed=True):
        yield


def logits(dtype: np.dtype) -> np.ndarray:
    """A plain row, one with a piece of −inf, one of large numbers, one with NaN."""
    x = np.random.default_rng(0).normal(0, 3, (ROWS, COLUMNS))
    x[1, 16:32] = -INF
    x[2] += 900.0
    x[3, 40] = NAN
    return x.astype(dtype)


def rows(arrays: int):
    found = collapse((ROWS, COLUMNS), 1, [contiguous((ROWS, COLUMNS))] * arrays)
    assert found is not None
    return found


def launch(call, inputs, outputs) -> dict[str, np.ndarray]:
    """The outputs (shape and dtype by name) of the second run."""
    arguments = dict(call.numbers)
    for role, arrays in (("in", inputs), ("out", outputs)):
        for name, a in arrays.items():
            arguments[name] = None if a is None else Param(name, a.dtype, a.shape, role)
    kernel = text.entry(call.family, call.function, arguments, call.grid, call.warps, words=call.words)
    assert kernel.counter and call.words
    kernel = dataclasses.replace(kernel, counter=False)
    given = [a for a in inputs.values() if a is not None]
    last = sum(p.role == "out" for p in kernel.params) - 1
    words = np.zeros(2 * call.words, np.int32)
    for _ in range(2):
        *found, words = interpreter.run(kernel, [*given, words], aliases={len(given): last})
    names = [name for name, a in outputs.items() if a is not None]
    return dict(zip(names, found, strict=True))


def reference(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """lse and softmax in float64."""
    top = z.max(1, keepdims=True)
    e = np.exp(z - top)
    return (np.log(e.sum(1, keepdims=True)) + top)[:, 0], e / e.sum(1, keepdims=True)


@pytest.mark.parametrize("dtype", [BFLOAT16, np.dtype("float32")], ids=["bf16", "f32"])
@pytest.mark.parametrize("mode", [SOFTMAX, LOG_SOFTMAX])
@pytest.mark.parametrize("masked", [False, True])
def test_softmax(mode, dtype, masked) -> None:
    x = logits(dtype)
    mask = np.linspace(-2, 2, COLUMNS * ROWS, dtype=np.float32).reshape(x.shape) if masked else None
    call = calls.softmax(rows(4), Scores(mode, scale=0.5), ROWS, False, dtype.itemsize, masked)
    y = launch(call, {"x": x, "mask": mask, "keep": None}, {"y": x})["y"].astype(np.float64)
    z = (x.astype(np.float32) * np.float32(0.5) + (mask if masked else np.float32(0))).astype(np.float64)
    lse, p = reference(z)
    want = p if mode == SOFTMAX else z - lse[:, None]
    np.testing.assert_allclose(y, want, rtol=8e-3 if dtype == BFLOAT16 else 2e-6, atol=1e-6)


@pytest.mark.parametrize("mode", [SOFTMAX, LOG_SOFTMAX])
def test_softmax_backward(mode) -> None:
    x = np.random.default_rng(1).normal(0, 2, (ROWS, COLUMNS))
    g = np.random.default_rng(2).normal(size=x.shape).astype(np.float32)
    lse, p = reference(x)
    y = (p if mode == SOFTMAX else x - lse[:, None]).astype(np.float32)
    call = calls.softmax(rows(6), Scores(mode), ROWS, True)
    dx = launch(call, {"y": y, "g": g, "x": None, "mask": None, "keep": None}, {"dx": y})["dx"]
    up = g.astype(np.float64)
    want = p * (up - (p * up).sum(1, keepdims=True)) if mode == SOFTMAX else up - p * up.sum(1, keepdims=True)
    np.testing.assert_allclose(dx, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [BFLOAT16, np.dtype("float32")], ids=["bf16", "f32"])
@pytest.mark.parametrize(
    "options",
    [Loss(), Loss(smooth=0.1), Loss(scale=-0.5, zscale=1e-3), Loss(cap=5.0), Loss(smooth=0.1, cap=5.0, zscale=1e-3)],
    ids=["plain", "smooth", "negative", "cap", "all"],
)
def test_cross_entropy(options, dtype) -> None:
    x = logits(dtype)
    if options.smooth or options.scale < 0:
        x[1, 16:32] = dtype.type(-9.0)  # smoothing puts weight on every score, a negative scale makes +inf of −inf
    labels = np.array([60, 3, -100, 17], np.int64)
    factor = np.array([0.5, 2.0, 1.0, 1.0], np.float32)
    row = np.zeros(ROWS, np.float32)
    call = calls.cross_entropy(
        rows(3), options, False, False, 1, gradient=Gradient(dtype.itemsize, False, True, False, ANYWHERE)
    )
    assert call.function == "cross_entropy_split"
    given = {"x": x, "target": labels, "weight": None, "total_weight": None, "factor": factor, "zfactor": None}
    given |= {"zfactor": factor if options.zscale else None, "width": None, "entropy": None}
    outputs = {"loss": row, "lse": row, "mass": row, "best": labels, "peak": row, "grad": x}
    found = launch(call, given, outputs)

    z = x.astype(np.float64) * options.scale
    z = z if options.cap is None else np.tanh(z / options.cap) * options.cap
    lse, p = reference(z)
    hot = np.eye(COLUMNS)[np.where(labels >= 0, labels, 0)]
    q = hot * (1 - options.smooth) + options.smooth / COLUMNS
    loss = (q * np.where(q == 0, 0, lse[:, None] - z)).sum(1) + options.zscale * lse**2
    d = p * (1 + 2 * options.zscale * lse)[:, None] - q
    d = d * options.scale * (1 if options.cap is None else 1 - (z / options.cap) ** 2) * factor[:, None]
    live = labels >= 0
    np.testing.assert_allclose(found["loss"], np.where(live, loss * factor, 0), rtol=1e-5)
    np.testing.assert_allclose(found["lse"][live], lse[live], rtol=1e-5)
    np.testing.assert_array_equal(found["mass"], np.where(live, 1, 0))
    np.testing.assert_allclose(
        found["grad"].astype(np.float64),
        np.where(live[:, None], d, 0),
        rtol=8e-3 if dtype == BFLOAT16 else 2e-5,
        atol=1e-6,
    )
    best = np.where(np.isnan(z), INF, z).argmax(1)
    np.testing.assert_array_equal(found["best"][live], best[live])
    np.testing.assert_allclose(found["peak"][live], np.where(np.isnan(z), INF, z).max(1)[live], rtol=1e-5)


@pytest.mark.parametrize("packed", [False, True])
def test_pieces_without_scores_beside_very_low_ones(packed) -> None:
    """Nothing times the power of a low maximum is nothing; scores near the range's end differ by more than it holds."""
    x = np.full((ROWS, COLUMNS), -INF, np.float32)
    x[0, :16], x[1, 50], x[2], x[3] = -1000 + np.arange(16), -3.0e38, -1.1e38, -3.0e38
    x[2, 20], x[3, :16] = -0.9e38, -1.0e38
    row, labels = np.zeros(ROWS, np.float32), np.array([3, 50, 20, 5], np.int64)
    _, p = reference(x.astype(np.float64))
    with tiles.forced(1, 16, parts=4, packed=packed):
        call = calls.softmax(rows(4), Scores(SOFTMAX), ROWS, False, 4, False)
        found = launch(call, {"x": x, "mask": None, "keep": None}, {"y": x})["y"]
    np.testing.assert_allclose(found, p, rtol=1e-4, atol=1e-7)
    call = calls.cross_entropy(rows(3), Loss(), False, False, 1, gradient=Gradient(4, False, False, False, ANYWHERE))
    given = {"x": x, "target": labels, "weight": None, "total_weight": None, "factor": np.ones(ROWS, np.float32)}
    given |= {"zfactor": None, "width": None, "entropy": None, "best": None, "peak": None}
    made = launch(call, given, {"loss": row, "lse": row, "mass": row, "grad": x})
    np.testing.assert_allclose(made["grad"], p - np.eye(COLUMNS)[labels], rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(made["loss"], -np.log(p[np.arange(ROWS), labels]), rtol=1e-4, atol=1e-6)
