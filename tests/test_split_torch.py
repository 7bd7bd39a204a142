"""Vocabularies split over a process group (gloo, several processes on the CPU), or padded; entropy as an output."""

# ruff: noqa: F811  (fixtures are imported)
from __future__ import annotations

import socket
import traceback
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional
ot = pytest.importorskip("onelaunch.torch")

from torch import distributed as dist  # noqa: E402

from onelaunch.errors import OptionError  # noqa: E402
from onelaunch.torch.reducing import CrossEntropyOutput  # noqa: E402
from torch_rows import NAN, OPTIONS, expected, kernel, labels, path, seeded, together  # noqa: E402, F401

pytestmark = pytest.mark.torch
ROWS, FEATURES = 7, 5


def same(found, want, tolerance=1e-10):
    torch.testing.assert_close(found, want.to(found.dtype), rtol=tolerance, atol=tolerance)


# --- padded, one process -----------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [(), ("weight", "smooth"), ("none", "cap", "z"), ("ignore", "scale")], ids="+".join)
@pytest.mark.parametrize("soft", [False, True], ids=["labels", "probabilities"])
def test_12_13_padded_vocabulary(path, names, soft):
    """The padding has no mass, whatever it holds, also under the cap; its gradient is 0."""
    options = together(*names)
    x = seeded(ROWS, 24)
    x[:, 19:] = torch.tensor([NAN, float("inf"), 50.0, -float("inf"), 3.0])
    x.requires_grad_()
    t = labels((ROWS,), 19, options.get("ignore_index", -100))
    padded = t
    if soft:
        t = seeded(ROWS, 19, seed=2).abs()
        padded = F.pad(t, (0, 5), value=7.0)
        options.pop("ignore_index", None)
    given = dict(options)
    if "weight" in given:
        given["weight"] = F.pad(given["weight"], (0, 5), value=9.0)
    y = ot.cross_entropy(x, padded, vocab_size=19, **given)
    real = x.detach()[:, :19].requires_grad_()
    r = expected(real, t, **options)
    same(y.double(), r, 1e-5)
    g = seeded(*y.shape, seed=7)
    (dx,), (dr,) = torch.autograd.grad(y, x, g), torch.autograd.grad(r, real, g.double())
    assert not dx[:, 19:].any()
    same(dx[:, :19], dr, 1e-5)


def test_13_labels_of_padding_are_out_of_range(path):
    """A label of a padded column is none."""
    x = seeded(3, 24).requires_grad_()
    loss = ot.cross_entropy(x, torch.tensor([18, 19, -100]), vocab_size=19, reduction="none")
    assert loss.isnan().tolist() == [False, True, False]
    (dx,) = torch.autograd.grad(loss[0] + loss[2], x)
    assert dx[0].isfinite().all() and not dx[2].any()


def test_padded_linear_cross_entropy(path):
    x, w = seeded(ROWS, FEATURES).requires_grad_(), seeded(24, FEATURES, seed=8).requires_grad_()
    t = labels((ROWS,), 19)
    y = ot.linear_cross_entropy(x, w, t, vocab_size=19, chunk=3)
    r = expected(x.double() @ w[:19].double().t(), t)
    same(y.double(), r, 1e-5)
    found, want = torch.autograd.grad(y, (x, w)), torch.autograd.grad(r, (x, w))
    assert not found[1][19:].any()
    for a, c in zip(found, want):
        same(a, c, 1e-5)


# --- entropy -----------------------------------------------------------------------------------------------


def entropy_of(z):
    return torch.distributions.Categorical(logits=z.double()).entropy()


@pytest.mark.parametrize("linear", [False, True])
def test_entropy(path, linear):
    """Of ignored rows too; with its gradient, alone and beside that of loss and lse."""
    x, w = seeded(ROWS, FEATURES, scale=1.0).requires_grad_(), seeded(19, FEATURES, seed=8).requires_grad_()
    t = labels((ROWS,), 19)
    g = seeded(ROWS, seed=7)
    capped = 4 * torch.tanh((x.double() @ w.double().t()) / 4)
    want = entropy_of(capped)
    options = {"softcap": 4.0, "return_entropy": True, "return_lse": True}
    if linear:
        out = ot.linear_cross_entropy(x, w, t, chunk=3, **options)
    else:
        out = ot.cross_entropy(x @ w.t(), t, **options)
    assert isinstance(out, CrossEntropyOutput)
    same(out.entropy.double(), want, 1e-5)
    for a, c in (
        ((out.entropy * g).sum(), (want * g).sum()),
        (
            (out.entropy * g).sum() + out.loss * 3 + out.lse.sum(),
            (want * g).sum() + expected(x @ w.t(), t, softcap=4.0) * 3 + torch.logsumexp(capped, 1).sum(),
        ),
    ):
        found = torch.autograd.grad(a, (x, w), retain_graph=True)
        for b, d in zip(found, torch.autograd.grad(c, (x, w), retain_graph=True)):
            same(b, d, 1e-4)


