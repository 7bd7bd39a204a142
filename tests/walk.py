"""walk: one row through the whole backend, under a plan of each kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np

from cases import flags, traced
from compare import agree
from onelaunch.analyse import axes
from onelaunch.emit.kernel import Kernel
from onelaunch.ir.nodes import Graph
from onelaunch.launch import interpreter
from onelaunch.ops.words import raw
from onelaunch.pipeline import compile_graph
from onelaunch.rewrite import rewrite
from onelaunch.schedule.homes import parallel_axis
from onelaunch.schedule.plan import Limits
from onelaunch.trace import to_graph
from rows.row import Row

#: The kinds of plan: None is the chosen one. lanes: every dim on lanes; long: tiles so small that all is in memory and
#: loops; alone and ragged: the parallel axis over programs, one element and four of it in each; mixed: some of all.
PLANS: dict[str, Limits | None] = {
    "chosen": None,
    "lanes": Limits(unroll_dim=1),
    "long": Limits(unroll_dim=1, tile=16, work=64),
    "alone": Limits(lanes=1),
    "ragged": Limits(lanes=4),
    "mixed": Limits(unroll_dim=3, unroll_value=8, tile=64, work=128, small_stack=4),
}
#: The plans that a row walks where it has a parallel axis,
EVERY = ("chosen", "lanes", "long", "alone", "ragged")
#: and where it has none.
PLAIN = ("chosen", "lanes", "long")
#: The extent of the axis that ``batched`` adds.
BATCH = 5


@dataclass(frozen=True, eq=False)
class Walk:
    """A row, its Graph before and after rewriting, and what jax.jit computes."""

    case: Row
    traced: Graph
    graph: Graph
    args: tuple[np.ndarray, ...]
    want: tuple[np.ndarray, ...]

    @property
    def plans(self) -> tuple[str, ...]:
        """The kinds of plan that differ for this Graph."""
        return EVERY if parallel_axis(self.graph, axes.analyse(self.graph)) is not None else PLAIN

    def kernel(self, plan: str) -> Kernel:
        return compile_graph(self.graph, PLANS[plan])[1]

    def check(self, plan: str) -> Kernel:
        """Assert that the kernel under a plan computes, in the interpreter, what jax.jit does; the kernel."""
        kernel = self.kernel(plan)
        order = "reverse" if plan == "ragged" else "shuffled"
        self.compare(run(self.graph, kernel, self.args, order), plan)
        return kernel

    def compare(self, got: Sequence[np.ndarray], what: str) -> None:
        assert len(got) == len(self.want)
        for i, (x, y) in enumerate(zip(got, self.want, strict=True)):
            agree(x, y, self.case.ulps, self.case.floor, f"{self.case.name}[{i}], {what}")


def start(case: Row) -> Walk:
    """Trace and rewrite a row, and run it by jax.jit."""
    with flags(case):
        graph = to_graph(traced(case), "kernel")
        want = tuple(raw(y) for y in jax.tree.leaves(jax.jit(case.fn)(*case.args)))
    return Walk(case, graph, rewrite(graph), tuple(raw(a) for a in case.args), want)


def run(graph: Graph, kernel: Kernel, args: Sequence[np.ndarray], order: str = "forward") -> list[np.ndarray]:
    """The outputs of a Graph's kernel in the interpreter; arrays without elements are no arguments of it."""
    inputs = [x for x in (*args, *(c for _, c in graph.consts)) if x.size]
    found = iter(interpreter.run(kernel, inputs, order=order))
    return [next(found) if v.size else np.zeros(v.shape, v.dtype) for v in graph.block.results]


def batched(case: Row) -> Row:
    """The row under vmap, over turned copies of its arguments."""
    args = tuple(np.stack([_turned(a, k) for k in range(BATCH)]) for a in case.args)
    return replace(case, name=f"{case.name}_batched", fn=partial(_vmapped, case.fn), args=args)


def _vmapped(fn: Any, *args: Any) -> Any:
    return jax.vmap(fn)(*args)


def _turned(a: np.ndarray, k: int) -> np.ndarray:
    return np.roll(a.reshape(-1), k).reshape(a.shape)
