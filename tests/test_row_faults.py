"""Faults that users of such kernels reported (docs/faults.md), in onelaunch.nn; "test_n" is of fault n."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_rows import expected, in_float64, kernel, labels, path, seeded  # noqa: F401
from onelaunch import nn
from onelaunch.kernels import tiles


def test_1_nothing_to_count_of_a_linear_layer():
    h, w, t = seeded(4, 3), seeded(9, 3, seed=1), jnp.full(4, -100)
    loss, grads = jax.value_and_grad(lambda h, w: nn.linear_cross_entropy(h, w, t, chunk=2), (0, 1))(h, w)
    assert loss == 0 and not grads[0].any() and not grads[1].any()


def test_11_vocabularies_that_no_block_divides(kernel):  # noqa: F811
    x, t = seeded(3, 8 * 5 + 1), jnp.asarray([40, 0, 7])
    np.testing.assert_allclose(nn.cross_entropy(x, t), in_float64(expected, x, t), rtol=1e-6)
    np.testing.assert_allclose(jnp.exp(nn.log_softmax(x)).sum(-1), 1, rtol=1e-6)


def test_12_29_padding_gains_no_mass_from_the_cap(path):  # noqa: F811
    x, t = seeded(3, 20).at[:, 13:].set(-jnp.inf), jnp.asarray([12, 0, 7])
    found = jax.value_and_grad(lambda x: nn.cross_entropy(x, t, softcap=2.0, vocab_size=13))(x)
    want = in_float64(jax.value_and_grad(lambda x, t: expected(x[:, :13], t, softcap=2.0)), x.at[:, 13:].set(0), t)
    for a, r in zip(found, want):
        np.testing.assert_allclose(a, r, rtol=1e-5, atol=1e-7)


def test_14_one_rounding_of_the_gradient(path):  # noqa: F811
    """Where the label has nearly all mass, p - 1 is made in f32."""
    x = jnp.zeros((1, 9), jnp.bfloat16).at[0, 3].set(9.0)
    grad = jax.grad(lambda x: nn.cross_entropy(x, jnp.asarray([3])))(x)
    want = in_float64(jax.grad(lambda x, t: expected(x, t)), x, jnp.asarray([3]))
    np.testing.assert_allclose(np.float64(grad), want, rtol=2**-8)


def test_17_losses_and_z_losses_are_arrays_of_their_own(path):  # noqa: F811
    x, t = seeded(4, 9), labels(4, classes=9)
    out = nn.cross_entropy(x, t, lse_square_scale=0.1, return_z_loss=True, reduction="sum")
    z = 0.1 * (jax.nn.logsumexp(x, -1) ** 2 * (t != -100)).sum()
    np.testing.assert_allclose(out.z_loss, z, rtol=1e-6)
    np.testing.assert_allclose(out.loss - out.z_loss, expected(x, t, reduction="sum"), rtol=1e-5)


def test_23_weights_are_not_read_at_ignored_labels(kernel):  # noqa: F811
    """The interpreter refuses accesses outside the arrays; an ignored label may be any number."""
    x, w = seeded(4, 9), jnp.abs(seeded(9, seed=3))
    for ignore in (-100, 10**6):
        t = jnp.asarray([1, ignore, 8, ignore])
        found = nn.cross_entropy(x, t, weight=w, ignore_index=ignore)
        np.testing.assert_allclose(found, expected(x, jnp.where(t == ignore, -100, t), w), rtol=1e-5)


def test_28_ignored_rows_do_not_count(path):  # noqa: F811
    x, t = seeded(4, 9), jnp.asarray([1, -100, -100, 3])
    both = jax.value_and_grad(nn.cross_entropy)
    (loss, grad), (alone, _) = both(x, t), both(x[::3], t[::3])
    np.testing.assert_allclose(loss, alone, rtol=1e-6)
    assert not grad[1:3].any()


def test_30_rows_do_not_depend_on_their_batch(kernel):  # noqa: F811
    x, t = seeded(5, 21), labels(5, classes=21)
    with tiles.forced(1, 8):
        whole = nn.cross_entropy(x, t, reduction="none")
        alone = jnp.concatenate([nn.cross_entropy(x[i : i + 1], t[i : i + 1], reduction="none") for i in range(5)])
    np.testing.assert_array_equal(whole, alone)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16], ids=str)
def test_31_gradients_have_the_dtype_of_their_operands(dtype):
    x, t = seeded(3, 9, dtype=dtype), labels(3, classes=9)
    assert jax.eval_shape(jax.grad(nn.cross_entropy), x, t).dtype == dtype
    h, w = seeded(3, 4, dtype=dtype), seeded(9, 4)
    grads = jax.eval_shape(jax.grad(lambda h, w: nn.linear_cross_entropy(h, w, t), (0, 1)), h, w)
    assert [g.dtype for g in grads] == [dtype, jnp.float32]
