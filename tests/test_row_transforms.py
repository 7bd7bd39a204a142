"""onelaunch.nn under JAX's transforms: values as plain JAX's, and as few launches as may be when lowered for a GPU."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import onelaunch
from jax_rows import expected, expected_softmax, labels, seeded
from onelaunch import nn

ROWS, CLASSES, BATCH = 4, 9, 3


def scores(mode, x, extra):
    return getattr(nn, mode)(x, -1, mask=extra, softcap=4.0)


def scores_by_jax(mode, x, extra):
    return expected_softmax(mode, x, -1, mask=extra, softcap=4.0)


def loss_of_rows(x, extra):
    return nn.cross_entropy(x, extra, reduction="none", label_smoothing=0.1)


def loss_of_rows_by_jax(x, extra):
    return expected(x, extra, reduction="none", label_smoothing=0.1)


def linear(x, extra):
    return nn.linear_cross_entropy(x, jnp.ones((7, CLASSES)) / jnp.arange(1, 8)[:, None], extra % 7)


def linear_by_jax(x, extra):
    return expected(x @ (jnp.ones((7, CLASSES)) / jnp.arange(1, 8)[:, None]).T, extra % 7)


MASK, LABELS = seeded(BATCH, ROWS, 1, seed=3), jnp.abs(labels(BATCH, ROWS, classes=CLASSES, ignore=3))
#: Function, plain JAX's, the second argument of a batch.
FUNCTIONS = {
    **{
        mode: (functools.partial(scores, mode), functools.partial(scores_by_jax, mode), MASK)
        for mode in ("softmax", "log_softmax", "logsumexp")
    },
    "cross_entropy": (nn.cross_entropy, expected, LABELS),
    "losses of rows": (loss_of_rows, loss_of_rows_by_jax, LABELS),
    "linear_cross_entropy": (linear, linear_by_jax, LABELS),
}
AXES = [(0, 0), (None, 0), (2, None)]


def operands(name, axes):
    """A batch of arguments with its axis where ``axes`` say."""
    x, extra = seeded(BATCH, ROWS, CLASSES), FUNCTIONS[name][2]
    moved = [x[0] if axes[0] is None else jnp.moveaxis(x, 0, axes[0]), extra[0] if axes[1] is None else extra]
    return moved


def launches(function, *arguments):
    """Launches in the text of ``function`` lowered for a GPU (a loop's body counts once)."""
    text = jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
    assert "stablehlo.while" not in text
    return text.count("custom_call @triton_kernel_call")


@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_vmap_is_one_launch(name, axes):
    mapped = jax.vmap(FUNCTIONS[name][0], axes)
    assert launches(mapped, *operands(name, axes)) == 1


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_a_batch(name):
    """Values under vmap of grad with each kind of axes; forward and backward are two launches, or one."""

    def slope(function):
        return jax.grad(lambda x, e: (function(x, e) ** 2).sum())

    ours, theirs, _ = FUNCTIONS[name]
    for axes in AXES[1:2]:
        given = operands(name, axes)
        found, want = (jax.jit(jax.vmap(slope(f), axes))(*given) for f in (ours, theirs))
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)
    count = launches(jax.vmap(slope(ours), AXES[0]), *operands(name, AXES[0]))
    assert count == (1 if name in ("cross_entropy", "linear_cross_entropy") else 2)


