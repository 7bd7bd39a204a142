"""What users call: ``fuse``, the stages behind it, and ``explain``."""

from __future__ import annotations

import dataclasses
import functools
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.interpreters import ad, batching, mlir

from onelaunch import build, target, trace
from onelaunch.emit.kernel import Kernel
from onelaunch.errors import BuildError, FusionError, OptionError, Refusal
from onelaunch.ir.nodes import Graph
from onelaunch.launch import jax as launch
from onelaunch.ops.words import from_words, to_words
from onelaunch.pipeline import compile_graph
from onelaunch.rewrite import rewrite
from onelaunch.schedule.plan import Plan

FALLBACKS = ("xla", "error")


@dataclass(frozen=True)
class Fused:
    """A function's kernel and its plan, or the refusal that keeps it in XLA."""

    kernel: Kernel | None
    plan: Plan | None
    consts: tuple[np.ndarray, ...]
    refusals: tuple[Refusal, ...]


def fuse_jaxpr(closed: core.ClosedJaxpr, name: str) -> Fused:
    """Kernel and plan of a closed jaxpr; a refusal where it can't be one kernel."""
    try:
        graph: Graph = rewrite(trace.to_graph(closed, name))
        plan, kernel = compile_graph(graph)
    except FusionError as error:
        return Fused(None, None, (), (error.refusal,))
    return Fused(kernel, plan, tuple(c for _, c in graph.consts), ())


# --- the primitive -----------------------------------------------------------------------------------------

fused_p = core.Primitive("onelaunch_fused")
fused_p.multiple_results = True


@dataclass(frozen=True, eq=False)
class Program:
    """The parameter of the primitive: a closed jaxpr, compared by identity, and its kernel made at most once."""

    closed: core.ClosedJaxpr
    name: str
    interpret: bool

    @functools.cached_property
    def fused(self) -> Fused:
        """Raises nothing: an internal error becomes a refusal that asks for a report."""
        try:
            return fuse_jaxpr(self.closed, self.name)
        except Exception as error:
            why = f"an internal error of onelaunch ({type(error).__name__}: {error})"
            return Fused(None, None, (), (Refusal(None, self.name, why, "Please report it with the function."),))

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
        return outs


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
    full = [ad.instantiate_zeros(t) for t in tangents]
    return jax.jvp(lambda *xs: program.by_xla(*xs), tuple(primals), tuple(full))


def _batch(args: Sequence[Any], dims: Sequence[Any], *, program: Program) -> Any:
    """The kernel of the vmapped program."""
    batched = jax.vmap(program.by_xla, in_axes=list(dims))
    closed = jax.make_jaxpr(batched)(*args)
    outs = fused_p.bind(*args, program=dataclasses.replace(program, closed=closed))
    return outs, [0] * len(outs)


ad.primitive_jvps[fused_p] = _jvp
batching.primitive_batchers[fused_p] = _batch


# --- the public face ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lowered:
    """What ``fuse`` made of a function at given argument types.

    launches: kernels that onelaunch launches for a call (1; 0 if the program stays in XLA).
    refusals: why it stays there, each with where, what, why, fix.
    """

    name: str
    fused: Fused

    @property
    def launches(self) -> int:
        return int(self.fused.kernel is not None)

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        return self.fused.refusals

    @property
    def kernel(self) -> Kernel:
        """The generated kernel; FusionError if there is none."""
        if self.fused.kernel is None:
            raise FusionError(self.refusals[0])
        return self.fused.kernel

    @property
    def source(self) -> str:
        """The Triton module as text; FusionError if there is none."""
        return self.kernel.source

    @property
    def plan(self) -> Plan:
        """Homes and launch parameters; ``str(plan)`` is one line. FusionError if there is none."""
        assert self.kernel and self.fused.plan is not None
        return self.fused.plan

    def compile(self, target: str | None = None) -> build.Built:
        """Machine code for ``target`` ("cuda:90", "hip:gfx942", ...; this machine's GPU or sm_90 by default).

        Returns a value with ``.resources`` (registers, spilled bytes, shared bytes, num_warps) and ``.asm``. Raises
        OptionError for an unknown target, BuildError if Triton fails, FusionError if there is no kernel.
        """
        return build.compile(self.kernel, _target(target))


def _target(name: str | None) -> target.Target:
    return launch.device_target() if name is None else target.parse(name)


