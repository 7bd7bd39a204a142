"""Split vocabularies on all of this process' devices against whole ones; run as a script it makes every check.

With XLA_FLAGS=--xla_force_host_platform_device_count=8 a CPU is eight devices.
"""

from __future__ import annotations

import functools
import itertools
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from jax_rows import labels, seeded
from onelaunch import nn

TOKENS, FEATURES = 6, 4
#: An odd vocabulary that leaves the last devices padding alone, one that ends inside a part, and one that fits.
SIZES = {"odd": lambda n: 3 * n - 5 if n > 2 else 3 * n - 1, "padded": lambda n: 8 * n - 3, "whole": lambda n: 8 * n}


def mesh_of(axes):
    """A mesh of all devices: one axis of the vocabulary, or of rows and vocabulary."""
    devices = np.asarray(jax.devices())
    devices = devices.reshape(2, -1) if axes == ("rows", "v") else devices
    return Mesh(devices, axes, axis_types=(AxisType.Auto,) * len(axes))


def close(found, want):
    """Equal structures, values within rounding."""
    for a, r in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(r, np.float64), rtol=2e-4, atol=2e-5)


def both_cross_entropies(classes, columns, options):
    """(whole, split) functions of (logits, labels, class weights)."""

    def total(out):
        if not isinstance(out, tuple):
            return (out * jnp.arange(1, out.size + 1).reshape(out.shape)).sum()
        rows = jnp.arange(1, out.lse.size + 1)
        return out.loss.sum() + (out.lse * rows).sum() + (out.entropy * rows**2).sum() + 3 * out.z_loss.sum()

    def whole(x, t, w):
        soft = jnp.issubdtype(t.dtype, jnp.floating)
        t = t[:, :classes] if soft else t
        out = nn.cross_entropy(x[:, :classes], t, weight=None if w is None else w[:classes], **options)
        return total(out), out

    def split(x, t, w):
        size = None if classes == columns else classes
        out = nn.cross_entropy(x, t, weight=w, axis_name="v", vocab_size=size, **options)
        return total(out), out

    return whole, split


OPTIONS = {
    "plain": {},
    "none": {"reduction": "none", "softcap": 3.0, "logit_scale": 0.5},
    "smooth": {"label_smoothing": 0.2, "lse_square_scale": 0.1, "reduction": "sum"},
    "outputs": {f"return_{n}": True for n in ("lse", "z_loss", "entropy", "predicted_tokens", "token_accuracy")},
}


