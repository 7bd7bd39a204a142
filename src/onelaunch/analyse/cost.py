"""The time of a kernel under a plan: an estimate from element operations, memory traffic and dependent steps.

Microseconds on one H200, fitted to the programs in ``tests/programs`` (docs/notes/cost.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from onelaunch.ir import nodes as n
from onelaunch.ir.nodes import Value

#: instructions of an element, by scalar function; one where not named
WEIGHTS = {
    **dict.fromkeys(("exp", "log", "exp2", "sqrt", "rsqrt", "div"), 10),
    **dict.fromkeys(("tanh", "logistic", "log1p", "expm1", "sin", "cos", "tan", "logaddexp"), 25),
    **dict.fromkeys(("pow", "erf", "erfc", "erf_inv", "atan2", "sinh", "cosh", "cbrt"), 50),
    **dict.fromkeys(("lgamma", "digamma", "igamma", "igammac", "zeta", "polygamma"), 200),
    "threefry2x32": 110,
}
UNKNOWN_TURNS = 100
MULTIPROCESSORS = 132
#: element operations a microsecond of one multiprocessor, at one warp and at most
RATE_OF_WARP, RATE = 12_000, 100_000
#: microseconds of one dependent node, and operations that an element in memory costs besides
NODE_US, MEMORY = 0.015, 10
#: nodes that a reduction takes as long as, within a warp and across warps
REDUCE_STEPS, REDUCE_STEPS_OF_WARPS = 15, 60


@dataclass(frozen=True)
class Cost:
    """Element operations of one program, and nodes executed one after the other."""

    work: float
    steps: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.work + other.work, self.steps + other.steps)

    def times(self, k: float) -> Cost:
        return Cost(self.work * k, self.steps * k)


def kernel_us(graph: n.Graph, share: dict[Value, float], in_memory: set[Value], grid: int, num_warps: int) -> float:
    """The time of a kernel: ``share`` is the part of a value that one program computes (1 where not listed)."""
    cost = _block(graph.block, share, in_memory, REDUCE_STEPS if num_warps == 1 else REDUCE_STEPS_OF_WARPS)
    rate = min(RATE, RATE_OF_WARP * num_warps)
    resident = max(1, min(grid, MULTIPROCESSORS * max(1, RATE // rate)))
    return 2.0 + max(cost.work / rate * grid / resident, cost.steps * NODE_US)


def _block(block: n.Block, share: dict[Value, float], in_memory: set[Value], wait: float) -> Cost:
    total = Cost(0, 0)
    for node in block.nodes:
        total += _node(node, share, in_memory, wait)
    return total


def _node(node: n.Node, share: dict[Value, float], in_memory: set[Value], wait: float) -> Cost:
    match node:
        case n.Loop():
            turns = node.trip if node.trip is not None else UNKNOWN_TURNS
            inner = sum((_block(b, share, in_memory, wait) for b in n.blocks(node)), Cost(0, 1))
            return inner.times(turns)
        case n.Branch():
            return max((_block(b, share, in_memory, wait) for b in node.blocks), key=lambda c: c.work)
        case n.Map(outs=outs):
            out = outs[0]
            weight = WEIGHTS.get(node.fn, 1) * (2 if out.dtype.itemsize == 8 and out.dtype.kind == "f" else 1)
            weight += MEMORY if out in in_memory else 0
            return Cost(out.size * share.get(out, 1) * weight, 1)
        case n.Reduce(arg=arg) | n.Scan(arg=arg):
            return Cost(arg.size * share.get(arg, 1) * (1 + (MEMORY if arg in in_memory else 0)), wait)
        case n.Dot():
            depth = math.prod(node.lhs.shape[d] for d in node.contract[0])
            return Cost(node.out.size * share.get(node.out, 1) * depth * 2, wait)
        case n.Update():
            return Cost(node.updates.size * share.get(node.updates, 1) * MEMORY, 2)
        case n.Gather():
            return Cost(node.out.size * share.get(node.out, 1) * 4, 2)
        case _:
            return Cost(0, 0)
