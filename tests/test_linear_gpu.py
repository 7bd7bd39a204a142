"""linear_cross_entropy on a GPU: values, memory, no waiting, graphs. "#n" is a fault that users reported."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
ot = pytest.importorskip("onelaunch.torch")
F = torch.nn.functional

pytestmark = [pytest.mark.gpu, pytest.mark.torch]


@pytest.fixture(autouse=True)
def cuda():
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")


def operands(tokens=300, features=256, classes=5003, dtype=torch.bfloat16, bias=False):
    generator = torch.Generator("cuda").manual_seed(0)

    def normal(*shape, scale):
        t = torch.empty(shape, device="cuda", dtype=torch.float32).normal_(0, scale, generator=generator)
        return t.to(dtype).requires_grad_()

    x, w = normal(tokens, features, scale=1.0), normal(classes, features, scale=0.1)
    t = torch.randint(0, classes, (tokens,), device="cuda", generator=generator)
    t[::7] = -100
    return x, w, t, normal(classes, scale=1.0) if bias else None


def wanted(x, w, t, b, **options):
    logits = F.linear(x.double(), w.double(), None if b is None else b.double())
    return F.cross_entropy(logits, t, **options)


def relative(a, b):
    return float((a.double() - b.double()).norm() / b.double().norm())


@pytest.mark.parametrize("chunk", [None, 64, 128, 77])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_values(dtype, reduction, bias, chunk):
    x, w, t, b = operands(dtype=dtype, bias=bias)
    y, r = (
        ot.linear_cross_entropy(x, w, t, b, chunk=chunk, reduction=reduction),
        wanted(x, w, t, b, reduction=reduction),
    )
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 1e-2, torch.float32: 1e-5, torch.float64: 1e-12}[dtype]
    torch.testing.assert_close(y.double(), r, rtol=tolerance, atol=tolerance)
    g = torch.rand(y.shape, device="cuda", dtype=y.dtype)
    leaves = [p for p in (x, w, b) if p is not None]
    for a, c in zip(torch.autograd.grad(y, leaves, g), torch.autograd.grad(r, leaves, g.double())):
        assert relative(a, c) < tolerance


def test_15_f32_sums_of_the_weights_gradient():
    """Many chunks are as exact as one."""
    x, w, t, _ = operands(4096, 64, 300)
    (exact,) = torch.autograd.grad(wanted(x, w, t, None), w)
    found = [relative(torch.autograd.grad(ot.linear_cross_entropy(x, w, t, chunk=c), w)[0], exact) for c in (None, 16)]
    assert found[1] < 1.2 * found[0]


def test_26_autocast_gives_f32_gradients():
    x, w, t, _ = operands(dtype=torch.float32)
    with torch.autocast("cuda", torch.bfloat16):
        loss = ot.linear_cross_entropy(x, w, t, chunk=64)
    grads, exact = torch.autograd.grad(loss, (x, w)), torch.autograd.grad(wanted(x, w, t, None), (x, w))
    for a, c in zip(grads, exact):
        assert a.dtype == torch.float32 and relative(a, c) < 1e-2
    assert not torch.equal(grads[1], grads[1].bfloat16().float())


@pytest.mark.parametrize(("tokens", "chunk"), [(2048, 2048), (2048, 512)])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_18_memory(tokens, chunk, reduction):
    """Gradients, the f32 sum where there are several chunks, and one chunk's logits; little else."""
    x, w, t, _ = operands(tokens, 512, 50_000)
    logits, grads = chunk * w.shape[0] * 2, 2 * (x.numel() + w.numel())
    total = 4 * w.numel() if chunk < tokens else 0
    for _ in range(2):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        loss = ot.linear_cross_entropy(x, w, t, chunk=chunk, reduction=reduction).sum()
        torch.autograd.grad(loss, (x, w))
        used = torch.cuda.max_memory_allocated() - before
    assert used < 1.02 * (logits + grads + total) + 2**22, (used, logits, grads, total)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_4_32_captured_in_a_graph(reduction):
    """Nothing waits for the device; the same values."""
    x, w, t, _ = operands()

    def step():
        return torch.autograd.grad(ot.linear_cross_entropy(x, w, t, chunk=128, reduction=reduction).sum(), (x, w))

    want = step()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(a, c) for a, c in zip(found, want))


def test_4_no_synchronisation():
    x, w, t, _ = operands()
    ot.linear_cross_entropy(x, w, t, num_items=100).backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for options in ({}, {"reduction": "none"}, {"num_items": (t != -100).sum()}, {"label_smoothing": 0.1}):
            torch.autograd.grad(ot.linear_cross_entropy(x, w, t, chunk=128, **options).sum(), (x, w))
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_deterministic():
    x, w, t, _ = operands(2000)
    runs = [torch.autograd.grad(ot.linear_cross_entropy(x, w, t, chunk=512), (x, w)) for _ in range(3)]
    assert all(torch.equal(a, c) for run in runs[1:] for a, c in zip(run, runs[0]))


@pytest.mark.slow
def test_20_more_than_2_to_the_31_logits_in_a_chunk():
    x, w, t, _ = operands(20_000, 64, 128_256)
    loss = ot.linear_cross_entropy(x, w, t, chunk=20_000)
    few = ot.linear_cross_entropy(x, w, t, chunk=1000)
    torch.testing.assert_close(loss, few, rtol=1e-5, atol=1e-5)
    for a, c in zip(torch.autograd.grad(loss, (x, w)), torch.autograd.grad(few, (x, w))):
        assert relative(a, c) < 1e-2


def test_compiled_by_inductor():
    x, w, t, _ = operands()

    def step(x, w):
        return ot.linear_cross_entropy(x * 1.5, w, t, chunk=128)

    compiled, eager = torch.compile(step, fullgraph=True)(x, w), step(x, w)
    torch.testing.assert_close(compiled, eager)
    for a, c in zip(torch.autograd.grad(compiled, (x, w)), torch.autograd.grad(eager, (x, w))):
        assert relative(a, c) < 1e-2


def test_a_model_learns_the_same():
    """50 steps of a small model, with ours and with PyTorch's own; f32, many chunks."""
    losses = []
    for ours in (False, True):
        torch.manual_seed(0)
        embed, head = torch.nn.Embedding(500, 64, device="cuda"), torch.nn.Linear(64, 500, device="cuda")
        optimizer = torch.optim.AdamW([*embed.parameters(), *head.parameters()], 1e-2)
        found = []
        for step in range(50):
            tokens = (torch.arange(257, device="cuda") * (step % 5 + 2) + step) % 500
            hidden, target = torch.tanh(embed(tokens[:-1])), torch.where(tokens[1:] % 7 == 0, -100, tokens[1:])
            if ours:
                loss = ot.linear_cross_entropy(hidden, head.weight, target, head.bias, chunk=100)
            else:
                loss = F.cross_entropy(head(hidden), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.detach())
        losses.append(torch.stack(found))
    assert losses[0][-1] < losses[0][0] * 0.75
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-3, atol=1e-4)
