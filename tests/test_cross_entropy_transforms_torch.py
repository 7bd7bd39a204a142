"""Cross-entropy among PyTorch's transforms: compile, vmap, second derivatives, autocast, training. "#n": a fault."""

# ruff: noqa: F811  (fixtures are imported)
from __future__ import annotations

import contextlib

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional
ot = pytest.importorskip("onelaunch.torch")

from onelaunch.errors import OptionError  # noqa: E402
from onelaunch.kernels import tiles  # noqa: E402
from onelaunch.torch import rows as torch_kernels  # noqa: E402
from torch_rows import expected, kernel, labels, path, seeded  # noqa: E402, F401

ce = ot.cross_entropy
pytestmark = pytest.mark.torch


@pytest.mark.parametrize("options", [{}, {"softcap": 3.0}, {"reduction": "none"}, {"inplace": True}], ids=str)
def test_2_3_4_compiles_whole_with_ignored_rows(path, options):
    """2: every output is stored; 3: no graph break, numbers as floats; 4: no value is asked for on the host."""
    x, t = seeded(6, 19), labels((6,), 19)

    def loss(x):
        return ce(x * 1.5, t, **options).sum()

    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")(a)
    eager = loss(b)
    torch.testing.assert_close(compiled, eager)
    torch.testing.assert_close(torch.autograd.grad(compiled, a), torch.autograd.grad(eager, b))


def test_26_autocast(path):
    layer = torch.nn.Linear(5, 9)
    with torch.autocast("cpu", torch.bfloat16):
        logits = layer(seeded(4, 5))
        loss = ce(logits, torch.arange(4))
    assert logits.dtype == torch.bfloat16 and loss.dtype == torch.float32
    loss.backward()
    assert layer.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("options", [{"reduction": "none"}, {"grad_in_forward": False}], ids=str)
def test_second_derivatives(path, options):
    """By PyTorch's operations; by a clear error where the gradient was made with the loss."""
    x, t, up = seeded(4, 9, dtype=torch.float64).requires_grad_(), labels((4,), 9), torch.arange(1.0, 5.0).double()
    more = {"softcap": 3.0, "label_smoothing": 0.1, "lse_square_scale": 0.1}
    results = []
    for f in (ce, expected):
        up_ = up.clone().requires_grad_()
        loss = f(x, t, **more, **{k: v for k, v in options.items() if f is ce or k == "reduction"})
        (dx,) = torch.autograd.grad((loss * up_).sum(), x, create_graph=True)
        results.append((dx, *torch.autograd.grad(dx.square().sum(), (x, up_))))
    for a, c in zip(*results):
        torch.testing.assert_close(a, c)
    (dx,) = torch.autograd.grad(ce(x, t), x, create_graph=True)
    with pytest.raises(RuntimeError, match="grad_in_forward=False"):
        dx.square().sum().backward()


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_vmap_is_one_launch(path, reduction, monkeypatch):
    """Losses of a batch, of one batched input or both; gradients through it, and for a batch of upstream gradients."""
    launches = []
    launch = torch_kernels.launch
    monkeypatch.setattr(torch_kernels, "launch", lambda call, *a: (launches.append(call), launch(call, *a)))
    x, t = seeded(3, 4, 9).requires_grad_(), labels((3, 4), 9)
    w = seeded(9, seed=3).abs()
    f = lambda a, b: ce(a, b, w, reduction=reduction)  # noqa: E731
    for in_dims, args in (((0, 0), (x, t)), ((0, None), (x, t[0])), ((None, 1), (x[0], t.mT)), ((1, 1), (x, t.mT[:3]))):
        if in_dims == (1, 1):
            args = (x[:, :3], labels((3, 3), 9))
        launches.clear()
        found = torch.func.vmap(f, in_dims=in_dims)(*args)
        n = next(a.shape[d] for a, d in zip(args, in_dims) if d is not None)
        assert len(launches) == (path == "kernel")
        want = torch.stack(
            [f(*(a if d is None else a.select(d, i) for a, d in zip(args, in_dims))) for i in range(n)]
        )  # fmt: skip
        torch.testing.assert_close(found, want)
        g = seeded(*found.shape, seed=7)
        for a, c in zip(torch.autograd.grad(found, x, g), torch.autograd.grad(want, x, g)):
            torch.testing.assert_close(a, c)
    nested = torch.func.vmap(torch.func.vmap(f))(x[:, :, None].expand(3, 4, 2, 9), t[:, :, None].expand(3, 4, 2))
    want = torch.stack([torch.stack([f(x[i, j, None], t[i, j, None]) for j in range(4)]) for i in range(3)])
    torch.testing.assert_close(nested, want.expand_as(nested) if reduction == "none" else want)
    each = torch.func.vmap(lambda a, b, c: ce(a, b, c, reduction=reduction))(x, t, w.expand(3, 9))
    torch.testing.assert_close(each, torch.func.vmap(f)(x, t))


