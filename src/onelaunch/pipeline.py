"""From a Graph to one kernel: rewrite, analyse, schedule, place, emit."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from onelaunch.analyse import axes as axis_analysis
from onelaunch.analyse.axes import Axes
from onelaunch.emit.kernel import Kernel
from onelaunch.emit.triton import emit
from onelaunch.ir.nodes import Graph, Value
from onelaunch.place import NeedsMemory, NeedsNoGrid, place
from onelaunch.place.cost import cost, microseconds
from onelaunch.place.nodes import For, Program, While, walk
from onelaunch.schedule.choose import choose
from onelaunch.schedule.homes import make_plan, parallel_axis
from onelaunch.schedule.late import Split, split
from onelaunch.schedule.plan import Limits, Plan

#: Variants of the first choice: warps, and extents up to which dims are unrolled.
WARPS, UNROLLED = (1, 2, 4, 8, 16), (4, 2)
#: A variant is taken if its estimate is below so much of the first choice's and it has at most so many instructions.
CLEARLY, MOST_CODE = 0.75, 16000
#: Statements of a kernel up to which other homes are tried.
MOST_STATEMENTS = 6000


def compile_graph(graph: Graph, limits: Limits | None = None) -> tuple[Plan, Kernel]:
    """The kernel of a rewritten Graph; values that some access can't reach in registers move to memory."""
    axes = axis_analysis.analyse(graph)
    apart = split(graph, axes) if parallel_axis(graph, axes) is None and (limits is None or limits.lanes) else None
    if apart is not None:
        together = axis_analysis.analyse(apart.graph, apart.entries)
        wanted = limits or choose(apart.graph, together, apart.late)
        if wanted.lanes:
            try:
                return _finish(_placed(apart.graph, together, wanted, apart))
            except NeedsNoGrid:
                pass
    if limits is not None:
        return _finish(_with_or_without_grid(graph, axes, limits))
    return _finish(_cheapest(graph, axes, choose(graph, axes)))


@dataclass(frozen=True)
class _Placed:
    """A placed kernel, its plan and its estimated time."""

    plan: Plan
    program: Program

    @property
    def us(self) -> float:
        return microseconds(self.program, self.plan.limits.num_warps)


def _finish(placed: _Placed) -> tuple[Plan, Kernel]:
    plan = dataclasses.replace(placed.plan, estimate_us=placed.us)
    return plan, emit(placed.program, str(plan), plan.limits.num_warps)


def _cheapest(graph: Graph, axes: Axes, limits: Limits) -> _Placed:
    """The kernel under ``limits``, or under a variant of them that is estimated to take clearly less time."""
    first = _with_or_without_grid(graph, axes, limits)
    if limits.lanes > 1 or not any(isinstance(s, For | While) for s in first.program.body):
        return first
    tried = [first]
    if sum(1 for _ in walk(first.program.body)) <= MOST_STATEMENTS:
        for dim in (d for d in UNROLLED if d < limits.unroll_dim):
            tried.append(_with_or_without_grid(graph, axes, dataclasses.replace(limits, unroll_dim=dim)))
    least, best, warps = first.us * CLEARLY, first, limits.num_warps
    for placed in tried:
        for count in WARPS:
            us, code = microseconds(placed.program, count), cost(placed.program, count).code
            if us < least and code <= MOST_CODE:
                least, best, warps = us, placed, count
    if warps == best.plan.limits.num_warps:
        return best
    return _with_or_without_grid(graph, axes, dataclasses.replace(best.plan.limits, num_warps=warps))


def _with_or_without_grid(graph: Graph, axes: Axes, limits: Limits) -> _Placed:
    try:
        return _placed(graph, axes, limits, None)
    except NeedsNoGrid:
        return _placed(graph, axes, dataclasses.replace(limits, lanes=0), None)


def _placed(graph: Graph, axes: Axes, limits: Limits, apart: Split | None) -> _Placed:
    forced: set[Value] = set(apart.stored) if apart is not None else set()
    while True:
        plan = make_plan(graph, axes, limits, forced, apart.late if apart is not None else frozenset())
        try:
            return _Placed(plan, place(graph, plan))
        except NeedsMemory as need:
            assert need.value not in forced, need.value
            forced.add(need.value)


def estimate_us(graph: Graph, plan: Plan) -> float:
    """The estimated time of a Graph's kernel under its plan, in microseconds on an H200."""
    return plan.estimate_us
