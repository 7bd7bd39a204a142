"""From a Graph to one kernel: rewrite, analyse, schedule, place, emit."""

from __future__ import annotations

import dataclasses

from onelaunch.analyse import axes as axis_analysis
from onelaunch.analyse import cost
from onelaunch.analyse.axes import Axes
from onelaunch.emit.kernel import Kernel
from onelaunch.emit.triton import emit
from onelaunch.ir.nodes import Graph, Value
from onelaunch.place import NeedsMemory, NeedsNoGrid, place
from onelaunch.schedule.choose import choose
from onelaunch.schedule.homes import make_plan, parallel_axis
from onelaunch.schedule.late import Split, split
from onelaunch.schedule.plan import Home, Limits, Plan


def compile_graph(graph: Graph, limits: Limits | None = None) -> tuple[Plan, Kernel]:
    """The kernel of a rewritten Graph; values that some access can't reach in registers move to memory."""
    axes = axis_analysis.analyse(graph)
    apart = split(graph, axes) if parallel_axis(graph, axes) is None and (limits is None or limits.lanes) else None
    if apart is not None:
        together = axis_analysis.analyse(apart.graph, apart.entries)
        wanted = limits or choose(apart.graph, together, apart.late)
        if wanted.lanes:
            try:
                return _compile(apart.graph, together, wanted, apart)
            except NeedsNoGrid:
                pass
    limits = limits or choose(graph, axes)
    try:
        return _compile(graph, axes, limits, None)
    except NeedsNoGrid:
        return _compile(graph, axes, dataclasses.replace(limits, lanes=0), None)


def _compile(graph: Graph, axes: Axes, limits: Limits, apart: Split | None) -> tuple[Plan, Kernel]:
    forced: set[Value] = set(apart.stored) if apart is not None else set()
    while True:
        plan = make_plan(graph, axes, limits, forced, apart.late if apart is not None else frozenset())
        try:
            program = place(graph, plan)
        except NeedsMemory as need:
            assert need.value not in forced, need.value
            forced.add(need.value)
        else:
            return plan, emit(program, str(plan), limits.num_warps)


def estimate_us(graph: Graph, plan: Plan) -> float:
    """The estimated time of a Graph's kernel under its plan, in microseconds on an H200."""
    share = {v: 1 / plan.grid for v, kinds in plan.dims.items() if "batch" in kinds or "grid" in kinds}
    in_memory = {v for v, home in plan.home.items() if home is Home.MEMORY}
    return cost.kernel_us(graph, share, in_memory, plan.grid, plan.limits.num_warps)
