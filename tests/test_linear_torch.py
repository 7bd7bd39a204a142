"""onelaunch.torch.linear_cross_entropy against float64 references; "#n" is a reported fault."""

# ruff: noqa: F811  (fixtures are imported)
from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional
ot = pytest.importorskip("onelaunch.torch")

from onelaunch.errors import OptionError  # noqa: E402
from onelaunch.torch.products import accumulate, chunks, length, product  # noqa: E402
from torch_rows import OPTIONS, expected, kernel, labels, path, seeded, together  # noqa: E402, F401

lce = ot.linear_cross_entropy
pytestmark = pytest.mark.torch


def operands(tokens=7, features=5, classes=19, dtype=torch.float32, bias=True):
    """Hidden states, weight and bias, all leaves that require a gradient."""
    found = [seeded(tokens, features, scale=1.0), seeded(classes, features, seed=8, scale=1.0)]
    found += [seeded(classes, seed=9)] if bias else []
    return [t.to(dtype).requires_grad_() for t in found] + ([] if bias else [None])


def wanted(x, w, t, b=None, class_weight=None, **options):
    logits = F.linear(x.double(), w.double(), None if b is None else b.double())
    flat = t.reshape(-1, w.shape[0]) if t.is_floating_point() else t.reshape(-1)
    return expected(logits.reshape(-1, w.shape[0]), flat, class_weight, **options)


def compare(x, w, b, t, tolerance=1e-5, chunk=3, **options):
    """Loss and all gradients, for a random upstream gradient."""
    if "weight" in options:
        options["class_weight"] = options.pop("weight")
    y, r = lce(x, w, t, b, chunk=chunk, **options), wanted(x, w, t, b, **options)
    torch.testing.assert_close(y.double(), r, rtol=tolerance, atol=tolerance)
    g = seeded(*y.shape, seed=7, dtype=y.dtype)
    leaves = [p for p in (x, w, b) if p is not None and p.requires_grad]
    found, want = torch.autograd.grad(y, leaves, g), torch.autograd.grad(r, leaves, g.double())
    for a, c, p in zip(found, want, leaves):
        assert a.dtype == p.dtype
        torch.testing.assert_close(a, c, rtol=tolerance, atol=tolerance)


PAIRS = [p for p in itertools.combinations(OPTIONS, 2) if p not in (("none", "items"), ("sum", "none"))]


@pytest.mark.parametrize("soft", [False, True], ids=["labels", "probabilities"])
@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_options_and_their_pairs(pair, soft):
    options = together(*pair)
    x, w, b = operands(dtype=torch.float64)
    if soft:
        options.pop("ignore_index", None)
        compare(x, w, b, seeded(7, 19, seed=2, dtype=torch.float64).abs(), 1e-10, **options)
    else:
        compare(x, w, b, labels((7,), 19, options.get("ignore_index", -100)), 1e-10, **options)


@pytest.mark.parametrize(
    "names", [("weight", "smooth", "z", "cap"), ("weight", "none", "cap", "z"), ("items", "scale")], ids="+".join
)
def test_kernel_with_many_options(kernel, names):
    compare(*operands(), labels((7,), 19), **together(*names))


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_dtypes(path, dtype, reduction):
    tolerance = {torch.float16: 5e-3, torch.bfloat16: 5e-2, torch.float32: 1e-5, torch.float64: 1e-12}[dtype]
    compare(*operands(dtype=dtype), labels((7,), 19, dtype=torch.int32), tolerance, reduction=reduction)


@pytest.mark.parametrize("chunk", [None, 1, 2, 7, 100])
def test_chunks_do_not_change_the_result(chunk):
    """30: whatever the number of chunks."""
    compare(*operands(dtype=torch.float64), labels((7,), 19), 1e-12, chunk=chunk)