def test_transforms(path):
    """vmap, grad and both; gradients of a batch of upstream gradients."""
    x, t = seeded(3, 4, 9), labels((3, 4), 9)
    found = torch.func.vmap(torch.func.grad(ce))(x, t)
    want = torch.stack([torch.func.grad(expected)(a, b) for a, b in zip(x, t)])
    torch.testing.assert_close(found, want)
    y = x[0].clone().requires_grad_()
    loss = ce(y, t[0])
    (many,) = torch.autograd.grad(loss, y, torch.tensor([1.0, 2.0]), is_grads_batched=True)
    torch.testing.assert_close(many, torch.stack([want[0], want[0] * 2]))


def test_operators_keep_pytorchs_rules():
    """Schema, fake and autograd registrations, as torch.library checks them."""
    from onelaunch.torch.cross_entropy_ops import loss_op, rows_op

    x, t, one = seeded(3, 9).requires_grad_(), torch.arange(3), torch.ones(())
    options = (-100, 0.1, 0.0, 1.0, None, False)
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(loss_op.library, (x, 1, t, None, one, one, 1, True, 0, *options), test_utils=tests)
    rest = (-100, 0.1, 1.0, None, False, "", 0, 0)
    torch.library.opcheck(rows_op.library, (x, 1, t, None, True, False, True, *rest), test_utils=tests)


def train(loss, steps=50):
    """Losses of a small character model; ``loss``: of hidden states, head and labels."""
    torch.manual_seed(0)
    text = torch.tensor([(i * i + 3 * i) % 17 for i in range(400)])
    model = torch.nn.Sequential(torch.nn.Embedding(17, 16), torch.nn.GRU(16, 16, batch_first=True))
    head = torch.nn.Linear(16, 17)
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], 1e-2)
    found = []
    for step in range(steps):
        chunk = text[step * 6 : step * 6 + 33]
        hidden, _ = model(chunk[None, :-1])
        target = torch.where(torch.arange(32) % 7 == 0, -100, chunk[1:])
        value = loss(hidden[0], head, target)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        found.append(value.item())
    return found


@pytest.mark.parametrize(("kind", "steps"), [("plain", 50), ("inplace", 5), ("linear", 50)])
def test_a_model_learns_the_same(monkeypatch, kind, steps):
    """50 steps with ours and with PyTorch's own: the same losses."""
    if kind != "linear":
        monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")

    def ours(x, head, t):
        if kind == "linear":
            return ot.linear_cross_entropy(x, head.weight, t, head.bias, chunk=10)
        return ce(head(x), t, inplace=kind == "inplace")

    with tiles.forced(16, 8) if kind == "inplace" else contextlib.nullcontext():
        found = train(ours, steps)
    want = train(lambda x, head, t: F.cross_entropy(head(x), t), steps)
    assert want[-1] < want[0]
    assert found == pytest.approx(want, abs=2e-4)


def test_forward_mode_derivatives_are_not_dropped(path):
    """jvp, jacfwd and dual numbers: operators know none, so PyTorch's own operations run."""
    x, t, w, one = seeded(4, 7), labels((4,), 7), seeded(7, 7, seed=1), torch.ones(7, dtype=torch.long)
    pairs = [
        (lambda x: ce(x, t), lambda x: F.cross_entropy(x, t)),
        (lambda x: ot.softmax(x, 1), lambda x: torch.softmax(x, 1)),
        (lambda x: ot.logsumexp(x, 1), lambda x: torch.logsumexp(x, 1)),
        (lambda x: ot.linear_cross_entropy(x, w, t), lambda x: F.cross_entropy(x @ w.T, t)),
        (lambda x: ot.linear_cross_entropy(w, x, one), lambda x: F.cross_entropy(w @ x.T, one)),
    ]
    for f, g in pairs:
        for found, want in zip(torch.func.jvp(f, (x,), (x * x,)), torch.func.jvp(g, (x,), (x * x,))):
            torch.testing.assert_close(found, want)
    torch.testing.assert_close(torch.func.jacfwd(pairs[0][0])(x), torch.func.jacfwd(pairs[0][1])(x))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x * x)
        found = torch.autograd.forward_ad.unpack_dual(ce(dual, t)).tangent
    torch.testing.assert_close(found, torch.func.jvp(pairs[0][1], (x,), (x * x,))[1])
    with pytest.raises(OptionError, match="forward-mode"):
        torch.func.jvp(lambda x: ce(x, t, vocab_size=5), (x,), (x,))
