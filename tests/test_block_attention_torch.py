"""Block-sparse attention for PyTorch, the kernels in the interpreter, against dense attention in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelaunch.errors import OptionError
from onelaunch.sparse import BlockLayout, causal, random

torch = pytest.importorskip("torch")
from onelaunch.torch import block_sparse  # noqa: E402

pytestmark = pytest.mark.torch

TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 6e-2}


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")
    torch.manual_seed(0)


def dense(q: Any, k: Any, v: Any, layout: BlockLayout, scale: Any = None, softcap: Any = None, bias: Any = None,
          keep: Any = None, is_causal: bool = False) -> tuple[Any, Any]:  # fmt: skip
    """The definition, in float64, by a loop over nothing: every score is there. bias is added, keep leaves out."""
    q, k, v = q.double(), k.double(), v.double()
    k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
    z = q @ k.mT * (scale or 1 / math.sqrt(q.shape[-1]))
    z = z if softcap is None else softcap * torch.tanh(z / softcap)
    z = z if bias is None else z + bias
    mask = np.kron(layout.mask, np.ones((layout.block, layout.block), bool))[..., : z.shape[-2], : z.shape[-1]]
    use = torch.from_numpy(mask).repeat_interleave(q.shape[-3] // layout.heads, -3)
    use = use.tril() if is_causal else use
    use = use if keep is None else use & keep
    z = torch.where(use, z, float("-inf"))
    top = torch.where(z.amax(-1, True) == float("-inf"), 0.0, z.amax(-1, True)).detach()
    weight = torch.where(use, torch.exp(z - top), 0.0)
    total = weight.sum(-1, True)
    seen = total > 0
    out = weight / torch.where(seen, total, 1.0) @ v
    lse = torch.where(seen, torch.where(seen, total, 1.0).log() + top, float("-inf"))[..., 0]
    return out, lse


def inputs(layout: BlockLayout, heads: int = 2, key_heads: int = 2, dim: int = 16, value_dim: int = 16,
           dtype: Any = None, queries: Any = None, keys: Any = None, lead: Any = ()) -> list[Any]:  # fmt: skip
    queries, keys = queries or layout.shape[-2], keys or layout.shape[-1]
    shapes = ((heads, queries, dim), (key_heads, keys, dim), (key_heads, keys, value_dim))
    lead = (*lead, layout.batch) if layout.batch else lead
    return [torch.randn(*lead, *s, dtype=torch.float64).to(dtype or torch.float64).requires_grad_() for s in shapes]


def check(layout: BlockLayout, qkv: list[Any], options: dict[str, Any] | None = None, plain: Any = None) -> None:
    """Results and gradients of attention with ``options`` against ``dense`` with ``plain`` (default: the same)."""
    options, dtype = options or {}, qkv[0].dtype
    out, lse = block_sparse.attention(*qkv, layout, return_lse=True, **options)
    assert out.dtype == dtype and lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    others = [t.detach().double().requires_grad_() for t in qkv]
    want, want_lse = dense(*others, layout, **(options if plain is None else plain))
    seen = torch.isfinite(want_lse)
    assert torch.equal(seen, torch.isfinite(lse)) and not out[~seen].any()
    ups = torch.randn_like(want), torch.where(seen, torch.randn_like(want_lse), 0.0)
    found = torch.autograd.grad((out, lse), qkv, (ups[0].to(dtype), ups[1].to(lse.dtype)))
    known = torch.autograd.grad((want, want_lse), others, ups)
    pairs = zip(
        (out, torch.where(seen, lse, 0.0), *found), (want, torch.where(seen, want_lse, 0.0), *known), strict=True
    )
    for x, y in pairs:
        torch.testing.assert_close(x.double(), y, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


MIXED = BlockLayout(np.array([[[1, 0, 1], [0, 0, 0], [1, 1, 1]], [[0, 0, 1], [0, 1, 0], [0, 0, 1]]], bool), 16)


@pytest.mark.parametrize(
    "options",
    [{}, {"is_causal": True}, {"softcap": 1.5, "scale": 0.7}, {"scale": -0.3}, {"is_causal": True, "softcap": 2.0}],
    ids=str,
)
def test_options(options: dict[str, Any]) -> None:
    check(MIXED, inputs(MIXED, key_heads=1), options)


@pytest.mark.parametrize(("block", "dtype"), [(32, torch.float32), (64, torch.float16), (128, torch.bfloat16)])
def test_blocks_and_dtypes(block: int, dtype: Any) -> None:
    layout = BlockLayout([[1, 0], [1, 1]], block)
    check(layout, inputs(layout, 1, 1, dtype=dtype, lead=(1,)), {"is_causal": block == 64})


@pytest.mark.parametrize("block", [16, 64])
def test_lengths_that_blocks_do_not_divide_and_head_dims_that_are_no_power_of_two(block: int) -> None:
    layout = BlockLayout([[1, 0, 1], [1, 1, 1]], block)
    check(layout, inputs(layout, 1, 1, 20, 24, queries=2 * block - 5, keys=2 * block + 3), {"is_causal": block == 16})


def test_grouped_heads_share_planes_or_have_their_own() -> None:
    for heads in (1, 2, 4):
        layout = random(2, 3, block=16, density=0.6, seed=heads, heads=heads)
        check(layout, inputs(layout, 4, 2, lead=(1,)))


def test_batch_items_with_layouts_of_their_own() -> None:
    layout = BlockLayout(np.random.default_rng(0).random((2, 2, 2, 3)) < 0.5, 16)
    check(layout, inputs(layout, 4, 2, lead=(2,)))
    check(layout, inputs(layout, 2, 2, lead=()), {"is_causal": True})


@pytest.mark.parametrize("kind", ["full row", "one block", "nothing", "full column"])
def test_hostile_layouts(kind: str) -> None:
    mask = np.zeros((1, 4, 4), bool)
    if kind == "full row":
        mask[0, 2] = True
    elif kind == "full column":
        mask[0, :, 1] = True
    elif kind == "one block":
        mask[0, 3, 0] = True
    layout = BlockLayout(mask, 16)
    check(layout, inputs(layout, lead=()))


def test_masks_and_their_modes() -> None:
    q, k, v = inputs(MIXED, lead=(2,))
    n, added = 48, torch.randn(2, 48, 48, dtype=torch.float64)
    added[0, :20] = float("-inf")
    keep = torch.rand(48, 48) < 0.7
    pad = torch.rand(2, n) < 0.6
    numbers = torch.randn(2, n, dtype=torch.float64)
    check(
        MIXED, [q, k, v], {"attn_mask": added, "key_padding_mask": pad}, {"bias": added, "keep": pad[:, None, None, :]}
    )
    check(MIXED, [q, k, v], {"attn_mask": keep, "key_padding_mask": numbers, "softcap": 2.0, "is_causal": True},
          {"keep": keep, "bias": numbers[:, None, None, :], "softcap": 2.0, "is_causal": True})  # fmt: skip
    modes = {"attn_mask_mode": "mul", "key_padding_mask_mode": "mul"}
    check(MIXED, [q, k, v], {"attn_mask": keep.double() * 3, "key_padding_mask": pad.int(), **modes},
          {"keep": keep & pad[:, None, None, :]})  # fmt: skip


def test_rpe_and_relative_logits_with_their_gradients() -> None:
    q, k, v = inputs(MIXED, lead=())
    rpe = torch.randn(48, 48, dtype=torch.float64, requires_grad=True)
    rel = torch.randn(2, 48, 30, dtype=torch.float64, requires_grad=True)
    at = torch.arange(48) - torch.arange(48)[:, None] + 29
    bias = torch.where((at >= 0) & (at < 30), rel.gather(-1, at.clamp(0, 29).expand(2, 48, 48)), 0.0) + rpe
    for softcap in (None, 1.5):
        out = block_sparse.attention(q, k, v, MIXED, rpe=rpe, rel_logits=rel, softcap=softcap)
        want, _ = dense(q, k, v, MIXED, bias=bias, softcap=softcap)
        torch.testing.assert_close(out, want)
        leaves = (q, k, v, rpe, rel)
        found = torch.autograd.grad(out.sin().sum(), leaves)
        for x, y in zip(found, torch.autograd.grad(want.sin().sum(), leaves, retain_graph=True), strict=True):
            torch.testing.assert_close(x, y)
        fixed = block_sparse.attention(q, k, v, MIXED, rpe=rpe.detach(), rel_logits=rel.detach(), softcap=softcap)
        torch.testing.assert_close(fixed, want)


@pytest.mark.parametrize("extent", [1, 30])
def test_relative_logits_alone_are_read_as_they_are(extent: int) -> None:
    q, k, v = inputs(MIXED, key_heads=1)
    rel = torch.randn(2, 48, extent, dtype=torch.float64)
    at = torch.arange(48) - torch.arange(48)[:, None] + extent - 1
    picked = rel.gather(-1, at.clamp(0, extent - 1).expand(2, 48, 48))
    bias = torch.where((at >= 0) & (at < extent), picked, 0.0)
    check(MIXED, [q, k, v], {"rel_logits": rel, "softcap": 2.0}, {"bias": bias, "softcap": 2.0})
    rel.requires_grad_()
    (slope,) = torch.autograd.grad(block_sparse.attention(q, k, v, MIXED, rel_logits=rel).sin().sum(), rel)
    leaf = bias.requires_grad_()
    (want,) = torch.autograd.grad(dense(q, k, v, MIXED, bias=leaf)[0].sin().sum(), leaf)
    held = (at >= 0) & (at < extent)
    gathered = torch.zeros_like(rel).scatter_add(-1, at.clamp(0, extent - 1).expand(2, 48, 48), want * held)
    torch.testing.assert_close(slope, gathered)


def test_a_mask_that_leaves_out_whole_blocks_with_rpe() -> None:
    q, k, v = inputs(MIXED, lead=())
    keep = torch.zeros(48, 48, dtype=torch.bool)
    keep[:, :10] = True
    rpe = torch.randn(48, 48, dtype=torch.float64)
    check(MIXED, [q, k, v], {"rpe": rpe, "attn_mask": keep}, {"bias": rpe, "keep": keep})


@pytest.mark.slow
@given(st.data())
@settings(max_examples=25, deadline=None)
def test_random_layouts(data: Any) -> None:
    rows, columns, group = (data.draw(st.integers(1, 3)) for _ in range(3))
    heads = data.draw(st.sampled_from([1, group]))
    density, seed = data.draw(st.floats(0, 1)), data.draw(st.integers(0, 99))
    layout = random(rows, columns, block=16, density=density, seed=seed, heads=heads, diagonal=False)
    short = [data.draw(st.integers(0, 15)) for _ in range(2)]
    sizes = {"queries": 16 * rows - short[0], "keys": 16 * columns - short[1]}
    qkv = inputs(layout, group, 1, data.draw(st.integers(1, 20)), 16, lead=(), **sizes)
    check(layout, qkv, {"is_causal": data.draw(st.booleans())})


def test_gradcheck_with_lse_and_no_second_derivative() -> None:
    layout = causal(2, block=16)
    q, k, v = inputs(layout, 1, 1, 3, 2, lead=())

    def function(q: Any, k: Any, v: Any) -> Any:
        return block_sparse.attention(q, k, v, layout, is_causal=True, softcap=2.0, return_lse=True)

    assert torch.autograd.gradcheck(function, (q, k, v), fast_mode=True)
    (slope,) = torch.autograd.grad(function(q, k, v)[0].sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        slope.sum().backward()


def test_vmap_compile_grad_transform_and_the_cpu_path(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = BlockLayout([[1, 0], [1, 1]], 16)
    q, k, v = (t.detach() for t in inputs(layout, lead=(3,)))
    want = dense(q, k, v, layout)[0]
    pad = torch.rand(3, 32) < 0.5
    batched = torch.func.vmap(lambda q, k, v, p: block_sparse.attention(q, k, v, layout, key_padding_mask=p))(
        q, k, v, pad
    )
    torch.testing.assert_close(batched, dense(q, k, v, layout, keep=pad[:, None, None])[0])
    slope = torch.func.grad(lambda q: block_sparse.attention(q, k, v, layout).sin().sum())(q)
    monkeypatch.delenv("ONELAUNCH_INTERPRET")
    check(layout, inputs(layout), {"is_causal": True, "softcap": 1.0})
    compiled = torch.compile(
        lambda *a: block_sparse.attention(*a, layout).sin().sum(), backend="aot_eager", fullgraph=True
    )
    q.requires_grad_()
    torch.testing.assert_close(compiled(q, k, v), want.sin().sum())
    torch.testing.assert_close(torch.autograd.grad(compiled(q, k, v), q)[0], slope)


def test_backward_twice_views_and_expanded_gradients() -> None:
    layout = BlockLayout([[1, 0], [1, 1]], 16)
    base = torch.randn(2, 32, 2, 3, 16, dtype=torch.float64)  # batch, length, head, which, dim
    q, k, v = (t.mT.movedim(-1, -2).transpose(-3, -2).requires_grad_() for t in base.unbind(3))
    out = block_sparse.attention(q, k, v, layout)
    want = torch.autograd.grad(dense(q, k, v, layout)[0].sum(), (q, k, v))
    for _ in range(2):
        found = torch.autograd.grad(out.sum(), (q, k, v), retain_graph=True)
        for x, y in zip(found, want, strict=True):
            torch.testing.assert_close(x, y)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"k": torch.zeros(2, 32, 8)}, TypeError, "k is torch.float32, q is torch.float64"),
        ({"k": torch.zeros(2, 31, 8, dtype=torch.float64)}, ValueError, "don't fit q"),
        ({"q": torch.zeros(3, 32, 8, dtype=torch.float64)}, ValueError, "3 query heads are no multiple of 2"),
        ({"q": torch.zeros(2, 33, 8, dtype=torch.float64)}, ValueError, "33 queries; this layout has 2 blocks of 16"),
        ({"q": torch.zeros(2, 16, 8, dtype=torch.float64)}, ValueError, "16 queries; this layout has 2 blocks of 16"),
        ({"q": torch.zeros(32, 8, dtype=torch.float64)}, ValueError, "takes at least 3"),
        ({"q": torch.zeros(2, 32, 8, dtype=torch.float64, device="meta")}, ValueError, "k is on cpu, q is on meta"),
        ({"attn_mask": torch.zeros(32, 31)}, ValueError, r"attn_mask of shape \[32, 31\] does not broadcast"),
        ({"key_padding_mask": torch.zeros(2, 32)}, ValueError, "key_padding_mask of shape"),
        ({"attn_mask_mode": "or"}, OptionError, "one of add, mul"),
        ({"precision": "fp8"}, OptionError, "precision is one of"),
    ],
)
def test_errors_of_one_line(change: dict[str, Any], error: type[Exception], text: str) -> None:
    layout = BlockLayout([[1, 0], [1, 1]], 16)
    given = {name: torch.zeros(2, 32, 8, dtype=torch.float64) for name in "qkv"} | change
    with pytest.raises(error, match=text) as caught:
        block_sparse.attention(layout=layout, **given)
    assert "\n" not in str(caught.value)


def test_head_dims_beyond_the_limit() -> None:
    layout = BlockLayout([[1]], 16)
    q = torch.zeros(1, 16, 300)
    with pytest.raises(ValueError, match="head dims 300 and 300; they may be 1 to 256"):
        block_sparse.attention(q, q, q, layout)