@pytest.mark.parametrize("tokens", [0, 1, 127, 4096, 4097, 5000, 100_000])
def test_chunk_rule(tokens):
    """18: bounded, whole tiles, nothing left out."""
    assert [length(h, 2) for h in (64, 2048, 3000, 4096, 16384)] == [4096, 4096, 5888, 8192, 8192]
    assert length(4096, 4) == 4096
    parts = chunks(tokens, 4096)
    assert [i for p in parts for i in range(p.start, p.stop)] == list(range(tokens))
    lengths = [p.stop - p.start for p in parts]
    assert all(0 < n <= 4096 for n in lengths) and all(n % 128 == 0 for n in lengths[:-1])
    assert not lengths or len(lengths) == -(-tokens // 4096)


@pytest.mark.parametrize("shape", [(), (6,), (2, 3), (2, 1, 3)], ids=str)
def test_shapes_of_hidden_states(path, shape):
    x, w, b = operands(6 if shape else 1)
    compare(x.detach().reshape(*shape, 5).requires_grad_(), w, b, labels(shape, 19) if shape else torch.tensor(4))


def test_reduction_none_has_the_shape_of_the_labels():
    x, w, b = operands(6)
    out = lce(x.reshape(2, 3, 5), w, labels((2, 3), 19), b, reduction="none", return_lse=True,
              return_predicted_tokens=True)  # fmt: skip
    assert out.loss.shape == out.lse.shape == out.predicted_tokens.shape == (2, 3)


@pytest.mark.parametrize("needs", list(itertools.product([False, True], repeat=3)), ids=str)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_36_every_combination_of_frozen_operands(needs, reduction):
    operands_ = [t.requires_grad_(need) for t, need in zip(operands(), needs)]
    t = labels((7,), 19)
    loss = lce(operands_[0], operands_[1], t, operands_[2], chunk=3, reduction=reduction)
    assert loss.requires_grad == any(needs)
    if any(needs):
        compare(*operands_, t, reduction=reduction)


def test_36_frozen_operands_cost_no_products(monkeypatch):
    """One product a chunk without gradients, two with one frozen operand, three with none; four where remade."""
    from onelaunch.torch import linear_ops

    made = []
    monkeypatch.setattr(linear_ops.Head, "logits", counting(linear_ops.Head.logits, made))
    monkeypatch.setattr(linear_ops, "product", counting(product, made))
    monkeypatch.setattr(linear_ops, "accumulate", counting(accumulate, made))
    t = labels((6,), 19)
    for needs, reduction, number in [
        ((0, 0), "mean", 2), ((1, 0), "mean", 4), ((0, 1), "mean", 4), ((1, 1), "mean", 6), ((1, 1), "sum", 6),
        ((1, 1), "none", 8), ((1, 0), "none", 6),
    ]:  # fmt: skip
        made.clear()
        x, w, _ = operands(6, bias=False)
        x.requires_grad_(bool(needs[0]))
        w.requires_grad_(bool(needs[1]))
        loss = lce(x, w, t, chunk=3, reduction=reduction).sum()
        if any(needs):
            loss.backward()
        assert len(made) == number, (needs, reduction)


def counting(function, calls):
    """The function, which notes its calls."""

    def counted(*args, **keywords):
        calls.append(function)
        return function(*args, **keywords)

    return counted


def test_36_no_grad_leaves_the_operands_alone(path):
    x, w, b = operands()
    before = [t.detach().clone() for t in (x, w, b)]
    with torch.no_grad():
        assert not lce(x, w, labels((7,), 19), b).requires_grad
    assert all(torch.equal(a, c) for a, c in zip(before, (x, w, b)))


def test_18_the_whole_logits_never_exist():
    """No tensor of more than a chunk's logits, or the weight's gradient, is made, forward or backward."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Sizes(TorchDispatchMode):
        largest = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for t in out if isinstance(out, (tuple, list)) else (out,):
                if isinstance(t, torch.Tensor):
                    Sizes.largest = max(Sizes.largest, t.untyped_storage().size() // t.element_size())
            return out

    tokens, classes, features, chunk = 64, 50, 6, 8
    for reduction in ("mean", "none"):
        x, w, _ = operands(tokens, features, classes, bias=False)
        with Sizes():
            lce(x, w, labels((tokens,), classes), chunk=chunk, reduction=reduction).sum().backward()
        assert Sizes.largest <= max(chunk * classes, tokens * features), reduction


def test_6_backward_twice_gives_the_same(path):
    for reduction in ("mean", "none"):
        x, w, b = operands()
        y = lce(x, w, labels((7,), 19), b, chunk=3, reduction=reduction).sum() * 2
        first = [g.clone() for g in torch.autograd.grad(y, (x, w, b), retain_graph=True)]
        second = torch.autograd.grad(y, (x, w, b), retain_graph=True)
        assert all(torch.equal(a, c) for a, c in zip(first, second))
        third = torch.autograd.grad(y, (x, w, b))
        for a, c in zip(first, third):
            torch.testing.assert_close(a, c)
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(y, x)


def test_14_16_upstream_gradients_of_tokens_come_before_the_products(path):
    """Sparse and expanded ones too."""
    x, w, b = operands()
    t = labels((7,), 19)
    for g in (torch.arange(7.0), torch.tensor(3.0).expand(7), torch.eye(7)[2]):
        found = torch.autograd.grad(lce(x, w, t, b, chunk=3, reduction="none"), (x, w, b), g)
        want = torch.autograd.grad(wanted(x, w, t, b, reduction="none"), (x, w, b), g.double())
        for a, c in zip(found, want):
            torch.testing.assert_close(a, c)


def test_15_weight_gradients_are_summed_in_f32():
    """bf16, one token a chunk: the error is that of one rounding, not of one for each of 128 chunks."""
    n = 128
    x = torch.full((n, 1), 1.0, dtype=torch.bfloat16)
    w = torch.zeros(3, 1, dtype=torch.bfloat16, requires_grad=True)
    t = torch.zeros(n, dtype=torch.int64)
    exact = torch.tensor([[-2 / 3], [1 / 3], [1 / 3]]) * n
    (found,) = torch.autograd.grad(lce(x, w, t, chunk=1, reduction="sum"), w)
    torch.testing.assert_close(found.float(), exact, rtol=2**-7, atol=0)
    (poor,) = torch.autograd.grad(lce(x, w, t, chunk=1, reduction="sum", accum_dtype=torch.bfloat16), w)
    assert (poor.float() - exact).abs().max() > 5 * (found.float() - exact).abs().max()


def test_other_outputs(path):
    x, w, b = operands()
    t = labels((7,), 19)
    out = lce(x, w, t, b, chunk=3, lse_square_scale=0.1, return_lse=True, return_z_loss=True,
              return_predicted_tokens=True, return_token_accuracy=True)  # fmt: skip
    logits = F.linear(x, w, b).double()
    lse, best = torch.logsumexp(logits, 1), logits.argmax(1)
    z = (0.1 * lse**2)[t != -100].mean()
    for a, c in ((out.loss, wanted(x, w, t, b, lse_square_scale=0.1)), (out.lse, lse), (out.z_loss, z)):
        torch.testing.assert_close(a, c.float())
    assert torch.equal(out.predicted_tokens, best)
    assert out.token_accuracy.item() == pytest.approx((best == t)[t != -100].double().mean().item())
    found = torch.autograd.grad(out.z_loss * 3 + (out.lse * torch.arange(1.0, 8.0)).sum(), (x, w, b))
    want = torch.autograd.grad(z * 3 + (lse * torch.arange(1.0, 8.0)).sum(), (x, w, b))
    for a, c in zip(found, want):
        torch.testing.assert_close(a, c)
    at_once = lce(x, w, t, b, chunk=3, return_predicted_tokens=True)
    assert torch.equal(at_once.predicted_tokens, best)
    torch.testing.assert_close(torch.autograd.grad(at_once.loss, w)[0], torch.autograd.grad(wanted(x, w, t, b), w)[0])


def test_1_10_nothing_to_count():
    x, w, b = operands()
    t = torch.full((7,), -100)
    for dtype in (torch.float32, torch.float16):
        operands_ = [p.detach().to(dtype).requires_grad_() for p in (x, w, b)]
        for empty_mean in ("zero", "nan"):
            loss = lce(operands_[0], operands_[1], t, operands_[2], empty_mean=empty_mean)
            assert loss.isnan() if empty_mean == "nan" else loss == 0
            assert not any(g.any() for g in torch.autograd.grad(loss, operands_))
    none = x[:0].detach().requires_grad_()
    grads = torch.autograd.grad(lce(none, w, t[:0], b), (none, w, b))
    assert [g.shape for g in grads] == [(0, 5), (19, 5), (19,)] and not any(g.any() for g in grads)
    assert lce(none, w, t[:0], b, reduction="none").shape == (0,)


@pytest.mark.parametrize("bad", [19, -1, 2**40])
def test_21_labels_out_of_range_give_nan(path, bad):
    x, w, b = operands(3)
    loss = lce(x, w, torch.tensor([1, bad, -100]), b, reduction="none", chunk=2)
    assert loss.isnan().tolist() == [False, True, False]


def test_f16_gradients_survive_many_tokens(path):
    """A mean over 100,000 tokens with a loss scale of 2^16, larger than any f16: nothing vanishes or overflows."""
    x, w, _ = operands(dtype=torch.float16, bias=False)
    t = torch.arange(7)
    for items in (100_000.0, 1.0):
        scale = 65536.0 * 2 if items > 1 else 1.0
        found = torch.autograd.grad(lce(x, w, t, chunk=3, num_items=items) * scale, (x, w))
        want = torch.autograd.grad(wanted(x, w, t, num_items=items) * scale, (x, w))
        for a, c in zip(found, want):
            torch.testing.assert_close(a, c, rtol=1e-2, atol=2e-3)


def test_26_autocast():
    """Products in bf16; gradients in each operand's own dtype, the weight's never rounded to bf16."""
    x, w, b = operands()
    t = labels((7,), 19)
    with torch.autocast("cpu", torch.bfloat16):
        loss = lce(x.bfloat16(), w, t, b, chunk=3)
        whole = lce(x, w, t, b, chunk=100)
    assert loss.dtype == torch.float32
    grads = torch.autograd.grad(loss, (x, w, b))
    assert [g.dtype for g in grads] == [torch.float32] * 3
    rounded = [g.bfloat16().float() for g in torch.autograd.grad(whole, (w,))]
    assert not torch.equal(grads[1], rounded[0])
    want = torch.autograd.grad(wanted(x, w, t, b), (x, w, b))
    for a, c in zip(grads, want):
        torch.testing.assert_close(a, c, rtol=5e-2, atol=2e-2)
    with pytest.raises(TypeError, match="autocast"):
        lce(x.bfloat16(), w, t, b)


def test_27_accumulation_over_parts():
    x, w, b = operands()
    t = labels((7,), 19)
    n = (t != -100).sum()
    total = sum(lce(x[i:j], w, t[i:j], b, num_items=n, chunk=2) for i, j in ((0, 1), (1, 5), (5, 7)))
    torch.testing.assert_close(total.double(), wanted(x, w, t, b))
    for a, c in zip(torch.autograd.grad(total, (x, w, b)), torch.autograd.grad(wanted(x, w, t, b), (x, w, b))):
        torch.testing.assert_close(a, c)


def test_34_a_weight_that_is_not_there():
    """What DeepSpeed's stage 3 leaves of a parameter outside its module."""
    with pytest.raises(ValueError, match="gather it first"):
        lce(seeded(3, 5), torch.empty(0), torch.arange(3))


@pytest.mark.parametrize("options", [{}, {"reduction": "none"}, {"softcap": 3.0}], ids=str)
def test_2_3_compiles_whole(options):
    t = labels((7,), 19)

    def loss(x, w, b):
        return lce(x * 1.5, w, t, b, chunk=3, **options).sum()

    a, c = operands(), operands()
    compiled, eager = torch.compile(loss, fullgraph=True, backend="aot_eager")(*a), loss(*c)
    torch.testing.assert_close(compiled, eager)
    for found, want in zip(torch.autograd.grad(compiled, a), torch.autograd.grad(eager, c)):
        torch.testing.assert_close(found, want)


def test_gradcheck():
    x, w, b = operands(3, 2, 4, dtype=torch.float64)
    t = labels((3,), 4)
    for options in ({"label_smoothing": 0.1, "softcap": 4.0}, {"reduction": "none", "lse_square_scale": 0.1}):
        assert torch.autograd.gradcheck(lambda x, w, b, o=options: lce(x, w, t, b, chunk=2, **o), (x, w, b))


def test_transforms():
    """vmap over examples, torch.func.grad, and both."""
    x, w, b = operands(12)
    t = labels((3, 4), 19)
    x = x.detach().reshape(3, 4, 5)
    w, b = w.detach(), b.detach()
    loss = lambda a, c: lce(a, w, c, b, chunk=3)  # noqa: E731
    torch.testing.assert_close(torch.func.vmap(loss)(x, t), torch.stack([loss(*p) for p in zip(x, t)]))
    found = torch.func.vmap(torch.func.grad(loss))(x, t)
    want = torch.stack([torch.func.grad(lambda a, c: wanted(a, w, c, b))(*p) for p in zip(x, t)])
    torch.testing.assert_close(found, want)


@pytest.mark.parametrize("options", [{"reduction": "none"}, {"grad_in_forward": False}], ids=str)
def test_second_derivatives(options):
    """By PyTorch's operations; by a clear error where the gradient was made with the loss."""
    x, w, b = operands(dtype=torch.float64)
    t = labels((7,), 19)
    loss = lce(x, w, t, b, chunk=3, softcap=4.0, **options).sum()
    want = wanted(x, w, t, b, softcap=4.0, reduction=options.get("reduction", "mean")).sum()
    results = []
    for value in (loss, want):
        first = torch.autograd.grad(value, (x, w, b), create_graph=True)
        results.append((*first, *torch.autograd.grad(sum(g.square().sum() for g in first), (x, w, b))))
    for a, c in zip(*results):
        torch.testing.assert_close(a, c)
    (dx,) = torch.autograd.grad(lce(x, w, t, b), x, create_graph=True)
    with pytest.raises(RuntimeError, match="grad_in_forward=False"):
        dx.square().sum().backward()


def test_gradients_of_probabilities():
    x, w, b = operands(dtype=torch.float64)
    q = seeded(7, 19, seed=2, dtype=torch.float64).abs().requires_grad_()
    found = torch.autograd.grad(lce(x, w, q, b), (x, q))
    for a, c in zip(found, torch.autograd.grad(wanted(x, w, q, b), (x, q))):
        torch.testing.assert_close(a, c)


def test_module():
    module = ot.LinearCrossEntropyLoss(5, 19, chunk=3, label_smoothing=0.1)
    assert isinstance(module, torch.nn.Linear) and list(module.state_dict()) == ["weight"]
    x, t = seeded(7, 5), labels((7,), 19)
    torch.testing.assert_close(module(x, t).double(), wanted(x, module.weight, t, label_smoothing=0.1))
    torch.testing.assert_close(module(x, t, 5).double(), wanted(x, module.weight, t, label_smoothing=0.1, num_items=5))


@pytest.mark.parametrize(
    ("error", "match", "change"),
    [
        (OptionError, "reduction", {"reduction": "avg"}),
        (OptionError, "chunk", {"chunk": 0}),
        (OptionError, "grad_in_forward", {"grad_in_forward": True, "reduction": "none"}),
        (OptionError, "accum_dtype", {"accum_dtype": torch.int32}),
        (ValueError, "target has shape", {"target": torch.arange(4)}),
        (ValueError, "bias has shape", {"bias": torch.ones(3)}),
        (ValueError, "class_weight has shape", {"class_weight": torch.ones(3)}),
        (ValueError, "weight has shape", {"weight": torch.ones(19, 4)}),
        (TypeError, "labels", {"target": torch.zeros(7, dtype=torch.uint8)}),
        (TypeError, "hidden states", {"hidden": torch.zeros(7, 5, dtype=torch.int32)}),
        (ValueError, "on meta", {"target": torch.zeros(7, dtype=torch.int64, device="meta")}),
    ],
    ids=str,
)
def test_wrong_arguments(error, match, change):
    x, w, b = operands()
    given = {"hidden": x, "weight": w, "target": labels((7,), 19), "bias": b} | change
    with pytest.raises(error, match=match):
        lce(**given)


def test_operators_keep_pytorchs_rules():
    """Schema and fake registrations, as torch.library checks them."""
    from onelaunch.torch.linear_ops import linear_loss_op, linear_rows_op

    x, w, b = operands()
    t, one = labels((7,), 19), torch.ones(())
    tests = ("test_schema", "test_faketensor")
    mid = (torch.float32, torch.float32, 3)
    tail = (1.0, None, False, "", 0, 0)
    torch.library.opcheck(
        linear_loss_op.library, (x, w, b, t, None, one, one, True, True, True, *mid, True, -100, 0.1, 0.2, *tail),
        test_utils=tests,
    )  # fmt: skip
    torch.library.opcheck(
        linear_rows_op.library, (x, w, b, t, None, True, False, True, *mid, -100, 0.1, *tail), test_utils=tests
    )


def test_no_features_and_no_classes(path):
    """Without features the logits are the bias; without classes there is nothing to choose from."""
    b, t = seeded(9).requires_grad_(), torch.tensor([0, 8, -100])
    loss = ot.linear_cross_entropy(torch.zeros(3, 0), torch.zeros(9, 0), t, b)
    want = F.cross_entropy(b.expand(3, 9), t)
    torch.testing.assert_close(loss, want)
    torch.testing.assert_close(torch.autograd.grad(loss, b), torch.autograd.grad(want, b))
    with pytest.raises(ValueError, match="no classes"):
        ot.linear_cross_entropy(torch.zeros(3, 2), torch.zeros(0, 2), t)
