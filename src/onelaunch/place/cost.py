"""The time of a placed kernel: an estimate from its statements, under the layouts that Triton gives tensors.

One program waits for itself: its time is what its statements take one after the other, by the elements that each thread
has of them, shuffles and barriers included. Cycles, fitted to H200 times of ``tests/programs`` (docs/notes/cost.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from onelaunch.place.nodes import (
    Arrive,
    Barrier,
    For,
    If,
    Load,
    Op,
    Program,
    Shape,
    Stmt,
    Store,
    Var,
    While,
    defined,
    direct_uses,
    inner_blocks,
    walk,
)

#: instructions of an element, by operation; one where not named
WEIGHTS = {
    **dict.fromkeys(("index_div", "index_mod"), 6),
    **dict.fromkeys(("exp", "exp2", "rsqrt", "sqrt", "div", "int_div", "int_rem"), 14),
    **dict.fromkeys(("log", "rem"), 22),
    **dict.fromkeys(("tanh", "logistic", "log1p", "expm1", "erf", "cbrt"), 30),
    **dict.fromkeys(("sin", "cos", "tan", "atan2", "erf_inv", "sinh", "cosh", "logaddexp", "erfc"), 50),
    "threefry2x32": 75,
    "pow": 150,
    **dict.fromkeys(("lgamma", "digamma", "zeta", "polygamma", "igamma", "igammac"), 300),
}
#: what Triton moves without instructions
FREE = frozenset({"const", "broadcast", "index_to", "index_cast", "squeeze", "arange", "program_id"})
WARP, CLOCK_MHZ, MULTIPROCESSORS = 32, 1750, 132
#: cycles of an instruction that waits for the one before it, and of one that has others to run beside
DEPENDENT, ISSUED, ISSUERS = 2.8, 1.6, 4
#: cycles of a step of shuffles, a value across warps, a change of layout (across warps, within one), a barrier
SHUFFLE, ACROSS_WARPS, RELAYOUT, RELAYOUT_IN_WARP, BARRIER = 30, 160, 130, 80, 80
#: cycles that a load takes beyond its elements', and an element of a load or store
LOAD, ELEMENT = 18, 5
MULTIPLY, TURN, BRANCH, TEST = 3.0, 9, 40, 12
#: registers of a thread, and cycles of a word that finds none
REGISTERS, SPILL = 200, 24
#: microseconds of a launch
LAUNCH_US = 2.0


@dataclass(frozen=True)
class Cost:
    """Of one program: cycles, and instructions of its text (what compiling it takes)."""

    cycles: float
    code: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.cycles + other.cycles, self.code + other.code)

    def times(self, n: float) -> Cost:
        return Cost(self.cycles * n, self.code)


NOTHING = Cost(0, 0)


def cost(program: Program, num_warps: int) -> Cost:
    """What one program of a placed kernel takes with so many warps."""
    return _Walk(num_warps).block(program.body, [])


def microseconds(program: Program, num_warps: int) -> float:
    """The time of a placed kernel on an H200."""
    one = cost(program, num_warps).cycles / CLOCK_MHZ
    beside = max(1.0, program.grid / MULTIPROCESSORS * num_warps / (2 * ISSUERS))
    return LAUNCH_US + one * beside


@dataclass(frozen=True)
class Layout:
    """Triton's blocked layout of a tensor: per dim the threads of a warp, the warps, and the elements of a thread."""

    threads: tuple[int, ...]
    warps: tuple[int, ...]
    elements: tuple[int, ...]


