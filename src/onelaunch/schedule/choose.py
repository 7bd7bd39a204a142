"""choose: the plan to use where nothing was measured."""

from __future__ import annotations

import dataclasses
import math

from onelaunch.analyse.axes import Axes
from onelaunch.ir import nodes as n
from onelaunch.ir.nodes import Graph
from onelaunch.schedule.homes import computed, held_words, parallel_axis
from onelaunch.schedule.plan import Limits

#: Programs that keep one H200 busy; below it features go to lanes, above it chains do.
MULTIPROCESSORS = 132
PROGRAMS = MULTIPROCESSORS * 4


#: Registers a thread may hold through a loop for unrolled values; beyond, dims longer than 4 go to lanes.
HELD_WORDS = 100


#: Elements of one member of an ensemble that fill a program of several warps.
WIDE = 1024


def choose(graph: Graph, axes: Axes, late: frozenset[n.Node] = frozenset()) -> Limits:
    """The first choice; with fewer unrolled dims where it would hold too much in registers."""
    limits = first_choice(graph, axes, late)
    if late and limits.lanes == 32 and axes_extent(graph, axes, late) >= 128 * MULTIPROCESSORS:
        limits = dataclasses.replace(limits, lanes=128, num_warps=4)  # the last program has more to do
    if limits.held > HELD_WORDS * 4 and held_words(graph, axes, limits, late) > HELD_WORDS:
        return dataclasses.replace(limits, unroll_dim=4)
    return limits


def axes_extent(graph: Graph, axes: Axes, late: frozenset[n.Node]) -> int:
    """The extent of the parallel axis, 0 if there is none."""
    batch = parallel_axis(graph, axes, late)
    return batch[0].shape[batch[1]] if batch is not None else 0


def first_choice(graph: Graph, axes: Axes, late: frozenset[n.Node]) -> Limits:
    """Limits by the extent of the parallel axis and by what else there is to spread over lanes."""
    batch = parallel_axis(graph, axes, late)
    if batch is None:
        return one_program(graph)
    extent = batch[0].shape[batch[1]]
    members = {v for v, _ in axes.members[axes.find(batch)]}
    widest = max((v.size // (extent if v in members else 1) for v in computed(graph, late)), default=1)
    if widest <= Limits.unroll_dim:
        return Limits(lanes=min(32, _pow2_below(extent)), num_warps=1)
    if extent <= PROGRAMS or widest >= WIDE:
        return dataclasses.replace(one_program(graph), lanes=1)
    if extent <= PROGRAMS * 8:
        return Limits(lanes=2 * _pow2_below(extent // PROGRAMS), num_warps=1)
    return Limits(unroll_dim=32, unroll_value=256, lanes=32, num_warps=1, held=32)


def one_program(graph: Graph) -> Limits:
    """Limits for a program with no parallel axis: more warps where what loops compute is larger."""
    loops = [node for node in n.walk(graph.block) if isinstance(node, n.Loop)]
    inside = {v for loop in loops for child in n.walk(loop.body) for v in n.outputs(child)}
    widest = max((v.size for v in computed(graph) if v in inside or not loops), default=1)
    warps = 1 if widest <= 128 else 4 if widest <= 2048 else 8 if widest <= Limits.tile else 16
    return Limits(num_warps=warps)


def _pow2_below(x: int) -> int:
    return 1 << int(math.log2(x))
