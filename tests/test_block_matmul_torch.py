"""Block-sparse products for PyTorch, the kernels in the interpreter, against dense products in float64."""

from __future__ import annotations

import gc
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelaunch.errors import OptionError
from onelaunch.kernels import matmul_calls
from onelaunch.sparse import BlockLayout, random

torch = pytest.importorskip("torch")
from onelaunch.torch import block_layouts, block_sparse  # noqa: E402

pytestmark = pytest.mark.torch

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}
SIDES = list(itertools.product((False, True), repeat=3))


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")
    torch.manual_seed(0)


def hostile(kind: str) -> np.ndarray:
    """(heads, rows, columns)"""
    mask = np.zeros((2, 3, 2), bool)
    if kind == "full row":
        mask[0, 1] = mask[1, 2] = True
    elif kind == "one block":
        mask[1, 2, 0] = True
    elif kind == "mixed":
        mask[0] = [[1, 0], [1, 1], [0, 0]]
        mask[1] = [[0, 1], [0, 0], [0, 1]]
    return mask


def turned(t: Any, turn: bool) -> Any:
    return t.mT if turn else t


def case(
    layout: BlockLayout, mode: str, sides: tuple[bool, bool, bool], dtype: Any, lead: tuple[int, ...], other: int
) -> Any:
    """Operands, and the dense product of operands in place of them."""
    ta, tb, tc = sides
    rows, columns = layout.shape[-2:]

    def dense(r: int, c: int, turn: bool) -> Any:
        shape = (c, r) if turn else (r, c)
        return torch.randn(*lead, *layout.shape[:-2], *shape, dtype=torch.float64).to(dtype)

    values = torch.randn(*lead, layout.nnz, layout.block, layout.block, dtype=torch.float64).to(dtype)
    if mode == "sdd":
        m, n = (columns, rows) if tc else (rows, columns)
        a, b = dense(m, other, ta), dense(other, n, tb)
        return a, b, lambda a, b: layout.from_dense(turned(turned(a, ta) @ turned(b, tb), tc))
    if mode == "dsd":
        a, b = values, dense(rows if ta else columns, other, tb)
        return a, b, lambda a, b: turned(turned(layout.to_dense(a), ta) @ turned(b, tb), tc)
    a, b = dense(other, columns if tb else rows, ta), values
    return a, b, lambda a, b: turned(turned(a, ta) @ turned(layout.to_dense(b), tb), tc)