def layout(shape: Shape, num_warps: int) -> Layout:
    """Threads, then warps, along the last dims first."""
    threads, warps, elements = [], [], []
    lanes, groups = WARP, num_warps
    for size in reversed(shape):
        t = min(lanes, size)
        w = min(groups, max(1, size // t))
        lanes, groups = lanes // t, groups // w
        threads.append(t)
        warps.append(w)
        elements.append(max(1, size // (t * w)))
    return Layout(tuple(threads[::-1]), tuple(warps[::-1]), tuple(elements[::-1]))


class _Walk:
    """The cost of statements with a number of warps."""

    def __init__(self, num_warps: int):
        self.num_warps = num_warps
        self.lanes = WARP * num_warps
        self.sharing = max(1.0, num_warps / ISSUERS)

    def block(self, block: list[Stmt], results: list[Var], outside: float = 0.0) -> Cost:
        total = NOTHING
        live = held(block, results, self.lanes, outside)
        for stmt, words_held in zip(block, live, strict=True):
            total += self.stmt(stmt, words_held)
        return total + Cost(SPILL * max(0.0, max(live, default=0.0) - self.registers()), 0)

    def registers(self) -> float:
        """Registers of a thread: the file is shared."""
        return min(REGISTERS, REGISTERS * 8 / self.num_warps)

    def stmt(self, stmt: Stmt, outside: float) -> Cost:
        match stmt:
            case Op():
                return self.op(stmt)
            case Load():
                count = self.count(stmt.out.shape)
                return Cost(LOAD + ELEMENT * count * self.sharing, 2 * count)
            case Store():
                count = self.count(stmt.offset.shape if isinstance(stmt.offset, Var) else ())
                return Cost(ELEMENT * count * self.sharing, 2 * count)
            case Barrier() | Arrive():
                return Cost(BARRIER if self.num_warps > 1 else 8, 1)
            case For():
                turns = -(-(stmt.stop - stmt.start) // stmt.step)
                return (self.block(stmt.body, stmt.results, outside) + Cost(TURN, 4)).times(turns)
            case While():
                test = self.block(stmt.test, [], outside) + Cost(TURN + TEST, 6)
                return (test + self.block(stmt.body, stmt.results, outside)).times(stmt.turns)
            case If():
                then = self.block(stmt.then, stmt.then_results, outside)
                other = self.block(stmt.other, stmt.other_results, outside)
                return Cost(max(then.cycles, other.cycles) + BRANCH, then.code + other.code + 4)

    def count(self, shape: Shape) -> float:
        """Elements that a thread has of a tensor."""
        return max(1.0, math.prod(shape) / self.lanes)

    def issue(self, instructions: float, count: float) -> float:
        """Cycles of instructions on so many elements a thread: alone they wait, many overlap."""
        return instructions * max(DEPENDENT, ISSUED * count * self.sharing)

    def op(self, op: Op) -> Cost:
        if op.fn in FREE:
            return NOTHING
        if op.fn in ("reduce", "reduce_pair", "scan", "pick"):
            return self.reduction(op)
        if op.fn in ("spread", "permute", "gather"):
            return self.move(op)
        if op.fn == "dot":
            return self.dot(op)
        shape = max((out.shape for out in op.outs), key=math.prod)
        count = self.count(shape)
        weight = WEIGHTS.get(op.fn, 1) * (1.5 if _double(op) else 1.0)
        return Cost(self.issue(weight, count), weight * count)

    def reduction(self, op: Op) -> Cost:
        arg = op.args[0]
        assert isinstance(arg, Var)
        axis = int(str(op.attrs[0] if op.fn == "pick" else op.attrs[1]))
        held = layout(arg.shape, self.num_warps)
        kept = math.prod(e for d, e in enumerate(held.elements) if d != axis)
        words = (2 if op.fn == "reduce_pair" else 1) * (2 if arg.dtype.itemsize == 8 else 1)
        steps = math.log2(held.threads[axis])
        count = kept * held.elements[axis] * words
        cycles = self.issue(1, count) + steps * (SHUFFLE + 4 * self.sharing * (kept * words - 1))
        if held.warps[axis] > 1:
            cycles += ACROSS_WARPS + 8 * kept * words * self.sharing
        return Cost(cycles, count + 2 * steps * kept * words + (20 if held.warps[axis] > 1 else 0))

    def move(self, op: Op) -> Cost:
        """A change of layout: through shared memory across warps."""
        arg = op.args[0]
        assert isinstance(arg, Var)
        if op.fn == "spread" and (math.prod(arg.shape) == 1 or op.attrs[0] == (len(op.outs[0].shape) - 1,)):
            return NOTHING
        count = self.count(op.outs[0].shape)
        one = RELAYOUT if self.num_warps > 1 else RELAYOUT_IN_WARP
        return Cost(one + 4 * count * self.sharing, 4 * count)

    def dot(self, op: Op) -> Cost:
        lhs, rhs = op.args[:2]
        assert isinstance(lhs, Var) and isinstance(rhs, Var)
        products = lhs.shape[0] * lhs.shape[1] * rhs.shape[1] / self.lanes
        deep = max(0, lhs.shape[1] - 32)
        return Cost(2 * RELAYOUT + products * MULTIPLY * self.sharing + 8 * deep * SPILL, 2 * products)


def _double(op: Op) -> bool:
    return any(isinstance(a, Var) and a.dtype.kind == "f" and a.dtype.itemsize == 8 for a in op.args)


def words(v: Var, lanes: int) -> float:
    """Registers that a thread holds of a value."""
    if v.dtype == np.dtype(bool):
        return 0.25 * max(1.0, math.prod(v.shape) / lanes)
    return max(1.0, math.prod(v.shape) / lanes) * max(1, v.dtype.itemsize // 4)


def held(block: list[Stmt], results: list[Var], lanes: int, outside: float) -> list[float]:
    """The words that a thread holds after each statement: ``outside``, and what the block made and still reads."""
    last: dict[Var, int] = dict.fromkeys(results, len(block))
    for k in reversed(range(len(block))):
        for v in reads(block[k]):
            last.setdefault(v, k)
    ends: list[float] = [0.0] * (len(block) + 1)
    found, live = [], outside
    for k, stmt in enumerate(block):
        for v in defined(stmt):
            if v.shape and v in last:
                live += words(v, lanes)
                ends[last[v]] += words(v, lanes)
        found.append(live)
        live -= ends[k]
    return found


def reads(stmt: Stmt) -> Iterator[Var]:
    """All that a statement reads, inside its blocks too."""
    yield from direct_uses(stmt)
    for inner in inner_blocks(stmt):
        for s in walk(inner):
            yield from direct_uses(s)
