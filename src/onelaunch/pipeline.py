"""From a Graph to one kernel: rewrite, analyse, schedule, place, emit."""

from __future__ import annotations

import dataclasses

from onelaunch.analyse import axes as axis_analysis
from onelaunch.analyse import cost
from onelaunch.emit.kernel import Kernel
from onelaunch.emit.triton import emit
from onelaunch.ir.nodes import Graph, Value
from onelaunch.place import NeedsMemory, NeedsNoGrid, place
from onelaunch.schedule.choose import choose
from onelaunch.schedule.homes import make_plan
from onelaunch.schedule.plan import Home, Limits, Plan


def compile_graph(graph: Graph, limits: Limits | None = None) -> tuple[Plan, Kernel]:
    """The kernel of a rewritten Graph; values that some access can't reach in registers move to memory."""
    axes = axis_analysis.analyse(graph)
    limits = limits or choose(graph, axes)
    forced: set[Value] = set()
    while True:
        plan = make_plan(graph, axes, limits, forced)
        try:
            program = place(graph, plan)
        except NeedsMemory as need:
            assert need.value not in forced, need.value
            forced.add(need.value)
        except NeedsNoGrid:
            assert limits.lanes
            limits = dataclasses.replace(limits, lanes=0)
        else:
            return plan, emit(program, str(plan), limits.num_warps)


def estimate_us(graph: Graph, plan: Plan) -> float:
    """The estimated time of a Graph's kernel under its plan, in microseconds on an H200."""
    share = {v: 1 / plan.grid for v, kinds in plan.dims.items() if "batch" in kinds or "grid" in kinds}
    in_memory = {v for v, home in plan.home.items() if home is Home.MEMORY}
    return cost.kernel_us(graph, share, in_memory, plan.grid, plan.limits.num_warps)
