"""onelaunch.torch.cross_entropy against float64 references; "#n" is a fault that users reported of such kernels."""

# ruff: noqa: F811  (fixtures are imported)
from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional
onelaunch_torch = pytest.importorskip("onelaunch.torch")

from onelaunch.errors import OptionError  # noqa: E402
from torch_rows import INF, NAN, OPTIONS, expected, kernel, labels, path, seeded, together  # noqa: E402, F401

ce = onelaunch_torch.cross_entropy
pytestmark = pytest.mark.torch


def compare(x, t, tolerance=1e-5, **options):
    """Loss and gradient, for a random upstream gradient."""
    x = x.detach().requires_grad_()
    y, r = ce(x, t, **options), expected(x, t, **options)
    assert y.dtype == (torch.float64 if x.dtype == torch.float64 else torch.float32) and y.shape == r.shape
    torch.testing.assert_close(y.double(), r, rtol=tolerance, atol=tolerance)
    g = seeded(*y.shape, seed=7, dtype=y.dtype)
    (dx,) = torch.autograd.grad(y, x, g)
    (dr,) = torch.autograd.grad(r, x, g.double())
    assert dx.dtype == x.dtype  # 31: not cast to anything narrower
    torch.testing.assert_close(dx, dr, rtol=tolerance, atol=tolerance)


PAIRS = [p for p in itertools.combinations(OPTIONS, 2) if p != ("none", "items") and p != ("sum", "none")]


@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
@pytest.mark.parametrize("soft", [False, True], ids=["labels", "probabilities"])
def test_options_and_their_pairs(pair, soft):
    options = OPTIONS[pair[0]] | OPTIONS[pair[1]]
    x = seeded(6, 19, dtype=torch.float64)
    if soft:
        options = {k: v for k, v in options.items() if k != "ignore_index"}
        compare(x, seeded(6, 19, seed=2, dtype=torch.float64).abs(), 1e-10, **options)
    else:
        compare(x, labels((6,), 19, options.get("ignore_index", -100)), 1e-10, **options)


@pytest.mark.parametrize("soft", [False, True], ids=["labels", "probabilities"])
@pytest.mark.parametrize(
    "names",
    [("weight", "smooth", "z", "cap"), ("weight", "none", "cap", "z"), ("smooth", "items", "scale")],
    ids="+".join,
)
def test_kernel_with_many_options(kernel, names, soft):
    options = together(*names)
    x = seeded(5, 19)
    compare(x, seeded(5, 19, seed=2).abs() if soft else labels((5,), 19), **options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_dtypes(path, dtype):
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 1e-2, torch.float32: 1e-5, torch.float64: 1e-12}[dtype]
    x = seeded(4, 11, dtype=dtype)
    x.requires_grad_()
    t = labels((4,), 11, dtype=torch.int32)
    y = ce(x, t)
    torch.testing.assert_close(y.double(), expected(x, t), rtol=1e-6, atol=1e-6)
    (dx,) = torch.autograd.grad(y, x)
    (dr,) = torch.autograd.grad(expected(x, t), x)
    torch.testing.assert_close(dx.double(), dr.double(), rtol=tolerance, atol=tolerance / 10)