def check(layout: BlockLayout, mode: str, sides: tuple[bool, bool, bool], dtype: Any, lead: Any = (), other: int = 24,
          **options: Any) -> None:  # fmt: skip
    """Result and gradients."""
    a, b, product = case(layout, mode, sides, dtype, lead, other)
    a.requires_grad_()
    b.requires_grad_()
    names = dict(zip(("trans_a", "trans_b", "trans_c"), sides))
    found = block_sparse.matmul(a, b, layout, mode, **names, **options)
    c, d = (t.detach().double().requires_grad_() for t in (a, b))
    want = product(c, d)
    assert found.shape == want.shape and found.dtype == dtype
    up = torch.randn_like(want)
    gradients = torch.autograd.grad(found, (a, b), up.to(dtype))
    for x, y in zip(
        (found, *gradients), (want, *torch.autograd.grad(want, (c, d), up, materialize_grads=True)), strict=True
    ):
        torch.testing.assert_close(x.double(), y, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("mode", ["sdd", "dsd", "dds"])
def test_every_transpose(mode: str) -> None:
    layout = BlockLayout(hostile("mixed"), 16)
    for number, sides in enumerate(SIDES):
        check(layout, mode, sides, torch.float64 if number % 2 else torch.float32, other=10)


@pytest.mark.parametrize("kind", ["full row", "one block", "nothing"])
def test_hostile_layouts(kind: str) -> None:
    for mode in ("sdd", "dsd", "dds"):
        check(BlockLayout(hostile(kind), 16), mode, (False, False, False), torch.float64, other=5)


@pytest.mark.parametrize(("block", "dtype"), [(32, torch.float16), (64, torch.bfloat16), (128, torch.float32)])
def test_blocks_and_dtypes(block: int, dtype: Any) -> None:
    layout = BlockLayout([[1, 0], [1, 1]] if block < 128 else [[1]], block)
    for mode in ("sdd", "dsd"):
        check(layout, mode, (True, False, False), dtype, lead=(2,), other=40)


def test_batch_items_with_layouts_of_their_own_and_leading_axes() -> None:
    mask = np.array([[[[1, 0], [0, 1]]], [[[1, 1], [0, 0]]]], bool)
    for mode in ("sdd", "dds"):
        check(BlockLayout(mask, 16), mode, (False, True, False), torch.float64, lead=(2,), other=8)


@pytest.mark.parametrize("transposed", [False, True])
def test_long_lines_are_cut_in_pieces_and_added_in_order(monkeypatch: pytest.MonkeyPatch, transposed: bool) -> None:
    monkeypatch.setattr(matmul_calls, "_PIECE", 32)
    mask = np.zeros((1, 3, 24), bool)
    mask[0, 1] = mask[0, 2, 3] = True
    layout = BlockLayout(mask.swapaxes(1, 2) if transposed else mask, 16)
    work = matmul_calls.work(layout, transposed, 1)
    assert work.slots > 10 and (work.items[:, 3] >= 0).sum() == work.slots
    lengths = work.items[:, 2] - work.items[:, 1]
    assert lengths.sum() == layout.nnz and lengths.max() <= 2
    check(layout, "dsd", (transposed, False, False), torch.float64, other=10)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=25, deadline=None)
def test_random_layouts(data: Any) -> None:
    sizes = [data.draw(st.integers(1, 4)) for _ in range(3)]
    block = data.draw(st.sampled_from([16, 32]))
    layout = random(*sizes[:2], block=block, density=data.draw(st.floats(0, 1)), seed=sizes[2], diagonal=False)
    mode = data.draw(st.sampled_from(["sdd", "dsd", "dds"]))
    check(layout, mode, data.draw(st.sampled_from(SIDES)), torch.float64, other=data.draw(st.integers(1, 70)))


def test_gradcheck_twice() -> None:
    layout = BlockLayout([[1, 0], [1, 1]], 16)
    for mode in ("sdd", "dsd"):
        a, b, _ = case(layout, mode, (False, False, False), torch.float64, (), 2)
        inputs = (a.requires_grad_(), b.requires_grad_())

        def function(a: Any, b: Any, mode: str = mode) -> Any:
            return block_sparse.matmul(a, b, layout, mode)

        assert torch.autograd.gradcheck(function, inputs, fast_mode=True)
        assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)


def test_cpu_path_vmap_and_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = BlockLayout(hostile("mixed"), 16)
    a, b, product = case(layout, "dsd", (False, False, False), torch.float64, (3,), 8)
    batched = torch.func.vmap(lambda a, b: block_sparse.matmul(a, b, layout, "dsd"), in_dims=(0, 0))
    torch.testing.assert_close(batched(a, b), product(a, b))
    monkeypatch.delenv("ONELAUNCH_INTERPRET")
    check(layout, "sdd", (False, True, True), torch.float64)
    check(layout, "dds", (True, True, False), torch.bfloat16)
    compiled = torch.compile(
        lambda a, b: block_sparse.matmul(a, b, layout, "dsd").sin(), backend="aot_eager", fullgraph=True
    )
    torch.testing.assert_close(compiled(a, b), product(a, b).sin())
    slope = torch.func.grad(lambda a: block_sparse.matmul(a, b, layout, "dsd").sin().sum())(a)
    a.requires_grad_()
    torch.testing.assert_close(slope, torch.autograd.grad(product(a, b).sin().sum(), a)[0])