def test_entropy_has_second_derivatives_and_maps():
    x = seeded(2, 4, dtype=torch.float64).requires_grad_()
    f = lambda z: ot.cross_entropy(z, torch.arange(2), return_entropy=True).entropy  # noqa: E731
    assert torch.autograd.gradgradcheck(f, x)
    same(torch.func.vmap(f)(torch.stack([x, 2 * x])), torch.stack([f(x), f(2 * x)]))
    same(torch.func.grad(lambda z: f(z).sum())(x), torch.autograd.grad(f(x).sum(), x)[0])


def test_entropy_of_infinite_scores(path):
    x = torch.full((3, 19), -float("inf"))
    x[0, 3], x[1, :2] = 1.0, 2.0
    out = ot.cross_entropy(x, torch.zeros(3, dtype=torch.int64), return_entropy=True)
    torch.testing.assert_close(out.entropy[:2], torch.tensor([0.0, 2.0]).clamp(max=float(torch.log(torch.tensor(2.0)))))
    assert out.entropy[2].isnan()


# --- split over processes ----------------------------------------------------------------------------------


def slices(t, dim, rank, size):
    return t.detach().chunk(size, dim)[rank].clone().requires_grad_(t.requires_grad)


def case_options(rank, size, group):
    """Every option, alone and with others: loss and gradient are those of one process."""
    for names in ((), ("weight",), ("weight", "smooth", "z", "cap"), ("none", "scale", "weight"), ("sum", "smooth"),
                  ("ignore", "items"), ("none", "smooth", "cap", "z")):  # fmt: skip
        for soft in (False, True):
            options = together(*names)
            x = seeded(ROWS, 20, dtype=torch.float64).requires_grad_()
            t = labels((ROWS,), 19, options.get("ignore_index", -100))
            if soft:
                options.pop("ignore_index", None)
                t = F.pad(seeded(ROWS, 19, seed=2, dtype=torch.float64).abs(), (0, 1))
            real = x.detach()[:, :19].requires_grad_()
            r = expected(real, t[:, :19] if soft else t, **options)
            mine, here = slices(x, 1, rank, size), dict(options)
            if "weight" in here:
                here["weight"] = slices(F.pad(here["weight"], (0, 1), value=5.0), 0, rank, size)
            y = ot.cross_entropy(
                mine, slices(t, 1, rank, size) if soft else t, group=group, vocab_size=19, **here
            )  # fmt: skip
            same(y, r)
            g = seeded(*y.shape, seed=7, dtype=torch.float64)
            (found,), (want,) = torch.autograd.grad(y, mine, g), torch.autograd.grad(r, real, g)
            same(found, slices(F.pad(want, (0, 1)), 1, rank, size))


def case_linear(rank, size, group):
    """Gradients of hidden states (summed), weight and bias, made with the loss and after it; frozen operands."""
    for names in ((), ("weight", "smooth", "z", "cap"), ("none", "scale")):
        for needs in ((1, 1, 1), (1, 0, 0), (0, 1, 0)):
            options = together(*names)
            x, w, b = (
                seeded(*s, seed=i, dtype=torch.float64, scale=1.0).requires_grad_(bool(n))
                for i, (s, n) in enumerate(zip(((ROWS, FEATURES), (20, FEATURES), (20,)), needs))
            )
            t = labels((ROWS,), 19)
            r = expected(F.linear(x, w, b)[:, :19], t, **options)
            here = dict(options)
            if "weight" in here:
                here["class_weight"] = slices(F.pad(here.pop("weight"), (0, 1)), 0, rank, size)
            mine = [x.detach().clone().requires_grad_(x.requires_grad), *(slices(p, 0, rank, size) for p in (w, b))]
            y = ot.linear_cross_entropy(mine[0], mine[1], t, mine[2], group=group, vocab_size=19, chunk=3, **here)
            same(y, r)
            g = seeded(*y.shape, seed=7, dtype=torch.float64)
            leaves = [p for p in mine if p.requires_grad]
            found = iter(torch.autograd.grad(y, leaves, g))
            for p, c in zip((p for p in (x, w, b) if p.requires_grad),
                            torch.autograd.grad(r, [p for p in (x, w, b) if p.requires_grad], g)):  # fmt: skip
                same(next(found), c if p is x else slices(c, 0, rank, size))


