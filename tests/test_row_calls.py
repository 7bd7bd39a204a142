"""The row kernels as PyTorch launches them: numbers are arguments, not text. Triton compiles each for an H100."""

from __future__ import annotations

import itertools
import re
import subprocess
import tempfile
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from onelaunch.kernels import calls, text, tiles
from onelaunch.kernels.calls import ANYWHERE, Call, Gradient, Loss, Machine, Scores
from onelaunch.kernels.layout import Rows, broadcast, collapse, contiguous
from onelaunch.load import load, mode


def compile(call: Call, pointers: dict[str, str | None], arch: int = 90) -> Any:
    """The compiled kernel of a call whose arrays have these element types (None: no array), aligned."""
    pointers = pointers | {"words": "i64" if call.words else None}
    attributes: dict[tuple[int, ...], Any] = {}
    with mode(interpret=False):
        function = getattr(load(call.family, text.family(call.family), interpret=False), call.function)
        signature: dict[str, str] = {}
        constants: dict[tuple[int, ...], Any] = {}
        for i, name in enumerate(function.arg_names):
            value = pointers.get(name) if name in pointers else call.numbers[name]
            if isinstance(value, str) and name in pointers:
                signature[name] = "*" + value
                attributes[(i,)] = [["tt.divisibility", 16]]
            elif value is None or name.isupper() or value == 1:  # Triton's own launcher makes a constant of 1
                signature[name], constants[(i,)] = "constexpr", value
            else:
                signature[name] = "i32" if abs(value) < 2**31 else "i64"
                if value % 16 == 0:
                    attributes[(i,)] = [["tt.divisibility", 16]]
        source = ASTSource(function, signature, constexprs=constants, attrs=attributes)
        options = {"num_warps": call.warps, "enable_fp_fusion": True}
        options |= {"maxnreg": call.registers} if call.registers else {}
        return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def spilled(compiled: Any) -> int:
    """Bytes of a thread's local memory."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        text_ = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"STACK:(\d+) .*LOCAL:(\d+)", text_)
    assert found is not None
    return int(found[1]) + int(found[2])


def rows(shape: tuple[int, ...], axis: int, arrays: int) -> Rows:
    found = collapse(shape, axis, [contiguous(shape)] * arrays)
    assert found is not None
    return found


FORWARD = {
    **{"x": "bf16", "target": "i64", "weight": None, "total_weight": None, "factor": "fp32", "zfactor": None},
    **{"width": None, "loss": "fp32", "lse": "fp32", "mass": "fp32", "best": None, "peak": None, "entropy": None},
    **{"grad": "bf16"},
}
EVERYTHING = FORWARD | {
    "weight": "fp32",
    "total_weight": "fp32",
    "zfactor": "fp32",
    "best": "i64",
    "peak": "fp32",
    "entropy": "fp32",
}
PART = FORWARD | {"width": "i32"}


@pytest.mark.parametrize(
    ("shape", "options", "pointers"),
    [
        ((512, 50257), Loss(), FORWARD),
        ((512, 50257), Loss(smooth=0.1, zscale=0.1, cap=3.0), EVERYTHING),
        ((512, 100), Loss(soft=True), FORWARD | {"target": "bf16"}),
        ((8, 50, 30, 40), Loss(), FORWARD),
        ((512, 50257), Loss(part=100_000), PART),
    ],
)
def test_cross_entropy(shape, options, pointers):
    call = calls.cross_entropy(rows(shape, 1, 3), options, False, False, 0, pointers["width"] is not None)
    assert compile(call, pointers).asm["cubin"]


def test_cross_entropy_backward():
    pointers = {"x": "bf16", "target": "i32", "weight": None, "lse": "fp32", "mass": "fp32", "up": "fp32"}
    call = calls.cross_entropy_backward(rows((512, 50257), 1, 3), Loss(), False, 0, 1)
    pointers |= {"extra": "fp32", "width": None, "entropy": None, "bend": None, "grad": "bf16"}
    assert compile(call, pointers).asm["cubin"]
    call = calls.cross_entropy_backward(rows((512, 50257), 1, 3), Loss(part=99_999), False, 0, 1, True)
    assert compile(call, pointers | {"width": "i32", "entropy": "fp32", "bend": "fp32"}).asm["cubin"]
    assert compile(calls.rescale(10**6), {"grad": "bf16", "up": "fp32", "result": "bf16"}).asm["cubin"]


@pytest.mark.parametrize("kind", ["fp32", "fp64"])
def test_mean_factor(kind):
    for size in (1, 300, 50_001):
        compiled = compile(calls.mean_factor(size, -100), {"target": "i64", "factor": kind})
        assert compiled.asm["cubin"] and not spilled(compiled)


@pytest.mark.parametrize(("axis", "shape"), list(itertools.product((0, 1), ((64, 1000), (4, 50000)))))
def test_softmax(axis, shape):
    forward = {"x": "bf16", "mask": "fp32", "keep": "i8", "y": "bf16"}
    backward = {"y": "fp32", "g": "fp32", "x": "fp32", "mask": None, "keep": None, "dx": "fp32"}
    options = Scores(calls.LOGSUMEXP if axis else calls.SOFTMAX, 0.5, 30.0)
    assert compile(calls.softmax(rows(shape, axis, 4), options, shape[0], False), forward).asm["cubin"]
    assert compile(calls.softmax(rows(shape, axis, 6), options, shape[0], True), backward).asm["cubin"]


@pytest.mark.parametrize(("shape", "axis"), [((70_000, 70_000), 0), ((3, 2**31 + 8), 0)])
def test_20_strides_of_64_bits(shape, axis):
    found = rows(shape, axis, 4)
    assert found.wide
    assert compile(calls.softmax(found, Scores(calls.SOFTMAX), 1, False), dict.fromkeys("xy", "bf16") | dict.fromkeys(
        ("mask", "keep"))).asm["cubin"]  # fmt: skip


def test_rows_of_a_broadcast_mask():
    shape = (2, 3, 5, 7)
    found = collapse(shape, 3, [contiguous(shape), broadcast((2, 1, 1, 7), shape)])
    assert found == Rows((2, 15, 1), 7, ((105, 7, 0, 1), (7, 0, 0, 1)))
    assert (
        collapse((2, 3, 5, 7, 2), 4, [contiguous((2, 3, 5, 7, 2)), broadcast((2, 1, 5, 1, 2), (2, 3, 5, 7, 2))]) is None
    )


@pytest.mark.parametrize("columns", [1, 2, 1000, 16384, 16385, 2**24])
@pytest.mark.parametrize("unit", [True, False])
def test_25_tiles_fit(columns, unit):
    tile = tiles.choose(1000, columns, unit)
    assert tile.warps <= 16 and tile.rows * tile.columns <= 16384
    assert tile.rows == tiles.power(tile.rows) and tile.columns == tiles.power(tile.columns)


HOPPER, AMPERE = Machine(90), Machine(80)


@pytest.mark.parametrize(
    ("machine", "columns", "options", "bytes"),
    [
        (HOPPER, 128256, Loss(), 256),
        (HOPPER, 32000, Loss(smooth=0.1, cap=30.0, zscale=1e-4), 600),
        (AMPERE, 256000, Loss(), 256),
    ],
)
def test_a_shared_row_stays_in_registers(machine, columns, options, bytes):
    """What is spilled is less than the 128 bytes of logits that a thread holds, or little more."""
    gradient = Gradient(2, False, False, False, machine)
    call = calls.cross_entropy(rows((4096, columns), 1, 3), options, False, False, 0, gradient=gradient)
    pointers = FORWARD | {"zfactor": "fp32" if options.zscale else None}
    assert call.function == "cross_entropy_split" and call.numbers["PARTS"] == -(-columns // call.numbers["COLS"])
    compiled = compile(call, pointers, machine.arch)
    assert "ld.global.v4" in compiled.asm["ptx"] and spilled(compiled) <= bytes
    # The bases of the pieces and of the row stay numbers of their own: fused into a difference, they would not cancel.
    assert len(re.findall(r"fma\.rn\.f32 .*, 0f00000000;", compiled.asm["ptx"])) >= 2


@pytest.mark.parametrize(("columns", "size"), [(131072, 2), (262144, 4), (16384, 4)])
@pytest.mark.parametrize("backward", [False, True])
def test_softmax_of_long_rows_stays_in_registers(columns, size, backward):
    found = rows((64, columns), 1, 6 if backward else 4)
    call = calls.softmax(found, Scores(calls.SOFTMAX), 1, backward, size, False, HOPPER)
    other = calls.softmax(found, Scores(calls.SOFTMAX), 1, backward, size, False, AMPERE)
    assert other.registers is None and other.numbers["COLS"] == call.numbers["COLS"]  # measured at 9.0 alone
    kind = {2: "bf16", 4: "fp32"}[size]
    names = ("y", "g", "x", "dx") if backward else ("x", "y")
    compiled = compile(call, dict.fromkeys(names, kind) | {"mask": None, "keep": None})
    assert "held" in call.function and call.numbers["PARTS"] == max(1, columns // call.numbers["COLS"])
    assert spilled(compiled) <= 160
    if columns == 131072:
        assert spilled(compile(other, dict.fromkeys(names, kind) | {"mask": None, "keep": None}, 80)) == 0


def test_rows_too_long_to_share_or_elsewhere_are_read_twice():
    long = rows((8, 2**20), 1, 4)
    assert calls.softmax(long, Scores(calls.SOFTMAX), 1, False, 4, False, HOPPER).function == "softmax_forward"
    elsewhere = calls.softmax(rows((8, 65536), 1, 4), Scores(calls.SOFTMAX), 1, False, 4, False, ANYWHERE)
    assert elsewhere.function == "softmax_forward" and elsewhere.words is None
    doubles = calls.softmax(rows((8, 65536), 1, 4), Scores(calls.SOFTMAX), 1, False, 8, False, HOPPER)
    assert doubles.function == "softmax_forward"
    for options, weighted, entropy in (
        (Loss(soft=True), False, False),
        (Loss(smooth=0.1), True, False),
        (Loss(), False, True),
    ):
        gradient = Gradient(2, weighted, False, entropy, HOPPER)
        call = calls.cross_entropy(rows((8, 65536), 1, 3), options, False, False, 0, gradient=gradient)
        assert call.function == "cross_entropy_forward"
