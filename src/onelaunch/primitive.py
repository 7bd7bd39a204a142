"""The JAX primitive behind ``fuse``: a program that is one kernel on a GPU, and XLA's own anywhere else."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.interpreters import ad, batching, mlir

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
    """The parameter of the primitive: a closed jaxpr, compared by identity, and its kernel made at most once."""

    closed: core.ClosedJaxpr
    name: str
    interpret: bool
    strict: bool

    @functools.cached_property
    def fused(self) -> Fused:
        """Raises nothing: an internal error becomes a refusal that asks for a report."""
        try:
            return fuse_jaxpr(self.closed, self.name, self.strict)
        except Exception as error:
            why = f"an internal error of onelaunch ({type(error).__name__}: {error})"
            refusal = Refusal(None, self.name, why, "Please report it with the function.")
            return Fused(None, None, (), (refusal,), Launches(0, 0))

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
def _abstract(*_: Any, program: Program) -> Sequence[Any]:
    return program.closed.out_avals


@fused_p.def_impl
def _run(*args: Any, program: Program) -> Sequence[Any]:
    return jax.jit(functools.partial(fused_p.bind, program=program))(*args)


def _lower(ctx: Any, *args: Any, program: Program, kernel: bool) -> Any:
    fun = program.by_kernel if kernel and program.fused.kernel is not None else program.by_xla
    return mlir.lower_fun(fun, multiple_results=True)(ctx, *args)


def _lower_cpu(ctx: Any, *args: Any, program: Program) -> Any:
    return _lower(ctx, *args, program=program, kernel=program.interpret)


def _lower_gpu(ctx: Any, *args: Any, program: Program) -> Any:
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


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, program: Program) -> Any:
    """XLA's program is differentiated; tangents that are symbolically zero stay so, in and out, as under jax.jit."""
    live = [type(t) is not ad.Zero for t in tangents]
    closed, live_outs = compat.jvp_jaxpr(program.closed, live)
    outs = core.jaxpr_as_fun(closed)(*primals, *(t for t in tangents if type(t) is not ad.Zero))
    found = iter(outs[len(live_outs) :])
    outs = outs[: len(live_outs)]
    return outs, [
        next(found) if there else ad.Zero(jax.typeof(x).to_tangent_aval()) for x, there in zip(outs, live_outs)
    ]


def _transpose(cotangents: Sequence[Any], *args: Any, program: Program) -> list[Any]:
    """XLA's program is transposed in the arguments in which it is linear."""
    linear = [ad.is_undefined_primal(a) for a in args]

    def fun(*xs: Any) -> list[Any]:
        given = iter(xs)
        return program.by_xla(*(next(given) if free else a for a, free in zip(args, linear)))

    free = [jax.ShapeDtypeStruct(a.aval.shape, a.aval.dtype) for a in args if ad.is_undefined_primal(a)]
    found = iter(jax.linear_transpose(fun, *free)([ad.instantiate_zeros(c) for c in cotangents]))
    return [next(found) if free else None for free in linear]


def _batch(args: Sequence[Any], dims: Sequence[Any], *, program: Program) -> Any:
    """The kernel of the vmapped program."""
    batched = jax.vmap(program.by_xla, in_axes=list(dims))
    closed = jax.make_jaxpr(batched)(*args)
    outs = fused_p.bind(*args, program=dataclasses.replace(program, closed=closed))
    return outs, [0] * len(outs)


ad.primitive_jvps[fused_p] = _jvp
ad.primitive_transposes[fused_p] = _transpose
batching.primitive_batchers[fused_p] = _batch
