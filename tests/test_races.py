"""No thread reads or writes what another wrote without a barrier between; without its barriers a kernel races."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

import races
import walk
from onelaunch.launch import interpreter
from onelaunch.pipeline import compile_graph
from onelaunch.schedule.plan import Limits
from rows import control, index, memory
from rows.row import Row

#: Two warps, so that small tensors stand in both: every dim on lanes, and tiles so small that all is in memory.
PLANS = (Limits(unroll_dim=1, num_warps=2), Limits(unroll_dim=1, tile=16, work=64, num_warps=2))
ROWS = [case for subject in (memory, control, index) for case in subject.ROWS]
#: Views of one output, windows, prefixes, updates in loops.
FEW = [case for case in ROWS if case.name in {"result_of_transposed", "result_history_twice", "dynamic_update"}]


def check(case: Row, plans: Sequence[Limits] = PLANS) -> None:
    row = walk.start(case)
    for limits in plans:
        kernel = compile_graph(row.graph, limits)[1]
        with races.watched():
            row.compare(walk.run(row.graph, kernel, row.args), str(limits))


@pytest.mark.parametrize("case", FEW, ids=lambda case: case.name)
def test_no_races(case: Row) -> None:
    check(case, PLANS[:1])


@pytest.mark.slow
@pytest.mark.parametrize("case", ROWS, ids=lambda case: case.name)
def test_no_races_in_any_row(case: Row) -> None:
    check(case)


def test_without_barriers_there_is_a_race() -> None:
    """The test of the test."""
    row = walk.start(next(case for case in FEW if case.name == "result_history_twice"))
    kernel = compile_graph(row.graph, PLANS[0])[1]
    bare = dataclasses.replace(kernel, source=kernel.source.replace("tl.debug_barrier()", "pass"))
    with races.watched(), pytest.raises(Exception, match="another thread"):
        interpreter.run(bare, row.args)
