"""onelaunch.nn.cross_entropy against optax and plain JAX; "#n" is a fault that users reported of such kernels."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_rows import expected, kernel, labels, path, seeded  # noqa: F401
from onelaunch import build, nn
from onelaunch.errors import OptionError
from onelaunch.kernels import tiles
from onelaunch.kernels.calls import Loss
from onelaunch.nn.cross_entropy_rows import Ask, Gradient, Losses
from onelaunch.target import parse


def compare(x, t, tolerance=1e-5, **options):
    g = seeded(*(x.shape[:-1] if options.get("reduction") == "none" else ()), seed=7, dtype=x.dtype)

    @jax.jit
    def both(x):
        y, back = jax.vjp(lambda x: nn.cross_entropy(x, t, **options), x)
        r, back_r = jax.vjp(lambda x: expected(x, t, **options), x)
        return (y, *back(g)), (r, *back_r(g))

    for found, want in zip(*both(x)):
        np.testing.assert_allclose(found, want, rtol=tolerance, atol=tolerance)


OPTIONS = {
    "weight": {"weight": jnp.abs(seeded(19, seed=3))},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "smooth": {"label_smoothing": 0.2},
    "z": {"lse_square_scale": 0.03},
    "cap": {"softcap": 3.0, "logit_scale": 0.4},
    "items": {"num_items": 11},
}
PAIRS = [p for p in itertools.combinations(OPTIONS, 2) if p not in (("none", "items"), ("sum", "none"))]


@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
@pytest.mark.parametrize("soft", [False, True], ids=["labels", "probabilities"])
def test_options_and_their_pairs(pair, soft):
    t = jnp.abs(seeded(6, 19, seed=2)) if soft else labels(6, classes=19)
    compare(seeded(6, 19), t, 2e-5, **OPTIONS[pair[0]], **OPTIONS[pair[1]])


@pytest.mark.parametrize("soft", [False, True], ids=["labels", "probabilities"])
@pytest.mark.parametrize("names", [("weight", "smooth", "z", "cap"), ("weight", "none", "cap", "z")], ids="+".join)
def test_kernel_with_many_options(monkeypatch, names, soft):
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")
    t = jnp.abs(seeded(5, 19, seed=2)) if soft else labels(5, classes=19)
    with tiles.forced(2, 8):
        compare(seeded(5, 19), t, 2e-5, **{k: v for name in names for k, v in OPTIONS[name].items()})


def test_as_optax():
    """35: probabilities need not sum to 1; their gradient is there, too."""
    optax = pytest.importorskip("optax")
    x, t, q = seeded(3, 2, 9), labels(3, 2, classes=9, ignore=4), jnp.abs(seeded(3, 2, 9, seed=2))
    where = jnp.broadcast_to(jnp.arange(9) != 3, (3, 2, 9))
    pairs = (
        (lambda m: m.softmax_cross_entropy_with_integer_labels(x, t).sum(), None),
        (lambda m: m.softmax_cross_entropy(x, q), None),
    )
    for function, _ in pairs:
        np.testing.assert_allclose(function(nn), function(optax), rtol=1e-5)
    for argument in (0, 1):
        found = jax.jit(jax.grad(lambda *a: nn.softmax_cross_entropy(*a, where=where).sum(), argument))(x, q)
        want = jax.jit(jax.grad(lambda *a: optax.softmax_cross_entropy(*a, where=where).sum(), argument))(x, q)
        np.testing.assert_allclose(found[..., where[0, 0]], want[..., where[0, 0]], rtol=1e-5, atol=1e-6)


def test_axis_dtypes_and_x64():
    """8: half-precision logits have f32 losses."""
    x, t = seeded(2, 9, 3), labels(2, 3, classes=9)
    found = nn.cross_entropy(x, t, axis=1)
    np.testing.assert_allclose(found, expected(jnp.moveaxis(x, 1, -1), t), rtol=1e-6)
    half = seeded(4, 9, dtype=jnp.bfloat16)
    loss, grad = jax.jit(jax.value_and_grad(nn.cross_entropy))(half, labels(4, classes=9))
    assert loss.dtype == jnp.float32 and grad.dtype == jnp.bfloat16
    np.testing.assert_allclose(loss, expected(half.astype(jnp.float32), labels(4, classes=9)), rtol=1e-6)
    jax.config.update("jax_enable_x64", True)
    compare(seeded(4, 9, dtype=np.float64), labels(4, classes=9).astype(jnp.int64), 1e-12)


def test_1_10_mean_over_nothing():
    x, t = seeded(3, 9), jnp.full(3, -100)
    loss, grad = jax.jit(jax.value_and_grad(nn.cross_entropy))(x, t)
    assert loss == 0 and not grad.any()
    assert jnp.isnan(nn.cross_entropy(x, t, empty_mean="nan"))
    loss, grad = jax.jit(jax.value_and_grad(nn.cross_entropy))(jnp.zeros((0, 9)), jnp.zeros(0, jnp.int32))
    assert loss == 0 and grad.shape == (0, 9)


def test_6_other_outputs(path):  # noqa: F811
    x, t = seeded(4, 9), labels(4, classes=9)

    def both(x):
        out = nn.cross_entropy(x, t, lse_square_scale=0.1, return_lse=True, return_z_loss=True,
                               return_predicted_tokens=True, return_token_accuracy=True)  # fmt: skip
        return out.loss + 3 * out.z_loss + (out.lse * jnp.arange(4)).sum(), out

    def reference(x):
        lse = jax.nn.logsumexp(x, -1)
        z = jnp.mean(0.1 * lse**2, where=t != -100)
        return expected(x, t, lse_square_scale=0.1) + 3 * z + (lse * jnp.arange(4)).sum()

    (value, out), grad = jax.jit(jax.value_and_grad(both, has_aux=True))(x)
    want, want_grad = jax.jit(jax.value_and_grad(reference))(x)
    np.testing.assert_allclose(value, want, rtol=1e-5)
    np.testing.assert_allclose(grad, want_grad, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(out.predicted_tokens, x.argmax(-1))
    np.testing.assert_allclose(out.token_accuracy, jnp.mean(x.argmax(-1) == t, where=t != -100))


def test_9_21_22_hostile_rows(path):  # noqa: F811
    x = seeded(4, 30).at[:, :17].set(-jnp.inf)
    t = jnp.asarray([17, 30, -1, 29])
    found = nn.softmax_cross_entropy_with_integer_labels(x, t)
    assert jnp.isnan(found).tolist() == [False, True, True, False]
    want = jax.nn.logsumexp(x, -1) - jnp.take_along_axis(x, jnp.clip(t, 17, 29)[:, None], -1)[:, 0]
    np.testing.assert_allclose(found[::3], want[::3], rtol=1e-6)
    q = jnp.abs(seeded(4, 30, seed=2)).at[:, :17].set(0)
    loss, grad = jax.value_and_grad(lambda x: nn.softmax_cross_entropy(x, q).sum())(x)
    assert jnp.isfinite(loss) and jnp.isfinite(grad).all()


def test_transforms(path):  # noqa: F811
    """vmap of grad, with weights of their own, under jit; second derivatives."""
    x, t = seeded(3, 4, 9), labels(3, 4, classes=9)
    found = jax.jit(jax.vmap(jax.grad(nn.cross_entropy)))(x, t)
    np.testing.assert_allclose(found, jax.jit(jax.vmap(jax.grad(expected)))(x, t), atol=1e-6)
    if path == "xla":
        w = jnp.abs(seeded(3, 9, seed=3))
        ours = jax.jit(jax.vmap(jax.grad(lambda x, t, w: nn.cross_entropy(x, t, weight=w))))(x, t, w)
        np.testing.assert_allclose(ours, jax.jit(jax.vmap(jax.grad(expected)))(x, t, w), atol=1e-5)
        ours, theirs = (jax.jit(jax.hessian(f))(x[0], t[0]) for f in (nn.cross_entropy, expected))
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_27_accumulation_over_parts():
    x, t = seeded(7, 9), labels(7, classes=9)
    n = (t != -100).sum()
    parts = sum(nn.cross_entropy(x[i:j], t[i:j], num_items=n) for i, j in ((0, 1), (1, 5), (5, 7)))
    np.testing.assert_allclose(parts, expected(x, t), rtol=1e-5)


@pytest.mark.parametrize("grad_in_forward", [False, True])
def test_gradient_with_the_loss_or_after_it(grad_in_forward):
    x, t = seeded(4, 9), labels(4, classes=9)
    found = jax.grad(lambda x: nn.cross_entropy(x, t, grad_in_forward=grad_in_forward) * 2)(x)
    np.testing.assert_allclose(found, jax.grad(lambda x: expected(x, t) * 2)(x), atol=1e-6)


def test_a_model_learns_the_same(monkeypatch):
    """50 steps of a bigram model, by the kernel and by JAX."""
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")
    text = jnp.asarray([(i * i + 3 * i) % 17 for i in range(65)])
    ignored = jnp.where(jnp.arange(64) % 7 == 0, -100, text[1:])

    def ours(w):
        return nn.cross_entropy(w[text[:-1]], ignored)

    def theirs(w):
        picked = jnp.take_along_axis(jax.nn.log_softmax(w[text[:-1]]), text[1:, None], -1)[:, 0]
        return -jnp.mean(picked, where=ignored != -100)

    found = [train(loss) for loss in (ours, theirs)]
    assert found[1][-1] < found[1][0] / 2
    np.testing.assert_allclose(*found, atol=1e-5)


def train(loss):
    step = jax.jit(jax.value_and_grad(loss))
    w, losses = seeded(17, 17, scale=0.1), []
    for _ in range(50):
        value, grad = step(w)
        w, losses = w - 5 * grad, [*losses, value]
    return np.asarray(losses)


def test_wrong_arguments():
    x, t = seeded(3, 9), jnp.arange(3)
    for options in ({"reduction": "avg"}, {"label_smoothing": 2.0}, {"num_items": 3, "reduction": "none"},
                    {"empty_mean": "one"}, {"grad_in_forward": True, "reduction": "none"}):  # fmt: skip
        with pytest.raises(OptionError):
            nn.cross_entropy(x, t, **options)
    with pytest.raises(ValueError, match="shape"):
        nn.cross_entropy(x, jnp.arange(4))
    with pytest.raises(ValueError, match="weight"):
        nn.cross_entropy(x, t, weight=jnp.ones(3))
    with pytest.raises(ValueError, match="no classes"):
        nn.cross_entropy(x[:, :0], t)
    with pytest.raises(TypeError, match="logits"):
        nn.cross_entropy(jnp.ones((3, 9), int), t)


def test_loss_and_gradient_are_one_launch():
    """Lowered for a GPU, which need not be there."""
    x, t = jax.ShapeDtypeStruct((64, 50257), jnp.bfloat16), jax.ShapeDtypeStruct((64,), np.int32)
    step = jax.jit(jax.value_and_grad(nn.cross_entropy)).trace(x, t)
    assert step.lower(lowering_platforms=("cuda",)).as_text().count("stablehlo.custom_call @triton_kernel_call") == 1
    assert "triton_kernel_call" not in step.lower(lowering_platforms=("cpu",)).as_text()


@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "hip:gfx942"])
def test_kernels_compile_without_spills(target):
    """25: at most 16 warps; the vocabularies of large models, and every option at once (which may spill a little)."""
    rows = 4096
    for columns, options, bound in ((128_256, Loss(), 0), (50_257, Loss(5, 0.1, 1e-4, 0.5, 30.0), 64)):
        arrays = {"x": ((rows, columns), jnp.bfloat16), "target": ((rows,), np.int32)}
        row = ((rows,), np.float32)
        more = {"factor": row, "zfactor": row} if options.zscale else {"factor": row}
        weights = {"weight": ((columns,), np.float32), "total_weight": ((1,), np.float32)} if options.smooth else {}
        fused = Losses(options, Ask(bool(weights), bool(weights)), 1, (*arrays, *weights, *more), True, None)
        after = Gradient(options, 1, (*arrays, "lse", "mass", "up"), None)
        for function, shapes in (
            (fused, arrays | weights | more),
            (after, arrays | dict.fromkeys(("lse", "mass", "up"), row)),
        ):
            structs = {n: jax.ShapeDtypeStruct(*a) for n, a in shapes.items()}
            results = jax.eval_shape(
                lambda f=function, s=structs: f.by_xla(**{n: jnp.zeros(a.shape, a.dtype) for n, a in s.items()})
            )
            made = function.kernel(structs, results)
            assert made.num_warps <= 16
            assert build.compile(made, parse(target)).resources.spilled <= bound