def case_outputs(rank, size, group):
    """lse, z-loss, argmax (ties go to the first), accuracy and entropy; the last with gradient."""
    x = seeded(ROWS, 20, dtype=torch.float64)
    x[0] = 1.0
    x.requires_grad_()
    t = labels((ROWS,), 20)
    names = ("lse", "z_loss", "predicted_tokens", "token_accuracy", "entropy")
    asked = {f"return_{name}": True for name in names} | {"lse_square_scale": 0.1}
    want, mine = ot.cross_entropy(x, t, **asked), slices(x, 1, rank, size)
    found = ot.cross_entropy(mine, t, group=group, **asked)
    for name in ("loss", *names):
        same(getattr(found, name), getattr(want, name))
    assert found.predicted_tokens[0] == 0
    total = lambda out: out.loss + (out.entropy * torch.arange(ROWS)).sum() + out.lse.square().sum()  # noqa: E731
    (a,), (c,) = torch.autograd.grad(total(found), mine), torch.autograd.grad(total(want), x)
    same(a, slices(c, 1, rank, size))
    with torch.no_grad():
        w = seeded(20, FEATURES, seed=8, dtype=torch.float64)
        h = seeded(ROWS, FEATURES, dtype=torch.float64)
        want = ot.linear_cross_entropy(h, w, t, **asked)
        found = ot.linear_cross_entropy(h, slices(w, 0, rank, size), t, group=group, chunk=2, **asked)
    for name in ("loss", *names):
        same(getattr(found, name), getattr(want, name))


def case_edges(rank, size, group):
    """Labels that are none; nothing to count; no rows; scores of -inf in whole parts, or everywhere; huge scores."""
    x = seeded(5, 20)
    x[1, :10] = -float("inf")
    x[2] = -float("inf")
    x[3] = x[3] + 1e4
    for t in (torch.tensor([25, 3, 4, 17, -1]), torch.tensor([19, 12, -100, 0, -100])):
        want = ot.cross_entropy(x, t, reduction="none")
        mine = slices(x, 1, rank, size).requires_grad_()
        found = ot.cross_entropy(mine, t, group=group, reduction="none")
        # lse, which goes round, is rounded: 6e-8 of 1e4.
        torch.testing.assert_close(found, want, equal_nan=True, rtol=1e-5, atol=1e-3)
        whole = x.clone().requires_grad_()
        (c,) = torch.autograd.grad(ot.cross_entropy(whole, t, reduction="none").sum(), whole)
        (a,) = torch.autograd.grad(found.sum(), mine)
        torch.testing.assert_close(a, slices(c, 1, rank, size), equal_nan=True, rtol=1e-5, atol=1e-3)
    mine = slices(seeded(5, 20), 1, rank, size).requires_grad_()
    none = ot.cross_entropy(mine, torch.full((5,), -100), group=group)
    assert none == 0 and not torch.autograd.grad(none, mine)[0].any()
    assert ot.cross_entropy(mine[:0], torch.zeros(0, dtype=torch.int64), group=group) == 0


def case_one_collective(rank, size, group):
    """One all_gather forward, none backward; a chunk of linear_cross_entropy likewise, and the sum of dX."""
    calls = []
    real = {name: getattr(dist, name) for name in ("all_gather", "all_reduce")}
    for name, f in real.items():
        setattr(dist, name, lambda *a, name=name, f=f, **k: (calls.append(name), f(*a, **k))[1])
    try:
        mine = slices(seeded(ROWS, 20), 1, rank, size).requires_grad_()
        ot.cross_entropy(mine, labels((ROWS,), 20), group=group, label_smoothing=0.1).backward()
        assert calls == ["all_gather"]
        calls.clear()
        h, w = seeded(6, FEATURES).requires_grad_(), slices(seeded(20, FEATURES), 0, rank, size).requires_grad_()
        ot.linear_cross_entropy(h, w, labels((6,), 20), group=group, chunk=3).backward()
        assert calls == ["all_gather"] * 2 + ["all_reduce"]
    finally:
        for name, f in real.items():
            setattr(dist, name, f)