def test_f16_gradients_are_scaled_before_they_are_rounded(path):
    """A loss scale must not meet a gradient that already underflowed."""
    x = seeded(4, 64, dtype=torch.float16).requires_grad_()
    loss = ce(x, torch.arange(4), num_items=100_000.0) * 65536.0
    (dx,) = torch.autograd.grad(loss, x)
    (dr,) = torch.autograd.grad(expected(x, torch.arange(4), num_items=100_000.0) * 65536.0, x)
    torch.testing.assert_close(dx, dr, rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("shape", [(9,), (3, 9), (2, 9, 3), (2, 9, 2, 2), (1, 1), (5, 1), (3, 17)], ids=str)
def test_shapes(path, shape):
    """10: one-dimensional and N-d logits as PyTorch has them; one class; 11: columns that fill no block."""
    rest = shape[:0] if len(shape) == 1 else shape[:1] + shape[2:]
    t = torch.zeros((), dtype=torch.int64) if not rest else labels(rest, shape[0 if len(shape) == 1 else 1])
    compare(seeded(*shape), t)


def test_strides(path):
    """33, 20: transposed, sliced and unaligned operands; offsets come from the strides."""
    base = seeded(20, 8)
    compare(base.t()[1:7, ::2], labels((7,), 10)[1:])
    compare(seeded(3, 4, 10).transpose(1, 2), labels((3, 4), 10))


def test_1_mean_over_nothing(path):
    x = seeded(3, 9).requires_grad_()
    t = torch.full((3,), -100)
    (dx,) = torch.autograd.grad(ce(x, t), x)
    assert ce(x, t).item() == 0 and not dx.any()
    loss = ce(x, t, empty_mean="nan")
    assert loss.isnan() and not torch.autograd.grad(loss, x)[0].any()


def test_5_inplace_is_asked_for_and_marked(path):
    x = seeded(4, 9).requires_grad_()
    t = labels((4,), 9)
    (want,) = torch.autograd.grad(expected(x.exp(), t), x)
    (plain,) = torch.autograd.grad(ce(x.exp(), t), x)
    torch.testing.assert_close(plain, want)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        ce(x.exp(), t, inplace=True).backward()
    logits = x * 2  # saves nothing of its result
    (want,) = torch.autograd.grad(expected(x * 2, t) * 3, x)
    (found,) = torch.autograd.grad(ce(logits, t, inplace=True) * 3, x)
    torch.testing.assert_close(found, want)
    with pytest.raises(ValueError, match="leaf"):
        ce(x, t, inplace=True)
    with pytest.raises(ValueError, match="expanded"):
        ce((x * 2)[:1].expand(4, 9), t, inplace=True)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_6_backward_twice_gives_the_same(path, reduction):
    x = seeded(4, 9).requires_grad_()
    y = ce(x, labels((4,), 9), reduction=reduction).sum() * 2
    first = torch.autograd.grad(y, x, retain_graph=True)[0].clone()
    second = torch.autograd.grad(y, x, retain_graph=True)[0].clone()
    third = torch.autograd.grad(y, x)[0]
    assert torch.equal(first, second)
    torch.testing.assert_close(third, first)
    with pytest.raises(RuntimeError, match="second time"):  # 30
        torch.autograd.grad(y, x)


def test_6_17_other_outputs_are_differentiable_or_say_that_they_are_not(path):
    x = seeded(4, 9).requires_grad_()
    t = labels((4,), 9)
    out = ce(x, t, lse_square_scale=0.1, return_lse=True, return_z_loss=True, return_predicted_tokens=True,
             return_token_accuracy=True)  # fmt: skip
    lse = torch.logsumexp(x.double(), 1)
    z = (0.1 * lse**2)[t != -100].mean()
    torch.testing.assert_close(out.loss.double(), expected(x, t, lse_square_scale=0.1))
    torch.testing.assert_close(out.lse.double(), lse)
    torch.testing.assert_close(out.z_loss.double(), z)
    assert torch.equal(out.predicted_tokens, x.argmax(1)) and not out.predicted_tokens.requires_grad
    assert out.token_accuracy.item() == pytest.approx((x.argmax(1) == t)[t != -100].double().mean().item())
    weights = torch.arange(1.0, 5.0)
    (found,) = torch.autograd.grad(out.z_loss * 3 + (out.lse * weights).sum(), x)
    (want,) = torch.autograd.grad(z * 3 + (lse * weights).sum(), x)
    torch.testing.assert_close(found, want)


def test_predictions_without_lse_come_from_the_one_launch(path):
    x = seeded(4, 19).requires_grad_()
    t = labels((4,), 19)
    out = ce(x, t, return_predicted_tokens=True)
    assert torch.equal(out.predicted_tokens, x.argmax(1)) and out.lse is None  # those of ignored rows too
    torch.testing.assert_close(torch.autograd.grad(out.loss, x)[0], torch.autograd.grad(expected(x, t), x)[0])


@pytest.mark.parametrize("inplace", [False, True])
def test_7_nothing_is_written_without_a_gradient(path, inplace):
    """36: neither for logits that need none."""
    x = seeded(4, 9)
    t, before = labels((4,), 9), x.clone()
    ce(x, t, inplace=inplace)
    y = x.requires_grad_() * 1
    with torch.no_grad():
        ce(x, t, inplace=inplace)
        ce(y, t, inplace=inplace)
    assert torch.equal(x, before) and torch.equal(y, before)


def test_8_bf16_losses_are_summed_in_f32(path):
    x, t = seeded(64, 33, dtype=torch.bfloat16), labels((64,), 33)
    assert ce(x, t).item() == pytest.approx(expected(x, t).item(), rel=1e-6)


def test_9_leading_blocks_of_minus_infinity(path):
    x = seeded(3, 30)
    x[:, :17] = -INF
    compare(x, torch.tensor([17, 20, 29]))
    x[1, :] = -INF
    loss = ce(x, torch.tensor([17, 20, 29]), reduction="none")
    assert loss.isnan().tolist() == [False, True, False]


def test_10_32_no_rows(path):
    x = torch.zeros(0, 7, requires_grad=True)
    loss = ce(x, torch.zeros(0, dtype=torch.int64))
    loss.backward()
    assert loss.item() == 0 and x.grad.shape == (0, 7)
    assert ce(x, torch.zeros(0, dtype=torch.int64), reduction="none").shape == (0,)


def test_12_29_padding_gains_no_mass_from_the_cap(path):
    """The cap is applied, and the lanes past the last class are masked after it."""
    compare(seeded(3, 9, scale=50.0), labels((3,), 9), softcap=0.5)


def test_14_one_rounding_of_the_gradient(path):
    x = torch.zeros(2, 9, dtype=torch.bfloat16)
    x[:, 0] = torch.tensor([7.0, 9.5])
    x.requires_grad_()
    (dx,) = torch.autograd.grad(ce(x, torch.tensor([0, 0])), x)
    (dr,) = torch.autograd.grad(expected(x.double(), torch.tensor([0, 0])), x)
    torch.testing.assert_close(dx, dr, rtol=2**-7, atol=0)  # the interpreter cuts off where a GPU rounds


def test_16_28_32_upstream_gradients_for_each_row(path):
    x = seeded(4, 9).requires_grad_()
    t = labels((4,), 9)
    for g in (torch.arange(4.0), torch.tensor(3.0).expand(4)):
        (dx,) = torch.autograd.grad(ce(x, t, reduction="none"), x, g)
        (dr,) = torch.autograd.grad(expected(x, t, reduction="none"), x, g.double())
        torch.testing.assert_close(dx, dr)


@pytest.mark.parametrize("bad", [9, -1, 2**31, -(2**40)])
@pytest.mark.parametrize("weighted", [False, True])
def test_21_labels_out_of_range_give_nan(path, bad, weighted):
    """The interpreter checks that nothing outside is read."""
    x = seeded(3, 9).requires_grad_()
    t = torch.tensor([1, bad, -100])
    loss = ce(x, t, torch.ones(9) if weighted else None, reduction="none")
    assert loss.isnan().tolist() == [False, True, False]
    (dx,) = torch.autograd.grad(loss[0] + loss[2], x, retain_graph=True)
    assert dx[0].isfinite().all() and not dx[2].any()
    assert ce(x, t).isnan()


def test_22_probability_0_of_a_logit_of_minus_infinity(path):
    x = seeded(2, 9)
    q = seeded(2, 9, seed=4).abs()
    x[:, 3], q[:, 3] = -INF, 0
    x.requires_grad_()
    loss = ce(x, q, reduction="none")
    some = [c for c in range(9) if c != 3]
    torch.testing.assert_close(loss.double(), expected(x[:, some], q[:, some], reduction="none"))
    (dx,) = torch.autograd.grad(loss.sum(), x)
    assert dx.isfinite().all() and not dx[:, 3].any()


@pytest.mark.parametrize("ignore", [-100, 9, 1000, 2])
def test_23_weights_are_not_read_at_ignored_labels(path, ignore):
    compare(seeded(4, 9), labels((4,), 9, ignore), weight=seeded(9, seed=5).abs(), ignore_index=ignore)


def test_27_accumulation_over_parts(path):
    """A mean of means is not the mean; sums over num_items are."""
    x, t = seeded(7, 9).requires_grad_(), labels((7,), 9)
    n = (t != -100).sum()
    parts = sum(ce(x[i:j], t[i:j], num_items=n) for i, j in ((0, 1), (1, 5), (5, 7)))
    torch.testing.assert_close(parts.double(), expected(x, t))
    torch.testing.assert_close(torch.autograd.grad(parts, x)[0], torch.autograd.grad(expected(x, t), x)[0])


def test_30_rows_do_not_depend_on_their_batch(path):
    x, t = seeded(5, 19), torch.arange(5)
    whole = ce(x, t, reduction="none")
    assert torch.equal(whole, torch.stack([ce(x[i : i + 1], t[i : i + 1], reduction="none")[0] for i in range(5)]))


def test_35_probabilities_that_do_not_sum_to_1(path):
    compare(seeded(3, 9), seeded(3, 9, seed=2).abs() * 5)


def test_huge_logits(path):
    compare(torch.tensor([[1e4, 9.999e3, -1e4], [1e38, 0, -1e38]]), torch.tensor([1, 0]))


def test_infinite_logits_as_pytorch(path):
    x = torch.tensor([[INF, 0.0, 1.0], [NAN, 0.0, 1.0], [-INF, 0.0, 1.0]], requires_grad=True)
    loss = ce(x, torch.tensor([1, 1, 1]), reduction="none")
    (dx,) = torch.autograd.grad(loss.sum(), x)
    assert loss[1].isnan() and loss[2].isfinite() and dx[:2].isnan().all(1).tolist() == [True, True]


def test_gradients_of_probabilities(path):
    x, q = seeded(3, 9), seeded(3, 9, seed=2).abs().requires_grad_()
    found = torch.autograd.grad(ce(x, q), q)[0]
    torch.testing.assert_close(found, torch.autograd.grad(expected(x, q), q)[0])


def test_module_is_a_drop_in(path):
    x, t, w = seeded(3, 9), labels((3,), 9), seeded(9, seed=3).abs()
    ours = onelaunch_torch.CrossEntropyLoss(w, label_smoothing=0.1, lse_square_scale=0.0)
    theirs = torch.nn.CrossEntropyLoss(w, label_smoothing=0.1)
    assert isinstance(ours, torch.nn.CrossEntropyLoss) and list(ours.state_dict()) == list(theirs.state_dict())
    torch.testing.assert_close(ours(x, t), theirs(x, t))


def test_legacy_arguments():
    x, t = seeded(3, 9), torch.arange(3)
    assert torch.equal(ce(x, t, size_average=False), ce(x, t, reduction="sum"))
    assert torch.equal(ce(x, t, reduce=False), ce(x, t, reduction="none"))


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (OptionError, {"reduction": "avg"}),
        (OptionError, {"label_smoothing": 2.0}),
        (OptionError, {"num_items": 3, "reduction": "none"}),
        (OptionError, {"empty_mean": "one"}),
        (OptionError, {"softcap": 0.0}),
        (OptionError, {"num_items": torch.ones(2)}),
        (OptionError, {"grad_in_forward": True, "reduction": "none"}),
        (ValueError, {"weight": torch.ones(3)}),
    ],
    ids=str,
)
def test_wrong_options(error, options):
    with pytest.raises(error):
        ce(seeded(3, 9).requires_grad_(), torch.arange(3), **options)


