"""onelaunch.torch's softmax, log_softmax, logsumexp against float64 references; "#n" is a fault that users reported."""

# ruff: noqa: F811  (fixtures are imported)
from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")
ot = pytest.importorskip("onelaunch.torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from onelaunch.errors import OptionError  # noqa: E402
from onelaunch.kernels import tiles  # noqa: E402
from torch_rows import INF, NAN, kernel, path, seeded  # noqa: E402, F401

MODES = ("softmax", "log_softmax", "logsumexp")
pytestmark = pytest.mark.torch


def expected(mode, x, dim, scale=1.0, softcap=None, mask=None, where=None, causal_offset=None):
    """The function in float64 by PyTorch's operations alone."""
    z = x.double() * scale
    z = z if softcap is None else softcap * torch.tanh(z / softcap)
    z = z if mask is None else z + mask.double()
    use = torch.ones_like(z, dtype=torch.bool) if where is None else where.expand(z.shape)
    if causal_offset is not None:
        use = use & torch.ones(z.shape[-2:], dtype=torch.bool).tril(causal_offset)
    z = torch.where(use, z, -INF)
    if mode == "logsumexp":
        return torch.logsumexp(z, dim)
    y = getattr(torch, mode)(z, dim)
    return torch.where(use, y, 0.0 if mode == "softmax" else -INF)


def compare(mode, x, dim, tolerance=1e-5, **options):
    """Values and gradient, for a random upstream gradient."""
    x = x.detach().requires_grad_()
    y, r = getattr(ot, mode)(x, dim, **options), expected(mode, x, dim, **options)
    assert y.dtype == x.dtype and y.shape == r.shape
    torch.testing.assert_close(y.double(), r, rtol=tolerance, atol=tolerance, equal_nan=True)
    g = seeded(*y.shape, seed=7, dtype=y.dtype)
    (dx,) = torch.autograd.grad(y, x, g)
    (dr,) = torch.autograd.grad(r, x, g.double())
    torch.testing.assert_close(dx, dr, rtol=tolerance, atol=tolerance, equal_nan=True)


OPTIONS = {
    "scale": {"scale": 0.3},
    "cap": {"softcap": 2.0},
    "mask": {"mask": seeded(1, 11, seed=3)},
    "rows": {"mask": seeded(3, 1, 1, seed=3)},
    "where": {"where": seeded(5, 1, seed=4) > -1},
    "holes": {"where": seeded(3, 5, 11, seed=4) > -0.5},
    "causal": {"causal_offset": 2},
    "strict": {"causal_offset": -1},
}
PAIRS = [p for p in itertools.combinations(OPTIONS, 2) if len({**OPTIONS[p[0]], **OPTIONS[p[1]]}) == 2]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_options_and_their_pairs(mode, pair):
    options = OPTIONS[pair[0]] | OPTIONS[pair[1]]
    if mode == "logsumexp" and {"where", "strict"} & set(pair):
        return  # PyTorch's own gradient of rows of −inf is NaN; see test_rows_of_which_nothing_takes_part
    compare(mode, seeded(3, 5, 11, dtype=torch.float64), -1, 1e-10, **options)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "names", [("scale", "cap", "mask", "causal"), ("holes", "cap", "rows"), ("holes", "causal")], ids="+".join
)  # fmt: skip
def test_kernel_with_many_options(kernel, mode, names):
    compare(mode, seeded(3, 5, 11), -1, **{k: v for name in names for k, v in OPTIONS[name].items()})


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_dtypes(path, mode, dtype):
    tolerance = {torch.float16: 4e-3, torch.bfloat16: 5e-2, torch.float64: 1e-12}[dtype]
    compare(mode, seeded(3, 11, dtype=dtype), 1, tolerance)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_any_dim_and_strides(path, dim):
    """20: offsets come from the strides; four row dimensions that do not merge are copied."""
    base = seeded(6, 5, 9)
    compare("softmax", base.transpose(0, 2)[::2, :, 1:], dim)
    compare("log_softmax", base[:1].expand(4, 5, 9), dim)
    if dim == 0:
        compare("softmax", seeded(3, 4, 4, 4, 4)[:, ::2, ::2, ::2, ::2], 0)


def test_single_tile_by_the_rule(monkeypatch):
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")
    for mode, n in itertools.product(MODES, (1, 2, 100)):
        compare(mode, seeded(3, n), 1)
    compare("softmax", seeded(2, 7, 5), 1)


