"""Block-sparse products and attention on a GPU: every tile's values, determinism, graphs, compilation, large arrays."""

from __future__ import annotations

import gc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onelaunch.nn import block_sparse as jax_sparse
from onelaunch.sparse import BlockLayout, causal, global_tokens, random

torch = pytest.importorskip("torch")
from onelaunch.torch import block_sparse  # noqa: E402
from test_block_attention_torch import dense  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.torch]


@pytest.fixture(autouse=True)
def cuda() -> None:
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    torch.manual_seed(0)


def normal(*shape: int, dtype: Any = None) -> Any:
    return torch.randn(shape, device="cuda", dtype=torch.float64).to(dtype or torch.bfloat16)


def close(found: Any, want: Any, tolerance: float) -> None:
    """The norm of the error against that of the result."""
    error = (found.double() - want.double()).norm() / want.double().norm().clamp_min(1e-30)
    assert error.item() < tolerance, error.item()


TOLERANCE = {torch.float64: 1e-13, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def products(layout: BlockLayout, dtype: Any, other: int, tolerance: float, precision: str = "ieee") -> None:
    """All modes and the gradients of dsd, whose kernels are the others' transposed."""
    rows, columns = layout.shape[-2:]
    x, y = normal(layout.planes, rows, other, dtype=dtype), normal(layout.planes, columns, other, dtype=dtype)
    values = normal(layout.nnz, layout.block, layout.block, dtype=dtype)
    s = layout.to_dense(values.double())
    found = block_sparse.matmul(x, y, layout, "sdd", trans_b=True, precision=precision)
    close(found, layout.from_dense(x.double() @ y.double().mT), tolerance)
    values.requires_grad_()
    y.requires_grad_()
    out = block_sparse.matmul(values, y, layout, "dsd", precision=precision)
    close(out, s @ y.double(), tolerance)
    dvalues, dy = torch.autograd.grad(out, (values, y), x)
    close(dvalues, layout.from_dense(x.double() @ y.double().mT), tolerance)
    close(dy, s.mT @ x.double(), tolerance)
    out = block_sparse.matmul(x, values, layout, "dds", trans_a=True, precision=precision)
    close(out, x.double().mT @ s, tolerance)


@pytest.mark.parametrize("block", [16, 32, 64, 128])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_products(dtype: Any, block: int) -> None:
    layout = random(6, 5, block=block, density=0.4, heads=2, seed=block)
    products(layout, dtype, 328, TOLERANCE[dtype])


@pytest.mark.parametrize("block", [64, 128])
@pytest.mark.parametrize(("precision", "tolerance"), [("tf32", 2e-3), ("tf32x3", 1e-5)])
def test_products_in_tf32(precision: str, tolerance: float, block: int) -> None:
    products(random(6, block=block, density=0.5), torch.float32, 256, tolerance, precision)


def test_skewed_layouts_are_cut_and_deterministic() -> None:
    layout = global_tokens(128, block=64, indices=[5]) | random(128, block=64, density=0.01)
    products(layout, torch.bfloat16, 512, 1e-2)
    values, y = normal(layout.nnz, 64, 64), normal(1, 8192, 512)
    first = block_sparse.matmul(values, y, layout, "dsd")
    assert all(torch.equal(first, block_sparse.matmul(values, y, layout, "dsd")) for _ in range(5))


def attention(
    layout: BlockLayout, dtype: Any, dim: int, heads: int, key_heads: int, options: Any, short: int = 0
) -> None:
    queries, keys = layout.shape[-2] - short, layout.shape[-1] - short
    q = normal(1, heads, queries, dim, dtype=dtype).requires_grad_()
    k, v = (normal(1, key_heads, keys, dim, dtype=dtype).requires_grad_() for _ in range(2))
    out, lse = block_sparse.attention(q, k, v, layout, return_lse=True, **options)
    others = [t.detach().double().cpu().requires_grad_() for t in (q, k, v)]
    want, want_lse = dense(*others, layout, **options)
    up = normal(*out.shape, dtype=dtype)
    tolerance = 2 * TOLERANCE[dtype]
    close(out.cpu(), want, tolerance)
    seen = torch.isfinite(want_lse)
    close(lse.cpu()[seen], want_lse[seen], tolerance)
    found = torch.autograd.grad(out, (q, k, v), up, retain_graph=True)
    again = torch.autograd.grad(out, (q, k, v), up)
    for x, y, z in zip(found, again, torch.autograd.grad(want, others, up.double().cpu()), strict=True):
        assert torch.equal(x, y)
        close(x.cpu(), z, tolerance)


@pytest.mark.parametrize("dim", [16, 64, 80, 128, 192, 256])
@pytest.mark.parametrize("block", [64, 128])
def test_attention_of_head_dims(block: int, dim: int) -> None:
    attention(random(3, 4, block=block, density=0.5, heads=2, seed=dim), torch.bfloat16, dim, 4, 2, {})
    attention(causal(3, block=block), torch.float16, dim, 2, 1, {"is_causal": True, "softcap": 5.0}, short=9)


@pytest.mark.parametrize("block", [16, 32, 64, 128])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_attention_of_blocks_and_dtypes(dtype: Any, block: int) -> None:
    attention(random(4, block=block, density=0.4, heads=2, seed=block), dtype, 64, 2, 2, {"is_causal": True})


def test_ten_thousand_blocks_in_a_row() -> None:
    mask = np.zeros((1, 4, 10_000), bool)
    mask[0, 1] = mask[0, 3, 7] = True
    layout = BlockLayout(mask, 16)
    products(layout, torch.bfloat16, 64, 1e-2)
    attention(layout, torch.bfloat16, 64, 1, 1, {})


def test_attention_masks() -> None:
    layout = random(6, block=64, density=0.5, heads=2)
    q, k, v = (normal(2, 4, 384, 64) for _ in range(3))
    pad, bias = torch.rand(2, 384, device="cuda") < 0.6, torch.randn(4, 384, 384, device="cuda")
    out = block_sparse.attention(q, k, v, layout, key_padding_mask=pad, attn_mask=bias)
    want, _ = dense(q.cpu(), k.cpu(), v.cpu(), layout, bias=bias.double().cpu(), keep=pad[:, None, None, :].cpu())
    close(out.cpu(), want, 1e-2)


def test_graph_compile_and_autocast() -> None:
    layout = random(8, block=64, density=0.3, heads=2)
    q, k, v = (normal(1, 2, 512, 64).requires_grad_() for _ in range(3))

    def loss(q: Any, k: Any, v: Any) -> Any:
        scores = block_sparse.matmul(q, k, layout, "sdd", trans_b=True)
        return block_sparse.attention(q, k, v, layout).float().square().sum() + scores.float().square().mean()

    want = torch.autograd.grad(loss(q, k, v), (q, k, v))
    compiled = torch.autograd.grad(torch.compile(loss, fullgraph=True)(q, k, v), (q, k, v))
    for x, y in zip(compiled, want, strict=True):
        close(x, y, 1e-2)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        block_sparse.attention(q, k, v, layout)
        with torch.cuda.graph(graph):
            out = block_sparse.attention(q, k, v, layout)
        expected = block_sparse.attention(q, k * 2, v, layout)
        k.mul_(2)
        graph.replay()
        assert torch.equal(out, expected)
    both = torch.cuda.CUDAGraph()
    want = torch.autograd.grad(loss(q, k, v), (q, k, v))
    with torch.cuda.graph(both):
        found = torch.autograd.grad(loss(q, k, v), (q, k, v))
    both.replay()
    assert all(torch.equal(x, y) for x, y in zip(found, want, strict=True))
    with torch.autocast("cuda", torch.bfloat16):
        assert block_sparse.attention(q.float(), k, v, layout).dtype == torch.bfloat16
        assert block_sparse.matmul(q.float(), k, layout, "sdd", trans_b=True).dtype == torch.bfloat16


def test_a_graph_is_replayed_after_its_layout_was_let_go() -> None:
    layout = random(8, block=64, density=0.4, heads=2, seed=4321)
    q, k, v = (normal(1, 2, 512, 64) for _ in range(3))
    want = block_sparse.attention(q, k, v, layout)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = block_sparse.attention(q, k, v, layout)
    del layout
    gc.collect()
    others = [torch.full((n,), 2**30, device="cuda", dtype=torch.int32) for n in range(1, 512)]  # where tables were
    graph.replay()
    assert torch.equal(out, want) and len(others)


def test_calls_after_the_first() -> None:
    """The kept kernels: other arrays, arrays that begin in the middle of 16 bytes, another stream."""
    layout, size = random(8, block=64, density=0.4, heads=2), 2 * 512 * 64
    memory = [torch.empty(size + 8, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    for number, begin in enumerate((0, 0, 3, 0, 8)):
        qkv = [m[begin : begin + size].view(1, 2, 512, 64).copy_(normal(1, 2, 512, 64)) for m in memory]
        for t in qkv:
            t.requires_grad_()
        up = normal(1, 2, 512, 64)
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream() if number == 3 else torch.cuda.current_stream()):
            found = block_sparse.attention(*qkv, layout)
            gradients = torch.autograd.grad(found, qkv, up)
            values = block_sparse.matmul(qkv[0].detach()[0], qkv[1].detach()[0], layout, "sdd", trans_b=True)
        torch.cuda.synchronize()
        others = [t.detach().double().cpu().requires_grad_() for t in qkv]
        want, _ = dense(*others, layout)
        wanted = (want, *torch.autograd.grad(want, others, up.double().cpu()))
        for one, other in zip((found, *gradients), wanted, strict=True):
            close(one.cpu(), other, 2e-2)
        close(values.cpu(), layout.from_dense(others[0][0].detach() @ others[1][0].detach().mT), 1e-2)


def test_attention_memory_is_linear_in_the_length() -> None:
    layout = random(256, block=64, density=0.1, heads=1)
    q, k, v = (normal(1, 1, 16384, 64).requires_grad_() for _ in range(3))
    block_sparse.attention(q, k, v, layout).sum().backward()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    block_sparse.attention(q, k, v, layout).sum().backward()
    assert torch.cuda.max_memory_allocated() - before < 16 * q.nbytes


def test_more_than_two_billion_values() -> None:
    layout = BlockLayout(np.ones((1, 400, 400), bool), 128)
    x = normal(1, 400 * 128, 16)
    values = block_sparse.matmul(x, x, layout, "sdd", trans_b=True)
    assert values.numel() > 2**31
    close(values[-1], x[0, -128:] @ x[0, -128:].mT, 1e-2)
    y = normal(1, 400 * 128, 16)
    out = block_sparse.matmul(values, y, layout, "dsd")
    close(out[0, -128:], (x[0, -128:].float() @ x[0].float().mT).bfloat16().float() @ y[0].float(), 1e-2)


@pytest.mark.parametrize("block", [32, 64, 128])
def test_jax(block: int) -> None:
    layout = random(5, block=block, density=0.4, heads=2, seed=1)
    size = 5 * block
    q, k, v = (jax.random.normal(jax.random.key(i), (2, size, 64), jnp.bfloat16) for i in range(3))

    def loss(q: Any, k: Any, v: Any) -> Any:
        scores = jax_sparse.matmul(q, k, layout, "sdd", trans_b=True)
        mixed = (
            jax_sparse.matmul(scores, v, layout, "dsd") + jax_sparse.matmul(q, scores, layout, "dds", trans_a=True).mT
        )
        out = jax_sparse.attention(q, k, v, layout, is_causal=True, softcap=10.0)
        return (out.astype(jnp.float32) ** 2).sum() + (mixed.astype(jnp.float32) ** 2).mean() / size

    found = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(q, k, v)
    with jax.default_device(jax.devices("cpu")[0]):
        there = [jax.device_put(a, jax.devices("cpu")[0]) for a in (q, k, v)]
        want = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(*there)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        a, b = np.asarray(x, np.float64), np.asarray(y, np.float64)
        assert np.linalg.norm(a - b) < 3e-2 * np.linalg.norm(b)


def test_jax_batched_on_the_gpu() -> None:
    layout = causal(4, block=64)
    q, k, v = (jax.random.normal(jax.random.key(i), (3, 1, 256, 64)) for i in range(3))
    batched = jax.vmap(lambda q, k, v: jax_sparse.attention(q, k, v, layout, is_causal=True))(q, k, v)
    np.testing.assert_allclose(batched, jax_sparse.attention(q, k, v, layout, is_causal=True), atol=1e-5)
