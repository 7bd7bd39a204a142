"""Generated kernels compile without a GPU, whichever way Triton was imported, and say where they fail."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import triton

from onelaunch import build, store, target
from onelaunch.emit.kernel import Kernel, Param
from onelaunch.errors import BuildError, OptionError
from onelaunch.launch import interpreter

F32 = np.dtype("float32")
#: A helper, a function of its own, Triton's library (``tl.sort``, ``tl.max``, ``v.sum()``) and a loop.
SOURCE = """\
import triton
import triton.language as tl


@triton.jit
def twice(x):
    return x * 2.0


@triton.jit(noinline=True)
def put(p, v):
    tl.store(p, v)


@triton.jit
def rows(x, y, total):
    row = tl.program_id(0)
    lane = tl.arange(0, 16)
    v = twice(tl.load(x + row * 16 + lane))
    tl.store(y + row * 16 + lane, tl.sort(v))
    s = v.sum()
    for _ in range(2):
        s += tl.max(v, 0)
    put(total + row, s)
"""
ROWS = Kernel(
    "rows",
    SOURCE,
    (Param("x", F32, (3, 16), "in"), Param("y", F32, (3, 16), "out"), Param("total", F32, (3,), "out")),
    (3,),
)
TARGETS = ["cuda:80", "cuda:90", "cuda:100", "hip:gfx942"]


def one(line: str, *, dtype: str = "float32", params: int = 1) -> Kernel:
    """A kernel of one line that writes ``y``."""
    source = f"import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef one(y):\n    {line}\n"
    return Kernel("one", source, tuple(Param(f"y{i}", np.dtype(dtype), (4,), "out") for i in range(params)), (1,))


def interpret() -> None:
    x = np.random.default_rng(0).normal(size=(3, 16)).astype(F32)
    y, total = interpreter.run(ROWS, [x])
    np.testing.assert_array_equal(y, np.sort(2 * x, 1))
    np.testing.assert_allclose(total, (2 * x).sum(1) + 4 * x.max(1), rtol=1e-5)


@pytest.mark.parametrize("text", TARGETS)
def test_compiles_offline(text: str) -> None:
    built = build.compile(ROWS, target.parse(text))
    cuda = text.startswith("cuda")
    assert list(built.asm) == ["ttir", "ttgir", "llir", *(["ptx", "cubin"] if cuda else ["amdgcn", "hsaco"])]
    assert built.binary[:4] == b"\x7fELF"
    assert built.metadata["name"] == "rows"
    assert built.resources.num_warps == 4
    assert 8 < built.resources.registers < 128
    assert built.resources.spilled == 0
    assert "tt.divisibility = 16" in str(built.asm["ttir"])
    if cuda:
        assert f".target sm_{text.removeprefix('cuda:')}" in str(built.asm["ptx"])


@pytest.mark.parametrize("text", TARGETS)
def test_compiles_without_coalescing(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass is left out where it would take long; its work shows in the layouts of wide loads."""
    lanes = "l = tl.arange(0, 1024)[:, None] * 4 + tl.arange(0, 4)[None, :]; tl.store(y + l, tl.load(y + l) + 1)"
    kernel = one(lanes)
    coalesced = build.compile(kernel, target.parse(text))
    monkeypatch.setattr(build, "COALESCING_LIMIT", 0)
    monkeypatch.setattr(store, "get", lambda key: None)
    plain = build.compile(kernel, target.parse(text))
    assert plain.asm["ttir"] == coalesced.asm["ttir"] and plain.asm["ttgir"] != coalesced.asm["ttgir"]


def test_options_reach_the_compiler() -> None:
    kernel = dataclasses.replace(ROWS, num_warps=1)
    built = build.compile(kernel, target.parse("cuda:90"))
    assert built.resources.num_warps == 1
    assert '"ttg.num-warps" = 1' in str(built.asm["ttgir"])


def test_second_time_comes_from_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    first = build.compile(ROWS, target.parse("cuda:90"))
    monkeypatch.setattr(build, "_compile", None)
    assert build.compile(ROWS, target.parse("cuda:90")) == first
    with pytest.raises(TypeError):
        build.compile(dataclasses.replace(ROWS, fp_fusion=False), target.parse("cuda:90"))


def test_without_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONELAUNCH_CACHE_DIR", "/dev/null/nowhere")
    line = "tl.store(y + tl.arange(0, 4), 3.0)"
    assert build.compile(one(line), target.parse("cuda:90")).resources.registers > 0
    assert store.size() == (0, 0)