def test_wrong_tensors():
    with pytest.raises(ValueError, match="shape"):
        ce(seeded(3, 9), torch.arange(4))
    with pytest.raises(TypeError, match="int32 or int64"):
        ce(seeded(3, 9), torch.zeros(3, dtype=torch.uint8))
    with pytest.raises(TypeError, match="logits"):
        ce(torch.zeros(3, 9, dtype=torch.int32), torch.arange(3))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("size", [1, 300, 9000])
def test_the_mean_is_over_what_counts_however_many(kernel, dtype, size, monkeypatch):
    """One launch counts the labels; beyond a limit PyTorch's operations do."""
    from onelaunch.kernels import calls
    from onelaunch.torch.reducing import mean_factor

    t = labels((size,), 7, dtype=dtype)
    t[::3] = 2
    want = (t != 2).sum().clamp(min=1).double().reciprocal()
    for kind in (torch.float32, torch.float64):
        assert mean_factor(t, 2, kind) == want.to(kind) and mean_factor(t[::2], 2, kind).dtype == kind
    monkeypatch.setattr(calls, "COUNTED", 4)
    assert mean_factor(t, 2, torch.float32) == want.float()
    assert torch.func.vmap(lambda t: mean_factor(t, 2, torch.float64))(t.reshape(-1, 1)).sum() == size