class fuse:  # noqa: N801 - reads as a function, like jax.jit
    """Compile a JAX function, loops and random numbers included, to one GPU kernel.

    ``fuse(f)`` is used like ``jax.jit(f)`` (also as a decorator, with or without arguments) and gives the same values:
    on a GPU in one launch, on a machine without one through XLA. What can't be one kernel stays in XLA.

    Args:
      fun: the function; pytrees in and out.
      static_argnums, static_argnames, donate_argnums: as in ``jax.jit``.
      fallback: "xla" (default), or "error" to raise FusionError, with the user's file and line, instead.

    With ``ONELAUNCH_INTERPRET=1`` in the environment when ``fuse`` is called, a CPU runs the generated kernel itself,
    in Triton's interpreter. Raises OptionError for an unknown ``fallback``, TypeError if ``fun`` is not callable; at a
    call, whatever ``jax.jit(fun)`` raises.
    """

    def __new__(cls, fun: Callable[..., Any] | None = None, **options: Any) -> Any:
        if fun is None:
            return functools.partial(cls, **options)
        return super().__new__(cls)

    def __init__(
        self,
        fun: Callable[..., Any] | None = None,
        *,
        static_argnums: int | Sequence[int] | None = None,
        static_argnames: str | Iterable[str] | None = None,
        donate_argnums: int | Sequence[int] | None = None,
        fallback: str = "xla",
    ):
        if fallback not in FALLBACKS:
            raise OptionError(f"fallback must be one of {', '.join(map(repr, FALLBACKS))}, not {fallback!r}")
        if not callable(fun):
            raise TypeError(f"fuse takes a function, not {type(fun).__name__}")
        self.fallback = fallback
        self.interpret = os.environ.get("ONELAUNCH_INTERPRET") == "1"
        static = {"static_argnums": static_argnums, "static_argnames": static_argnames}
        self._plain = jax.jit(fun, **static)  # type: ignore[arg-type]
        self._name = _identifier(getattr(fun, "__name__", type(fun).__name__))
        functools.update_wrapper(self, fun)

        @functools.wraps(fun)
        def inner(*args: Any, **kwargs: Any) -> Any:
            return self._traced(*args, **kwargs)

        self._jitted = jax.jit(inner, donate_argnums=donate_argnums, **static)  # type: ignore[arg-type]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._jitted(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """A fused method binds like a function."""
        return self if instance is None else functools.partial(self, instance)

    def _traced(self, *args: Any, **kwargs: Any) -> Any:
        """Runs while jax.jit traces: the program's jaxpr bound as one primitive."""
        traced = self._plain.trace(*args, **kwargs)
        closed = traced.jaxpr
        if closed.effects and self.fallback == "xla":
            return self._plain(*args, **kwargs)
        leaves = [x for x in jax.tree.leaves((args, kwargs)) if isinstance(x, jax.core.Tracer)]
        closed, outer = _free(closed)
        program = Program(closed, self._name, self.interpret)
        if self.fallback == "error" and program.fused.refusals:
            raise FusionError(program.fused.refusals[0])
        outs = fused_p.bind(*outer, *leaves, program=program)
        return jax.tree.unflatten(jax.tree.structure(traced.out_info), outs)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Trace for the types of ``args`` (arrays or ``jax.ShapeDtypeStruct``) and generate the kernel."""
        closed = self._plain.trace(*args, **kwargs).jaxpr
        lowered = Lowered(self._name, Program(closed, self._name, self.interpret).fused)
        if self.fallback == "error" and lowered.refusals:
            raise FusionError(lowered.refusals[0])
        return lowered

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        return self._plain.eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        """Forget every compiled signature."""
        self._plain.clear_cache()
        self._jitted.clear_cache()


def _free(closed: core.ClosedJaxpr) -> tuple[core.ClosedJaxpr, list[Any]]:
    """Tracers that the function closes over become leading arguments."""
    outer = [c for c in closed.consts if isinstance(c, jax.core.Tracer)]
    if not outer:
        return closed, []
    jaxpr = closed.jaxpr
    moved = [v for v, c in zip(jaxpr.constvars, closed.consts) if isinstance(c, jax.core.Tracer)]
    stay = [(v, c) for v, c in zip(jaxpr.constvars, closed.consts) if not isinstance(c, jax.core.Tracer)]
    opened = jaxpr.replace(constvars=[v for v, _ in stay], invars=[*moved, *jaxpr.invars], debug_info=jaxpr.debug_info)
    return core.ClosedJaxpr(opened, [c for _, c in stay]), outer


def _identifier(name: str) -> str:
    """A Python identifier for the kernel, from the function's name."""
    clean = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name).strip("_")
    return clean if clean.isidentifier() and clean != "kernel" else "kernel"
