"""Block-sparse products and attention for JAX: in XLA and by kernels in the interpreter, against dense arrays."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onelaunch.errors import OptionError
from onelaunch.kernels import matmul_calls
from onelaunch.nn import block_sparse
from onelaunch.sparse import BlockLayout, random

MASK = np.array([[[1, 0, 1], [0, 0, 0], [1, 1, 1]], [[0, 0, 1], [0, 1, 0], [0, 0, 1]]], bool)
MIXED = BlockLayout(MASK, 16)
NARROW = BlockLayout(MASK[:, :, :2], 16)


@pytest.fixture(autouse=True, params=["xla", "kernels"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    jax.config.update("jax_enable_x64", True)
    if request.param == "kernels":
        monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")


def normal(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def turned(a: Any, turn: bool) -> Any:
    return a.mT if turn else a


def operands(layout: BlockLayout, mode: str, sides: tuple[bool, ...], lead: tuple[int, ...], other: int) -> Any:
    """a, b and the dense product."""
    ta, tb, tc = sides
    rows, columns = layout.shape[-2:]

    def dense(r: int, c: int, turn: bool) -> jax.Array:
        return normal(*lead, *layout.shape[:-2], *((c, r) if turn else (r, c)), seed=r)

    values = normal(*lead, layout.nnz, layout.block, layout.block, seed=9)
    if mode == "sdd":
        m, n = (columns, rows) if tc else (rows, columns)
        return (
            dense(m, other, ta),
            dense(other, n, tb),
            lambda a, b: layout.from_dense(turned(turned(a, ta) @ turned(b, tb), tc)),
        )
    if mode == "dsd":
        b = dense(rows if ta else columns, other, tb)
        return values, b, lambda a, b: turned(turned(layout.to_dense(a), ta) @ turned(b, tb), tc)
    a = dense(other, columns if tb else rows, ta)
    return a, values, lambda a, b: turned(turned(a, ta) @ turned(layout.to_dense(b), tb), tc)


def check(layout: BlockLayout, mode: str, sides: Any, lead: Any = (), other: int = 10) -> None:
    a, b, product = operands(layout, mode, sides, lead, other)
    names = dict(zip(("trans_a", "trans_b", "trans_c"), sides))
    found, back = jax.vjp(lambda a, b: block_sparse.matmul(a, b, layout, mode, **names), a, b)
    want, back_want = jax.vjp(product, a, b)
    up = normal(*want.shape, seed=4)
    for x, y in zip((found, *back(up)), (want, *back_want(up)), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-10)


@pytest.mark.parametrize("mode", ["sdd", "dsd", "dds"])
def test_products(mode: str) -> None:
    for sides in [(False, False, False), (True, False, True), (False, True, True)]:
        check(NARROW, mode, sides)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sdd", "dsd", "dds"])
def test_products_with_every_transpose(mode: str) -> None:
    for sides in itertools.product((False, True), repeat=3):
        check(NARROW, mode, sides, lead=(2,))
        check(BlockLayout(np.zeros((1, 2, 3), bool), 16), mode, sides)
        check(BlockLayout([[0, 1], [0, 0]], 32), mode, sides)


def test_a_long_line_in_pieces_batched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul_calls, "_PIECE", 32)
    layout = BlockLayout(np.array([[[1] * 10, [0] * 9 + [1]]], bool), 16)
    a, b, product = operands(layout, "dsd", (False, False, False), (2,), 6)
    assert matmul_calls.work(layout, False, 1).slots > 3
    np.testing.assert_allclose(block_sparse.matmul(a, b, layout, "dsd"), product(a, b), atol=1e-10)
    batched = jax.vmap(lambda a, b: block_sparse.matmul(a, b, layout, "dsd", trans_c=True), in_axes=(0, 1), out_axes=1)
    found = batched(a, b.swapaxes(0, 1))
    np.testing.assert_allclose(found.swapaxes(0, 1), product(a, b).mT, atol=1e-10)


@pytest.mark.parametrize("mode", ["sdd", "dsd", "dds"])
def test_no_block_and_no_item(mode: str) -> None:
    layout = BlockLayout(np.zeros((1, 2, 3), bool), 16)
    check(layout, mode, (False, False, False), lead=(2,))
    a, b, product = operands(NARROW, mode, (False, False, False), (0,), 6)
    assert block_sparse.matmul(a, b, NARROW, mode).shape == product(a, b).shape


def dense(q: Any, k: Any, v: Any, layout: BlockLayout, scale: Any = None, softcap: Any = None, bias: Any = None,
          keep: Any = None, is_causal: bool = False) -> tuple[Any, Any]:  # fmt: skip
    """The definition; bias is added, keep leaves out."""
    k, v = (jnp.repeat(a, q.shape[-3] // a.shape[-3], -3) for a in (k, v))
    z = q @ k.mT * (scale or 1 / math.sqrt(q.shape[-1]))
    z = z if softcap is None else softcap * jnp.tanh(z / softcap)
    z = z if bias is None else z + bias
    mask = np.kron(layout.mask, np.ones((layout.block, layout.block), bool))[..., : z.shape[-2], : z.shape[-1]]
    use = jnp.asarray(mask.repeat(q.shape[-3] // layout.heads, -3))
    use = use & np.tri(*z.shape[-2:], dtype=bool) if is_causal else use
    use = use if keep is None else use & keep
    top = jax.lax.stop_gradient(jnp.where(use, z, -1e30).max(-1, keepdims=True))
    weight = jnp.where(use, jnp.exp(jnp.where(use, z - top, 0)), 0.0)
    total = weight.sum(-1, keepdims=True)
    safe = jnp.where(total > 0, total, 1.0)
    return weight / safe @ v, jnp.where(total > 0, jnp.log(safe) + top, -jnp.inf)[..., 0]


def qkv(layout: BlockLayout, heads: int = 2, key_heads: int = 2, dim: int = 12, lead: tuple[int, ...] = (),
        queries: int | None = None, keys: int | None = None) -> list[jax.Array]:  # fmt: skip
    queries, keys = queries or layout.shape[-2], keys or layout.shape[-1]
    shapes = [(heads, queries, dim), (key_heads, keys, dim), (key_heads, keys, 16)]
    return [normal(*lead, *s, seed=i) for i, s in enumerate(shapes)]


def check_attention(layout: BlockLayout, inputs: list[jax.Array], options: Any, plain: Any = None) -> None:
    plain = options if plain is None else plain
    (out, lse), back = jax.vjp(lambda *a: block_sparse.attention(*a, layout, return_lse=True, **options), *inputs)
    (want, want_lse), back_want = jax.vjp(lambda *a: dense(*a, layout, **plain), *inputs)
    seen = np.isfinite(want_lse)
    assert (np.isfinite(lse) == seen).all() and not np.asarray(out)[~seen].any()
    ups = normal(*want.shape, seed=5), jnp.where(seen, normal(*want_lse.shape, seed=6), 0.0)
    pairs = zip((out, lse[seen], *back(ups)), (want, want_lse[seen], *back_want(ups)), strict=True)
    for x, y in pairs:
        np.testing.assert_allclose(x, y, atol=1e-10)


@pytest.mark.parametrize("options", [{}, {"is_causal": True, "softcap": 2.0}], ids=str)
def test_attention(options: dict[str, Any]) -> None:
    check_attention(MIXED, qkv(MIXED, key_heads=1), options)


def test_attention_of_lengths_that_blocks_do_not_divide_with_grouped_heads_and_masks() -> None:
    layout = random(2, 3, block=16, density=0.6, heads=2)
    keep = np.random.default_rng(0).random((2, 1, 1, 41)) < 0.7
    added = normal(1, 4, 30, 41, seed=8)
    options = {"key_padding_mask": keep[:, 0, 0], "attn_mask": added}
    check_attention(layout, qkv(layout, 4, 2, lead=(2,), queries=30, keys=41), options, {"bias": added, "keep": keep})


@pytest.mark.slow
def test_attention_more() -> None:
    own = BlockLayout(np.random.default_rng(0).random((2, 2, 2, 3)) < 0.5, 16)
    check_attention(own, qkv(own, 4, 2, lead=(3, 2)), {})
    one = BlockLayout([[0, 0], [1, 0]], 64)
    check_attention(one, qkv(one, lead=(2,)), {"is_causal": True, "scale": 0.3})
    mask = (np.random.default_rng(1).random((48, 48)) < 0.5) * 2.0
    check_attention(MIXED, qkv(MIXED), {"attn_mask": mask, "attn_mask_mode": "mul"}, {"keep": mask != 0})


def test_gradients_of_what_is_added() -> None:
    q, k, v = qkv(MIXED)
    rpe, rel = normal(48, 48, seed=7), normal(2, 48, 30, seed=8)

    def ours(rpe: Any, rel: Any) -> Any:
        return jnp.sin(block_sparse.attention(q, k, v, MIXED, rpe=rpe, rel_logits=rel)).sum()

    def theirs(rpe: Any, rel: Any) -> Any:
        at = np.arange(48) - np.arange(48)[:, None] + 29
        picked = jnp.take_along_axis(rel, jnp.asarray(at.clip(0, 29))[None], -1)
        return jnp.sin(dense(q, k, v, MIXED, bias=rpe + jnp.where((at >= 0) & (at < 30), picked, 0))[0]).sum()

    for x, y in zip(jax.grad(ours, (0, 1))(rpe, rel), jax.grad(theirs, (0, 1))(rpe, rel), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-10)


def test_relative_logits_alone() -> None:
    rel, at = normal(1, 48, 20, seed=8), np.arange(48) - np.arange(48)[:, None] + 19
    picked = jnp.take_along_axis(rel, jnp.asarray(at.clip(0, 19))[None], -1)
    bias = jnp.where((at >= 0) & (at < 20), picked, 0)
    check_attention(MIXED, qkv(MIXED), {"rel_logits": rel}, {"bias": bias})
    (slope,) = jax.vjp(lambda r: block_sparse.attention(*qkv(MIXED), MIXED, rel_logits=r), rel)[1](normal(2, 48, 16))
    moved = block_sparse.attention(*qkv(MIXED), MIXED, rel_logits=rel + 1e-6 * slope)
    still = block_sparse.attention(*qkv(MIXED), MIXED, rel_logits=rel)
    gained = ((moved - still) * normal(2, 48, 16)).sum() / 1e-6
    np.testing.assert_allclose(gained, (slope**2).sum(), rtol=1e-4)


def test_vmap_and_jit() -> None:
    q, k, v = qkv(MIXED, lead=(2,))
    pad = jnp.asarray(np.random.default_rng(0).random((2, 48)) < 0.6)

    def loss(q: Any, k: Any, v: Any, pad: Any) -> Any:
        return jnp.sin(block_sparse.attention(q, k, v, MIXED, key_padding_mask=pad)).sum()

    found = jax.jit(jax.vmap(jax.grad(loss, (0, 1)), in_axes=(0, None, None, 0)))(q, k[0], v[0], pad)
    for i in range(2):
        want = jax.grad(lambda q, k, i=i: jnp.sin(dense(q, k, v[0], MIXED, keep=pad[i])[0]).sum(), (0, 1))(q[i], k[0])
        for x, y in zip(found, want, strict=True):
            np.testing.assert_allclose(x[i], y, atol=1e-10)


def test_jit_vmap_and_two_derivatives_of_a_product() -> None:
    layout = BlockLayout([[1, 0], [1, 1]], 16)
    a, b, product = operands(layout, "dsd", (False, False, False), (2,), 3)

    def loss(function: Any) -> Any:
        return lambda a, b: jnp.sin(function(a, b)).sum()

    def ours(a: Any, b: Any) -> Any:
        return block_sparse.matmul(a, b, layout, "dsd")

    def slopes(function: Any) -> Any:  # the gradient of a gradient's square
        return jax.jit(jax.vmap(jax.grad(lambda a, b: (jax.grad(loss(function))(a, b) ** 2).sum(), 1)))

    np.testing.assert_allclose(slopes(ours)(a, b), slopes(product)(a, b), atol=1e-9)


def test_half_precision() -> None:
    layout = BlockLayout([[1, 0], [1, 1]], 64)
    low = [a.astype(jnp.bfloat16) for a in qkv(layout, 1, 1)]
    out = block_sparse.attention(*low, layout)
    assert out.dtype == jnp.bfloat16
    np.testing.assert_allclose(out.astype(float), dense(*(a.astype(float) for a in low), layout)[0], atol=0.05)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda a: block_sparse.matmul(a, a, MIXED, "ssd"), OptionError, "mode is one of sdd, dsd, dds"),
        (lambda a: block_sparse.matmul(a, a.astype(int), MIXED, "sdd"), TypeError, "b is int64, a is float64"),
        (lambda a: block_sparse.matmul(a, a, MIXED, "sdd"), ValueError, "operands of shapes"),
        (lambda a: block_sparse.matmul(a, a, MIXED, "dsd"), ValueError, "values of shape"),
        (
            lambda a: block_sparse.matmul(jnp.ones((8, 16, 16)), a[:, 1:], MIXED, "dsd"),
            ValueError,
            "b .as multiplied. has shape",
        ),
        (lambda a: block_sparse.attention(a, a, a[:, 1:], MIXED), ValueError, "don't fit q"),
        (lambda a: block_sparse.attention(a, a, a, MIXED, attn_mask_mode="or"), OptionError, "one of add, mul"),
        (lambda a: block_sparse.attention(a, a, a, NARROW), ValueError, "48 keys; this layout has 2 blocks of 16"),
    ],
)
def test_errors_of_one_line(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        call(normal(2, 48, 8))
    assert "\n" not in str(caught.value)
