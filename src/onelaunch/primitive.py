"""The JAX primitive behind ``fuse``: a program that is one kernel on a GPU, and XLA's own anywhere else.

Its derivatives and its rule under ``vmap`` are in ``derive``.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core
from jax.interpreters import mlir

from onelaunch import build, compat, partition
from onelaunch.errors import REPORT, FusionError, Refusal
from onelaunch.launch import jax as launch
from onelaunch.ops.checks import raise_failed
from onelaunch.ops.words import from_words, to_words
from onelaunch.partition import Parts
from onelaunch.single import Fused, fuse_jaxpr, place_of


def _warn(refusal: Refusal) -> None:
    """Says that a fault was met and how to report it."""
    warnings.warn(f"onelaunch: {refusal}", stacklevel=2)


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
    #: whether it is a part of another program: it is not split again, and is no kernel where that gains nothing
    part: bool = False
    derived: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    def bind(self, *args: Any) -> list[Any]:
        """The program as one equation; its jaxpr is a parameter too, where JAX looks for inner jaxprs."""
        bind: Any = fused_p.bind
        return list(bind(*args, call_jaxpr=self.closed, program=self))

    def of(self, closed: core.ClosedJaxpr, suffix: str = "") -> Program:
        """Another jaxpr under the same options; ``suffix`` ends its kernel's name."""
        return Program(closed, self.name + suffix, self.interpret, self.strict, self.part)

    @functools.cached_property
    def fused(self) -> Fused:
        """The program as one kernel, or why it is none."""
        return fuse_jaxpr(self.closed, self.name, self.strict, self.part)

    @functools.cached_property
    def parts(self) -> Parts | None:
        """The kernels of a program that is not one, and what XLA does between them; None where there are none."""
        if self.part or self.strict or self.fused.kernel is not None:
            return None
        found = self.split(derived=not self.closed.effects)
        return found if found is not None and found.kernels() else None

    def split(self, derived: bool) -> Parts | None:
        """The program in parts; ``derived``: no transformation is to come. None, with a warning, if that fails."""
        count = itertools.count(1)
        if not all(isinstance(size, int) for aval in self.closed.in_avals for size in aval.shape):
            return None

        def judge(closed: core.ClosedJaxpr) -> Program | Refusal:
            made = Program(closed, f"{self.name}_{next(count)}", self.interpret, self.strict, part=True)
            return made if made.fused.kernel is not None else made.fused.refusals[0]

        try:
            lost = any(r.stage == "cost" for r in self.fused.refusals)
            return partition.split(self.closed, judge, derived=derived, lost=lost)
        except Exception as error:
            _warn(Refusal.internal(place_of(self.closed), self.name, error))
            return None

    @functools.cached_property
    def warned(self) -> bool:
        """Warns, once, if a fault of onelaunch keeps the program from being one kernel."""
        faults = [r for r in self.fused.refusals if r.stage == "internal"]
        for fault in faults:
            _warn(fault)
        return bool(faults)

    @functools.cached_property
    def builds(self) -> bool:
        """Whether Triton compiles the kernel and this machine's GPU can hold it; warns, once, if not."""
        assert self.fused.kernel is not None
        try:
            machine = launch.device_target()
            build.check_limits(self.fused.kernel.name, build.compile(self.fused.kernel, machine))
        except Exception as error:  # whatever Triton raises, XLA can run the program
            refusal = Refusal(place_of(self.closed), self.name, str(error), REPORT, "build")
            if self.strict:
                raise FusionError(refusal) from error
            _warn(refusal)
            return False
        return True

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """Why it is not one kernel: what was met first, and everything else that stays in XLA."""
        found = self.fused.refusals
        return tuple(dict.fromkeys([*found, *(self.parts.refusals if self.parts else ())]))

    @property
    def kernels(self) -> tuple[Program, ...]:
        """The programs of its kernels: itself, its parts, or none."""
        return (self,) if self.fused.kernel is not None else tuple(self.parts.kernels() if self.parts else ())

    @functools.cached_property
    def jitted(self) -> Any:
        """The program under ``jax.jit``, for a call outside of any."""
        return jax.jit(self.bind)

    def by_xla(self, *args: Any) -> list[Any]:
        """The same program, left to XLA."""
        return core.jaxpr_as_fun(self.closed)(*args)

    def by_parts(self, *args: Any) -> list[Any]:
        """The program by its kernels and XLA in turn."""
        assert self.parts is not None
        return run_parts(self.parts, args)

    def by_kernel(self, *args: Any) -> list[Any]:
        """The program as one launch; typed keys and complex numbers go in and come out as their words."""
        kernel = self.fused.kernel
        assert kernel is not None
        words = [to_words(args[at]) for at in self.fused.args]
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


def run_parts(parts: Parts, args: Sequence[Any]) -> list[Any]:
    """A program in parts, on arrays or tracers."""
    return partition.run(parts, args, lambda program, xs: program.bind(*xs))


def spread_refusal(program: Program) -> Refusal:
    """Why a program on arrays that lie over several devices, outside of ``shard_map``, is no kernel."""
    why = "its arrays lie on several devices, and XLA, which divides the work between them, can't divide a kernel"
    fix = "Call it in jax.shard_map, where each device launches the kernel on its part."
    return Refusal(place_of(program.closed), program.name, why, fix, "sharding")


def _lower(ctx: Any, *args: Any, program: Program, kernel: bool) -> Any:
    """``kernel``: whether this platform can run the program's kernel, if it has one."""
    spread = compat.spread_by_xla(ctx)
    if spread and program.strict:
        raise FusionError(spread_refusal(program))
    if program.strict and program.fused.refusals:  # of a derivative or a batch: fuse raises for the function itself
        raise FusionError(program.fused.refusals[0])
    fun = program.by_xla
    kernel = kernel and not spread
    if kernel and not program.warned and program.fused.kernel is not None:
        fun = program.by_kernel
    elif kernel and program.parts is not None:
        fun = program.by_parts
    return mlir.lower_fun(fun, multiple_results=True)(ctx, *args)


def _lower_cpu(ctx: Any, *args: Any, call_jaxpr: core.ClosedJaxpr, program: Program) -> Any:
    return _lower(ctx, *args, program=program, kernel=program.interpret)


def _lower_gpu(ctx: Any, *args: Any, call_jaxpr: core.ClosedJaxpr, program: Program) -> Any:
    """The kernel if Triton can build it; else XLA, with one warning that says how to report it."""
    found = compat.spread_by_xla(ctx) or program.fused.kernel is None or program.builds
    return _lower(ctx, *args, program=program, kernel=found)


mlir.register_lowering(fused_p, _lower_cpu)
mlir.register_lowering(fused_p, _lower_gpu, platform="cuda")
