"""walk: one row through the whole backend, under a plan of each kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

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
#: loops; alone and ragged: the parallel axis over programs, one element and four of it in each.
PLANS: dict[str, Limits | None] = {
    "chosen": None,
    "lanes": Limits(unroll_dim=1),
    "long": Limits(unroll_dim=1, tile=16, work=64),
    "alone": Limits(lanes=1),
    "ragged": Limits(lanes=4),
}
ALWAYS = ("chosen", "lanes", "long")

BATCH = 5


def graph_of(case: Row) -> Graph:
    """The rewritten Graph of a row."""
    with flags(case):
        return rewrite(to_graph(traced(case), "kernel"))


def plans(graph: Graph) -> tuple[str, ...]:
    """The kinds of plan that differ for a Graph."""
    return tuple(PLANS) if parallel_axis(graph, axes.analyse(graph)) is not None else ALWAYS


def kernel_of(graph: Graph, plan: str) -> Kernel:
    return compile_graph(graph, PLANS[plan])[1]


def wanted(case: Row) -> list[np.ndarray]:
    """What jax.jit computes."""
    with flags(case):
        return [raw(y) for y in jax.tree.leaves(jax.jit(case.fn)(*case.args))]


def run(graph: Graph, kernel: Kernel, args: Sequence[np.ndarray], order: str = "forward") -> list[np.ndarray]:
    """The outputs of a Graph's kernel in the interpreter; arrays without elements are no arguments of it."""
    inputs = [x for x in (*args, *(c for _, c in graph.consts)) if x.size]
    found = iter(interpreter.run(kernel, inputs, order=order))
    return [next(found) if v.size else np.zeros(v.shape, v.dtype) for v in graph.block.results]


def check(case: Row, plan: str, graph: Graph | None = None, want: Sequence[np.ndarray] | None = None) -> Kernel:
    """Assert that a row's kernel under a plan computes what jax.jit does; the kernel."""
    graph = graph_of(case) if graph is None else graph
    want = wanted(case) if want is None else want
    kernel = kernel_of(graph, plan)
    got = run(graph, kernel, [raw(a) for a in case.args], "reverse" if plan == "ragged" else "shuffled")
    assert len(got) == len(want)
    for i, (x, y) in enumerate(zip(got, want, strict=True)):
        agree(x, y, case.ulps, case.floor, f"{case.name}[{i}] under {plan}")
    return kernel


def batched(case: Row, batch: int = BATCH) -> Row:
    """The row under vmap, over copies of its arguments that differ where any order of elements would do."""
    args = tuple(np.stack([_turned(a, k) for k in range(batch)]) for a in case.args)
    return replace(case, name=f"{case.name}_batched", fn=partial(_vmapped, case.fn), args=args)


def _vmapped(fn: object, *args: object) -> object:
    return jax.vmap(fn)(*args)  # type: ignore[arg-type]


def _turned(a: np.ndarray, k: int) -> np.ndarray:
    return np.roll(a.reshape(-1), k).reshape(a.shape)
