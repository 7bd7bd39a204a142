"""A language model trained with our loss and softmax, and with optax's and JAX's: the same losses."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("optax")

import language_model as lm
from onelaunch import nn


def softmax(scores):
    return nn.softmax(scores, causal_offset=0)


def on_logits(params, tokens):
    return nn.cross_entropy(lm.hidden(params, tokens[:, :-1], softmax) @ params["embed"].T, lm.targets(tokens))


def on_hidden(params, tokens):
    h = lm.hidden(params, tokens[:, :-1], softmax)
    return nn.linear_cross_entropy(h, params["embed"], lm.targets(tokens), chunk=64)


@pytest.mark.parametrize("loss", [on_logits, on_hidden])
@pytest.mark.parametrize(
    ("where", "steps"),
    [
        pytest.param("xla", 50),
        pytest.param("kernel", 4, marks=pytest.mark.slow),
        pytest.param("gpu", 50, marks=pytest.mark.gpu),
    ],
)
def test_same_losses_as_with_optax(monkeypatch, loss, where, steps):
    if where == "kernel":
        monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")
    found, want = lm.train(loss, steps), lm.train(lm.by_optax, steps)
    if steps == 50:
        assert want[-1] < want[0] / 4
    np.testing.assert_allclose(found[:20], want[:20], rtol=1e-2 if where == "gpu" else 1e-3)
    np.testing.assert_allclose(found, want, rtol=0.1, atol=0.02)
