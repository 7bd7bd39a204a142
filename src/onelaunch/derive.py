"""What JAX makes of a fused program, as fused programs: its linearisation, the transpose of that, itself over a batch.

A derivative is two programs: the forward one gives the results and what the linear one needs of them (the residuals),
and the linear one maps tangents to tangents. Each is bound as the primitive, so each is a kernel; what is linear can be
transposed, and everything can be derived again. Each is traced once for a program and what was asked of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core
from jax.interpreters import ad, batching

from onelaunch.primitive import Program, fused_p

Aval = Any  # the type of a traced value: jax.core.ShapedArray, untyped on JAX's side


def _memo(program: Program, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
    if key not in program.derived:
        program.derived[key] = make()
    return program.derived[key]


def _merge(mask: Sequence[bool], where: Sequence[Any], elsewhere: Sequence[Any]) -> list[Any]:
    """The elements of two lists as one: the next of ``where`` at each True of the mask."""
    yes, no = iter(where), iter(elsewhere)
    return [next(yes) if there else next(no) for there in mask]


def _only(xs: Sequence[Any], mask: Sequence[bool]) -> list[Any]:
    return [x for x, there in zip(xs, mask, strict=True) if there]


def depends(jaxpr: core.Jaxpr, given: Sequence[bool]) -> list[bool]:
    """Which results of a jaxpr may depend on the given arguments; a loop's or a branch's on any of its operands."""
    reached: set[Any] = set(_only(jaxpr.invars, given))
    for eqn in jaxpr.eqns:
        mask = [not isinstance(v, core.Literal) and v in reached for v in eqn.invars]
        if any(mask):
            reached.update(_only(eqn.outvars, _through(eqn, mask)))
    return [not isinstance(v, core.Literal) and v in reached for v in jaxpr.outvars]


def _through(eqn: core.JaxprEqn, mask: list[bool]) -> list[bool]:
    """Which results of an equation may depend on some of its operands."""
    called = eqn.params.get("call_jaxpr", eqn.params.get("jaxpr"))
    inner = getattr(called, "jaxpr", called)
    if eqn.primitive.name in ("scan", "while", "cond") or not isinstance(inner, core.Jaxpr):
        return [True] * len(eqn.outvars)
    if (len(inner.invars), len(inner.outvars)) != (len(mask), len(eqn.outvars)):
        return [True] * len(eqn.outvars)
    return depends(inner, mask)


# --- the derivative ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Linearized:
    """A program's derivative in some of its arguments.

    forward: arguments -> results, and residuals that are neither arguments nor results.
    linear: (residuals, tangents of those arguments) -> tangents of the results in ``moving``; the rest are zero.
    saved: where each residual is found: among the arguments (True) or forward's results (False), and its number.
    """

    forward: Program
    linear: Program
    saved: tuple[tuple[bool, int], ...]
    moving: tuple[bool, ...]


def linearized(program: Program, live: tuple[bool, ...]) -> Linearized:
    """The derivative of a program in its live arguments."""
    return _memo(program, ("linear", live), lambda: _linearize(program, live))


def _linearize(program: Program, live: tuple[bool, ...]) -> Linearized:
    avals = program.closed.in_avals
    still = [not there for there in live]

    def forward(*args: Any) -> Any:
        def of_live(*moved: Any) -> list[Any]:
            return program.by_xla(*_merge(live, moved, _only(args, still)))

        return jax.linearize(of_live, *_only(args, live))

    traced, (outs, tree) = jax.make_jaxpr(forward, return_shape=True)(*avals)
    leaves = list(traced.jaxpr.outvars)[len(outs) :]
    found = _Residuals(traced, len(outs))
    places = [found.place(v) for v in leaves]
    kept = found.kept

    def linear(*xs: Any) -> list[Any]:
        residuals, tangents = xs[: len(found.saved)], xs[len(found.saved) :]
        fill = [residuals[at] if known is None else known for at, known in places]
        moved = jax.tree.unflatten(jax.tree.structure(tree), fill)(*tangents)
        return [t for t, aval in zip(moved, outs) if jnp.issubdtype(aval.dtype, jnp.inexact)]

    types: list[Aval] = [avals[at] if is_arg else traced.jaxpr.outvars[kept[at]].aval for is_arg, at in found.saved]
    tangents: list[Aval] = [aval.to_tangent_aval() for aval in _only(avals, live)]
    whole = jax.make_jaxpr(linear)(*types, *tangents)
    depending = depends(whole.jaxpr, [False] * len(types) + [True] * len(tangents))
    pruned = _select(whole, [k for k, there in enumerate(depending) if there])
    smooth = [jnp.issubdtype(aval.dtype, jnp.inexact) for aval in outs]
    moving = tuple(_merge(smooth, depending, [False] * len(outs)))
    first = program if len(kept) == len(outs) else program.of(_select(traced, kept), "_forward")
    return Linearized(first, program.of(pruned, "_linear"), tuple(found.saved), moving)


class _Residuals:
    """Sorts the residuals of a traced forward pass: constants, arguments, results, and what must be given out besides.

    kept: the numbers of the traced results that the forward program gives out; saved: as in Linearized.
    """

    def __init__(self, traced: core.ClosedJaxpr, results: int):
        self.jaxpr = traced.jaxpr
        self.consts = dict(zip(self.jaxpr.constvars, traced.consts))
        self.args = {v: k for k, v in enumerate(self.jaxpr.invars)}
        self.kept = list(range(results))
        self.outs = {v: k for k, v in enumerate(self.jaxpr.outvars[:results]) if not isinstance(v, core.Literal)}
        self.next = results
        self.saved: list[tuple[bool, int]] = []

    def place(self, v: Any) -> tuple[int, Any]:
        """A residual's number among those saved, or its value where that is known now."""
        number, self.next = self.next, self.next + 1
        if isinstance(v, core.Literal):
            aval: Aval = v.aval
            return -1, jnp.asarray(v.val, aval.dtype)
        if v in self.consts:
            return -1, self.consts[v]
        if v not in self.args and v not in self.outs:
            self.outs[v] = len(self.kept)
            self.kept.append(number)
        at = (True, self.args[v]) if v in self.args else (False, self.outs[v])
        if at not in self.saved:
            self.saved.append(at)
        return self.saved.index(at), None


