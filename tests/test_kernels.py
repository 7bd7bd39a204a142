"""Each row of the table through the whole backend: kernels under plans of every kind compute what jax.jit does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import triton

import walk
from cases import CASES
from compare import agree
from onelaunch import build
from onelaunch.ir.interpret import run as meaning
from onelaunch.pipeline import compile_graph
from onelaunch.rewrite import PASSES, rewrite
from onelaunch.target import parse
from onelaunch.trace import to_graph
from rows import control, index, memory, random
from rows.row import Row

WIDTH = 120
#: Rows whose kernels take the interpreter a minute under tiny tiles.
LONG_SORTS = {"sort_long", "sort_long_ties", "top_k_long"}
#: Rows that take more than ten seconds, alone or under vmap: only the tests marked slow walk them.
HEAVY = {"eigh_f64", "eigh_batch", "eigh_8", "eigh_5", "eigenvalues", "determinant"}
#: Rows on whose kernels LLVM itself ends the process, in Triton 3.9 (docs/notes/triton.md); 3.6 compiles them.
CRASHES = {"scan_jvp"} if triton.__version__.startswith("3.9.") else set[str]()
#: Draws by rejection, whose batched kernels take long in the interpreter.
LONG_DRAWS = {"gamma", "gamma_batch", "gamma_scalar", "loggamma", "beta", "ball", "poisson", "dirichlet", "categorical"}
#: vmap has no rule for what they call.
NO_VMAP = {"call_linear"}
SUBJECTS = (control, index, memory, random)
TARGETS = ("cuda:90", "cuda:80", "cuda:100", "hip:gfx942")


def named(rows: list[Row] | tuple[Row, ...]) -> list[object]:
    return [pytest.param(case, k, id=case.name) for k, case in enumerate(rows)]


QUICK = named([case for case in CASES if case.name not in HEAVY])
BATCHED = named([case for s in SUBJECTS for case in s.ROWS if case.args and case.name not in NO_VMAP | LONG_DRAWS])


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for generated modules; at the end ruff checks all of them at once."""
    folder = tmp_path_factory.mktemp("sources")
    yield folder
    # `x != x` asks for NaN
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--ignore", "PLR0124", "--no-cache", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[:4000]


@pytest.mark.parametrize("case, number", QUICK)
def test_kernel(case: Row, number: int, sources: Path) -> None:
    """Passes keep the meaning; right under the chosen plan and, in turn, another; Triton's front end takes it; tidy."""
    row = walk.start(case)
    passes_keep_the_meaning(row)
    kernel = row.check("chosen")
    others = [p for p in row.plans if p != "chosen" and (p, case.name) not in {("long", n) for n in LONG_SORTS}]
    row.check(others[number % len(others)])
    (sources / f"{case.name}.py").write_text(kernel.source)
    assert max(map(len, kernel.source.splitlines())) <= WIDTH
    if any(p.role == "out" for p in kernel.params):
        build.front(kernel)


def passes_keep_the_meaning(row: walk.Walk) -> None:
    before = meaning(row.traced, row.args)
    graph = row.traced
    for step in PASSES:
        graph = step(graph)
        for x, y in zip(before, meaning(graph, row.args), strict=True):
            agree(y, x, 0, 0, f"{row.case.name} after {step.__name__}")


@pytest.mark.slow
@pytest.mark.parametrize("case, number", named(CASES))
def test_kernel_under_every_plan(case: Row, number: int) -> None:
    row = walk.start(case)
    for plan in row.plans:
        if plan != "long" or case.name not in LONG_SORTS:
            row.check(plan)


@pytest.mark.parametrize("case, number", BATCHED)
def test_vmapped(case: Row, number: int) -> None:
    """A batch of five, four to a program where the axis is found."""
    row = walk.start(walk.batched(case))
    row.check("ragged" if "ragged" in row.plans else "chosen")


