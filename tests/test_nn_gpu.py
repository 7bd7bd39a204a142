"""onelaunch.nn on GPUs: linear_cross_entropy, entropy, padding, split vocabularies on the devices that there are."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vocabulary_checks
from jax_rows import labels, seeded
from onelaunch import nn
from onelaunch.nn import chunks

pytestmark = pytest.mark.gpu
CLASSES = 50_257


def relative(found, want):
    """Norm of the difference over norm."""
    found, want = (np.asarray(a, np.float64) for a in (found, want))
    return np.linalg.norm(found - want) / np.linalg.norm(want)


def operands(dtype=jnp.bfloat16, tokens=300):
    h = seeded(tokens, 256, scale=1, dtype=dtype)
    return h, seeded(CLASSES, 256, seed=4, scale=0.1, dtype=dtype), labels(tokens, classes=CLASSES)


def by_jax(h, w, t, reduction="mean"):
    """In f32, products at full precision."""
    x = jnp.matmul(h.astype(jnp.float32), w.astype(jnp.float32).T, precision="highest")
    losses = -jnp.take_along_axis(jax.nn.log_softmax(x), jnp.where(t < 0, 0, t)[:, None], 1)[:, 0] * (t >= 0)
    return losses.sum() / (t >= 0).sum() if reduction == "mean" else losses


@pytest.mark.parametrize(("dtype", "chunk"), [("bfloat16", 128), ("float32", None), ("float16", 100)])
def test_linear_cross_entropy(dtype, chunk):
    h, w, t = operands(dtype)
    ours = jax.jit(jax.value_and_grad(lambda h, w: nn.linear_cross_entropy(h, w, t, chunk=chunk), (0, 1)))
    (loss, grads), (want, want_grads) = ours(h, w), jax.jit(jax.value_and_grad(by_jax, (0, 1)))(h, w, t)
    np.testing.assert_allclose(loss, want, rtol=2e-3)
    assert all(relative(a, r) < 2e-2 for a, r in zip(grads, want_grads))


def test_linear_cross_entropy_of_rows():
    h, w, t = operands()
    g = seeded(300, seed=9)
    found = jax.jit(jax.grad(lambda w: (nn.linear_cross_entropy(h, w, t, reduction="none", chunk=128) * g).sum()))(w)
    want = jax.jit(jax.grad(lambda w: (by_jax(h, w, t, "none") * g).sum()))(w)
    assert relative(found, want) < 2e-2


def test_memory_is_gradients_and_one_chunk():
    tokens = 3 * chunks.CHUNKS[0]
    shapes = [((tokens, 1024), jnp.bfloat16), ((128_256, 1024), jnp.bfloat16), ((tokens,), np.int32)]
    step = jax.jit(jax.value_and_grad(nn.linear_cross_entropy, (0, 1)))
    used = step.lower(*(jax.ShapeDtypeStruct(*s) for s in shapes)).compile().memory_analysis()
    chunk, weight = chunks.CHUNKS[0] * 128_256 * 2, 128_256 * 1024
    assert used.temp_size_in_bytes < chunk + 4 * weight + 2**28, used


def test_padding_and_entropy():
    x, t = seeded(64, 50_304), labels(64, classes=CLASSES)

    def total(x, function):
        loss, entropy = function(x)
        return loss + (entropy * jnp.arange(64)).sum()

    def ours(x):
        out = nn.cross_entropy(x, t, vocab_size=CLASSES, return_entropy=True)
        return out.loss, out.entropy

    def theirs(x):
        log = jax.nn.log_softmax(x[:, :CLASSES])
        picked = jnp.take_along_axis(log, jnp.where(t < 0, 0, t)[:, None], 1)[:, 0] * (t >= 0)
        return -picked.sum() / (t >= 0).sum(), -(jnp.exp(log) * log).sum(-1)

    (a, found), (b, want) = (jax.jit(jax.value_and_grad(lambda x, f=f: total(x, f)))(x) for f in (ours, theirs))
    np.testing.assert_allclose(a, b, rtol=1e-5)
    np.testing.assert_allclose(found, want, rtol=1e-3, atol=1e-4)
    loss = jax.jit(jax.value_and_grad(lambda x: nn.cross_entropy(x, t, vocab_size=CLASSES)))
    np.testing.assert_allclose(loss(x)[1], jax.grad(lambda x: theirs(x)[0])(x), atol=1e-6)


@pytest.mark.parametrize("name", vocabulary_checks.checks())
def test_split_vocabularies(name):
    if len(jax.devices()) < 2:
        pytest.skip("one GPU")
    jax.config.update("jax_default_matmul_precision", "highest")
    vocabulary_checks.checks()[name]()


def test_vocabulary_as_a_mapped_axis():
    """The same code with one device's parts, under vmap."""
    x, t = seeded(4, 37, 1000), labels(37, classes=4000)

    def split(x):
        return jax.vmap(lambda x: nn.cross_entropy(x, t, axis_name="v"), axis_name="v")(x)[0]

    def whole(x):
        return nn.cross_entropy(x.swapaxes(0, 1).reshape(37, 4000), t)

    (a, found), (b, want) = (jax.jit(jax.value_and_grad(f))(x) for f in (split, whole))
    np.testing.assert_allclose(a, b, rtol=1e-5)
    np.testing.assert_allclose(found, want, atol=1e-6)
