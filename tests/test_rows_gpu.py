"""The row kernels on a GPU: values, large arrays, graphs, several devices, both frameworks. "#n" is a users' fault."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onelaunch import nn

torch = pytest.importorskip("torch")
ot = pytest.importorskip("onelaunch.torch")
F = torch.nn.functional

pytestmark = [pytest.mark.gpu, pytest.mark.torch]


@pytest.fixture(autouse=True)
def cuda():
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")


def seeded(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.empty(shape, device="cuda", dtype=dtype).normal_(0, 2, generator=generator)


@pytest.mark.parametrize("columns", [1, 7, 1000, 16384, 16385, 50257, 131072, 300_001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("mode", ["softmax", "log_softmax", "logsumexp"])
def test_softmax(mode, dtype, columns):
    x = seeded(6, columns, dtype=dtype).requires_grad_()
    y, r = getattr(ot, mode)(x, -1), getattr(torch, mode)(x.double(), -1)
    g = seeded(*y.shape, dtype=dtype, seed=1)
    tolerance = {torch.float32: 2e-5, torch.bfloat16: 5e-2, torch.float64: 1e-10}[dtype]
    torch.testing.assert_close(y.double(), r, rtol=tolerance, atol=tolerance)
    found, want = torch.autograd.grad(y, x, g)[0], torch.autograd.grad(r, x, g.double())[0]
    torch.testing.assert_close(found, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("columns", [1, 7, 1000, 32000, 50257, 128256])
@pytest.mark.parametrize("options", [{}, {"inplace": True}, {"reduction": "none"}, {"label_smoothing": 0.1}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_cross_entropy(dtype, options, columns):
    x = seeded(37, columns, dtype=dtype).requires_grad_()
    t = torch.randint(0, columns, (37,), device="cuda")
    t[1::7] = -100
    y = ot.cross_entropy(x * 1, t, **options)
    r = F.cross_entropy(x.double(), t, **{k: v for k, v in options.items() if k != "inplace"})
    torch.testing.assert_close(y.double(), r, rtol=1e-5, atol=1e-5)
    g = seeded(*y.shape, seed=1)
    tolerance = 2e-5 if dtype == torch.float32 else 2e-2
    found, want = torch.autograd.grad(y, x, g)[0], torch.autograd.grad(r, x, g.double())[0]
    torch.testing.assert_close(found, want, rtol=tolerance, atol=1e-5)


@pytest.mark.slow
def test_20_more_than_2_to_the_31_elements():
    rows, columns = 2**16 + 5, 2**15 + 8
    x = torch.zeros(rows, columns, dtype=torch.bfloat16, device="cuda")
    x[-1, -1] = 5.0
    y = ot.softmax(x, -1)
    torch.testing.assert_close(y[-1], torch.softmax(x[-1], -1))
    t = torch.full((rows,), columns - 1, device="cuda")
    loss = ot.cross_entropy(x.requires_grad_(), t, reduction="none")
    torch.testing.assert_close(loss[-1], F.cross_entropy(x[-1:].float(), t[-1:]))
    assert ot.softmax(x.detach(), 0)[-1, -1] > 0


def test_4_graph_capture():
    x, t = seeded(64, 1000), torch.randint(0, 1000, (64,), device="cuda")

    def step():
        y = (x * 1).requires_grad_()
        loss = ot.cross_entropy(y, t)
        return loss, torch.autograd.grad(loss, y)[0]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss, grad = step()
    x.copy_(seeded(64, 1000, seed=3))
    graph.replay()
    want, want_grad = step()
    torch.testing.assert_close(loss, want)
    torch.testing.assert_close(grad, want_grad)


def test_4_no_synchronisation():
    x, t = seeded(64, 1000).requires_grad_(), torch.randint(0, 1000, (64,), device="cuda")
    ot.cross_entropy(x, t).backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        ot.cross_entropy(x, t, weight=torch.ones(1000, device="cuda"), label_smoothing=0.1).backward()
        ot.softmax(x, -1)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_24_another_device():
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    x = seeded(8, 100).to("cuda:1")
    torch.testing.assert_close(ot.softmax(x, -1), torch.softmax(x, -1))


@pytest.mark.parametrize("options", [{}, {"reduction": "none"}], ids=str)
def test_2_inductor(options):
    t = torch.tensor([1, -100, 3, 4], device="cuda")

    def loss(x):
        return ot.cross_entropy(x * 2, t, **options).sum()

    a, b = seeded(4, 1000).requires_grad_(), seeded(4, 1000).requires_grad_()
    compiled, eager = torch.compile(loss, fullgraph=True)(a), loss(b)
    torch.testing.assert_close(compiled, eager)
    torch.testing.assert_close(torch.autograd.grad(compiled, a), torch.autograd.grad(eager, b))


def test_extra_memory_of_the_gradient_alone():
    x, t = seeded(512, 50_000, dtype=torch.bfloat16), torch.zeros(512, dtype=torch.int64, device="cuda")
    for inplace, bound in ((False, x.nbytes + 2**20), (True, 2**20)):
        y = x.requires_grad_() * 1
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        torch.autograd.grad(ot.cross_entropy(y, t, inplace=inplace), y)
        assert torch.cuda.max_memory_allocated() - before <= bound


@pytest.mark.parametrize("columns", [7, 1000, 50257])
def test_jax(columns):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(6, columns)), jnp.float32)
    t = jnp.asarray([0, 1, -100, 3, 4, 5])
    np.testing.assert_allclose(nn.softmax(x), jax.nn.softmax(x), rtol=1e-5, atol=1e-7)
    for grad_in_forward in (False, True):
        loss, grad = jax.value_and_grad(lambda x, g=grad_in_forward: nn.cross_entropy(x, t, grad_in_forward=g))(x)
        want = jax.nn.log_softmax(x)[jnp.arange(6), t] * (t >= 0)
        np.testing.assert_allclose(loss, -want.sum() / 5, rtol=1e-5)
        p = (jax.nn.softmax(x) - jax.nn.one_hot(t, columns)) * (t >= 0)[:, None] / 5
        np.testing.assert_allclose(grad, p, atol=1e-6)