@pytest.mark.parametrize("n", [65_537, 2**17 + 3])
def test_19_rows_of_many_columns(monkeypatch, n):
    """More columns than a tile takes, and more than 65,536."""
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")
    assert n > tiles.SINGLE
    compare("softmax", seeded(2, n), 1)


def test_20_offsets_have_64_bits():
    """An array of 2^32 elements: the layout says so, and the row's offset is an i64 in the kernel."""
    from onelaunch.kernels.layout import collapse

    rows = collapse((2**16, 2**16), 1, [(2**16, 1)])
    assert rows is not None and not rows.wide
    rows = collapse((2**16, 2**16), 0, [(2**16, 1)])
    assert rows is not None and rows.wide


@pytest.mark.parametrize("mode", MODES)
def test_9_blocks_of_minus_infinity(path, mode):
    x = seeded(3, 30)
    x[:, :17] = -INF
    compare(mode, x, 1)


def test_infinite_rows_as_pytorch(path):
    x = torch.tensor([[-INF] * 9, [INF] + [0.0] * 8, [NAN] + [0.0] * 8, [0.0] * 8 + [INF]])
    for mode in MODES:
        y = getattr(ot, mode)(x, 1)
        torch.testing.assert_close(y, getattr(torch, mode)(x, 1), equal_nan=True)


def test_rows_of_which_nothing_takes_part(path):
    """38: as JAX defines them."""
    x = seeded(2, 9).requires_grad_()
    where = torch.tensor([[True], [False]])
    assert not ot.softmax(x, 1, where=where)[1].any()
    assert (ot.log_softmax(x, 1, where=where)[1] == -INF).all()
    assert ot.logsumexp(x, 1, where=where)[1] == -INF
    (dx,) = torch.autograd.grad(ot.softmax(x, 1, where=where).square().sum(), x)
    assert dx.isfinite().all() and not dx[1].any()


def test_12_padding_gains_no_mass_from_the_cap(path):
    compare("softmax", seeded(3, 9, scale=50.0), 1, softcap=0.5)


def test_22_nothing_of_what_is_left_out_gets_in(path):
    x = seeded(2, 9)
    x[:, 3] = NAN
    where = torch.arange(9) != 3
    y = ot.softmax(x.requires_grad_(), 1, where=where)
    (dx,) = torch.autograd.grad(y.square().sum(), x)
    assert y.isfinite().all() and dx.isfinite().all()


def test_32_expanded_upstream_gradients(path):
    x = seeded(3, 9).requires_grad_()
    for g in (torch.tensor(2.0).expand(3, 9), seeded(3, 1).expand(3, 9)):
        (dx,) = torch.autograd.grad(ot.log_softmax(x, 1), x, g)
        (dr,) = torch.autograd.grad(torch.log_softmax(x, 1), x, g)
        torch.testing.assert_close(dx, dr)


def test_10_32_no_elements(path):
    assert ot.softmax(torch.zeros(0, 5), 1).shape == (0, 5)
    assert ot.softmax(torch.zeros(5, 0), 1).shape == (5, 0)
    assert ot.logsumexp(torch.zeros(2, 0), 1).tolist() == [-INF, -INF]
    assert ot.softmax(torch.tensor(3.0), 0).item() == 1


def test_dtype_argument(path):
    x = seeded(2, 9, dtype=torch.bfloat16).requires_grad_()
    y = ot.softmax(x, 1, dtype=torch.float32)
    torch.testing.assert_close(y, torch.softmax(x, 1, dtype=torch.float32))
    (dx,) = torch.autograd.grad(y.square().sum(), x)
    assert dx.dtype == torch.bfloat16
    assert ot.softmax(torch.arange(9), 0, dtype=torch.float32).dtype == torch.float32


def test_gradient_of_the_mask(path):
    x, mask = seeded(3, 5, 11), seeded(5, 1, seed=3).requires_grad_()
    g = seeded(3, 5, 11, seed=7)
    (found,) = torch.autograd.grad(ot.log_softmax(x, -1, mask=mask), mask, g)
    (want,) = torch.autograd.grad(expected("log_softmax", x, -1, mask=mask), mask, g.double())
    torch.testing.assert_close(found, want)


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", [1, (0, 2), (1, 2, 0)], ids=str)
def test_logsumexp_along_several(path, dim, keepdim):
    x = seeded(3, 5, 4)
    torch.testing.assert_close(ot.logsumexp(x, dim, keepdim), torch.logsumexp(x, dim, keepdim))