def test_compiling_and_interpreting_in_one_process() -> None:
    for _ in range(2):
        interpret()
        assert "tt.func public @rows" in build.front(ROWS)
    build._compile(ROWS, target.parse("cuda:90"))
    interpret()


def test_compiling_where_triton_was_imported_to_interpret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    program = (
        "import test_build as t\n"
        "for _ in range(2):\n    t.interpret()\n    t.build.front(t.ROWS)\n"
        "t.build._compile(t.ROWS, t.target.parse('cuda:90'))\nt.interpret()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env=environment())


def environment() -> dict[str, str]:
    here = Path(__file__).parent
    return {**os.environ, "PYTHONPATH": f"{here}:{here.parent / 'src'}"}


def test_several_threads() -> None:
    def work(n: int) -> int:
        interpret()
        kernel = one(f"tl.store(y + tl.arange(0, 4), {n}.0)")
        return build._compile(kernel, target.parse("cuda:90")).resources.registers

    with ThreadPoolExecutor(4) as pool:
        assert all(n > 0 for n in pool.map(work, range(8)))


@pytest.mark.parametrize(
    ("kernel", "stage", "words"),
    [
        (one("tl.store(y, tl.arange(0, 3))"), "ast to ttir", "power of 2"),
        (one("tl.store(y, unknown)"), "ast to ttir", "unknown is not defined"),
        (one("a = tl.zeros((4,), tl.float32)\n    while tl.max(a) < 1:\n        a = 1"), "ast to ttir", "loop"),
        (one("return", params=2), "load", "takes 1 arguments, but 2 are declared"),
        (one("return", dtype="complex64"), "signature", "complex64"),
        (one("this is not quite Python"), "load", "SyntaxError"),
        (dataclasses.replace(one("return"), name="other"), "load", "does not define it"),
    ],
)
def test_failures_name_their_stage(kernel: Kernel, stage: str, words: str) -> None:
    with pytest.raises(BuildError, match=words) as caught:
        build.compile(kernel, target.parse("cuda:90"))
    assert caught.value.stage == stage
    assert caught.value.kernel == kernel.name
    with pytest.raises(BuildError):
        build.front(kernel)


def test_spills_are_counted() -> None:
    """A product of 64 x 64 tiles by one warp does not fit into registers."""
    body = "i = tl.arange(0, 64)\n    a = tl.load(y + i[:, None] * 64 + i[None, :])\n    "
    kernel = one(body + "tl.store(y + i[:, None] * 64 + i[None, :], tl.dot(a, a, input_precision='ieee'))")
    built = build.compile(dataclasses.replace(kernel, num_warps=1), target.parse("cuda:80"))
    assert built.resources.registers == 255
    assert built.resources.spilled > 0
    assert built.resources.shared > 0


@pytest.mark.parametrize("text", [*target.KNOWN, "cuda:75"])
def test_targets(text: str) -> None:
    parsed = target.parse(text)
    assert str(parsed) == text
    assert parsed.warp_size == (64 if text.startswith("hip") else 32)


@pytest.mark.parametrize("text", ["", "cuda", "cuda:9.0", "cuda:20", "hip:90", "sm_90", "cuda:90 "])
def test_unknown_target_lists_the_known(text: str) -> None:
    with pytest.raises(OptionError, match=r"cuda:90.*hip:gfx942"):
        target.parse(text)


def test_target_of_a_device() -> None:
    assert str(target.from_capability("9.0")) == "cuda:90"
    assert str(target.from_capability("12.1")) == "cuda:121"
    assert str(target.from_capability("gfx942:sramecc+:xnack-")) == "hip:gfx942"


def test_an_addition_that_ptxas_would_lose() -> None:
    """ptxas 12.8 and 12.9 turn the 143 of lane 3 into 0: a gather by ``(140 + lane) % 70`` read the wrong element."""
    body = [
        "lane = tl.arange(0, 128)",
        "inside = lane < 70",
        "x = tl.load(x_ptr + lane, mask=inside, other=0)",
        "tl.store(y_ptr + lane, tl.gather(x, (140 + lane) % 70, axis=0), mask=inside)",
    ]
    head = "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef one(x_ptr, y_ptr):\n"
    params = (Param("x_ptr", F32, (70,), "in"), Param("y_ptr", F32, (70,), "out"))
    kernel = Kernel("one", head + "".join(f"    {line}\n" for line in body), params, (1,), num_warps=1)
    built = build.compile(kernel, target.parse("cuda:90"))
    text = str(built.asm["ptx"])
    assert "16x2" not in text and "add.s16 %a0, %a0, %a2;" in text
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.binary)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-sass", file.name]
        code = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "0x8f" in code and "VIADD.16x2" not in code
