"""A jaxpr to one kernel, or the refusal that says why it is none."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

import numpy as np
from jax.extend import core

from onelaunch import trace
from onelaunch.emit.kernel import Kernel
from onelaunch.errors import FusionError, Refusal, Where
from onelaunch.ir.nodes import Graph, Loop
from onelaunch.launch import jax as launch
from onelaunch.ops.checks import Check
from onelaunch.ops.launches import Launches, estimate
from onelaunch.pipeline import compile_graph, estimate_us
from onelaunch.rewrite import rewrite
from onelaunch.schedule.plan import Plan

#: A kernel is refused if its estimated time is more than so many times XLA's.
SLOWER = 0.95
#: The same of a part of a program: it ends XLA's own fusions beside it, and it runs once a turn.
SLOWER_PART = 0.7
#: Below so many microseconds a kernel is never refused: nothing much can be lost.
SMALL_US = 30
#: Elements of an array from which 32-bit offsets do not reach.
LONGEST = 2**31
NOTHING = 'Nothing is to be done: it runs in XLA. fuse(f, fallback="error") makes the kernel all the same.'


@dataclass(frozen=True)
class Fused:
    """A function's kernel and its plan, or the refusal that keeps it in XLA.

    before: launches and time under XLA, estimated. kernel_us: the kernel's estimated time (both for an H200).
    checks: what the kernel's last two results say about the program's run-time checks. args: the arguments that the
    kernel takes, by number (all but unread ones of a dtype that it has not).
    """

    kernel: Kernel | None
    plan: Plan | None
    consts: tuple[np.ndarray, ...]
    refusals: tuple[Refusal, ...]
    before: Launches
    kernel_us: float = 0.0
    checks: tuple[Check, ...] = ()
    args: tuple[int, ...] = ()


def fuse_jaxpr(closed: core.ClosedJaxpr, name: str, strict: bool = False, part: bool = False) -> Fused:
    """Kernel and plan of a closed jaxpr; a refusal where it can't be one kernel, or (unless ``strict``) would lose.

    ``part``: of a larger program, which must gain more. Raises nothing: an error of onelaunch's own is a
    refusal as well, of stage "internal".
    """
    try:
        return _fuse(closed, name, strict, part)
    except FusionError as error:
        refusal = error.refusal
    except Exception as error:
        refusal = Refusal.internal(None, name, error)
    refusal = dataclasses.replace(refusal, where=refusal.where or place_of(closed))
    return Fused(None, None, (), (refusal,), _estimate(closed))


def _fuse(closed: core.ClosedJaxpr, name: str, strict: bool, part: bool) -> Fused:
    args = trace.readable(closed)
    traced, checks = trace.to_checked_graph(closed, name, args)
    graph = rewrite(traced)
    plan, kernel = compile_graph(graph)
    _check_size(kernel, name)
    time, before = estimate_us(graph, plan), _estimate(closed)
    consts = tuple(c for _, c in graph.consts)
    most = SLOWER_PART * before.us if part else max(SMALL_US, SLOWER * before.us)
    if not strict and time > most:
        why = dataclasses.replace(_loses(name, time, before), where=_place(graph) or place_of(closed))
        return Fused(None, None, consts, (why,), before, time)
    return Fused(kernel, plan, consts, (), before, time, checks, args)


def _estimate(closed: core.ClosedJaxpr) -> Launches:
    try:
        return estimate(closed.jaxpr)
    except Exception:  # symbolic shapes
        return Launches(0, 0)


def _check_size(kernel: Kernel, name: str) -> None:
    """Refuse a kernel whose arrays the GPU or 32-bit offsets can't hold, before it is compiled."""
    total, limit = sum(p.nbytes for p in kernel.params), launch.memory_bytes()
    if total > limit:
        scratch = sum(p.nbytes for p in kernel.params if p.role == "scratch")
        why = (
            f"as one kernel it takes {total:,} bytes at once, {scratch:,} of them for its state, and the GPU has "
            f"{limit:,}"
        )
        raise FusionError(Refusal(None, name, why, "It stays in XLA; carry less through loops, or split it.", "limits"))
    for p in kernel.params:
        if p.nbytes // p.dtype.itemsize >= LONGEST:
            why = f"an array of {p.nbytes:,} bytes ({p.nbytes // p.dtype.itemsize:,} elements) is too long for a kernel"
            raise FusionError(Refusal(None, name, why, "It stays in XLA; split the array.", "limits"))


def _loses(name: str, time: float, before: Launches) -> Refusal:
    """The refusal of a kernel that would be slower than XLA."""
    why = (
        f"one kernel would be slower (estimated {time / 1e3:.3g} ms, XLA's {before.count:.0f} launches "
        f"{before.us / 1e3:.3g} ms on an H200): it is bound by arithmetic or memory, not by launches"
    )
    return Refusal(None, name, why, NOTHING, "cost")


def _place(graph: Graph) -> Where | None:
    """Where a graph's first loop stands, or its first node."""
    nodes = [*(x for x in graph.block.nodes if isinstance(x, Loop)), *graph.block.nodes]
    return next((x.where for x in nodes if x.where is not None), None)


def place_of(closed: core.ClosedJaxpr) -> Where | None:
    """Where the traced function is defined."""
    known = getattr(closed.jaxpr.debug_info, "func_src_info", None) or ""
    found = re.fullmatch(r"(.*) at (.*):(\d+)", known)
    return Where(found[2], int(found[3]), found[1]) if found else None
