"""onelaunch.nn.linear_cross_entropy against cross_entropy of whole logits; "#n" is a fault that users reported."""

from __future__ import annotations

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import onelaunch
from jax_rows import covering, expected, in_float64, kernel, labels, seeded  # noqa: F401
from onelaunch import nn
from onelaunch.errors import OptionError
from onelaunch.nn import chunks

CLASSES, FEATURES = 21, 6
OPTIONS = {
    "soft": (False, True),
    "bias": (False, True),
    "class_weight": (False, True),
    "how": ("mean", "sum", "none", "items"),
    "label_smoothing": (0.0, 0.2),
    "lse_square_scale": (0.0, 0.03),
    "scores": ((1.0, None), (0.4, 3.0)),
    "outputs": (False, True),
    "chunk": (None, 4),
    "grad_in_forward": (None, False),
    "vocab_size": (None, CLASSES - 3),
}


def arrays(soft=False, dtype=np.float32):
    """hidden, weight, bias, labels of (2, 5) tokens."""
    t = jnp.abs(seeded(2, 5, CLASSES, seed=2)) if soft else labels(2, 5, classes=CLASSES - 3)
    return (
        seeded(2, 5, FEATURES, scale=1, dtype=dtype),
        seeded(CLASSES, FEATURES, seed=4, scale=1, dtype=dtype),
        seeded(CLASSES, seed=5, dtype=dtype),
        t,
    )


def short(row):
    return "-".join(str(v).replace(" ", "") for v in row.values())


