"""The rule table (JAX primitive -> nodes) and the walker that applies it to a jaxpr."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import jax
import numpy as np
from jax.extend import core

from onelaunch import compat
from onelaunch.errors import FusionError, Refusal
from onelaunch.ir.builder import Builder
from onelaunch.ir.nodes import Value
from onelaunch.ir.types import TRITON_NAMES
from onelaunch.ops.words import is_complex, is_compound, is_key, key_shape, raw

Params = dict[str, Any]
Rule = Callable[..., "Value | Sequence[Value]"]

#: primitive name -> rule(builder, params, *operands) -> output or outputs
RULES: dict[str, Rule] = {}
#: primitive name -> (why, fix) for those refused by name
REFUSED: dict[str, tuple[str, str]] = {}

#: primitive name -> rule, for equations with complex operands or results
COMPLEX: dict[str, Rule] = {}

#: primitives that move elements whatever they are, typed keys and complex numbers among them
PHYSICAL = frozenset(
    [
        "broadcast_in_dim",
        "concatenate",
        "dynamic_slice",
        "dynamic_update_slice",
        "expand_dims",
        "gather",
        "reshape",
        "rev",
        "scatter",
        "select_n",
        "slice",
        "split",
        "squeeze",
        "stack",
        "tile",
        "transpose",
        "unstack",
    ]
)

NO_COMPLEX = ("it has no rule for complex numbers", "Write it with real and imaginary parts.")
NO_RULE = ("onelaunch has no rule for this primitive", "It stays in XLA; move it out of the fused function.")
SHAPE_FIX = "It stays in XLA; trace or export the function at the shapes it is to run with."
DTYPE_FIX = "It stays in XLA; use a real dtype of 8 to 64 bits."


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for primitives: ``rule(b, params, *operands)`` returns the output value(s).

    ``params`` are the equation's, and ``_eqn``, ``_in``, ``_out``: the equation itself and its avals.
    """

    def register(fn: Rule) -> Rule:
        for name in names:
            assert name not in RULES, name
            RULES[name] = fn
        return fn

    return register


def inline(b: Builder, jaxpr: core.Jaxpr, consts: Sequence[Any], args: Sequence[Value | None]) -> list[Value]:
    """Append the nodes of a jaxpr to ``b``; consts are arrays or Values, an argument that nothing reads may be None."""
    env: dict[core.Var, Value] = {}
    for var, const in zip(jaxpr.constvars, consts, strict=True):
        env[var] = const if isinstance(const, Value) else b.array(raw(const))
    for var, arg in zip(jaxpr.invars, args, strict=True):
        if arg is None:
            continue
        shape, dtype = key_shape(var.aval)
        assert (arg.shape, arg.dtype) == (shape, dtype), f"{var.aval} bound to {arg.type}"
        env[var] = arg

    def read(atom: Any) -> Value:
        return literal(b, atom) if isinstance(atom, core.Literal) else env[atom]

    outer = b.where
    for eqn in jaxpr.eqns:
        b.where = (compat.user_where(eqn.source_info) if b.places else None) or outer
        refuse_dtypes(b, eqn)
        outs = apply(b, eqn, [read(v) for v in eqn.invars])
        for var, out in zip(eqn.outvars, outs, strict=True):
            shape, dtype = key_shape(var.aval)
            assert (out.shape, out.dtype) == (shape, dtype), f"{eqn.primitive}: {out.type} for {var.aval}"
            env[var] = out
    b.where = outer
    return [read(v) for v in jaxpr.outvars]


def literal(b: Builder, atom: core.Literal) -> Value:
    """A literal as constants: a complex one is its two parts."""
    aval: Any = atom.aval
    words = raw(np.asarray(atom.val, aval.dtype))
    if words.ndim != 1 or aval.shape != ():
        return b.array(words)
    return b.concatenate([b.reshape(b.const(w, w.dtype), (1,)) for w in words], 0)


def refuse(b: Builder, what: str, why: str, fix: str) -> NoReturn:
    """Stop: this equation can't become part of a kernel."""
    raise FusionError(Refusal(b.where, what, why, fix))


def refuse_dtypes(b: Builder, eqn: core.JaxprEqn) -> None:
    """Refuse values of a type that a kernel can't hold."""
    for var in (*eqn.invars, *eqn.outvars):
        refuse_type(b, var.aval, eqn.primitive.name)


def refuse_type(b: Builder, aval: Any, what: str) -> None:
    """Refuse one value of a type that a kernel can't hold."""
    if (reasons := why_not(aval)) is not None:
        refuse(b, what, *reasons)


