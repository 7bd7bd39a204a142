"""onelaunch.torch.block_sparse's softmax family against dense references; "#n" is a fault that users reported."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch")
bs = pytest.importorskip("onelaunch.torch.block_sparse")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from onelaunch.errors import OptionError  # noqa: E402
from onelaunch.kernels import block_calls, tiles  # noqa: E402
from onelaunch.sparse import BlockLayout  # noqa: E402

INF, NAN = float("inf"), float("nan")
MODES = ("softmax", "log_softmax", "logsumexp")
pytestmark = pytest.mark.torch


@pytest.fixture(params=["kernel", "fallback"])
def path(request, monkeypatch):
    """The kernel in the interpreter (tiles of 4 blocks of 16, then steps), or PyTorch's own operations."""
    if request.param == "fallback":
        yield "fallback"
        return
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")
    with tiles.forced(16, 64):
        yield "kernel"


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")
    with tiles.forced(16, 64):
        yield


def layout_of(rows, block=16):
    """A layout of one head from strings: '#' is a block."""
    return BlockLayout(np.array([[c == "#" for c in row] for row in rows]), block)


RAGGED = BlockLayout(
    np.array([[[1, 0, 1, 1], [0, 0, 0, 0], [0, 1, 0, 0]], [[0, 1, 0, 1], [1, 1, 1, 1], [0, 0, 0, 1]]]), 16
)
APART = BlockLayout(np.random.default_rng(3).random((2, 2, 2, 3)) < 0.6, 16)
QUERIES, KEYS = 48, 64


def seeded(*shape, dtype=torch.float64, seed=0, scale=2.0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale).to(dtype)


def by_distance(rel, queries, keys):
    """Relative logits spread over the keys, one by one."""
    rel = rel if rel.ndim > 1 else rel[None]
    extent, shown = rel.shape[-1], []
    for q, k in itertools.product(range(queries), range(keys)):
        at = k - q + extent - 1
        row = rel[..., min(q, rel.shape[-2] - 1), :]
        shown.append(row[..., at] if 0 <= at < extent else torch.zeros_like(row[..., 0]))
    return torch.stack(shown, -1).unflatten(-1, (queries, keys))


def expected(mode, x, layout, scale=1.0, rpe=None, rel_logits=None, key_padding_mask=None, attn_mask=None,
             key_padding_mask_mode="add", attn_mask_mode="add", is_causal=False):  # fmt: skip
    """The function on dense float64 matrices by elementary operations alone."""
    queries, keys = layout.shape[-2:]
    inside = np.kron(layout.mask, np.ones((layout.block, layout.block))).astype(bool)
    use = torch.from_numpy(inside)
    z = layout.to_dense(x.double()) * scale
    z = z if rpe is None else z + rpe.double().reshape(rpe.shape[max(0, rpe.ndim - z.ndim) :])
    z = z if rel_logits is None else z + by_distance(rel_logits.double(), queries, keys)
    padding = None if key_padding_mask is None else key_padding_mask[..., None, None, :]
    for mask, how in ((padding, key_padding_mask_mode), (attn_mask, attn_mask_mode)):
        if mask is not None and (how == "mul" or mask.dtype == torch.bool):
            use = use & (mask != 0)
        elif mask is not None:
            z = z + mask.double()
    if is_causal:
        use = use & (torch.arange(keys) <= torch.arange(queries)[:, None])
    use = use & (z != -INF)
    top = torch.where(use, z, -1e300).amax(-1, keepdim=True).detach()
    e = torch.where(use, torch.exp(torch.where(use, z - top, 0.0)), 0.0)
    total = e.sum(-1, keepdim=True)
    safe = torch.where(total > 0, total, 1.0)
    if mode == "softmax":
        return layout.from_dense(e / safe)
    if mode == "log_softmax":
        return layout.from_dense(torch.where(use, z - top - safe.log(), -INF))
    return torch.where(total > 0, safe.log() + top, -INF)[..., 0]


def compare(mode, x, layout, tolerance=1e-10, **options):
    """Values, and gradients of all that may have one, for a random upstream gradient."""
    given = {
        k: v.detach().requires_grad_() if torch.is_tensor(v) and v.is_floating_point() else v
        for k, v in options.items()
    }
    x = x.detach().requires_grad_()
    y, r = getattr(bs, mode)(x, layout, **given), expected(mode, x, layout, **given)
    assert y.dtype == x.dtype and y.shape == r.shape
    torch.testing.assert_close(y.double(), r, rtol=tolerance, atol=tolerance)
    g = seeded(*y.shape, seed=7, dtype=y.dtype)
    added = [v for k, v in given.items() if torch.is_tensor(v) and v.requires_grad and given.get(k + "_mode") != "mul"]
    if layout.nnz == 0:
        return
    found = torch.autograd.grad(y, [x, *added], g)
    finite = torch.where(r.isinf(), 0.0, r)
    want = torch.autograd.grad(finite, [x, *added], g.double())
    for a, b in zip(found, want):
        torch.testing.assert_close(a, b.to(a.dtype), rtol=tolerance, atol=tolerance)


