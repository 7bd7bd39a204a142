"""Block-sparse softmax on a GPU: values, long rows, large arrays, graphs, compile, both frameworks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onelaunch import sparse
from onelaunch.nn import block_sparse as nbs
from onelaunch.sparse import BlockLayout

torch = pytest.importorskip("torch")
bs = pytest.importorskip("onelaunch.torch.block_sparse")

pytestmark = [pytest.mark.gpu, pytest.mark.torch]
INF = float("inf")
MODES = ("softmax", "log_softmax", "logsumexp")


@pytest.fixture(autouse=True)
def cuda():
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")


def seeded(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.empty(shape, device="cuda", dtype=dtype).normal_(0, 2, generator=generator)


def expected(mode, x, layout, mask=None, bias=None, scale=1.0):
    """Dense float64; mask: bool, bias: added."""
    z = layout.to_dense(x.double(), -INF) * scale
    z = z if bias is None else z + bias.double()
    z = z if mask is None else torch.where(mask, z, -INF)
    use = z > -INF
    live = use.any(-1, keepdim=True)
    z = torch.where(use, z, torch.where(live, -INF, 0.0))
    if mode == "logsumexp":
        return torch.where(live[..., 0], torch.logsumexp(z, -1), -INF)
    y = getattr(torch, mode)(z, -1)
    return layout.from_dense(torch.where(use, y, 0.0 if mode == "softmax" else -INF))


def compare(mode, x, layout, tolerance, mask=None, bias=None, scale=1.0, **options):
    x = x.requires_grad_()
    y, r = getattr(bs, mode)(x, layout, scale, **options), expected(mode, x, layout, mask, bias, scale)
    torch.testing.assert_close(y.double(), r, rtol=tolerance, atol=tolerance)
    g = seeded(*y.shape, dtype=y.dtype, seed=1)
    (found,) = torch.autograd.grad(y, x, g)
    (want,) = torch.autograd.grad(torch.where(r.isinf(), 0.0, r), x, g.double())
    torch.testing.assert_close(found, want, rtol=tolerance, atol=tolerance)


LAYOUTS = {
    "16": sparse.random(12, block=16, density=0.4, heads=3, diagonal=False),
    "32": sparse.random(20, 33, block=32, density=0.3, heads=2, diagonal=False),
    "64": sparse.random(20, block=64, density=0.4, heads=2),
    "128": sparse.random(6, 20, block=128, density=0.5, heads=2),
    "window and global": sparse.longformer(2, 64 * 64, 64, global_block_indices=[0, 20]),
    "one": BlockLayout(np.ones((1, 1)), 16),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("mode", MODES)
def test_values(mode, name):
    layout = LAYOUTS[name]
    compare(mode, seeded(2, layout.nnz, layout.block, layout.block), layout, 2e-5, scale=0.5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_dtypes(dtype):
    layout = LAYOUTS["32"]
    compare("softmax", seeded(2, layout.nnz, 32, 32, dtype=dtype), layout, 1e-10 if dtype == torch.float64 else 5e-2)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["32", "window and global"])
def test_options(mode, name):
    layout = LAYOUTS[name]
    queries, keys = layout.shape[-2:]
    rpe, pad = seeded(1, layout.heads, queries, keys, seed=2), seeded(2, keys, seed=3) > -2
    rel = seeded(2, 1, queries, 77, seed=4)
    attn = seeded(queries, keys, seed=5)
    causal = torch.ones(queries, keys, dtype=torch.bool, device="cuda").tril()
    at = torch.arange(keys, device="cuda") - torch.arange(queries, device="cuda")[:, None] + 76
    shifted = torch.where((at >= 0) & (at < 77), rel.gather(-1, at.clamp(0, 76).expand(2, 1, -1, -1)), 0.0)
    given = {"rpe": rpe, "rel_logits": rel, "attn_mask": attn, "key_padding_mask": pad, "is_causal": True}
    x = seeded(2, layout.nnz, layout.block, layout.block)
    mask = causal & pad[:, None, None, :]
    compare(mode, x, layout, 5e-5, mask, rpe + shifted + attn, 0.3, **given)


def test_38_long_and_skewed_rows():
    """A full row of 10,000 blocks; one among rows of a few blocks."""
    compare("softmax", seeded(10_000, 16, 16), BlockLayout(np.ones((1, 10_000)), 16), 2e-5)
    mask = np.zeros((40, 3000), bool)
    mask[7], mask[:, 5] = True, True
    layout = BlockLayout(mask, 32)
    for mode in MODES:
        compare(mode, seeded(layout.nnz, 32, 32), layout, 2e-5)


@pytest.mark.slow
def test_20_more_than_2_to_the_31_elements():
    layout = BlockLayout(np.ones((8, 32, 32)), 128)
    items = 2**31 // (layout.nnz * 128**2) + 1
    x = seeded(items, layout.nnz, 128, 128, dtype=torch.bfloat16)
    y = bs.softmax(x, layout)
    torch.testing.assert_close(y[-1], bs.softmax(x[-1], layout))
    torch.testing.assert_close(y[-1].double(), expected("softmax", x[-1], layout), rtol=2e-2, atol=2e-2)


def test_4_graph_capture_and_no_synchronisation():
    layout = LAYOUTS["64"]
    x = seeded(layout.nnz, 64, 64).requires_grad_()
    up = seeded(layout.nnz, 64, 64, seed=1)

    def step():
        y = bs.softmax(x, layout, is_causal=True)
        return y, torch.autograd.grad(y, x, up)[0]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, dx = step()
    with torch.no_grad():
        x.copy_(seeded(layout.nnz, 64, 64, seed=3))
    graph.replay()
    torch.cuda.set_sync_debug_mode("error")
    try:
        want, want_dx = step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(y, want)
    torch.testing.assert_close(dx, want_dx)


def test_a_layout_first_used_in_a_capture_says_what_to_do():
    layout = sparse.random(5, block=16, density=0.5, seed=99)
    x = seeded(layout.nnz, 16, 16)
    with pytest.raises(RuntimeError, match="prepare"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        bs.softmax(x, layout)
    torch.cuda.synchronize()
    bs.prepare(layout, "cuda")


def test_2_inductor():
    layout = LAYOUTS["32"]
    rpe = seeded(1, layout.heads, *layout.shape[-2:], seed=2).requires_grad_()

    def f(x, rpe):
        return bs.softmax(x * 2, layout, 0.5, rpe=rpe).square().sum()

    a, b = (seeded(layout.nnz, 32, 32).requires_grad_() for _ in range(2))
    compiled, eager = torch.compile(f, fullgraph=True)(a, rpe), f(b, rpe)
    torch.testing.assert_close(compiled, eager)
    for x, y in zip(torch.autograd.grad(compiled, [a, rpe]), torch.autograd.grad(eager, [b, rpe])):
        torch.testing.assert_close(x, y)


def test_26_autocast_gives_f32():
    layout = LAYOUTS["32"]
    x = seeded(layout.nnz, 32, 32, dtype=torch.bfloat16).requires_grad_()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = bs.softmax(x, layout)
    assert y.dtype == torch.float32
    assert torch.autograd.grad(y, x, torch.ones_like(y))[0].dtype == torch.bfloat16


def test_gradients_are_the_same_every_time():
    layout = LAYOUTS["64"]
    x = seeded(3, layout.nnz, 64, 64).requires_grad_()
    rpe = seeded(1, layout.shape[-1], seed=2).requires_grad_()
    rel = seeded(1, 1, layout.shape[-2], 50, seed=4).requires_grad_()
    up = seeded(*x.shape, seed=1)

    def gradients():
        return torch.autograd.grad(bs.softmax(x, layout, rpe=rpe, rel_logits=rel), [x, rpe, rel], up)

    first = gradients()
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, gradients()))


def test_inplace_takes_no_memory():
    layout = LAYOUTS["64"]
    x = seeded(20, layout.nnz, 64, 64)
    want = bs.softmax(x, layout)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    y = bs.softmax(x, layout, inplace=True)
    assert torch.cuda.max_memory_allocated() - before < 2**20
    torch.testing.assert_close(y, want)


@pytest.mark.parametrize("name", ["16", "64", "window and global"])
def test_jax(name):
    layout = LAYOUTS[name]
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, layout.nnz, layout.block, layout.block)), jnp.float32)
    pad = jnp.asarray(np.random.default_rng(1).normal(size=(2, layout.shape[-1])), jnp.float32)
    up = jnp.asarray(np.random.default_rng(2).normal(size=x.shape), jnp.float32)

    @jax.jit
    def both(x, pad):
        y, back = jax.vjp(lambda x, p: nbs.softmax(x, layout, key_padding_mask=p, is_causal=True), x, pad)
        return y, *back(up)

    tx, tp = (torch.tensor(np.array(a), device="cuda", requires_grad=True) for a in (x, pad))
    y = bs.softmax(tx, layout, key_padding_mask=tp, is_causal=True)
    want = (y, *torch.autograd.grad(y, [tx, tp], torch.tensor(np.array(up), device="cuda")))
    for a, b in zip(both(x, pad), want):
        np.testing.assert_allclose(a, b.detach().cpu(), rtol=1e-4, atol=1e-4)
    batched = jax.vmap(lambda x, p: nbs.softmax(x, layout, key_padding_mask=p[None], is_causal=True))(x[:, None], pad)
    np.testing.assert_allclose(batched[:, 0], want[0].detach().cpu(), rtol=1e-4, atol=1e-5)