@pytest.mark.slow
@pytest.mark.parametrize("case, number", named([case for case in CASES if case.args and case.name not in NO_VMAP]))
def test_vmapped_under_every_plan(case: Row, number: int) -> None:
    row = walk.start(walk.batched(case))
    for plan in row.plans:
        if plan != "long" or case.name not in LONG_SORTS:
            row.check(plan)


def test_vmap_finds_the_batch_axis() -> None:
    """Scalar programs under vmap are spread over programs, wherever the batch axis stands."""
    rows = [case for case in (*control.ROWS, *random.ROWS) if case.args and all(a.ndim == 0 for a in case.args)]
    rows = [case for case in rows if "rbg" not in case.name]  # JAX draws a batch's numbers from its first key
    assert len(rows) >= 5
    for case in rows:
        row = walk.start(walk.batched(case))
        assert row.kernel("ragged").grid == (2,), case.name


# --- machine code ------------------------------------------------------------------------------------------


def sample(every: int, first: int) -> list[Row]:
    return [case for case in CASES[first::every] if case.name not in HEAVY | CRASHES]


SAMPLE = [(case, TARGETS[0]) for case in sample(45, 6)]
SAMPLE += [(case, target) for k, target in enumerate(TARGETS[1:]) for case in sample(200, 7 + 11 * k)]


def compiles(case: Row, target: str) -> None:
    kernel = walk.start(case).kernel("chosen")
    if any(p.role == "out" for p in kernel.params):
        assert build.compile(kernel, parse(target)).resources.registers > 0


@pytest.mark.parametrize("case, target", [pytest.param(c, t, id=f"{c.name}-{t}") for c, t in SAMPLE])
def test_compiles(case: Row, target: str) -> None:
    compiles(case, target)


@pytest.mark.slow
@pytest.mark.parametrize("case, number", named([case for case in CASES if case.name not in CRASHES]))
def test_all_compile(case: Row, number: int) -> None:
    compiles(case, TARGETS[0])
    compiles(case, TARGETS[1 + number % 3])


# --- what can't be run here --------------------------------------------------------------------------------


def source_of(fn: Callable[..., object], *shapes: jax.ShapeDtypeStruct) -> str:
    graph = rewrite(to_graph(jax.make_jaxpr(fn)(*shapes), "kernel"))
    kernel = compile_graph(graph)[1]
    build.front(kernel)
    return kernel.source


def test_offsets_beyond_2_to_the_31_are_64_bit() -> None:
    """Whatever the axis that is spread, an address in an array of 3 * 2**30 elements is an int64."""
    big = jax.ShapeDtypeStruct((3, 2**30), jnp.float32)
    for fn, shapes in (
        (lambda x, i: x[i, i], (big, jax.ShapeDtypeStruct((), jnp.int32))),
        (lambda x: jnp.sin(x), (big,)),
        (lambda x: x.sum(1), (big,)),
        (lambda x, i: x.at[:, i].set(0.0), (big, jax.ShapeDtypeStruct((4,), jnp.int32))),
    ):
        assert "tl.int64" in source_of(fn, *shapes)


def test_a_kernel_is_not_named_like_what_it_uses() -> None:
    for name in ("erf", "tl", "range"):
        graph = rewrite(to_graph(jax.make_jaxpr(jax.scipy.special.erf)(np.float32(1)), name))
        kernel = compile_graph(graph)[1]
        assert kernel.name == f"{name}_kernel"
        build.front(kernel)


def test_a_summed_product_stays_in_full_precision() -> None:
    """Triton makes ``tl.sum(a[:, :, None] * b[None, :, :], 1)`` a ``tl.dot`` in TF32; it leaves ``b * a`` alone."""
    kernel = walk.start(next(case for case in CASES if case.name == "dot_product_summed")).kernel("lanes")
    assert "[None, :, :]" in kernel.source
    built = build.compile(kernel, parse(TARGETS[0]))
    assert "tt.dot" not in str(built.asm["ttir"])