PADDING = seeded(2, KEYS, seed=5)
OPTIONS = {
    "scale": {"scale": 0.3},
    "rpe": {"rpe": seeded(2, 2, QUERIES, KEYS, seed=3)},
    "rpe of heads": {"rpe": seeded(2, 1, KEYS, seed=3)},
    "relative": {"rel_logits": seeded(1, 2, QUERIES, 20, seed=4)},
    "padding": {"key_padding_mask": PADDING},
    "left out": {"key_padding_mask": (PADDING > -1).double(), "key_padding_mask_mode": "mul"},
    "mask": {"attn_mask": seeded(QUERIES, KEYS, seed=6)},
    "holes": {"attn_mask": seeded(2, 1, QUERIES, KEYS, seed=6) > 0},
    "causal": {"is_causal": True},
}
PAIRS = [p for p in itertools.combinations(OPTIONS, 2) if not set(OPTIONS[p[0]]) & set(OPTIONS[p[1]])]


@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_options_and_their_pairs(pair):
    compare(MODES[PAIRS.index(pair) % 3], seeded(2, RAGGED.nnz, 16, 16), RAGGED, **OPTIONS[pair[0]], **OPTIONS[pair[1]])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "names", [(), ("scale", "rpe", "relative", "left out", "mask", "causal"), ("rpe of heads", "padding", "holes")],
    ids="+".join,
)  # fmt: skip
def test_kernel_with_many_options(kernel, mode, names):
    compare(mode, seeded(2, RAGGED.nnz, 16, 16), RAGGED, **{k: v for n in names for k, v in OPTIONS[n].items()})


@pytest.mark.parametrize("mode", MODES)
def test_layouts_that_differ_by_item(path, mode):
    options = {"rpe": seeded(2, 1, 32, 48, seed=3), "key_padding_mask": seeded(2, 48, seed=5)}
    compare(mode, seeded(APART.nnz, 16, 16), APART, **options, is_causal=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_dtypes(path, dtype):
    tolerance = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 1e-5}[dtype]
    compare(
        "softmax", seeded(RAGGED.nnz, 16, 16, dtype=dtype), RAGGED, tolerance, attn_mask=OPTIONS["mask"]["attn_mask"]
    )


@pytest.mark.parametrize("block", [32, pytest.param(128, marks=pytest.mark.slow)])
def test_other_blocks(kernel, block):
    layout = layout_of(["#.", "##"], block)
    compare("softmax", seeded(layout.nnz, block, block, dtype=torch.float32), layout, 1e-5, is_causal=True)


