"""onelaunch.nn.block_sparse against dense JAX; the kernels of its options compiled offline."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import onelaunch
from onelaunch.errors import OptionError
from onelaunch.kernels import block_calls, text, tiles
from onelaunch.kernels.block_calls import BlockScores
from onelaunch.load import load, mode
from onelaunch.nn import block_sparse as bs
from onelaunch.sparse import BlockLayout, random

MODES = ("softmax", "log_softmax", "logsumexp")
RAGGED = BlockLayout(
    np.array([[[1, 0, 1, 1], [0, 0, 0, 0], [0, 1, 0, 0]], [[0, 1, 0, 1], [1, 1, 1, 1], [0, 0, 0, 1]]]), 16
)
APART = BlockLayout(np.random.default_rng(3).random((2, 2, 2, 3)) < 0.6, 16)
QUERIES, KEYS = 48, 64


@pytest.fixture(params=["kernel", "xla"])
def path(request, monkeypatch):
    """The kernel in the interpreter (tiles of 2 blocks of 16, then steps), or XLA."""
    if request.param == "xla":
        yield "xla"
        return
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")
    with tiles.forced(16, 32):
        yield "kernel"


def seeded(*shape, dtype=np.float32, seed=0, scale=2.0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape) * scale, dtype)


def expected(mode, x, layout, scale=1.0, rpe=None, rel_logits=None, key_padding_mask=None, attn_mask=None,
             is_causal=False):  # fmt: skip
    """The function on dense matrices; float masks are added, bool ones leave out."""
    queries, keys = layout.shape[-2:]
    use = jnp.asarray(np.kron(layout.mask, np.ones((16, 16))).astype(bool))
    z = layout.to_dense(x) * scale
    z = z if rpe is None else z + rpe
    if rel_logits is not None:
        extent = rel_logits.shape[-1]
        q, k, e = np.ogrid[:queries, :keys, :extent]
        z = z + jnp.einsum("...qe,qke->...qk", rel_logits, (e == k - q + extent - 1).astype(np.float32))
    padding = None if key_padding_mask is None else key_padding_mask[..., None, None, :]
    for mask in (padding, attn_mask):
        if mask is not None and mask.dtype == bool:
            use = use & mask
        elif mask is not None:
            z = z + mask
    if is_causal:
        use = use & np.tri(queries, keys, dtype=bool)
    use = jnp.broadcast_to(use, z.shape)
    live = use.any(-1, keepdims=True)
    z = jnp.where(live, jnp.where(use, z, -jnp.inf), 0)
    if mode == "logsumexp":
        return jnp.where(live[..., 0], jax.nn.logsumexp(z, -1), -jnp.inf)
    y = getattr(jax.nn, mode)(z, -1)
    return layout.from_dense(jnp.where(use, y, 0 if mode == "softmax" else -jnp.inf))


def compare(mode, x, layout, tolerance=2e-5, **options):
    """Values and gradients of x and of all float arrays, for a random cotangent."""
    arrays = {k: v for k, v in options.items() if isinstance(v, jax.Array) and v.dtype != bool}
    rest = {k: v for k, v in options.items() if k not in arrays}

    @jax.jit
    def both(x, arrays):
        y, back = jax.vjp(lambda x, a: getattr(bs, mode)(x, layout, **a, **rest), x, arrays)
        r, back_r = jax.vjp(lambda x, a: expected(mode, x, layout, **a, **rest), x, arrays)
        g = jnp.where(jnp.isinf(r), 0, seeded(*y.shape, seed=7, dtype=y.dtype))
        return (y, *back(g)), (r, *back_r(g))

    for found, want in zip(*map(jax.tree.leaves, both(x, arrays)), strict=True):
        assert found.dtype == want.dtype and found.shape == want.shape
        np.testing.assert_allclose(np.float64(found), np.float64(want), rtol=tolerance, atol=tolerance)


OPTIONS: dict[str, dict[str, Any]] = {
    "scale": {"scale": 0.3},
    "rpe": {"rpe": seeded(2, 1, 1, KEYS, seed=3)},
    "relative": {"rel_logits": seeded(1, 2, QUERIES, 20, seed=4)},
    "padding": {"key_padding_mask": seeded(2, KEYS, seed=5)},
    "mask": {"attn_mask": seeded(QUERIES, KEYS, seed=6)},
    "holes": {"attn_mask": seeded(2, 1, QUERIES, KEYS, seed=6) > 0},
    "causal": {"is_causal": True},
}
ALL = ("scale", "rpe", "relative", "padding", "holes", "causal")


@pytest.mark.parametrize("name", ["rpe", "relative", "mask", "holes"])
def test_options(name):
    kind = MODES[len(name) % 3]
    compare(kind, seeded(2, RAGGED.nnz, 16, 16), RAGGED, **OPTIONS[name])


@pytest.mark.parametrize("kind", MODES)
def test_options_together(path, kind):
    compare(kind, seeded(2, RAGGED.nnz, 16, 16), RAGGED, **{k: v for n in ALL for k, v in OPTIONS[n].items()})


def test_layouts_that_differ_by_item(path):
    compare("softmax", seeded(APART.nnz, 16, 16), APART, rpe=seeded(2, 1, 32, 48, seed=3), is_causal=True)


def test_38_hostile_layouts(path):
    """Empty rows and columns, a full row among them, no block at all, one."""
    for mask in ([[0, 0, 0], [1, 1, 1], [0, 0, 0]], [[1]]):
        layout = BlockLayout(np.array(mask), 16)
        compare("softmax", seeded(layout.nnz, 16, 16), layout)
    none = BlockLayout(np.zeros((2, 2)), 16)
    assert bs.softmax(jnp.zeros((0, 16, 16)), none).shape == (0, 16, 16)
    assert (bs.logsumexp(jnp.zeros((3, 0, 16, 16)), none) == -jnp.inf).all()


def test_38_rows_of_which_nothing_takes_part(path):
    layout = BlockLayout(np.ones((1, 2)), 16)
    mask = jnp.ones((16, 32), bool).at[3].set(False)

    def total(x, kind):
        y = getattr(bs, kind)(x, layout, attn_mask=mask)
        return jnp.where(jnp.isinf(y), 0, y).sum(), y

    for kind, empty in (("softmax", 0), ("log_softmax", -jnp.inf)):
        (_, y), dx = jax.value_and_grad(total, has_aux=True)(seeded(2, 16, 16), kind)
        assert (y[:, 3] == empty).all() and jnp.isfinite(dx).all() and not dx[:, 3].any()


def test_dtypes(path):
    for dtype, tolerance in ((jnp.bfloat16, 5e-2), (jnp.float16, 5e-3)):
        x = seeded(RAGGED.nnz, 16, 16, dtype=dtype)
        y = bs.softmax(x, RAGGED)
        assert y.dtype == dtype
        np.testing.assert_allclose(np.float32(y), expected("softmax", x.astype(np.float32), RAGGED), atol=tolerance)
    jax.config.update("jax_enable_x64", True)
    compare("softmax", seeded(RAGGED.nnz, 16, 16, dtype=np.float64), RAGGED, 1e-12)


def test_batching(path):
    layout = BlockLayout(np.array([[1, 1], [0, 1]]), 16)
    x, pad, rpe = seeded(2, 3, 3, 16, 16), seeded(3, 2, 32, seed=3), seeded(1, 32, 32, seed=4)

    def f(x, pad):
        return jax.value_and_grad(lambda x: bs.softmax(x, layout, rpe=rpe, key_padding_mask=pad).max())(x)

    found = jax.vmap(f, in_axes=(1, 0))(x, pad)
    for i in range(3):
        for a, b in zip(found, f(x[:, i], pad[i])):
            np.testing.assert_allclose(a[i], b, rtol=1e-4, atol=1e-6)


def test_inplace_changes_nothing_that_is_seen(path):
    layout = BlockLayout(np.ones((1, 2)), 16)
    x = seeded(2, 16, 16)
    before = np.array(x)
    np.testing.assert_array_equal(bs.softmax(x, layout, inplace=True), bs.softmax(x, layout))
    np.testing.assert_array_equal(x, before)


def test_becomes_part_of_a_fused_kernel():
    layout = BlockLayout(np.array([[1, 1], [0, 1]]), 16)

    def f(x):
        return bs.softmax(x, layout, 0.5, is_causal=True).sum(-1)

    x = seeded(3, 16, 16)
    np.testing.assert_allclose(onelaunch.fuse(f)(x), f(x), rtol=1e-5)


def test_37_wrong_arguments():
    layout = BlockLayout(np.array([[1, 1], [0, 1]]), 16)
    x = seeded(3, 16, 16)
    for wrong in (seeded(4, 16, 16), seeded(3, 32, 32), seeded(16, 16)):
        with pytest.raises(ValueError, match="values of shape .* this layout takes"):
            bs.softmax(wrong, layout)
    for name in ("rpe", "attn_mask", "key_padding_mask", "rel_logits"):
        with pytest.raises(ValueError, match=f"{name} of shape .* does not broadcast"):
            bs.softmax(x, layout, **{name: jnp.zeros((2, 31, 31))})
    with pytest.raises(OptionError, match="add, mul"):
        bs.softmax(x, layout, attn_mask_mode="subtract")
    with pytest.raises(TypeError, match="softmax of"):
        bs.softmax(jnp.zeros((3, 16, 16), int), layout)


# --- machine code ------------------------------------------------------------------------------------------

POINTERS = {"row_start": "i32", "order": "i32", "column": "i32", "rpe": None, "attn": None, "pad": None, "rel": None}


def compiled(call, pointers):
    """The kernel as PyTorch launches it, for an H100."""
    with mode(interpret=False):
        function = getattr(load(call.family, text.family(call.family), interpret=False), call.function)
        signature: dict[str, str] = {}
        constants: dict[tuple[int, ...], Any] = {}
        for i, name in enumerate(function.arg_names):
            value = pointers[name] if name in pointers else call.numbers[name]
            if isinstance(value, str):
                signature[name] = "*" + value
            elif value is None or name.isupper() or value == 1:
                signature[name], constants[(i,)] = "constexpr", value
            else:
                signature[name] = "i32" if abs(value) < 2**31 else "i64"
        aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(function.arg_names) if pointers.get(n)}
        source = ASTSource(function, signature, constexprs=constants, attrs=aligned)
        options = {"num_warps": call.warps, "enable_fp_fusion": True}
        return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


@pytest.mark.parametrize("dtype", ["fp32", pytest.param("bf16", marks=pytest.mark.slow)])
def test_kernels_compile_with_16_byte_accesses(dtype):
    layout = random(64, block=64, density=0.25, heads=2)
    pointers = POINTERS | {"x": dtype, "y": dtype, "g": dtype, "dx": dtype}
    for call in (
        block_calls.forward(layout, 2, BlockScores(0), {}, 0),
        block_calls.backward(layout, 2, 0, 1.0),
    ):
        ptx = compiled(call, pointers).asm["ptx"]
        assert "ld.global.v4" in ptx.replace(".L1::evict_first", "") or "v4.b32" in ptx
        assert "st.global.v4" in ptx


def test_kernels_compile_with_every_option():
    layout = random(64, block=64, density=0.25, heads=2)
    pointers = POINTERS | {"x": "fp32", "y": "fp32", "g": "fp32", "dx": "fp32"}
    pointers |= {"rpe": "fp32", "attn": "i8", "pad": "bf16", "rel": "fp32"}
    strides = {"r": (0, 0, 5, 4096, 1), "a": (0, 0, 0, 4096, 1), "p": (4096, 0, 0, 0, 1), "l": (0, 0, 2**31, 90, 1)}
    options = BlockScores(2, 0.5, True, True, False)
    assert compiled(block_calls.forward(layout, 2, options, strides, 90), pointers).asm["cubin"]
    assert compiled(block_calls.logsumexp_backward(layout, 2, options, strides, 90, 0.5), pointers).asm["cubin"]


def test_20_offsets_of_blocks_have_64_bits():
    """4 items of 2^30 elements: the item's offset is a product of 64-bit numbers."""
    layout = random(64, block=64, density=0.25, heads=2)
    call = block_calls.forward(layout, 4, BlockScores(0), {}, 0)
    code = compiled(call, POINTERS | {"x": "fp32", "y": "fp32"}).asm["ttir"]
    assert "arith.muli" in code and any("arith.muli" in line and ": i64" in line for line in code.splitlines())
