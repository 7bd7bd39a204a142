"""onelaunch.nn's softmax, log_softmax, logsumexp against JAX's own, and their kernels compiled offline."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import onelaunch
from jax_rows import MODES, expected_softmax, kernel, path, seeded  # noqa: F401
from onelaunch import build, nn
from onelaunch.errors import OptionError
from onelaunch.kernels import text
from onelaunch.kernels.calls import LOGSUMEXP, SOFTMAX, Scores
from onelaunch.nn.softmax import Backward, Forward
from onelaunch.target import parse


def compare(mode, x, axis, tolerance=1e-5, **options):
    """Values and gradient, for a random cotangent."""

    @jax.jit
    def both(x):
        y, back = jax.vjp(lambda x: getattr(nn, mode)(x, axis, **options), x)
        r, back_r = jax.vjp(lambda x: expected_softmax(mode, x, axis, **options), x)
        g = seeded(*y.shape, seed=7, dtype=y.dtype)
        return (y, *back(g)), (r, *back_r(g))

    for found, want in zip(*both(x)):
        assert found.dtype == x.dtype and found.shape == want.shape
        np.testing.assert_allclose(np.float64(found), np.float64(want), rtol=tolerance, atol=tolerance)


OPTIONS = {
    "scaled": {"scale": 0.3, "softcap": 2.0},
    "mask": {"mask": seeded(5, 1, seed=3)},
    "holes": {"where": seeded(3, 1, 11, seed=4) > -0.5},
    "causal": {"causal_offset": 2},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("pair", list(itertools.combinations(OPTIONS, 2)), ids="+".join)
def test_options_and_their_pairs(mode, pair):
    compare(mode, seeded(3, 5, 11), -1, **OPTIONS[pair[0]], **OPTIONS[pair[1]])


@pytest.mark.parametrize("mode", MODES)
def test_options_together(path, mode):  # noqa: F811
    compare(mode, seeded(3, 5, 11), -1, **{k: v for options in OPTIONS.values() for k, v in options.items()})


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("axis", [0, 1, (0, 2), None], ids=str)
def test_axes(mode, axis):
    compare(mode, seeded(3, 5, 4), axis)


def test_axes_of_the_kernel(monkeypatch):
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")
    compare("log_softmax", seeded(3, 5, 4), 1)
    compare("logsumexp", seeded(3, 5, 4), (0, 2))


def test_dtypes():
    compare("softmax", seeded(3, 11, dtype=jnp.bfloat16), -1, 5e-2)
    jax.config.update("jax_enable_x64", True)
    compare("softmax", seeded(3, 11, dtype=np.float64), -1, 1e-12)


def test_9_infinite_scores_as_jax():
    x = seeded(4, 30).at[:, :17].set(-jnp.inf).at[1].set(-jnp.inf).at[2, 20].set(jnp.inf)
    for mode in MODES:
        np.testing.assert_allclose(getattr(nn, mode)(x, -1), getattr(jax.nn, mode)(x, -1), rtol=1e-6)


def test_38_rows_of_which_nothing_takes_part(path):  # noqa: F811
    where = jnp.asarray([[True], [False]])
    x = seeded(2, 9)
    for mode in MODES:
        found = getattr(nn, mode)(x, -1, where=where)
        np.testing.assert_allclose(found, expected_softmax(mode, x, -1, where=where), rtol=1e-6)
    assert not jax.grad(lambda x: (nn.softmax(x, where=where) ** 2).sum())(x)[1].any()


def test_10_no_elements():
    assert nn.softmax(jnp.zeros((0, 5))).shape == (0, 5)
    assert nn.logsumexp(jnp.zeros((2, 0)), -1).tolist() == [-np.inf] * 2


@pytest.mark.parametrize("axes", [(0, None), (1, 0), (None, 0)], ids=str)
def test_transforms(axes):
    x, m = seeded(2, 3, 4, 9), seeded(3, 1, 1, seed=3)

    def ours(x, m):
        return (nn.softmax(x, mask=m, causal_offset=1) ** 2).sum()

    def theirs(x, m):
        return (expected_softmax("softmax", x, -1, mask=m, causal_offset=1) ** 2).sum()

    a = m[:, 0] if axes[1] == 0 else m
    found = jax.jit(jax.vmap(jax.grad(ours), axes))(x, a)
    np.testing.assert_allclose(found, jax.jit(jax.vmap(jax.grad(theirs), axes))(x, a), atol=1e-6)


def test_transforms_of_the_kernel(monkeypatch):
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")
    x, keep = seeded(2, 4, 9), seeded(2, 1, 9, seed=3) > 0
    found = jax.vmap(lambda x, k: nn.softmax(x, where=k))(x, keep)
    np.testing.assert_allclose(found, expected_softmax("softmax", x, -1, where=keep), atol=1e-6)


def test_inside_fuse(monkeypatch):
    """The function becomes part of the one kernel, its derivative, too."""
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")
    x = seeded(3, 5)
    for f in (lambda x: nn.softmax(x) * 2, jax.grad(lambda x: nn.cross_entropy(x, jnp.arange(3)))):
        fused = onelaunch.fuse(f)
        assert fused.lower(x).launches == 1
        np.testing.assert_allclose(fused(x), f(x), rtol=1e-5, atol=1e-7)


def test_mask_gradient_and_second_derivatives():
    x, m = seeded(3, 5), seeded(3, 1, seed=3)
    for function, argument in ((jax.grad, 1), (jax.hessian, 0)):
        ours = function(lambda x, m: (nn.log_softmax(x, mask=m, softcap=2.0) ** 2).sum(), argument)
        theirs = function(
            lambda x, m: (expected_softmax("log_softmax", x, -1, mask=m, softcap=2.0) ** 2).sum(), argument
        )
        np.testing.assert_allclose(jax.jit(ours)(x, m), jax.jit(theirs)(x, m), atol=1e-4)


def test_wrong_arguments():
    with pytest.raises(OptionError):
        nn.softmax(seeded(3, 9), 0, causal_offset=0)
    with pytest.raises(TypeError, match="softmax of"):
        nn.softmax(jnp.arange(3))
    with pytest.raises(ValueError, match="broadcast"):
        nn.softmax(seeded(3, 9), mask=seeded(4, 9))
    with pytest.raises(ValueError, match="axis"):
        nn.softmax(seeded(3, 9), 2)
    with pytest.raises(ValueError, match="twice"):
        nn.softmax(seeded(3, 9), (0, -2))
    with pytest.raises(TypeError, match="argument where"):
        nn.softmax(seeded(3, 9), mask=seeded(3, 9) > 0)
    with pytest.raises(OptionError, match="softcap"):
        nn.softmax(seeded(3, 9), softcap=-1.0)


# --- the kernels as Triton compiles them ---------------------------------------------------------------------


def made(function, **arrays):
    shapes = {n: jax.ShapeDtypeStruct(s, d) for n, (s, d) in arrays.items()}
    results = jax.eval_shape(lambda *xs: function.by_xla(**dict(zip(function.names, xs))), *shapes.values())
    return function.kernel(shapes, results)


@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "hip:gfx942"])
@pytest.mark.parametrize("columns", [1000, 50_000])
def test_kernels_compile_without_spills(target, columns):
    """25: at most 16 warps, which is 1,024 lanes where a warp has 64."""
    shape, options = (4, 128, columns), Scores(SOFTMAX, 0.5, 30.0, 0)
    x = (shape, jnp.bfloat16)
    masks = {"mask": ((1, 1, columns), jnp.float32), "keep": ((4, 1, 1), np.bool_)}
    forward = made(Forward(options, 2, ("x", "mask", "keep"), None), x=x, **masks)
    backward = made(Backward(Scores(SOFTMAX), 2, ("y", "g"), None), y=x, g=x)
    for k in (forward, backward):
        assert k.num_warps <= 16
        assert build.compile(k, parse(target)).resources.spilled == 0


def test_every_option_passes_the_front_end():
    """Among them columns that are not neighbours in memory."""
    for mode, cap, dtype, axis in itertools.product(range(3), (None, 2.0), (jnp.float32,), (0, 1)):
        x = ((70, 300), dtype)
        y = x if mode != LOGSUMEXP else ((300,) if axis == 0 else (70,), dtype)
        names = ("y", "g", "x") if cap or mode == LOGSUMEXP else ("y", "g")
        arrays = dict(zip(("y", "g", "x"), (y, y, x)[: len(names)]))
        assert build.front(made(Backward(Scores(mode, 0.5, cap), axis, names, None), **arrays))
        assert build.front(made(Forward(Scores(mode, 0.5, cap), axis, ("x",), None), x=x))


def test_20_row_offsets_are_i64():
    x = ((2**17, 2**15), jnp.bfloat16)
    ttir = build.front(made(Forward(Scores(SOFTMAX), 1, ("x",), None), x=x))
    assert "arith.constant dense<32768> : tensor<1xi64>" in ttir


def test_a_family_is_a_module_that_needs_triton_alone():
    source = text.family("softmax")
    assert [line for line in source.splitlines() if line.startswith(("import", "from"))] == [
        "import triton",
        "import triton.language as tl",
    ]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scores_so_large_that_their_base_two_multiples_are_rounded_by_much(kernel, dtype):  # noqa: F811
    """A row that a mask of −1e10 or −1e30 leaves nothing of is uniform, not NaN."""
    with jax.enable_x64(True):
        far = jnp.asarray([-1e10, -1e30, 3e9, 1e19, -1.2e9, 1e5, 0.0, -3e38], dtype)
        x = jnp.repeat(far[:, None], 5, 1).at[:, 1].multiply(jnp.asarray(0.75, dtype)).at[:, 3].add(-3.0)
        for function in (nn.softmax, nn.log_softmax):
            want = getattr(jax.nn, function.__name__)(x)
            np.testing.assert_allclose(function(x), want, rtol=2e-5, atol=1e-7)
        np.testing.assert_allclose(nn.logsumexp(x, -1), jax.nn.logsumexp(x, -1), rtol=2e-6)