def check(soft, bias, class_weight, how, scores, outputs, chunk, grad_in_forward, **options):
    """Values, and gradients of hidden, weight and bias, against whole logits."""
    h, w, b, t = arrays(soft)
    options |= {"reduction": "sum" if how == "items" else how, "num_items": 11 if how == "items" else None}
    options |= {"logit_scale": scores[0], "softcap": scores[1]}
    options |= {f"return_{n}": True for n in ("lse", "z_loss", "entropy", "token_accuracy")} if outputs else {}
    if how == "none" or outputs:
        grad_in_forward = None
    weights = jnp.abs(seeded(CLASSES, seed=3)) if class_weight else None

    def total(out):
        loss = out.loss if outputs else out
        found = (loss * jnp.arange(1, loss.size + 1).reshape(loss.shape)).sum()
        return found + (out.lse**2).sum() + (out.entropy * out.lse).sum() + 3 * out.z_loss.sum() if outputs else found

    def ours(h, w, b):
        return total(
            nn.linear_cross_entropy(
                h, w, t, b if bias else None, chunk=chunk, grad_in_forward=grad_in_forward, class_weight=weights,
                **options,
            )
        )  # fmt: skip

    def theirs(h, w, b):
        x = h @ w.T
        return total(nn.cross_entropy(x + b if bias else x, t, weight=weights, **options))

    found = jax.jit(jax.value_and_grad(ours, (0, 1, 2)))(h, w, b)
    want = jax.jit(jax.value_and_grad(theirs, (0, 1, 2)))(h, w, b)
    for a, r in zip(jax.tree.leaves(found), jax.tree.leaves(want)):
        np.testing.assert_allclose(a, r, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("row", covering(OPTIONS), ids=short)
def test_every_pair_of_options(row):
    check(**row)


@pytest.mark.slow
@pytest.mark.parametrize("values", list(itertools.product(*OPTIONS.values())), ids=str)
def test_all_options(values):
    check(**dict(zip(OPTIONS, values)))


@pytest.mark.parametrize("how", ["mean", "none"])
def test_of_the_kernel_against_float64(kernel, how):  # noqa: F811
    h, w, b, t = arrays()
    up = jnp.arange(1.0, 11).reshape(2, 5) if how == "none" else 1.0

    def ours(h, w, b):
        return (nn.linear_cross_entropy(h, w, t, b, reduction=how, softcap=5.0, chunk=4) * up).sum()

    def theirs(h, w, b, t, up):
        return (expected(h @ w.T + b, t, reduction=how, softcap=5.0) * up).sum()

    found = jax.jit(jax.value_and_grad(ours, (0, 1, 2)))(h, w, b)
    want = in_float64(jax.value_and_grad(theirs, (0, 1, 2)), h, w, b, t, up)
    for a, r in zip(jax.tree.leaves(found), jax.tree.leaves(want)):
        np.testing.assert_allclose(a, r, rtol=2e-5, atol=2e-5)


def test_11_ragged_vocabularies():
    """Columns beyond a vocabulary that no block divides take no part."""
    for classes in (1000, 1003):
        h, w, t = seeded(3, 8), seeded(classes, 8, seed=1), labels(3, classes=classes, ignore=0)
        found = nn.linear_cross_entropy(h, w, t)
        np.testing.assert_allclose(found, expected(h @ w.T, t), rtol=1e-5)


def test_15_weight_gradient_is_summed_in_f32():
    """Over 64 chunks; summed in bf16 it loses what later chunks add."""
    h = jnp.abs(seeded(256, 8, dtype=jnp.bfloat16, scale=1))
    w, t = seeded(16, 8, seed=1, dtype=jnp.bfloat16, scale=0.1), jnp.zeros(256, jnp.int32)

    def grad(**options):
        return jax.grad(lambda w: nn.linear_cross_entropy(h, w, t, chunk=4, **options))(w)

    def exact(h, w):
        return expected(h @ w.T, jnp.zeros(256, int))

    want = in_float64(jax.grad(exact, 1), h, w)
    error = [np.abs(np.float64(grad(**o)) - want).max() for o in ({}, {"accum_dtype": jnp.bfloat16})]
    assert error[0] < 0.01 * np.abs(want).max() < error[1]


def test_16_losses_of_rows_have_gradients_of_their_own():
    h, w, b, t = arrays()
    found = jax.jacrev(lambda w: nn.linear_cross_entropy(h, w, t, b, reduction="none", chunk=4))(w)
    want = jax.jacrev(lambda w: expected(h @ w.T + b, t, reduction="none"))(w)
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("chunk", [512, None])
def test_18_whole_logits_are_never_in_memory(chunk):
    """Of temporary memory XLA has the logits of a chunk (twice: its own softmax holds them in f32, too)."""
    tokens, classes, features = (4096 if chunk else 8192), 8192, 16  # 8 chunks, or 3
    shapes = [((tokens, features), np.float32), ((classes, features), np.float32), ((tokens,), np.int32)]
    structs = [jax.ShapeDtypeStruct(*s) for s in shapes]
    step = jax.value_and_grad(lambda h, w, t: nn.linear_cross_entropy(h, w, t, chunk=chunk), (0, 1))
    used = jax.jit(step).lower(*structs).compile().memory_analysis().temp_size_in_bytes
    assert used < 2.2 * (chunk or 4096) * classes * 4


@pytest.mark.parametrize(("classes", "dtype"), [(32_000, "bfloat16"), (128_256, "bfloat16"), (50_257, "float32")])
def test_the_kernel_works_in_place_between_the_products(classes, dtype):
    """Lowered for a GPU: two launches in the text (the first chunk, and the loop's), each in its logits' memory.

    Whatever else a launch has among its results (words by which a row's programs exchange what they found).
    """
    shapes = [((12_288, 64), dtype), ((classes, 64), dtype), ((12_288,), np.int32)]
    step = jax.jit(jax.value_and_grad(nn.linear_cross_entropy, (0, 1)))
    text = step.trace(*(jax.ShapeDtypeStruct(*s) for s in shapes)).lower(lowering_platforms=("cuda",)).as_text()
    calls = [line for line in text.splitlines() if "custom_call @triton_kernel_call" in line]
    assert len(calls) == 2 and text.count("stablehlo.dot_general") == 6 and f"12288x{classes}" not in text
    kind = {"bfloat16": "bf16", "float32": "f32"}[dtype]
    for call in calls:
        given, made = re.search(r" : \((tensor.*)\) -> (.*)$", call).groups()
        aliased = [
            (int(o), int(i)) for o, i in re.findall(r"output_tuple_indices = \[(\d+)\],\s*operand_index = (\d+)", call)
        ]
        types = [re.findall(r"tensor<([^>]*)>", t) for t in (made, given)]
        pairs = [(types[0][o], types[1][i]) for o, i in aliased]
        assert all(a == b for a, b in pairs) and any(a.endswith(f"x{classes}x{kind}") for a, _ in pairs)


def test_36_what_is_frozen_costs_nothing():
    h, w, b, t = arrays()

    def products(**frozen):
        def loss(h, w, b):
            h, w = (jax.lax.stop_gradient(a) if frozen.get(n) else a for n, a in (("h", h), ("w", w)))
            return nn.linear_cross_entropy(h, w, t, b)

        found = jax.grad(loss, (0, 1, 2))(h, w, b)
        text = str(jax.make_jaxpr(jax.grad(loss, (0, 1, 2)))(h, w, b))
        return text.count("dot_general["), found

    (three, all_), (two, no_h), (also_two, no_w), (one, bias) = (
        products(), products(h=True), products(w=True), products(h=True, w=True)
    )  # fmt: skip
    assert (three, two, also_two, one) == (3, 2, 2, 1)
    assert not no_h[0].any() and not no_w[1].any() and not bias[0].any()
    for a in (no_h[2], no_w[2], bias[2]):
        np.testing.assert_allclose(a, all_[2], rtol=1e-6)


def test_transforms():
    """jit, vmap with unbatched weights, nested; jacfwd of jacrev; checkpoint."""
    h, w, b, t = arrays()

    def ours(h, w, b, t):
        return nn.linear_cross_entropy(h, w, t, b, chunk=2)

    def theirs(h, w, b, t):
        return expected(h @ w.T + b, t)

    ws = jnp.stack([w, w * 2])
    for axes in ((0, None, None, 0), (0, 0, None, 0), (None, 0, None, None)):
        given = [a if d is not None or i in (1, 2) else a[0] for i, (a, d) in enumerate(zip((h, w, b, t), axes))]
        given[1] = ws if axes[1] == 0 else w
        found, want = (jax.jit(jax.vmap(jax.grad(f, (0, 1, 2)), axes))(*given) for f in (ours, theirs))
        for a, r in zip(found, want):
            np.testing.assert_allclose(a, r, rtol=1e-4, atol=1e-5)
    found, want = (jax.jit(jax.hessian(f, (0, 1)))(h[0], w, b, t[0]) for f in (ours, theirs))
    for a, r in zip(jax.tree.leaves(found), jax.tree.leaves(want)):
        np.testing.assert_allclose(a, r, rtol=1e-3, atol=1e-5)
    found, want = (jax.jit(jax.grad(jax.checkpoint(f), (0, 1)))(h, w, b, t) for f in (ours, theirs))
    for a, r in zip(found, want):
        np.testing.assert_allclose(a, r, rtol=1e-4, atol=1e-5)


def test_dtypes():
    """Weights of a wider dtype get gradients of theirs; f16 and x64."""
    h, w, _, t = arrays(dtype=jnp.bfloat16)
    wide = w.astype(jnp.float32)
    loss, (dh, dw) = jax.value_and_grad(lambda h, w: nn.linear_cross_entropy(h, w, t, chunk=4), (0, 1))(h, wide)
    assert (loss.dtype, dh.dtype, dw.dtype) == (jnp.float32, jnp.bfloat16, jnp.float32)
    want = jax.grad(lambda w: expected(h.astype(jnp.float32) @ w.T, t))(wide)
    np.testing.assert_allclose(dw, want, atol=0.02)
    half = [a.astype(jnp.float16) for a in (h, w)]
    scaled = jax.grad(lambda w: nn.linear_cross_entropy(half[0], w, t, chunk=4) * 2**12)(half[1])
    np.testing.assert_allclose(np.float64(scaled) / 2**12, want, atol=0.02)
    jax.config.update("jax_enable_x64", True)
    h, w, _, t = arrays(dtype=np.float64)
    t = t.astype(jnp.int64)
    found = jax.grad(lambda w: nn.linear_cross_entropy(h, w, t, chunk=4))(w)
    np.testing.assert_allclose(found, jax.grad(lambda w: expected(h @ w.T, t))(w), rtol=1e-11, atol=1e-13)


def test_10_no_tokens():
    h, w = jnp.zeros((0, 4)), seeded(7, 4)
    loss, grads = jax.value_and_grad(lambda h, w: nn.linear_cross_entropy(h, w, jnp.zeros(0, int)), (0, 1))(h, w)
    assert loss == 0 and grads[0].shape == (0, 4) and not grads[1].any()


def test_inside_fuse(monkeypatch):
    """Of small size it becomes part of the one kernel, with its gradient."""
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")
    h, w, _, t = arrays()

    def loss(h, w):
        return nn.linear_cross_entropy(h[0], w, t[0], softcap=4.0)

    fused = onelaunch.fuse(jax.value_and_grad(loss, (0, 1)), fallback="error")
    assert fused.lower(h, w).launches == 1
    for a, r in zip(jax.tree.leaves(fused(h, w)), jax.tree.leaves(jax.value_and_grad(loss, (0, 1))(h, w))):
        np.testing.assert_allclose(a, r, rtol=1e-4, atol=1e-5)


def test_chunks_are_nearly_equal():
    assert [chunks.length(*a) for a in ((16, 4), (4096, 2), (4096, 4), (2**16, 2))] == [4096, 8192, 4096, 8192]
    assert [chunks.size_of(n, 8192) for n in (1, 8192, 8193, 32768, 30_000)] == [1, 8192, 2816, 8192, 7552]
    assert chunks.size_of(10, 4, True) == 4 and chunks.size_of(16384, 8192, True) == 8192


def test_wrong_arguments():
    h, w, b, t = arrays()
    for given, pattern in (((h, w.T, t), "weight has shape"), ((h, w, t[0]), "labels have shape"),
                           ((h, w, t, b[1:]), "bias has shape"), ((jnp.float32(1), w, t), "scalar")):  # fmt: skip
        with pytest.raises(ValueError, match=pattern):
            nn.linear_cross_entropy(*given)
    with pytest.raises(TypeError, match="hidden"):
        nn.linear_cross_entropy(t, w, t)
    for options in ({"chunk": 0}, {"reduction": "avg"}, {"vocab_size": 40}):
        with pytest.raises(OptionError):
            nn.linear_cross_entropy(h, w, t, **options)
    q = arrays(soft=True)[3]
    with pytest.raises(OptionError, match="stop_gradient"):
        jax.grad(lambda q: nn.linear_cross_entropy(h, w, q))(q)
