"""What users call: ``fuse``, the stages behind it, and ``explain``."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from onelaunch import account, build, compat, derive, target
from onelaunch.emit.kernel import Kernel
from onelaunch.errors import REPORT, FusionError, OptionError, Refusal, Where
from onelaunch.launch import jax as launch
from onelaunch.primitive import Program, run_parts, spread_refusal
from onelaunch.report.explain import Explanation
from onelaunch.schedule.plan import Plan
from onelaunch.single import Fused

FALLBACKS = ("xla", "error")
assert derive.RULES  # the derivatives of fused programs are registered


# --- the public face ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lowered:
    """What ``fuse`` made of a function at given argument types.

    launches: kernels that onelaunch generates (1 for all of it; 0 if the program stays in XLA; those in a loop that
    stays there count once). refusals: why some or all of it stays there, each with where, what, why, fix.
    """

    name: str
    program: Program
    #: why there is no kernel for arguments that lie on several devices
    spread: Refusal | None = None

    @property
    def fused(self) -> Fused:
        """What became of the program as one kernel."""
        return self.program.fused

    @property
    def launches(self) -> int:
        return len(self.kernels)

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        return self.program.refusals if self.spread is None else (self.spread,)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The generated kernels: one for all of the program, or those between what stays in XLA."""
        found = self.program.kernels if self.spread is None else ()
        return tuple(p.fused.kernel for p in found if p.fused.kernel is not None)

    @property
    def kernel(self) -> Kernel:
        """The kernel that all of the program is; FusionError if it is not one."""
        if self.fused.kernel is None or self.spread is not None:
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

    def explain(self, target: str | None = None, compile: bool = True) -> Explanation:
        """What became kernels and what did not, before and after; printed as text, or shown by a notebook.

        ``compile``: whether to compile the kernels for ``target`` (as in ``compile``), for their registers and spills.
        """
        return account.explain(self.name, self.program, _target(target) if compile else None, self.spread)