def cross_entropy(size, name, soft, weighted, check_vma):
    """Loss, outputs and gradient, differentiated outside shard_map and inside."""
    n = len(jax.devices())
    classes = SIZES[size](n)
    columns = -(-classes // n) * n
    x = seeded(TOKENS, columns).at[:, classes:].set(9.0)
    t = jnp.abs(seeded(TOKENS, columns, seed=2)) if soft else labels(TOKENS, classes=classes, ignore=-100)
    w = jnp.abs(seeded(columns, seed=3)) + 0.1 if weighted else None
    whole, split = both_cross_entropies(classes, columns, OPTIONS[name])
    specs = (P(None, "v"), P(None, "v") if soft else P(), P("v") if weighted else None)
    mesh = mesh_of(("v",))
    outer = jax.shard_map(split, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=check_vma)
    want = jax.jit(jax.value_and_grad(whole, has_aux=True))(x, t, w)
    close(jax.jit(jax.value_and_grad(outer, has_aux=True))(x, t, w), want)
    # Without check_vma a psum of what is whole on each device has the psum as its transpose: n times the gradient.
    if check_vma:
        grad = jax.value_and_grad(split, has_aux=True)
        inner = jax.shard_map(grad, mesh=mesh, in_specs=specs, out_specs=((P(), P()), P(None, "v")))
        close(jax.jit(inner)(x, t, w), want)


def linear(size, name, check_vma, axes=("v",), chunk=4):
    """Gradients of hidden states, weight and bias; with rows split as well where there are two axes."""
    mesh = mesh_of(axes)
    n = mesh.shape["v"]
    classes = SIZES[size](n)
    columns = -(-classes // n) * n
    h, w, b = seeded(TOKENS, FEATURES, scale=1), seeded(columns, FEATURES, seed=4, scale=1), seeded(columns, seed=5)
    t = labels(TOKENS, classes=classes)
    options = dict(OPTIONS[name]) if name != "outputs" else {}
    if len(axes) == 2:
        options |= {"reduction": "sum", "num_items": 4}
    rows = P("rows") if len(axes) == 2 else P()

    def whole(h, w, b, t):
        out = nn.cross_entropy(h @ w[:classes].T + b[:classes], t, **options)
        return (out * jnp.arange(1, out.size + 1)).sum()

    def split(h, w, b, t):
        out = nn.linear_cross_entropy(
            h, w, t, b, axis_name="v", vocab_size=None if classes == columns else classes, chunk=chunk, **options
        )
        out = (out * jnp.arange(1, out.size + 1)).sum()
        return jax.lax.psum(out, "rows") if len(axes) == 2 else out

    outer = jax.shard_map(split, mesh=mesh, in_specs=(rows, P("v"), P("v"), rows), out_specs=P(), check_vma=check_vma)
    want = jax.jit(jax.value_and_grad(whole, (0, 1, 2)))(h, w, b, t)
    close(jax.jit(jax.value_and_grad(outer, (0, 1, 2)))(h, w, b, t), want)


def hostile(check_vma):
    """Labels outside the vocabulary or in its padding are NaN (13, 21); a part of -inf scores takes no part (9)."""
    n = len(jax.devices())
    classes, columns = 4 * n - 2, 4 * n
    x = seeded(5, columns).at[0, :4].set(-jnp.inf).at[:, classes:].set(50.0)
    t = jnp.asarray([5, classes, columns - 1, -7, 1])

    def split(x, t):
        return nn.cross_entropy(x, t, axis_name="v", vocab_size=classes, reduction="none")

    outer = jax.shard_map(split, mesh=mesh_of(("v",)), in_specs=(P(None, "v"), P()), out_specs=P(), check_vma=check_vma)
    found, back = jax.vjp(jax.jit(outer), x, t)
    want, want_back = jax.vjp(lambda x: nn.cross_entropy(x[:, :classes], t, reduction="none"), x)
    assert np.isnan(found).tolist() == [False, True, True, True, False]
    close(found, want)
    grad, want_grad = (f(jnp.ones(5))[0] for f in (back, want_back))
    close(grad[jnp.asarray([0, 4])], want_grad[jnp.asarray([0, 4])])
    assert np.isnan(grad[1:4, :classes]).all()


def rows_split(check_vma):
    """Rows over devices, the vocabulary whole on each: every row function, its gradient too."""
    n = len(jax.devices())
    x, t = seeded(2 * n, 9), labels(2 * n, classes=9)

    def loss(x, t):
        found = nn.cross_entropy(x, t, reduction="sum") + (nn.softmax(x) * nn.log_softmax(x)).sum()
        return found + nn.logsumexp(x, -1).sum()

    def split(x, t):
        return jax.lax.psum(loss(x, t), "v")

    outer = jax.shard_map(split, mesh=mesh_of(("v",)), in_specs=P("v"), out_specs=P(), check_vma=check_vma)
    close(jax.jit(jax.value_and_grad(outer))(x, t), jax.jit(jax.value_and_grad(loss))(x, t))


SOME = [
    ("odd", "plain", False, True),
    ("padded", "smooth", False, True),
    ("odd", "outputs", True, False),
    ("whole", "none", False, False),
]


def checks(full=False):
    """Name → check. ``full``: the product of the options instead of a few."""
    found = {}
    for check_vma in (True, False):
        every = list(itertools.product(SIZES, OPTIONS, (False, True), (False, True)))
        for case in every if full else SOME[:: 1 if check_vma else 3]:
            found[f"cross_entropy {case} {check_vma}"] = functools.partial(cross_entropy, *case, check_vma)
        for case in itertools.product(SIZES, OPTIONS) if full else [("odd", "plain")]:
            found[f"linear {case} {check_vma}"] = functools.partial(linear, *case, check_vma)
        if check_vma and not full:
            found["linear ('padded', 'smooth') True"] = functools.partial(linear, "padded", "smooth", True)
        found[f"linear rows {check_vma}"] = functools.partial(linear, "padded", "plain", check_vma, ("rows", "v"))
        found[f"hostile {check_vma}"] = functools.partial(hostile, check_vma)
        found[f"rows {check_vma}"] = functools.partial(rows_split, check_vma)
    return found


if __name__ == "__main__":
    for name, check in checks("--full" in sys.argv).items():
        check()
        print(f"ok {name}", flush=True)
