"""What the tests of PyTorch's row functions share: data, a float64 reference, and fixtures for kernel and fallback."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from onelaunch.kernels import tiles  # noqa: E402

INF, NAN = float("inf"), float("nan")


@pytest.fixture(params=["kernel", "fallback"])
def path(request, monkeypatch):
    """The kernel in the interpreter (with steps of 8 columns), or PyTorch's own operations."""
    if request.param == "fallback":
        yield "fallback"
        return
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")
    with tiles.forced(2, 8):
        yield "kernel"


@pytest.fixture
def kernel(monkeypatch):
    """The kernel in the interpreter."""
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")
    with tiles.forced(2, 8):
        yield


def seeded(*shape, dtype=torch.float32, seed=0, scale=2.0):
    """Normal numbers, the same at each call."""
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale).to(dtype)


def labels(shape, classes, ignore=-100, seed=1, dtype=torch.int64):
    """Labels of which every third is ignored."""
    t = torch.randint(0, classes, shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    t.view(-1)[1::3] = ignore
    return t


def expected(x, t, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0, lse_square_scale=0.0,
             softcap=None, logit_scale=1.0, num_items=None):  # fmt: skip
    """The loss in float64 by PyTorch's operations alone (1-d or class dimension 1)."""
    z = x.double() * logit_scale
    z = z if softcap is None else softcap * torch.tanh(z / softcap)
    how = "sum" if num_items is not None else reduction
    w = None if weight is None else weight.double()
    soft = t.is_floating_point()
    target = t.double() if soft else t.long()
    loss = F.cross_entropy(z, target, w, ignore_index=ignore_index, reduction=how, label_smoothing=label_smoothing)
    axis = 0 if x.ndim == 1 else 1
    valid = torch.ones_like(z.select(axis, 0), dtype=torch.bool) if soft else target != ignore_index
    square = torch.where(valid, torch.logsumexp(z, axis) ** 2 * lse_square_scale, 0.0)
    if how == "none":
        return loss + square
    loss = loss + (square.sum() / valid.sum() if how == "mean" else square.sum())
    return loss if num_items is None else loss / num_items


#: Options of both losses; pairs of them are tested.
OPTIONS = {
    "weight": {"weight": seeded(19, seed=3).abs()},
    "ignore": {"ignore_index": 5},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "smooth": {"label_smoothing": 0.2},
    "z": {"lse_square_scale": 0.03},
    "cap": {"softcap": 3.0},
    "scale": {"logit_scale": 0.4},
    "items": {"num_items": 11},
}


def together(*names):
    """Those options in one dict."""
    return {k: v for name in names for k, v in OPTIONS[name].items()}