def explain(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """What ``fuse`` makes of ``fun`` (a function, or the result of ``fuse``) at the types of the arguments.

    Returns an Explanation: launches before (counted in XLA's compiled module where there is a GPU, else estimated) and
    after; of each kernel its place, axes and homes, bytes, registers, spills; refusals with the user's lines; and the
    estimates behind the choice. Raises whatever ``jax.jit(fun)`` raises when traced.
    """
    fused = fun if isinstance(fun, fuse) else fuse(fun)
    return fused.lower(*args, **kwargs).explain()


def _target(name: str | None) -> target.Target:
    return launch.device_target() if name is None else target.parse(name)


class fuse:
    """Compile a JAX function, loops and random numbers included, to one GPU kernel.

    ``fuse(f)`` is used like ``jax.jit(f)`` (also as a decorator, with or without arguments) and gives the same values:
    on a GPU in one launch, on a machine without one through XLA. What can't be one kernel stays in XLA.

    Args:
      fun: the function; pytrees in and out.
      static_argnums, static_argnames, donate_argnums, donate_argnames: as in ``jax.jit``.
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
        donate_argnames: str | Iterable[str] | None = None,
        fallback: str = "xla",
    ):
        if fallback not in FALLBACKS:
            raise OptionError(f"fallback must be one of {', '.join(map(repr, FALLBACKS))}, not {fallback!r}")
        if not callable(fun):
            raise TypeError(f"fuse takes a function, not {type(fun).__name__}")
        functools.update_wrapper(self, fun)  # first: it copies the attributes of fun, whatever their names
        self.fallback = fallback
        self.interpret = os.environ.get("ONELAUNCH_INTERPRET") == "1"
        static: dict[str, Any] = {"static_argnums": static_argnums, "static_argnames": static_argnames}
        self._plain: Any = jax.jit(fun, **static)
        self._name = _identifier(getattr(fun, "__name__", type(fun).__name__))

        @functools.wraps(fun)
        def inner(*args: Any, **kwargs: Any) -> Any:
            return self._traced(*args, **kwargs)

        self._jitted: Any = jax.jit(inner, donate_argnums=donate_argnums, donate_argnames=donate_argnames, **static)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._jitted(*args, **kwargs)
        except RuntimeError as error:
            if not launch.is_launch_failure(error):
                raise
            return self._unlaunched(error)(*args, **kwargs)

    def _unlaunched(self, error: RuntimeError) -> Any:
        """What to call from now on: a kernel that built did not launch."""
        code = getattr(vars(self).get("__wrapped__"), "__code__", None)
        where = Where(code.co_filename, code.co_firstlineno, code.co_name) if code is not None else None
        refusal = Refusal(where, self._name, f"its kernel does not launch ({error})", REPORT, "launch")
        if self.fallback == "error":
            raise FusionError(refusal) from error
        warnings.warn(f"onelaunch: {refusal}", stacklevel=3)
        self._jitted = self._plain
        return self._plain

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """A fused method binds like a function."""
        return self if instance is None else functools.partial(self, instance)

    def _traced(self, *args: Any, **kwargs: Any) -> Any:
        """Runs while jax.jit traces: the program's jaxpr bound as one primitive."""
        if compat.jit_is_disabled():
            return self._plain(*args, **kwargs)
        traced = self._plain.trace(*args, **kwargs)
        closed = traced.jaxpr
        if closed.effects and self.fallback == "xla":
            if not self.interpret and not launch.has_gpu():
                return self._plain(*args, **kwargs)
            outs = self._with_effects(traced, args, kwargs)
        else:
            outs = self._spread(traced, args, kwargs)
        return jax.tree.unflatten(jax.tree.structure(traced.out_info), outs)

    def _with_effects(self, traced: Any, args: Any, kwargs: Any) -> list[Any]:
        """The parts of a trace, bound one by one: effects stay equations of the caller's, for JAX to transform."""
        program = Program(traced.jaxpr, self._name, self.interpret, strict=False)
        leaves = [x for x in jax.tree.leaves((args, kwargs)) if isinstance(x, jax.core.Tracer)]
        parts, given = program.split(derived=False), [*compat.closed_over(traced), *leaves]
        return program.by_xla(*given) if parts is None else run_parts(parts, given)

    def _spread(self, traced: Any, args: Any, kwargs: Any) -> list[Any]:
        """Bind a trace; under shard_map on arguments that all vary over the same axes of the mesh.

        JAX would make the others vary inside the program, and the gradient's sum over devices would stand there too.
        Results that do not vary come from a program of their own.
        """
        moved = _all_varying((args, kwargs))
        if moved is None:
            return self._bind(traced, (args, kwargs))
        again = self._plain.trace(*moved[0], **moved[1])
        pairs = zip(traced.jaxpr.out_avals, again.jaxpr.out_avals, strict=True)
        alike = [compat.varying(one) == compat.varying(other) for one, other in pairs]
        outs = self._bind(again, moved, alike)
        still = self._bind(traced, (args, kwargs), [not there for there in alike])
        first, second = iter(outs), iter(still)
        return [next(first) if there else next(second) for there in alike]

    def _bind(self, traced: Any, given: Any, wanted: Sequence[bool] | None = None) -> list[Any]:
        """The wanted results of a trace, on what it closes over and the traced leaves of its arguments."""
        if wanted is not None and not any(wanted):
            return []
        program = Program(traced.jaxpr, self._name, self.interpret, self.fallback == "error")
        program = program if wanted is None or all(wanted) else derive.only(program, wanted)
        if self.fallback == "error" and program.fused.refusals:
            raise FusionError(program.fused.refusals[0])
        leaves = [x for x in jax.tree.leaves(given) if isinstance(x, jax.core.Tracer)]
        return program.bind(*compat.closed_over(traced), *leaves)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Trace for the types of ``args`` (arrays or ``jax.ShapeDtypeStruct``) and generate the kernel."""
        closed = self._plain.trace(*args, **kwargs).jaxpr
        program = Program(closed, self._name, self.interpret, self.fallback == "error")
        several = compat.devices(jax.tree.leaves((args, kwargs))) > 1
        lowered = Lowered(self._name, program, spread_refusal(program) if several else None)
        if self.fallback == "error" and lowered.refusals:
            raise FusionError(lowered.refusals[0])
        return lowered

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """The traced function, as ``jax.jit`` gives it: for ``jax.export`` and whatever else takes those."""
        return self._jitted.trace(*args, **kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        return self._plain.eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        """Forget every compiled signature."""
        self._plain.clear_cache()
        self._jitted.clear_cache()


def _all_varying(given: Any) -> Any | None:
    """A tree whose traced leaves all vary over the axes of the mesh over which some do; None if they do already."""
    traced = [x for x in jax.tree.leaves(given) if isinstance(x, jax.core.Tracer)]
    axes = frozenset[str]().union(*(compat.varying(jax.typeof(x)) for x in traced))
    if all(compat.varying(jax.typeof(x)) == axes for x in traced):
        return None

    def move(x: Any) -> Any:
        missing = axes - compat.varying(jax.typeof(x)) if isinstance(x, jax.core.Tracer) else None
        return jax.lax.pcast(x, tuple(sorted(missing)), to="varying") if missing else x

    return jax.tree.map(move, given)


def _identifier(name: str) -> str:
    """A Python identifier for the kernel, from the function's name."""
    clean = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name).strip("_")
    return clean if clean.isidentifier() and clean != "kernel" else "kernel"