@pytest.mark.parametrize("size", [1e2, 1e4])
def test_large_logits(kernel, size):
    """A gradient made with the loss is as accurate as ever; one made after it has the rounding of the saved lse."""
    x, t = (seeded(4, 50, dtype=torch.float32) + size).detach().requires_grad_(), torch.arange(4)
    want = torch.softmax(x.detach().double(), 1) - F.one_hot(t, 50)
    for at_once, tolerance in ((True, 1e-6), (False, 1e-6 + 1.2e-7 * size)):
        (dx,) = torch.autograd.grad(ce(x, t, reduction="sum", grad_in_forward=at_once), x)
        torch.testing.assert_close(dx.double(), want, rtol=tolerance, atol=0)


def test_a_kernels_gradient_says_why_it_has_no_derivative():
    """Of operators called by compilers; the advice about losses is for gradients that were made with one."""
    from onelaunch.torch.softmax import refuse_derivative, refuse_twice, softmax_backward_op

    y = seeded(2, 5, dtype=torch.float32).softmax(1).detach().requires_grad_()
    dx = softmax_backward_op(y, torch.ones(2, 5), None, None, None, 1, 0, 1.0, None, None, torch.float32)
    with pytest.raises(RuntimeError, match="outside of torch.compile"):
        dx.sum().backward()
    with pytest.raises(RuntimeError, match="grad_in_forward=False"):
        refuse_twice(None)
    with pytest.raises(RuntimeError, match="^((?!loss).)*$"):
        refuse_derivative(None)