def case_kernel(rank, size, group):
    """The kernels themselves, in the interpreter, with float32 and bfloat16."""
    import os

    from onelaunch.kernels import tiles

    os.environ["ONELAUNCH_INTERPRET"] = "1"
    try:
        with tiles.forced(2, 8):
            for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
                x = seeded(4, 36, dtype=dtype).requires_grad_()
                t = torch.tensor([0, 32, -100, 17])
                real = x.detach()[:, :33].requires_grad_()
                r = expected(real, t, label_smoothing=0.1)
                mine = slices(x, 1, rank, size)
                y = ot.cross_entropy(mine, t, group=group, vocab_size=33, label_smoothing=0.1)
                same(y.double(), r, 1e-5)
                (a,), (c,) = torch.autograd.grad(y, mine), torch.autograd.grad(r, real)
                same(a, slices(F.pad(c, (0, 3)), 1, rank, size), tolerance)
    finally:
        del os.environ["ONELAUNCH_INTERPRET"]


def case_compiled(rank, size, group):
    """torch.compile takes the whole, collective and all."""
    x, t = slices(seeded(ROWS, 20), 1, rank, size).requires_grad_(), labels((ROWS,), 19)
    f = lambda z: ot.cross_entropy(z * 1.5, t, group=group, vocab_size=19)  # noqa: E731
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")(x)
    same(compiled, f(x))
    same(torch.autograd.grad(compiled, x)[0], torch.autograd.grad(f(x), x)[0], 1e-6)


def case_data_parallel(rank, size, group):
    """DistributedDataParallel around the module: gradients of the whole batch."""
    torch.manual_seed(0)
    module = ot.LinearCrossEntropyLoss(FEATURES, 19, chunk=3)
    x, t = seeded(size * ROWS, FEATURES), torch.arange(size * ROWS) % 19
    want = torch.autograd.grad(expected(F.linear(x.double(), module.weight.double()), t), module.weight)[0]
    parallel = torch.nn.parallel.DistributedDataParallel(module, process_group=group)
    for _ in range(2):
        parallel.zero_grad()
        parallel(x[rank::size], t[rank::size]).backward()
        same(module.weight.grad, want, 1e-5)


CASES = [
    case_options,
    case_linear,
    case_outputs,
    case_edges,
    case_one_collective,
    case_compiled,
    case_data_parallel,
    case_kernel,
]


def process(rank, size, port, queue):
    """Run every case; report what failed."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    try:
        for case in CASES:
            case(rank, size, dist.group.WORLD)
            queue.put((rank, case.__name__, None))
    except BaseException:
        queue.put((rank, case.__name__, traceback.format_exc()))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_split_over_processes(size, monkeypatch):
    """All cases above; 4 processes have 5 columns each, of which the last holds padding."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=":")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = torch.multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    workers = [context.Process(target=process, args=(r, size, port, queue)) for r in range(size)]
    for w in workers:
        w.start()
    for w in workers:
        w.join(240)
        if w.is_alive():
            w.kill()
    done = []
    while not queue.empty():
        rank, name, error = queue.get()
        assert error is None, f"rank {rank}, {name}:\n{error}"
        done.append((rank, name))
    assert sorted(done) == sorted((r, c.__name__) for r in range(size) for c in CASES)


def test_wrong_options():
    x, t = seeded(3, 9).requires_grad_(), torch.arange(3)
    for size in (0, 10):
        with pytest.raises(OptionError, match="vocab_size"):
            ot.cross_entropy(x, t, vocab_size=size)
    with pytest.raises(OptionError, match="torch.func"):
        torch.func.grad(lambda z: ot.cross_entropy(z, t, vocab_size=7))(x.detach())
    with pytest.raises(OptionError, match="probabilities"):
        ot.cross_entropy(x, seeded(3, 9).requires_grad_(), vocab_size=7)
