"""place: Graph + Plan -> the memory-level form of one kernel."""

from __future__ import annotations

from onelaunch.ir.nodes import Graph
from onelaunch.place import alias, barrier, control, dot, elem, liveness, reduce, store, tidy
from onelaunch.place.nodes import Program
from onelaunch.place.placer import NeedsMemory, NeedsNoGrid, Placer
from onelaunch.schedule.plan import Plan

__all__ = ["NeedsMemory", "NeedsNoGrid", "place"]
assert dot and elem and reduce and store  # their elem functions are registered on import


def place(graph: Graph, plan: Plan) -> Program:
    """The kernel of ``graph`` under ``plan``.

    Raises NeedsMemory or NeedsNoGrid where the plan can't be carried out; the caller changes the plan.
    """
    p = Placer(graph, plan)
    walk = control.Control(p, alias.analyse(graph, plan))
    walk.arguments()
    walk.program()
    body = [*p.w.preamble, *p.w.body]
    program = Program(graph.name, walk.inputs, walk.outputs, walk.scratch, plan.grid, body, p.w.constants, walk.counter)
    tidy.tidy(program.body)
    liveness.share(program)
    barrier.insert(program.body, plan.limits.num_warps)
    return program