def why_not(aval: Any) -> tuple[str, str] | None:
    """Why a kernel can't hold a value, and what to do; None if it can."""
    if not hasattr(aval, "dtype") or not hasattr(aval, "shape"):
        return f"it works on {aval}, which is not an array", "It stays in XLA."
    if not all(isinstance(size, int) for size in aval.shape):
        return f"its shape {aval.shape} is not known yet, and a kernel is made for one shape", SHAPE_FIX
    if key_shape(aval)[1] not in TRITON_NAMES:
        return f"a kernel has no values of dtype {aval.dtype}", DTYPE_FIX
    return None


def inline_closed(b: Builder, closed: core.ClosedJaxpr, args: Sequence[Value | None]) -> list[Value]:
    return inline(b, closed.jaxpr, closed.consts, args)


def retrace(b: Builder, fun: Callable[..., Any], /, *args: Value, **static: Any) -> list[Value]:
    """Trace plain JAX code on the operands' types and append its nodes (rules written as JAX programs).

    ``static`` are hashable keyword arguments of ``fun``; one trace serves all equations that agree in everything.
    """
    key = (fun, tuple(a.type for a in args), tuple(sorted(static.items())))
    closed = b.memo.get(key)
    if closed is None:
        avals = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in args]
        # The rule's code must not depend on how strict the user's own promotion is.
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            closed = b.memo[key] = jax.make_jaxpr(partial(fun, **static))(*avals)
    assert isinstance(closed, core.ClosedJaxpr)
    return inline_own(b, closed, args)


def inline_own(b: Builder, closed: core.ClosedJaxpr, args: Sequence[Value]) -> list[Value]:
    """Inline what a rule traced: its equations stand at the place of the user's."""
    before, b.places = b.places, False
    try:
        return inline_closed(b, closed, args)
    finally:
        b.places = before


def apply(b: Builder, eqn: core.JaxprEqn, args: list[Value]) -> Sequence[Value]:
    """Apply the rule of one equation; refuse by name what has none."""
    name = eqn.primitive.name
    avals = [v.aval for v in (*eqn.invars, *eqn.outvars)]
    if name in PHYSICAL and any(map(is_compound, avals)):
        return over_words(b, eqn, args)
    rules = COMPLEX if any(map(is_complex, avals)) else RULES
    found = rules.get(name)
    if found is None and rules is COMPLEX:
        refuse(b, name, *REFUSED.get(name, NO_COMPLEX))
    if found is None:
        opened = open_foreign(b, eqn, args)
        if opened is not None:
            return opened
        refuse(b, name, *REFUSED.get(name, NO_RULE))
    params = dict(eqn.params, _eqn=eqn, _in=[v.aval for v in eqn.invars], _out=[v.aval for v in eqn.outvars])
    made = found(b, params, *args)
    outs = (made,) if isinstance(made, Value) else tuple(made)
    if name in ("eq", "ne") and is_key(avals[0]):  # keys are equal if all their words are
        return (b.reduce("and" if name == "eq" else "or", outs[0], (outs[0].ndim - 1,)),)
    return outs


def over_words(b: Builder, eqn: core.JaxprEqn, args: list[Value]) -> list[Value]:
    """Apply a primitive that moves compound elements to each of their words: it is batched over the words' dim."""
    axes = tuple(-1 if is_compound(v.aval) else None for v in eqn.invars)

    def bind(*xs: jax.Array) -> Any:
        return eqn.primitive.bind(*xs, **eqn.params)

    return retrace(b, jax.vmap(bind, in_axes=axes, out_axes=-1), *args)


def open_foreign(b: Builder, eqn: core.JaxprEqn, args: list[Value]) -> list[Value] | None:
    """Open another library's primitive through its ``impl``; None if it has none or its impl binds itself."""
    name = eqn.primitive.name
    impl = getattr(eqn.primitive, "impl", None)
    if impl is None or eqn.effects or name in REFUSED or ("opening", name) in b.memo:
        return None
    b.memo["opening", name] = True
    try:
        given: list[Any] = [v.aval for v in eqn.invars]
        avals = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in given]
        closed = jax.make_jaxpr(lambda *xs: impl(*xs, **eqn.params))(*avals)
        if any(e.primitive.name == name for e in closed.jaxpr.eqns):
            return None
        return inline_own(b, closed, args)
    except FusionError:
        raise
    except Exception:  # an impl that can't be traced (it computes with concrete arrays): not openable
        return None
    finally:
        del b.memo["opening", name]