def _select(closed: core.ClosedJaxpr, wanted: Sequence[int]) -> core.ClosedJaxpr:
    """A jaxpr with only the results of some numbers, in that order."""

    def fun(*args: Any) -> list[Any]:
        outs = core.jaxpr_as_fun(closed)(*args)
        return [outs[k] for k in wanted]

    return jax.make_jaxpr(fun)(*closed.in_avals)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, call_jaxpr: core.ClosedJaxpr, program: Program) -> Any:
    """The forward program, and the linear one; tangents that are symbolically zero stay so, in and out."""
    live = tuple(type(t) is not ad.Zero for t in tangents)
    derived = linearized(program, live)
    results = derived.forward.bind(*primals)
    outs = results[: len(call_jaxpr.out_avals)]
    saved = [primals[at] if is_arg else results[at] for is_arg, at in derived.saved]
    moved = iter(derived.linear.bind(*saved, *_only(tangents, live)) if any(derived.moving) else ())
    zero = [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in outs]
    return outs, [next(moved) if there else z for z, there in zip(zero, derived.moving)]


# --- its transpose -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Transposed:
    """(known arguments, cotangents of some results) -> cotangents of the linear arguments in ``reached``."""

    program: Program
    reached: tuple[bool, ...]


def transposed(program: Program, free: tuple[bool, ...], cotangents: tuple[Aval | None, ...]) -> Transposed:
    """The transpose of a program in its free arguments; ``cotangents`` are types, None for a symbolic zero."""
    return _memo(program, ("transpose", free, cotangents), lambda: _transpose_program(program, free, cotangents))


def _transpose_program(program: Program, free: tuple[bool, ...], cotangents: tuple[Aval | None, ...]) -> Transposed:
    given = [c is not None for c in cotangents]
    avals = program.closed.in_avals
    known = [aval for aval, there in zip(avals, free) if not there]

    def backward(*xs: Any) -> list[Any]:
        def linear(*moved: Any) -> list[Any]:
            return _only(program.by_xla(*_merge(free, moved, xs[: len(known)])), given)

        return list(jax.linear_transpose(linear, *_only(avals, free))(list(xs[len(known) :])))

    whole = jax.make_jaxpr(backward)(*known, *_only(cotangents, given))
    depending = depends(whole.jaxpr, [False] * len(known) + [True] * sum(given))
    pruned = _select(whole, [k for k, there in enumerate(depending) if there])
    return Transposed(program.of(pruned, "_transposed"), tuple(depending))


def _transpose(cotangents: Sequence[Any], *args: Any, call_jaxpr: core.ClosedJaxpr, program: Program) -> list[Any]:
    """The transposed program; an argument that no cotangent reaches has none."""
    free = tuple(ad.is_undefined_primal(a) for a in args)
    given = [type(c) is not ad.Zero for c in cotangents]
    types = tuple(jax.typeof(c) if there else None for c, there in zip(cotangents, given))
    derived = transposed(program, free, types)
    known = [a for a, there in zip(args, free) if not there]
    found = iter(derived.program.bind(*known, *_only(cotangents, given)) if any(derived.reached) else ())
    reached = iter(derived.reached)
    return [next(found) if there and next(reached) else None for there in free]


# --- a batch of it -----------------------------------------------------------------------------------------


def _batch(args: Sequence[Any], dims: Sequence[Any], *, call_jaxpr: core.ClosedJaxpr, program: Program) -> Any:
    """The program over a batch; what does not depend on a batched argument is computed once."""
    mapped = tuple(d is not None for d in dims)
    depending = depends(call_jaxpr.jaxpr, mapped)
    out_dims = [0 if there else None for there in depending]
    size = next(a.shape[d] for a, d in zip(args, dims) if d is not None)

    def make() -> Program:
        batched = jax.vmap(program.by_xla, in_axes=list(dims), out_axes=out_dims)
        return program.of(jax.make_jaxpr(batched)(*args))

    outs = _memo(program, ("batch", tuple(dims), size), make).bind(*args)
    return outs, [0 if there else None for there in depending]


RULES = {"jvp": _jvp, "transpose": _transpose, "batch": _batch}
ad.primitive_jvps[fused_p] = _jvp
ad.primitive_transposes[fused_p] = _transpose
batching.primitive_batchers[fused_p] = _batch
