"""Each row of the table: the numpy meaning of its Graph is what jax.jit computes."""

from __future__ import annotations

import jax
import pytest

from cases import CASES, flags, traced
from compare import agree
from onelaunch.ir.check import verify
from onelaunch.ir.interpret import run
from onelaunch.ir.show import show
from onelaunch.ops.words import raw
from onelaunch.trace import to_graph
from rows.row import Row


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_meaning(case: Row) -> None:
    with flags(case):
        graph = to_graph(traced(case))
        want = jax.tree.leaves(jax.jit(case.fn)(*case.args))
    verify(graph)
    assert show(graph)
    got = run(graph, [raw(a) for a in case.args])
    assert len(got) == len(want)
    for i, (x, y) in enumerate(zip(got, want, strict=True)):
        agree(x, raw(y), case.ulps, case.floor, f"{case.name}[{i}]")


def test_names_are_unique() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names), sorted(n for n in set(names) if names.count(n) > 1)