TRANSFORMS = {
    "jacrev": jax.jacrev,
    "hessian": jax.hessian,
    "checkpoint": lambda f: jax.grad(jax.checkpoint(lambda *a: (f(*a) ** 2).sum())),
    "nested vmap": lambda f: jax.vmap(jax.vmap(jax.grad(lambda x, e: f(x[None], e[None]).sum()), (0, None)), (None, 0)),
    "vjp": lambda f: lambda x, e: (lambda y, back: back(y)[0])(*jax.vjp(lambda x: f(x, e), x)),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", ["cross_entropy", "losses of rows"])
def test_transforms(name, transform):
    ours, theirs, extra = FUNCTIONS[name]
    apply = TRANSFORMS[transform]
    x, extra = seeded(2, 5), extra[0, :2] % 5
    found, want = (jax.jit(apply(f))(x, extra) for f in (ours, theirs))
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


def test_scan_over_layers_and_x64():
    jax.config.update("jax_enable_x64", True)
    x, t = seeded(3, ROWS, 5, dtype=np.float64), labels(ROWS, classes=5).astype(np.int64)

    def total(loss, softmax, x):
        return jax.lax.scan(lambda c, x: (c + loss(x + c, t) + softmax(x).max(), None), 0.0, x)[0]

    found, want = (
        jax.jit(jax.value_and_grad(functools.partial(total, *pair)))(x)
        for pair in ((nn.cross_entropy, nn.softmax), (expected, jax.nn.softmax))
    )
    for a, r in zip(found, want):
        assert a.dtype == jnp.float64
        np.testing.assert_allclose(a, r, rtol=1e-12)


INSIDE = {
    "softmax": lambda x, t: nn.softmax(x, 0, scale=0.5) * x,
    "logsumexp": lambda x, t: nn.logsumexp(x, -1, where=x > 0),
    "options": lambda x, t: nn.cross_entropy(x, t, label_smoothing=0.1, softcap=3.0, lse_square_scale=0.1),
    "entropy": lambda x, t: nn.cross_entropy(x, t, return_entropy=True).entropy,
    "gradient": jax.grad(lambda x, t: nn.cross_entropy(x, t, reduction="none").max()),
    "in a loop": lambda x, t: jax.lax.fori_loop(0, 3, lambda i, x: x - jax.grad(nn.cross_entropy)(x, t), x),
}


@pytest.mark.parametrize("name", INSIDE)
def test_inside_fuse(monkeypatch, name):
    """The function becomes part of the one kernel."""
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")
    x, t = seeded(3, 5), jnp.asarray([1, -100, 4])
    fused = onelaunch.fuse(INSIDE[name], fallback="error")
    assert fused.lower(x, t).launches == 1
    np.testing.assert_allclose(fused(x, t), jax.jit(INSIDE[name])(x, t), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.int8, np.uint32, np.int64, np.uint64])
def test_labels_of_any_integer_type(dtype):
    if np.dtype(dtype).itemsize == 8:
        jax.config.update("jax_enable_x64", True)
    t = np.asarray([0, 3, 8, 2])
    found = nn.cross_entropy(seeded(4, 9), jnp.asarray(t, dtype), reduction="none")
    np.testing.assert_allclose(found, nn.cross_entropy(seeded(4, 9), jnp.asarray(t), reduction="none"), rtol=1e-6)
    if np.iinfo(dtype).max > 2**31:
        assert jnp.isnan(nn.cross_entropy(seeded(1, 9), jnp.asarray([2**31 + 5], dtype)))


def test_a_call_reads_nothing_back():
    x, t = seeded(4, 9), labels(4, classes=9)
    with jax.transfer_guard_device_to_host("disallow"):
        out = nn.cross_entropy(x, t, weight=jnp.ones(9), return_entropy=True, return_token_accuracy=True)
        grads = jax.grad(lambda x: nn.linear_cross_entropy(x, x, t))(x[:, :9])
    assert jnp.isfinite(out.loss) and grads.shape == (4, 9)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x, t: nn.cross_entropy(x, t[:2]), ValueError, "labels have shape (2,), not (4,), for logits (4, 9)"),
        (lambda x, t: nn.cross_entropy(x, t > 0), TypeError, "labels are integers or floats, not bool"),
        (lambda x, t: nn.cross_entropy(x, t, axis=2), ValueError, "axis 2 of logits with 2 dimensions"),
        (lambda x, t: nn.cross_entropy(x, t, num_items=jnp.ones(2)), ValueError, "num_items is one number"),
        (lambda x, t: nn.softmax(x, where=jnp.ones(3, bool)), ValueError, "does not broadcast"),
        (lambda x, t: nn.linear_cross_entropy(x, x.T, t), ValueError, "weight has shape (9, 4), not (classes, 9)"),
        (lambda x, t: nn.cross_entropy(x + 1j, t), TypeError, "logits are floating-point, not complex64"),
    ],
)
def test_errors_are_one_line(call, error, text):
    with pytest.raises(error) as raised:
        call(seeded(4, 9), labels(4, classes=9))
    assert text in str(raised.value) and "\n" not in str(raised.value)
