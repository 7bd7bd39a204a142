"""docs/faults.md: a test for every reported fault; those that stand nowhere else."""

# ruff: noqa: F811  (fixtures are imported)
from __future__ import annotations

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional
ot = pytest.importorskip("onelaunch.torch")

from torch_rows import expected, kernel, labels, path, seeded  # noqa: E402, F401

pytestmark = pytest.mark.torch
HERE = Path(__file__).parent
ROW = re.compile(r"^\| (\d+) \| .*? \| (.*) \|$", re.MULTILINE)


def test_every_fault_has_a_test():
    """Faults 1 to 38, each with at least one test that exists."""
    table = ROW.findall((HERE.parent / "docs" / "faults.md").read_text())
    assert [int(number) for number, _ in table] == list(range(1, 39))
    for number, tests in table:
        named = re.findall(r"`(\w+):(\w+)`", tests)
        assert named, number
        for file, name in named:
            assert f"\ndef test_{name}(" in (HERE / f"test_{file}.py").read_text(), (number, file, name)


@pytest.mark.parametrize("classes", [1, 7, 8, 9, 17, 131])
def test_11_ragged_vocabularies(path, classes):
    """Around and far from the kernel's steps of 8 columns; also where chunks of tokens are ragged."""
    x, w = seeded(5, 3, scale=1.0).requires_grad_(), seeded(classes, 3, seed=8).requires_grad_()
    t = labels((5,), classes)
    for y, r in (
        (ot.cross_entropy(F.linear(x, w), t), expected(F.linear(x, w), t)),
        (ot.linear_cross_entropy(x, w, t, chunk=3), expected(F.linear(x.double(), w.double()), t)),
    ):
        torch.testing.assert_close(y.double(), r, rtol=1e-5, atol=1e-6)
        for a, c in zip(torch.autograd.grad(y, (x, w)), torch.autograd.grad(r, (x, w))):
            torch.testing.assert_close(a, c, rtol=1e-4, atol=1e-5)


def test_28_ignored_rows_do_not_count(path):
    """The mean of rows with ignored ones among them is that of the others alone; PyTorch is the judge."""
    x, t = seeded(7, 9), labels((7,), 9)
    torch.testing.assert_close(ot.cross_entropy(x, t), F.cross_entropy(x[t != -100], t[t != -100]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_31_gradients_have_the_dtype_of_their_operands(dtype, reduction):
    """And f32's are not rounded to anything narrower on their way."""
    x, w = seeded(5, 3, dtype=dtype).requires_grad_(), seeded(9, 3, seed=8, dtype=dtype).requires_grad_()
    t = torch.arange(5)
    losses = ot.cross_entropy(x @ w.t(), t, reduction=reduction), ot.linear_cross_entropy(x, w, t, reduction=reduction)
    for loss in losses:
        grads = torch.autograd.grad(loss.sum(), (x, w))
        assert [g.dtype for g in grads] == [dtype, dtype]
        if dtype == torch.float32:
            assert not any(torch.equal(g, g.bfloat16().float()) for g in grads)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_33_labels_at_any_offset(path, dtype, offset):
    """Slices of labels that begin anywhere, and every other label."""
    x, t = seeded(4, 9), torch.arange(12, dtype=dtype) % 9
    for part in (t[offset : offset + 4], t[offset::2][:4]):
        found = ot.cross_entropy(x, part, reduction="none")
        torch.testing.assert_close(found, F.cross_entropy(x, part.long(), reduction="none"))