@pytest.mark.parametrize("call", ["matmul", "softmax", "inplace", "attention"])
def test_a_captured_layout_outlives_its_caller(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA graph reads the layout's tables at every replay."""
    monkeypatch.setattr(block_layouts, "_held", {})
    for captured in (False, True):
        monkeypatch.setattr(block_layouts, "capturing", lambda captured=captured: captured)
        layout = random(6, block=16, density=0.5, seed=9876)
        key, x = layout.key, torch.zeros(1, 96, 8)
        if call == "matmul":
            block_sparse.matmul(x, x, layout, "sdd", trans_b=True)
        elif call == "attention":
            block_sparse.attention(x, x, x, layout)
        else:
            block_sparse.softmax(torch.zeros(layout.nnz, 16, 16), layout, inplace=call == "inplace")
        del layout
        gc.collect()
        if captured:
            assert BlockLayout.find(key).nnz
        else:
            with pytest.raises(KeyError):
                BlockLayout.find(key)


def test_autocast_casts_operands_and_gradients_keep_their_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONELAUNCH_INTERPRET")
    layout = BlockLayout([[1, 0], [1, 1]], 16)
    given = [torch.randn(1, 32, 16, requires_grad=True) for _ in range(3)]
    with torch.autocast("cpu", torch.bfloat16):
        values = block_sparse.matmul(*given[:2], layout, "sdd", trans_b=True)
        out = block_sparse.matmul(values.float(), given[2], layout, "dsd")
        attended = block_sparse.attention(*given, layout)
        assert block_sparse.attention(*(t.double() for t in given), layout).dtype == torch.float64
    assert values.dtype == out.dtype == attended.dtype == torch.bfloat16
    for gradient in torch.autograd.grad((out.float() + attended.float()).sum(), given):
        assert gradient.dtype == torch.float32 and gradient.abs().sum() > 0


def test_two_dimensional_operands_and_odd_strides() -> None:
    layout = BlockLayout([[1, 0], [1, 1]], 16)
    x, y = torch.randn(32, 10, dtype=torch.float64), torch.randn(64, 10, dtype=torch.float64)[::2]
    values = block_sparse.matmul(x, y, layout, "sdd", trans_b=True)
    torch.testing.assert_close(layout.to_dense(values)[0], x @ y.mT * layout.to_dense(torch.ones_like(values))[0])
    out = block_sparse.matmul(values, y, layout, "dsd")
    torch.testing.assert_close(out, layout.to_dense(values)[0] @ y)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"mode": "ssd"}, OptionError, "mode is one of sdd, dsd, dds"),
        ({"precision": "tf16"}, OptionError, "precision is one of"),
        ({"b": torch.zeros(2, 32, 5)}, TypeError, "b is torch.float32, a is torch.float64"),
        ({"b": torch.zeros(2, 31, 5, dtype=torch.float64)}, ValueError, r"this layout takes \[..., 2, 32, N\]"),
        ({"b": torch.zeros(3, 32, 5, dtype=torch.float64)}, ValueError, "has shape"),
        ({"a": torch.zeros(6, 16, 16, dtype=torch.float64)}, ValueError, r"this layout takes \[..., 5, 16, 16\]"),
        ({"a": torch.zeros(5, 32, 32, dtype=torch.float64)}, ValueError, "values of shape"),
        ({"b": torch.zeros(2, 32, 5, dtype=torch.float64, device="meta")}, ValueError, "b is on meta, a is on cpu"),
        ({"mode": "sdd", "a": torch.zeros(2, 48, 5, dtype=torch.float64)}, ValueError, "operands of shapes"),
    ],
)
def test_errors_of_one_line(change: dict[str, Any], error: type[Exception], text: str) -> None:
    layout = BlockLayout(hostile("mixed"), 16)
    given = {"a": torch.zeros(layout.nnz, 16, 16, dtype=torch.float64), "mode": "dsd",
             "b": torch.zeros(2, 32, 5, dtype=torch.float64)} | change  # fmt: skip
    with pytest.raises(error, match=text) as caught:
        block_sparse.matmul(layout=layout, **given)
    assert "\n" not in str(caught.value)
