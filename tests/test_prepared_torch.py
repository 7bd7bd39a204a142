"""Launches that are made ready once: what is kept between calls, and what a launch of the kept kernel is given."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from onelaunch.kernels import attention_calls, block_calls, matmul_calls, text, tiles
from onelaunch.kernels.calls import Call
from onelaunch.sparse import BlockLayout, random

torch = pytest.importorskip("torch")
from onelaunch.torch import block_layouts, block_sparse, launching  # noqa: E402

pytestmark = pytest.mark.torch

NAMES = text.arguments("block_attention_backward", "block_attention_delta")


@pytest.fixture(autouse=True)
def launched_without_running(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")
    monkeypatch.setattr(launching, "_interpret", lambda *given: None)


class Kernel:
    """Stands for a compiled kernel: remembers what it is launched with."""

    def __init__(self) -> None:
        self.launches: list[Any] = []

    def __getitem__(self, grid: Any) -> Any:
        assert grid == (3, 1, 1)
        return lambda *arguments: self.launches.append(arguments)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> tuple[Kernel, list[Any]]:
    """A kernel, and the inputs and outputs of the launches that are Triton's."""
    found, own = Kernel(), []
    monkeypatch.setattr(launching, "launch", lambda call, inputs, outputs: own.append((inputs, outputs)) or found)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)  # as the index of a CPU
    return found, own


def prepared() -> launching.Prepared:
    numbers = {name: i for i, name in enumerate(NAMES) if name not in ("out", "dout", "dlse", "delta")}
    call = Call("block_attention_backward", "block_attention_delta", numbers, (3,), 4)
    return launching.Prepared(call, {"dout": torch.zeros(4)}, ["delta"])


def test_a_kept_kernel_gets_addresses_and_numbers_in_order(kernel: tuple[Kernel, list[Any]]) -> None:
    launch, (found, own) = prepared(), kernel
    arrays = [{"out": torch.zeros(4), "dlse": None, "delta": torch.zeros(4), "more": None} for _ in range(2)]
    launch(arrays[0])
    ((inputs, outputs),) = own
    assert list(inputs) == ["out", "dlse", "dout"] and list(outputs) == ["delta"] and not found.launches
    launch(arrays[1])
    assert len(own) == 1
    wanted = {**launch.call.numbers, **arrays[1], **launch.fixed}
    wanted = {n: v.data_ptr() if isinstance(v, torch.Tensor) else v for n, v in wanted.items()}
    assert found.launches == [tuple(wanted[name] for name in NAMES)]


def test_other_addresses_are_tritons(kernel: tuple[Kernel, list[Any]]) -> None:
    launch, (found, own) = prepared(), kernel
    aligned, other = torch.zeros(4), torch.zeros(5)[1:]
    launch({"out": other, "dlse": None, "delta": aligned})  # its kernel is not kept
    launch({"out": aligned, "dlse": None, "delta": aligned})
    launch({"out": aligned, "dlse": None, "delta": other})
    assert len(own) == 3 and not found.launches
    launch({"out": aligned, "dlse": None, "delta": aligned})
    assert len(own) == 3 and len(found.launches) == 1


def attend(layout: BlockLayout, *more: int, **options: Any) -> list[Any]:
    q, k, v = (torch.randn(*more, 1, 32, 16, requires_grad=True) for _ in range(3))
    out = block_sparse.attention(q, k, v, layout, **options)
    return [out, *torch.autograd.grad(out.sum(), (q, k, v))]


def multiply(layout: BlockLayout, columns: int = 16, **options: Any) -> None:
    x, y = torch.randn(1, 32, columns), torch.randn(1, columns, 32)
    values = block_sparse.matmul(x, y, layout, "sdd", **options)
    block_sparse.matmul(values, x, layout, "dsd", **options)
    block_sparse.matmul(y, values, layout, "dds", **options)


def weigh(layout: BlockLayout, **options: Any) -> None:
    x = torch.randn(layout.nnz, 16, 16, requires_grad=True)
    for function in (block_sparse.softmax, block_sparse.logsumexp):
        torch.autograd.grad(function(x, layout, 0.5, **options).sum(), x)


def test_a_second_call_works_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = random(2, block=16, density=0.5, seed=1)
    made: list[Any] = []
    of_softmax = ("forward", "backward", "logsumexp_backward")
    of_attention = ("launch_of", "delta", "lines")
    for module, names in (
        (attention_calls, of_attention), (matmul_calls, ("sdd", "dsd")), (block_calls, of_softmax)
    ):  # fmt: skip
        for name in names:
            function = getattr(module, name)
            monkeypatch.setattr(module, name, lambda *a, f=function, n=name: made.append(n) or f(*a))
    for call in (attend, multiply, weigh):
        call(layout)
        assert made
        made.clear()
        call(layout)
        assert not made
    for call, given in ((attend, {"scale": 2.0}), (attend, {"is_causal": True}), (multiply, {"columns": 8}),
                        (multiply, {"precision": "tf32"}), (weigh, {"is_causal": True}),
                        (weigh, {"key_padding_mask": torch.ones(32)})):  # fmt: skip
        call(layout, **given)
        assert made
        made.clear()
    attend(layout, 3)
    assert made


def test_a_forced_tile_is_not_one_kept() -> None:
    layout = random(2, block=16, density=0.5, seed=2)
    multiply(layout)
    before = len(layout.kept["plans"])
    with matmul_calls.forced(sdd=(1, 16, 4, 1)):
        multiply(layout)
    assert len(layout.kept["plans"]) == before + 1
    weigh(layout)
    before = len(layout.kept["plans"])
    with tiles.forced(16, 32):
        weigh(layout)
    assert len(layout.kept["plans"]) == before + 4


def test_layouts_keep_some_and_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_layouts, "_PLANS", 3)
    layout = random(2, block=16, density=0.5, seed=3)
    gc.collect()
    gc.disable()
    try:
        for columns in range(1, 4):
            multiply(layout, columns)
            assert 0 < len(layout.kept["plans"]) <= 3
        attend(layout)
        weigh(layout)
        gone = weakref.ref(layout)
        del layout
        assert gone() is None
    finally:
        gc.enable()