HOSTILE = {
    "one block": layout_of(["#"]),
    "one among empty lines": layout_of(["...", ".#.", "..."]),
    "one full row": layout_of(["........", "########", "........"]),
    "one full column": layout_of(["#..", "#..", "#.."]),
    "none": layout_of(["..", ".."]),
    "skewed": layout_of(["#" * 9, *["........#"] * 8]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_38_hostile_layouts(kernel, name):
    """xformers #202, DeepSpeed #1595: empty rows and columns were faulty, or NaN."""
    layout = HOSTILE[name]
    x = seeded(layout.nnz, 16, 16, dtype=torch.float32)
    for mode in ("softmax", "logsumexp"):
        compare(mode, x, layout, 1e-5)


def test_38_ten_thousand_blocks_in_a_row(monkeypatch):
    """DeepSpeed #1177, pytorch #192528: rows were capped at 4,096, or wrong beyond 2^17."""
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")
    layout = BlockLayout(np.ones((1, 10_000)), 16)
    assert layout.shape[-1] > 2**17
    tile = block_calls.choose(layout)
    assert tile.blocks * 16 <= block_calls.SINGLE
    with tiles.forced(16, 16384):
        compare("softmax", seeded(10_000, 16, 16, dtype=torch.float32), layout, 1e-5)


def test_tiles_by_the_rule(monkeypatch):
    """Lines of every number of blocks that the tiles of one launch hold."""
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")
    layout = BlockLayout(np.tri(17, 16, -1), 16)
    assert block_calls.choose(layout).blocks == 16
    compare("log_softmax", seeded(layout.nnz, 16, 16, dtype=torch.float32), layout, 1e-5)


def test_rule_of_tiles():
    """A few rows that see everything do not make every row's tile as wide; long lines come first."""
    mask = abs(np.subtract.outer(range(256), range(256))) < 4
    mask[0] = True
    layout = BlockLayout(mask, 64)
    assert block_calls.choose(layout).blocks == 8 and block_calls.skewed(layout)
    assert layout.tables.row_order[0] == 0
    even = BlockLayout(np.ones((256, 8)), 64)
    assert block_calls.choose(even).blocks == 8 and not block_calls.skewed(even)


def test_38_rows_of_which_nothing_takes_part(path):
    """triton #450: they were NaN."""
    layout = layout_of(["##", ".#"])
    x = seeded(layout.nnz, 16, 16).requires_grad_()
    mask = torch.ones(32, 32, dtype=torch.bool)
    mask[3] = mask[20] = False
    additive = torch.where(mask, 0.0, -INF)
    for how in (mask, additive):
        y = bs.softmax(x, layout, attn_mask=how)
        assert not y[:2, 3].any() and not y[2, 4].any() and y.isfinite().all()
        assert (bs.log_softmax(x, layout, attn_mask=how)[:2, 3] == -INF).all()
        lse = bs.logsumexp(x, layout, attn_mask=how)
        assert lse[0, [3, 20]].tolist() == [-INF, -INF] and lse.isfinite().sum() == 30
        for value in (y, torch.where(lse.isfinite(), lse, 0.0)):
            (dx,) = torch.autograd.grad(value.square().sum(), x)
            assert dx.isfinite().all() and not dx[:2, 3].any()


def test_22_nothing_of_what_is_left_out_gets_in(path):
    layout = layout_of(["##"])
    x = seeded(2, 16, 16)
    x[1, :, 5] = NAN
    x[0, :, 2] = -INF
    mask = torch.arange(32) != 21
    for mode in MODES:
        given = x.clone().requires_grad_()
        y = getattr(bs, mode)(given, layout, key_padding_mask=mask)
        (dx,) = torch.autograd.grad(y[~y.isinf()].square().sum(), given)
        assert not y.isnan().any() and dx.isfinite().all()


def test_infinite_scores_as_pytorch(path):
    layout = layout_of(["##"])
    x = seeded(2, 16, 16)
    x[1, 0, 3], x[1, 1, 3] = INF, NAN
    for mode in MODES:
        want = getattr(torch, mode)(layout.to_dense(x), -1)
        want = want if mode == "logsumexp" else layout.from_dense(want)
        torch.testing.assert_close(getattr(bs, mode)(x, layout), want, equal_nan=True)


@pytest.mark.parametrize("mode", MODES)
def test_gradcheck(path, mode):
    layout = layout_of(["##"]) if path == "fallback" else layout_of(["#"])
    x = seeded(layout.nnz, 16, 16)[:, :, :].requires_grad_()
    rpe = seeded(1, layout.shape[-1], seed=3).requires_grad_()
    rel = seeded(1, 3, seed=4).requires_grad_()

    def f(x, rpe, rel):
        y = getattr(bs, mode)(x, layout, 0.5, rpe=rpe, rel_logits=rel, is_causal=True)
        return torch.where(y.isinf(), 0.0, y)

    assert torch.autograd.gradcheck(f, (x, rpe, rel), fast_mode=True)


def test_37_gradients_of_relative_logits_and_masks(kernel):
    """DeepSpeed #190, triton #419: rpe had no gradient, or a wrong one. Every way to broadcast."""
    x = seeded(2, RAGGED.nnz, 16, 16)
    for shape in ((1, 2, 1, QUERIES, 1), (1, 2, 1, KEYS), (QUERIES, KEYS), ()):
        compare(
            "softmax",
            x,
            RAGGED,
            rpe=seeded(*shape, seed=3),
            rel_logits=seeded(*((2, 1, 1, 70) if shape else (9,)), seed=4),
        )


def test_inplace_is_asked_for_and_marked(path):
    layout = layout_of(["##", ".#"])
    x = seeded(layout.nnz, 16, 16).requires_grad_()
    z = x * 1
    y = bs.softmax(z, layout, 0.5, inplace=True)
    assert y.data_ptr() == z.data_ptr()
    want = bs.softmax(x, layout, 0.5)
    torch.testing.assert_close(y, want)
    g = seeded(*y.shape, seed=7)
    torch.testing.assert_close(torch.autograd.grad(y, x, g), torch.autograd.grad(want, x, g))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(bs.softmax(x.exp(), layout, inplace=True).sum(), x)
    with pytest.raises(ValueError, match="leaf"):
        bs.softmax(x, layout, inplace=True)
    with pytest.raises(OptionError, match="inplace"):
        bs.softmax(x * 1, layout, inplace=True, dtype=torch.float32)


@pytest.mark.parametrize("mode", MODES)
def test_3_compiles_whole(path, mode):
    """The layout is a constant of the compiled program, and lives as long as that does."""
    layout = layout_of(["##", ".#"])
    rpe = seeded(1, 32, 32, seed=3, dtype=torch.float32).requires_grad_()

    def f(x, rpe):
        y = getattr(bs, mode)(x * 2, layout, 0.5, rpe=rpe, is_causal=True)
        return torch.where(y.isinf(), 0.0, y).square().sum()

    a, b = (seeded(layout.nnz, 16, 16, dtype=torch.float32).requires_grad_() for _ in range(2))
    compiled, eager = torch.compile(f, fullgraph=True, backend="aot_eager")(a, rpe), f(b, rpe)
    torch.testing.assert_close(compiled, eager)
    for x, y in zip(torch.autograd.grad(compiled, [a, rpe]), torch.autograd.grad(eager, [b, rpe])):
        torch.testing.assert_close(x, y)


def test_transforms(path):
    layout = layout_of(["##", ".#"])
    x, mask, rpe = seeded(2, 3, layout.nnz, 16, 16), seeded(3, 2, 32, seed=3), seeded(3, 1, 32, 32, seed=4)

    def f(x, mask, rpe):
        return bs.softmax(x, layout, key_padding_mask=mask, rpe=rpe)

    batched = torch.func.vmap(f, in_dims=(1, 0, 0))(x, mask, rpe)
    torch.testing.assert_close(batched, torch.stack([f(x[:, i], mask[i], rpe[i]) for i in range(3)]))
    total = torch.func.grad(lambda x: f(x, mask[0], rpe[0]).square().sum())(x[:, 0])
    y = x[:, 0].clone().requires_grad_()
    torch.testing.assert_close(total, torch.autograd.grad(f(y, mask[0], rpe[0]).square().sum(), y)[0])


def test_any_leading_axes_and_strides(path):
    layout = layout_of(["##", ".#"])
    x = seeded(2, 16, 2, layout.nnz, 16).permute(0, 2, 3, 1, 4)
    compare("softmax", x, layout, rpe=seeded(2, 1, 1, 32, 32, seed=3).transpose(-1, -2), key_padding_mask=seeded(2, 32))
    assert bs.softmax(x[:0], layout).shape == (0, 2, 3, 16, 16)


@pytest.mark.parametrize("mode", MODES)
def test_second_derivatives(path, mode):
    """By PyTorch's operations."""
    layout = layout_of(["#"])
    x, rpe = seeded(1, 16, 16).requires_grad_(), seeded(16, 16, seed=3).requires_grad_()

    def second(f):
        y = f(mode, x, layout, scale=0.5, rpe=rpe, is_causal=True)
        first = torch.autograd.grad(torch.where(y.isinf(), 0.0, y).pow(3).sum(), [x, rpe], create_graph=True)
        return torch.autograd.grad(sum(d.pow(3).sum() for d in first), [x, rpe])

    ours = second(lambda mode, *args, **options: getattr(bs, mode)(*args, **options))
    for a, b in zip(ours, second(expected)):
        torch.testing.assert_close(a, b)


def test_37_wrong_arguments():
    """triton #360, #364: a wrong number of blocks was an illegal memory access."""
    layout = layout_of(["##", ".#"])
    x = seeded(3, 16, 16)
    for wrong in (seeded(4, 16, 16), seeded(3, 32, 32), seeded(16, 16)):
        with pytest.raises(ValueError, match="values of shape .* this layout takes"):
            bs.softmax(wrong, layout)
    for name in ("rpe", "attn_mask", "key_padding_mask", "rel_logits"):
        with pytest.raises(ValueError, match=f"{name} of shape .* does not broadcast"):
            bs.softmax(x, layout, **{name: torch.zeros(2, 31, 31)})
        with pytest.raises(ValueError, match=f"{name} is on meta"):
            bs.softmax(x, layout, **{name: torch.zeros(32, 32, device="meta")})
    with pytest.raises(OptionError, match="add, mul"):
        bs.softmax(x, layout, attn_mask_mode="subtract")
    with pytest.raises(TypeError, match="softmax of"):
        bs.softmax(torch.zeros(3, 16, 16, dtype=torch.int32), layout)


@settings(max_examples=4, deadline=None, derandomize=True)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 6), st.floats(0, 1), st.sampled_from(MODES), st.booleans())
def test_random_layouts(heads, rows, columns, density, mode, causal):
    layout = BlockLayout(np.random.default_rng(heads).random((heads, rows, columns)) < density, 16)
    with pytest.MonkeyPatch.context() as patch, tiles.forced(16, 32):
        patch.setenv("ONELAUNCH_INTERPRET", "1")
        compare(mode, seeded(layout.nnz, 16, 16, dtype=torch.float32), layout, 1e-5, is_causal=causal)
