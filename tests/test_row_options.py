"""Every pair of the row functions' options, in the kernel, against float64; the whole product among the slow tests."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_rows import MODES, covering, expected, expected_softmax, in_float64, labels, seeded
from onelaunch import nn
from onelaunch.kernels import tiles

CLASSES = 19
LOSS = {
    "soft": (False, True),
    "weight": (None, "some"),
    "how": ("mean", "sum", "none", "items"),
    "label_smoothing": (0.0, 0.2),
    "lse_square_scale": (0.0, 0.03),
    "scores": ((1.0, None), (0.4, 3.0), (0.4, None)),
    "ignore_index": (-100, 4),
    "outputs": (False, True),
    "dtype": (jnp.float32, jnp.bfloat16, jnp.float16),
    "axis": (-1, 0),
    "padded": (False, True),
    "tile": ((2, 8), (1, 32)),
    "grad_in_forward": (None, False),
}
SCORES = {
    "mode": MODES,
    "scores": ((1.0, None), (0.3, 2.0), (0.3, None)),
    "mask": (None, (5, 1), (3, 1, 11)),
    "where": (None, (3, 1, 11), (1, 5, 1)),
    "causal_offset": (None, 2, -1),
    "dtype": (jnp.float32, jnp.bfloat16),
    "tile": ((2, 8), (1, 16)),
}
#: The cheap product of those that meet in the kernel's arithmetic.
PRODUCT = ("soft", "weight", "how", "label_smoothing", "lse_square_scale", "scores")


def short(row):
    return "-".join(getattr(v, "__name__", str(v)).replace(" ", "") for v in row.values())


def check_loss(monkeypatch, soft=False, weight=None, how="mean", scores=(1.0, None), outputs=False, dtype=jnp.float32,
               axis=-1, padded=False, tile=(2, 8), grad_in_forward=None, ignore_index=-100, **options):  # fmt: skip
    """Loss, other outputs and gradient for a random cotangent."""
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")
    columns = CLASSES + 7 if padded else CLASSES
    x = seeded(5, columns, dtype=dtype)
    t = jnp.abs(seeded(5, columns, seed=2)) if soft else labels(5, classes=CLASSES, ignore=ignore_index)
    weight = None if weight is None else jnp.abs(seeded(columns, seed=3)) + 0.1
    plain = {"reduction": "sum" if how == "items" else how, "num_items": 11 if how == "items" else None, **options}
    plain |= {"logit_scale": scores[0], "softcap": scores[1], "ignore_index": ignore_index}
    asked = plain | {"grad_in_forward": grad_in_forward, "axis": axis, "weight": weight}
    asked |= {"vocab_size": CLASSES} if padded else {}
    asked |= {f"return_{n}": True for n in ("lse", "z_loss", "entropy", "predicted_tokens")} if outputs else {}

    def moved(a):
        return jnp.moveaxis(a, -1, axis)

    def total(loss, lse, entropy, z):
        rows = jnp.arange(1, 6, dtype=loss.dtype)
        found = (loss * (rows if how == "none" else 1)).sum()
        return found if lse is None else found + (lse * rows).sum() + (entropy * rows).sum() + 3 * z.sum()

    def ours(x):
        out = nn.cross_entropy(moved(x), moved(t) if soft else t, **asked)
        if not outputs:
            return total(out, None, None, None), x.argmax(-1)
        return total(out.loss, out.lse, out.entropy, out.z_loss), out.predicted_tokens

    def theirs(x, t, w):
        x, t, w = x[:, :CLASSES], t[:, :CLASSES] if soft else t, None if w is None else w[:CLASSES]
        loss = expected(x, t, w, **plain)
        if not outputs:
            return total(loss, None, None, None)
        z = x * scores[0]
        z = z if scores[1] is None else scores[1] * jnp.tanh(z / scores[1])
        p, lse = jax.nn.softmax(z), jax.nn.logsumexp(z, -1)
        valid = jnp.ones(5, bool) if soft else t != ignore_index
        square = jnp.where(valid, lse**2 * options.get("lse_square_scale", 0.0), 0)
        over = {"none": 1, "sum": 1, "items": 11, "mean": valid.sum()}[how]
        square = (square if how == "none" else square.sum()) / over
        return total(loss, lse, lse - (p * z).sum(-1), square)

    with tiles.forced(*tile):
        (value, best), grad = jax.jit(jax.value_and_grad(ours, has_aux=True))(x)
    weight = jnp.ones(columns) if weight is None else weight
    want, slope = in_float64(jax.value_and_grad(theirs), x, t, weight)
    np.testing.assert_allclose(value, want, rtol=2e-5, atol=1e-5)
    rough = {jnp.float32: 2e-5, jnp.bfloat16: 2e-2, jnp.float16: 2e-3}[dtype]
    np.testing.assert_allclose(np.float64(grad), slope, rtol=rough, atol=rough * max(1e-3, abs(slope).max()))
    if outputs:
        assert best.tolist() == x[:, :CLASSES].argmax(-1).tolist()


@pytest.mark.parametrize("row", covering(LOSS), ids=short)
def test_every_pair_of_options_of_cross_entropy(monkeypatch, row):
    if row["how"] == "none" or row["outputs"]:
        row = {**row, "grad_in_forward": None}
    check_loss(monkeypatch, **row)


@pytest.mark.slow
@pytest.mark.parametrize("values", list(itertools.product(*(LOSS[name] for name in PRODUCT))), ids=str)
def test_all_options_of_cross_entropy(monkeypatch, values):
    check_loss(monkeypatch, **dict(zip(PRODUCT, values)))


def check_scores(monkeypatch, mode, scores, mask, where, causal_offset, dtype, tile):
    """Values and gradient for a random cotangent."""
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")
    x = seeded(3, 5, 11, dtype=dtype)
    options = {"scale": scores[0], "softcap": scores[1], "causal_offset": causal_offset}
    mask = None if mask is None else seeded(*mask, seed=3)
    where = None if where is None else seeded(*where, seed=4) > -0.5
    g = seeded(*(x.shape[:-1] if mode == "logsumexp" else x.shape), seed=7, dtype=dtype)

    def both(function, x, g, mask, where):
        y, back = jax.vjp(lambda x: function(x, -1, mask=mask, where=where, **options), x)
        return y, back(g)[0]

    with tiles.forced(*tile):
        found = jax.jit(lambda x: both(getattr(nn, mode), x, g, mask, where))(x)
    given = [x, g, jnp.zeros(()) if mask is None else mask, jnp.ones((), bool) if where is None else where]
    want = in_float64(lambda *a: both(lambda *b, **o: expected_softmax(mode, *b, **o), *a), *given)
    rough = 1e-5 if dtype == jnp.float32 else 5e-2
    use = np.isfinite(want[0])
    assert (np.isfinite(np.float64(found[0])) == use).all()
    np.testing.assert_allclose(np.float64(found[0])[use], want[0][use], rtol=rough, atol=rough)
    np.testing.assert_allclose(np.float64(found[1]), np.nan_to_num(want[1]), rtol=rough, atol=rough)


@pytest.mark.parametrize("row", covering(SCORES), ids=short)
def test_every_pair_of_options_of_softmax(monkeypatch, row):
    check_scores(monkeypatch, **row)


@pytest.mark.slow
@pytest.mark.parametrize("values", list(itertools.product(*SCORES.values())), ids=str)
def test_all_options_of_softmax(monkeypatch, values):
    check_scores(monkeypatch, **dict(zip(SCORES, values)))
