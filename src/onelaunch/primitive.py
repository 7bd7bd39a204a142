"""The JAX primitive behind ``fuse``: a program that is one kernel on a GPU, and XLA's own anywhere else.

Its derivatives and its rule under ``vmap`` are in ``derive``.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.interpreters import mlir

from onelaunch import build, compat, trace
from onelaunch.emit.kernel import Kernel
from onelaunch.errors import BuildError, FusionError, Refusal
from onelaunch.ir.nodes import Graph, Loop
from onelaunch.launch import jax as launch
from onelaunch.ops.checks import Check, raise_failed
from onelaunch.ops.launches import Launches, estimate
from onelaunch.ops.words import from_words, to_words
from onelaunch.pipeline import compile_graph, estimate_us
from onelaunch.rewrite import rewrite
from onelaunch.schedule.plan import Plan

#: A kernel is refused if its estimated time is more than so many times XLA's.
SLOWER = 0.95
#: Below so many microseconds a kernel is never refused: nothing much can be lost.
SMALL_US = 30


@dataclass(frozen=True)
class Fused:
    """A function's kernel and its plan, or the refusal that keeps it in XLA.

    before: launches and time under XLA, estimated. kernel_us: the kernel's estimated time (both for an H200).
    checks: what the kernel's last two results say about the program's run-time checks.
    """

    kernel: Kernel | None
    plan: Plan | None
    consts: tuple[np.ndarray, ...]
    refusals: tuple[Refusal, ...]
    before: Launches
    kernel_us: float = 0.0
    checks: tuple[Check, ...] = ()


def fuse_jaxpr(closed: core.ClosedJaxpr, name: str, strict: bool = False) -> Fused:
    """Kernel and plan of a closed jaxpr; a refusal where it can't be one kernel, or (unless ``strict``) would lose."""
    before = estimate(closed.jaxpr)
    try:
        traced, checks = trace.to_checked_graph(closed, name)
        graph = rewrite(traced)
        plan, kernel = compile_graph(graph)
    except FusionError as error:
        return Fused(None, None, (), (error.refusal,), before)
    time = estimate_us(graph, plan)
    consts = tuple(c for _, c in graph.consts)
    if not strict and time > max(SMALL_US, SLOWER * before.us):
        return Fused(None, None, consts, (_loses(graph, name, time, before),), before, time)
    return Fused(kernel, plan, consts, (), before, time, checks)


def _loses(graph: Graph, name: str, time: float, before: Launches) -> Refusal:
    """The refusal of a kernel that would be slower than XLA."""
    nodes = [*(x for x in graph.block.nodes if isinstance(x, Loop)), *graph.block.nodes]
    where = next((x.where for x in nodes if x.where is not None), None)
    why = (
        f"one kernel would be slower (estimated {time / 1e3:.3g} ms, XLA's {before.count:.0f} launches "
        f"{before.us / 1e3:.3g} ms on an H200): it is bound by arithmetic or memory, not by launches"
    )
    return Refusal(
        where, name, why, 'Nothing: it runs in XLA. fuse(f, fallback="error") makes the kernel all the same.'
    )


# --- the primitive -----------------------------------------------------------------------------------------

fused_p = core.Primitive("onelaunch_fused")
fused_p.multiple_results = True


@dataclass(frozen=True, eq=False)
class Program:
    """The parameter of the primitive: a closed jaxpr, compared by identity, and its kernel made at most once.

    derived: the programs made of this one (its derivatives, itself over a batch), by what was asked.
    """

    closed: core.ClosedJaxpr = field(repr=False)
    name: str
    interpret: bool
    strict: bool
    derived: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    def bind(self, *args: Any) -> list[Any]:
        """The program as one equation; its jaxpr is a parameter too, where JAX looks for inner jaxprs."""
        bind: Any = fused_p.bind
        return list(bind(*args, call_jaxpr=self.closed, program=self))

    def of(self, closed: core.ClosedJaxpr, suffix: str = "") -> Program:
        """Another jaxpr under the same options; ``suffix`` ends its kernel's name."""
        return Program(closed, self.name + suffix, self.interpret, self.strict)

    @functools.cached_property
    def fused(self) -> Fused:
        """Raises nothing: an internal error becomes a refusal that asks for a report."""
        try:
            return fuse_jaxpr(self.closed, self.name, self.strict)
        except Exception as error:
            why = f"an internal error of onelaunch ({type(error).__name__}: {error})"
            refusal = Refusal(None, self.name, why, "Please report it with the function.")
            return Fused(None, None, (), (refusal,), Launches(0, 0))

    @functools.cached_property
    def jitted(self) -> Any:
        """The program under ``jax.jit``, for a call outside of any."""
        return jax.jit(self.bind)

    def by_xla(self, *args: Any) -> list[Any]:
        """The same program, left to XLA."""
        return core.jaxpr_as_fun(self.closed)(*args)

    def by_kernel(self, *args: Any) -> list[Any]:
        """The program as one launch; typed keys and complex numbers go in and come out as their words."""
        kernel = self.fused.kernel
        assert kernel is not None
        words = [to_words(a) for a in args]
        inputs = [a for a in (*words, *map(jnp.asarray, self.fused.consts)) if a.size]
        found = iter(launch.call(kernel, *inputs) if any(p.role == "out" for p in kernel.params) else ())
        outs = []
        for aval in self.closed.out_avals:
            if aval.size:
                outs.append(from_words(aval, next(found)))
            else:
                outs.append(jnp.zeros(aval.shape, aval.dtype))
        checks = self.fused.checks
        return raise_failed(checks, next(found), next(found), outs) if checks else outs


@fused_p.def_abstract_eval
def _abstract(*_: Any, call_jaxpr: core.ClosedJaxpr, program: Program) -> Sequence[Any]:
    return call_jaxpr.out_avals


@fused_p.def_impl
def _run(*args: Any, call_jaxpr: core.ClosedJaxpr, program: Program) -> Sequence[Any]:
    return program.by_xla(*args) if compat.jit_is_disabled() else program.jitted(*args)


def _lower(ctx: Any, *args: Any, program: Program, kernel: bool) -> Any:
    if program.strict and program.fused.refusals:  # of a derivative or a batch: fuse raises for the function itself
        raise FusionError(program.fused.refusals[0])
    fun = program.by_kernel if kernel and program.fused.kernel is not None else program.by_xla
    return mlir.lower_fun(fun, multiple_results=True)(ctx, *args)


def _lower_cpu(ctx: Any, *args: Any, call_jaxpr: core.ClosedJaxpr, program: Program) -> Any:
    return _lower(ctx, *args, program=program, kernel=program.interpret)


def _lower_gpu(ctx: Any, *args: Any, call_jaxpr: core.ClosedJaxpr, program: Program) -> Any:
    """The kernel if Triton can build it; else XLA, with one warning that says how to report it."""
    kernel = program.fused.kernel
    if kernel is not None:
        try:
            build.compile(kernel, launch.device_target())
        except BuildError as error:
            warnings.warn(f"{program.name} runs in XLA: {error}. Please report this with the function.", stacklevel=2)
            kernel = None
    return _lower(ctx, *args, program=program, kernel=kernel is not None)


mlir.register_lowering(fused_p, _lower_cpu)
mlir.register_lowering(fused_p, _lower_gpu, platform="cuda")