@pytest.mark.parametrize("options", [{}, {"softcap": 2.0, "scale": 0.3}, {"causal_offset": 0}], ids=str)
def test_3_compiles_whole(path, options):
    def f(x):
        return ot.softmax(x * 2, -1, **options).square().sum()

    a, b = seeded(4, 9).requires_grad_(), seeded(4, 9).requires_grad_()
    compiled, eager = torch.compile(f, fullgraph=True, backend="aot_eager")(a), f(b)
    torch.testing.assert_close(compiled, eager)
    torch.testing.assert_close(torch.autograd.grad(compiled, a), torch.autograd.grad(eager, b))


def test_transforms(path):
    x, mask = seeded(3, 4, 9), seeded(3, 1, 9, seed=3)

    def f(x, mask):
        return ot.softmax(x, -1, mask=mask)

    torch.testing.assert_close(torch.func.vmap(f)(x, mask), f(x, mask))
    grads = torch.func.vmap(torch.func.grad(lambda x, m: f(x, m).square().sum()))(x, mask)
    y = x.clone().requires_grad_()
    torch.testing.assert_close(grads, torch.autograd.grad(f(y, mask).square().sum(), y)[0])


@pytest.mark.parametrize("mode", ["softmax", "log_softmax", "logsumexp"])
@pytest.mark.parametrize("options", [{}, {"softcap": 3.0, "scale": 0.5, "where": torch.arange(9) % 3 > 0}], ids=str)
def test_second_derivatives(path, mode, options):
    """By PyTorch's operations."""
    x = seeded(3, 9).requires_grad_()
    y = x.double()

    def second(f, z):
        value = f(z)
        value = torch.where(value.isfinite(), value, 0.0).pow(3).sum()
        (dx,) = torch.autograd.grad(value, z, create_graph=True)
        return dx, torch.autograd.grad(dx.square().sum(), z)[0]

    def plain(z):
        if options:
            z = 3 * torch.tanh(z * 0.5 / 3)
            z = torch.where(options["where"], z, -torch.inf)
        return getattr(torch, mode)(z, 1)

    found = second(lambda z: getattr(ot, mode)(z, 1, **options), x)
    if options and mode == "softmax":
        assert not found[0][:, 0].any()
    for a, c in zip(found, second(plain, y)):
        torch.testing.assert_close(a.double(), torch.where(c.isnan(), 0.0, c), rtol=1e-4, atol=1e-5)


def test_modules_are_drop_ins(path):
    x = seeded(3, 9)
    for name in ("Softmax", "LogSoftmax"):
        ours, theirs = getattr(ot, name)(dim=1), getattr(torch.nn, name)(dim=1)
        assert isinstance(ours, type(theirs)) and repr(ours) == repr(theirs)
        torch.testing.assert_close(ours(x), theirs(x))


def test_dim_is_chosen_as_pytorch_does():
    with pytest.warns(UserWarning, match="without dim"):
        assert torch.equal(ot.softmax(torch.zeros(2, 3, 4)), torch.full((2, 3, 4), 0.5))


def test_wrong_arguments():
    x = seeded(3, 9)
    with pytest.raises(IndexError):
        ot.softmax(x, 2)
    with pytest.raises(OptionError):
        ot.softmax(x, 0, causal_offset=0)
    with pytest.raises(TypeError, match="softmax of"):
        ot.softmax(torch.arange(3), 0)
    with pytest.raises(ValueError, match="broadcast"):
        ot.softmax(x, 1, mask=torch.zeros(4, 9))
    with pytest.raises(TypeError, match="bool"):
        ot.softmax(x, 1, where=torch.zeros(3, 9))
    with pytest.raises(TypeError, match="argument where"):
        ot.softmax(x, 1, mask=torch.ones(3, 9, dtype=torch.bool))
    with pytest.raises(TypeError, match="softmax as"):
        ot.softmax(x, 1, dtype=torch.int32)
    with pytest.raises(OptionError, match="softcap"):
        ot.softmax(x, 1, softcap=0.0)
    with pytest.raises(IndexError):
        ot.logsumexp(x, 2)
    with pytest.raises(ValueError, match="twice"):
        ot.logsumexp(x, (0, -2))


@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=4), st.data(), st.sampled_from(MODES))
def test_shapes(shape, data, mode):
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    width = data.draw(st.sampled_from([4, 16]))
    with pytest.MonkeyPatch.context() as patch, tiles.forced(4, width):
        patch.setenv("ONELAUNCH_INTERPRET", "1")
        compare(mode, seeded(*shape), dim)
