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
import numpy as np
from jax.extend import core
from jax.interpreters import ad, batching
from jax.interpreters import partial_eval as pe

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
    avals: list[Aval] = program.closed.in_avals
    still = [not there for there in live]

    def forward(*args: Any) -> Any:
        def of_live(*moved: Any) -> list[Any]:
            return program.by_xla(*_merge(live, moved, _only(args, still)))

        return jax.linearize(of_live, *_only(args, live))

    traced, (outs, tree) = jax.make_jaxpr(forward, return_shape=True)(*avals)
    residuals = list(traced.jaxpr.outvars)[len(outs) :]

    def push(*xs: Any) -> list[Any]:
        moved = jax.tree.unflatten(jax.tree.structure(tree), xs[: len(residuals)])(*xs[len(residuals) :])
        return [t for t, aval in zip(moved, outs) if jnp.issubdtype(aval.dtype, jnp.inexact)]

    tangents: list[Aval] = [aval.to_tangent_aval() for aval in _only(avals, live)]
    whole = jax.make_jaxpr(push)(*(v.aval for v in residuals), *tangents)
    depending = depends(whole.jaxpr, [False] * len(residuals) + [True] * len(tangents))
    pruned, used = _prune(whole, depending, [False] * len(residuals) + [True] * len(tangents))
    found = _Residuals(traced, len(outs), _only(residuals, used[: len(residuals)]))

    def linear(*xs: Any) -> list[Any]:
        return core.jaxpr_as_fun(pruned)(*found.fill(xs), *xs[len(found.saved) :])

    types: list[Aval] = [avals[at] if is_arg else found.given[at].aval for is_arg, at in found.saved]
    smooth = [bool(jnp.issubdtype(aval.dtype, jnp.inexact)) for aval in outs]
    moving = tuple(_merge(smooth, depending, [False] * len(outs)))
    first = program
    if len(found.given) > len(outs):
        first = program.of(_prune(traced, found.mask(traced))[0], "_forward")
    second = program.of(jax.make_jaxpr(linear)(*types, *tangents), "_linear")
    return Linearized(first, second, tuple(found.saved), moving)


class _Residuals:
    """Sorts the residuals of a traced forward pass: constants, arguments, results, and what must be given out besides.

    given: the variables that the forward program gives out, its results first; saved: as in Linearized.
    """

    def __init__(self, traced: core.ClosedJaxpr, results: int, residuals: Sequence[Any]):
        self.given = list(traced.jaxpr.outvars)[:results]
        self.saved: list[tuple[bool, int]] = []
        self._known = dict(zip(traced.jaxpr.constvars, traced.consts))
        self._args = {v: k for k, v in enumerate(traced.jaxpr.invars)}
        self._outs: dict[Any, int] = {v: k for k, v in enumerate(self.given) if not isinstance(v, core.Literal)}
        self._places = [self._place(v) for v in residuals]

    def _place(self, v: Any) -> tuple[int, Any]:
        """A residual's number among those saved, or its value where that is known now."""
        if isinstance(v, core.Literal):
            aval: Aval = v.aval
            return -1, np.asarray(v.val, aval.dtype)
        if v in self._known:
            return -1, self._known[v]
        if v not in self._args and v not in self._outs:
            self._outs[v] = len(self.given)
            self.given.append(v)
        at = (True, self._args[v]) if v in self._args else (False, self._outs[v])
        if at not in self.saved:
            self.saved.append(at)
        return self.saved.index(at), None

    def mask(self, traced: core.ClosedJaxpr) -> list[bool]:
        """Which results of the traced forward pass those given out are (each once)."""
        left = list(self.given)
        return [bool(left) and left[0] is v and left.pop(0) is v for v in traced.jaxpr.outvars]

    def fill(self, saved: Sequence[Any]) -> list[Any]:
        """The residuals in order, from what was saved."""
        return [saved[at] if known is None else known for at, known in self._places]


def _prune(
    closed: core.ClosedJaxpr, wanted: Sequence[bool], kept: bool | Sequence[bool] = True
) -> tuple[core.ClosedJaxpr, list[bool]]:
    """A jaxpr with only the wanted results and what they need, and which arguments are left; ``kept`` ones always."""
    jaxpr, used = pe.dce_jaxpr(closed.jaxpr, list(wanted), kept)
    return core.ClosedJaxpr(jaxpr, closed.consts), used


def only(program: Program, wanted: Sequence[bool]) -> Program:
    """A program with only the wanted results and what they need."""
    return _memo(program, ("only", tuple(wanted)), lambda: program.of(_prune(program.closed, wanted)[0]))


def _dce(used: list[bool], *live_and_eqn: Any) -> tuple[list[bool], core.JaxprEqn | None]:
    """JAX's elimination of dead code: a program without the results that nobody uses.

    From 0.12 on JAX also says, before the equation, which mutable references are live; a program has none.
    """
    eqn: core.JaxprEqn = live_and_eqn[-1]
    if not any(used):
        return [False] * len(eqn.invars), None
    if all(used):
        return [True] * len(eqn.invars), eqn
    less = only(eqn.params["program"], used)
    params = {"call_jaxpr": less.closed, "program": less}
    return [True] * len(eqn.invars), eqn.replace(outvars=_only(eqn.outvars, used), params=params)


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
    return Transposed(program.of(_prune(whole, depending)[0], "_transposed"), tuple(depending))


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


RULES = {"jvp": _jvp, "transpose": _transpose, "batch": _batch, "dce": _dce}
ad.primitive_jvps[fused_p] = _jvp
ad.primitive_transposes[fused_p] = _transpose
batching.primitive_batchers[fused_p] = _batch
pe.dce_rules[fused_p] = _dce
