"""Rows shared by programs on a GPU: all options, ragged widths, hostile rows, repeated runs, graphs, many rows."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
ot = pytest.importorskip("onelaunch.torch")
F = torch.nn.functional
INF, NAN = float("inf"), float("nan")

pytestmark = [pytest.mark.gpu, pytest.mark.torch]


@pytest.fixture(autouse=True)
def cuda():
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")


def seeded(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.empty(shape, device="cuda", dtype=dtype).normal_(0, 2, generator=generator)


def labels(rows, columns):
    t = torch.randint(0, columns, (rows,), device="cuda", generator=torch.Generator("cuda").manual_seed(5))
    t[1::7] = -100
    return t


OPTIONS = {
    "plain": {},
    "smooth": {"label_smoothing": 0.1},
    "cap": {"softcap": 5.0},
    "scale": {"logit_scale": -0.5},
    "z": {"lse_square_scale": 1e-3},
    "all": {"label_smoothing": 0.1, "softcap": 5.0, "logit_scale": 0.7, "lse_square_scale": 1e-3},
}


def reference(x, t, label_smoothing=0.0, softcap=None, logit_scale=1.0, lse_square_scale=0.0, weight=None):
    """Loss and gradient in float64."""
    x = x.detach().double().requires_grad_()
    z = x * logit_scale
    z = z if softcap is None else softcap * torch.tanh(z / softcap)
    weight = None if weight is None else weight.double()
    loss = F.cross_entropy(z, t, weight, label_smoothing=label_smoothing)
    live = t != -100
    loss = loss + lse_square_scale * (torch.logsumexp(z, 1) ** 2 * live).sum() / live.sum()
    return loss.detach(), torch.autograd.grad(loss, x)[0]


def close(found, want, dtype):
    tolerance = {torch.float32: 3e-5, torch.bfloat16: 8e-3, torch.float16: 2e-3}[dtype]
    torch.testing.assert_close(
        found.double(), want.double(), rtol=tolerance, atol=float(want.abs().max()) * 1e-5 + 1e-9
    )


@pytest.mark.parametrize("columns", [20_000, 32_768, 50_257, 128_256, 262_144, 500_000, 600_001])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_cross_entropy_widths(dtype, columns):
    x, t = seeded(17, columns, dtype=dtype), labels(17, columns)
    want, slope = reference(x, t)
    for inplace in (False, True):
        y = x.clone().requires_grad_() * 1
        loss = ot.cross_entropy(y, t, inplace=inplace)
        torch.testing.assert_close(loss.double(), want, rtol=1e-5, atol=1e-6)
        close(torch.autograd.grad(loss, y)[0], slope, dtype)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16], ids=str)
def test_cross_entropy_options(name, dtype):
    x, t = seeded(33, 70_000, dtype=dtype), labels(33, 70_000)
    want, slope = reference(x, t, **OPTIONS[name])
    y = x.requires_grad_()
    loss = ot.cross_entropy(y, t, grad_in_forward=True, **OPTIONS[name])
    torch.testing.assert_close(loss.double(), want, rtol=2e-5, atol=1e-6)
    if dtype != torch.float16:  # whose gradients are rounded to steps of 6e-8
        close(torch.autograd.grad(loss, y)[0], slope, dtype)


def test_cross_entropy_weights_and_predictions():
    x, t, weight = seeded(33, 70_000, dtype=torch.bfloat16), labels(33, 70_000), torch.rand(70_000, device="cuda")
    want, slope = reference(x, t, weight=weight)
    y = x.requires_grad_()
    out = ot.cross_entropy(y, t, weight=weight, return_predicted_tokens=True)
    torch.testing.assert_close(out.loss.double(), want, rtol=2e-5, atol=1e-6)
    close(torch.autograd.grad(out.loss, y)[0], slope, torch.bfloat16)
    top = x.detach().gather(1, out.predicted_tokens[:, None])[:, 0]
    assert torch.equal(top, x.detach().amax(1))


def test_hostile_rows():
    """Pieces and rows of −inf, NaN, labels outside, one huge score: each row as alone, and the others untouched."""
    n = 100_000
    x, t = seeded(8, n), torch.arange(8, device="cuda") * 12_000
    x[0, :30_000] = -INF
    x[0, 0] = 3.0
    x[2] = -INF
    x[3, 77_777] = NAN
    x[4, 50_000] = INF
    x[5] = -3.4e38
    x[6, 9] = 3.0e4
    t[7] = n + 5
    y = x.clone().requires_grad_()
    loss = ot.cross_entropy(y, t, reduction="sum")
    assert loss.isnan()
    (grad,) = torch.autograd.grad(loss, y)
    p = torch.softmax(x.double(), 1) - F.one_hot(t.clamp(max=n - 1), n)
    for row in (0, 1, 5, 6):
        close(grad[row], p[row], torch.float32)
    for row in (2, 3, 4, 7):
        assert grad[row].isnan().all()


@pytest.mark.parametrize("columns", [32_768, 65_536, 100_003, 262_144, 500_000])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("mode", ["softmax", "log_softmax"])
def test_softmax_widths(mode, dtype, columns):
    x, g = seeded(9, columns, dtype=dtype).requires_grad_(), seeded(9, columns, dtype=dtype, seed=1)
    y = getattr(ot, mode)(x, -1)
    wide = x.detach().double().requires_grad_()
    r = getattr(torch, mode)(wide, -1)
    tolerance = 8e-3 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(y.double(), r, rtol=tolerance, atol=1e-12)
    found = torch.autograd.grad(y, x, g)[0].double()
    p, up = r.detach() if mode == "softmax" else y.detach().double(), g.double()
    p = y.detach().double() if mode == "softmax" else p.exp()
    want = p * (up - (p * up).sum(1, keepdim=True)) if mode == "softmax" else up - p * up.sum(1, keepdim=True)
    torch.testing.assert_close(found, want, rtol=tolerance, atol=float(want.abs().max()) * 2e-5)


@pytest.mark.parametrize("options", ["mask", "where", "causal", "cap"])
def test_softmax_options(options):
    n = 70_000
    x = seeded(6, n, dtype=torch.bfloat16)
    given = {
        "mask": {"mask": seeded(1, n, seed=2)},
        "where": {"where": seeded(6, n, seed=3) > 0},
        "causal": {"causal_offset": 60_000},
        "cap": {"softcap": 3.0, "scale": -0.5},
    }[options]
    a = x.clone().requires_grad_()
    y = ot.softmax(a, -1, **given)
    b = x.cpu().requires_grad_()
    r = ot.softmax(b, -1, **{k: v.cpu() if isinstance(v, torch.Tensor) else v for k, v in given.items()})
    torch.testing.assert_close(y.cpu().float(), r.float(), rtol=1e-2, atol=1e-9)
    g = seeded(6, n, dtype=torch.bfloat16, seed=4)
    found, want = torch.autograd.grad(y, a, g)[0].cpu().float(), torch.autograd.grad(r, b, g.cpu())[0].float()
    torch.testing.assert_close(found, want, rtol=2e-2, atol=float(want.abs().max()) * 1e-2)


def test_the_same_bits_again_and_with_many_rows():
    """More programs than the GPU holds, while another stream keeps it busy."""
    x, t = seeded(3000, 65_536, dtype=torch.bfloat16), labels(3000, 65_536)
    side, busy = torch.cuda.Stream(), seeded(4096, 4096)

    def step():
        y = x.clone().requires_grad_()
        loss = ot.cross_entropy(y, t)
        return loss.detach(), torch.autograd.grad(loss, y)[0], ot.softmax(x, -1)

    first = step()
    for _ in range(3):
        with torch.cuda.stream(side):
            for _ in range(10):
                busy = busy @ busy * 1e-3
        for a, b in zip(step(), first, strict=True):
            assert torch.equal(a, b)
    torch.cuda.synchronize()
    _, slope = reference(x[-64:], t[-64:])
    count = float((t != -100).sum()) / float((t[-64:] != -100).sum())
    close(first[1][-64:], slope / count, torch.bfloat16)


def test_two_streams_at_once():
    """Shared rows of two launches wait for programs of their own alone."""
    x, t = seeded(512, 131_072, dtype=torch.bfloat16), labels(512, 131_072)
    streams = [torch.cuda.Stream() for _ in range(3)]
    want = ot.cross_entropy(x.clone().requires_grad_(), t).detach()
    torch.cuda.synchronize()
    found = []
    for _ in range(4):
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(ot.cross_entropy(x.clone().requires_grad_(), t).detach())
    torch.cuda.synchronize()
    assert all(torch.equal(loss, want) for loss in found)


def test_graph_replay():
    x, t = seeded(64, 131_072, dtype=torch.bfloat16), labels(64, 131_072)

    def step():
        y = (x * 1).requires_grad_()
        loss = ot.cross_entropy(y, t)
        return loss, torch.autograd.grad(loss, y)[0], ot.softmax(x, -1)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = step()
    for seed in (3, 4):
        x.copy_(seeded(64, 131_072, dtype=torch.bfloat16, seed=seed))
        graph.replay()
        for a, b in zip(made, step(), strict=True):
            assert torch.equal(a, b)


@pytest.mark.slow
def test_20_more_than_2_to_the_31_elements():
    rows, columns = 2**14 + 3, 2**17 + 64
    x = torch.zeros(rows, columns, dtype=torch.bfloat16, device="cuda")
    x[-1, -1] = 5.0
    t = torch.full((rows,), columns - 1, device="cuda")
    y = x.requires_grad_() * 1
    loss = ot.cross_entropy(y, t, reduction="sum", inplace=True)
    (grad,) = torch.autograd.grad(loss, y)
    _, want = reference(x[-1:].detach(), t[-1:])
    torch.testing.assert_close(grad[-1:].double(), want, rtol=1e-2, atol=1e-9)
    del y, grad
    torch.testing.assert_close(ot.softmax(x.detach(), -1)[-1], torch.softmax(x[-1].detach(), -1))


def test_jax():
    jax = pytest.importorskip("jax")
    nn = pytest.importorskip("onelaunch.nn")
    x = jax.numpy.asarray(seeded(12, 131_072).cpu().numpy(), "bfloat16")
    t = jax.numpy.asarray(labels(12, 131_072).cpu().numpy())
    step = jax.jit(lambda x: (*jax.value_and_grad(lambda x: nn.cross_entropy(x, t))(x), nn.softmax(x)))
    for _ in range(3):  # the words are zeros at every call
        loss, grad, y = step(x)
    logits = torch.from_numpy(jax.device_get(x.astype("float32")).copy())
    want, slope = reference(logits, torch.from_numpy(jax.device_get(t).copy()).long())
    assert abs(float(loss) - float(want)) < 1e-5 * float(want)
    close(torch.from_numpy(jax.device_get(grad.astype("float32")).copy()), slope, torch.bfloat16)
    close(
        torch.from_numpy(jax.device_get(y.astype("float32")).copy()), torch.softmax(logits.double(), 1), torch.bfloat16
    )
