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

Params = dict[str, Any]
Rule = Callable[..., "Value | Sequence[Value]"]

#: primitive name -> rule(builder, params, *operands) -> output or outputs
RULES: dict[str, Rule] = {}
#: primitive name -> (why, fix) for those refused by name
REFUSED: dict[str, tuple[str, str]] = {}

#: primitives that move elements whatever they are, typed keys among them
PHYSICAL = frozenset(
    "broadcast_in_dim concatenate dynamic_slice dynamic_update_slice expand_dims gather reshape rev scatter select_n "
    "slice split squeeze stack tile transpose unstack".split()
)

NO_RULE = ("onelaunch has no rule for this primitive", "It stays in XLA; move it out of the fused function.")
DTYPE_FIX = "It stays in XLA; use a real dtype of 8 to 64 bits."


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for primitives: ``rule(b, params, *operands)`` returns the output value(s)."""

    def register(fn: Rule) -> Rule:
        for name in names:
            assert name not in RULES, name
            RULES[name] = fn
        return fn

    return register


def is_key(aval: Any) -> bool:
    """Whether an abstract value is a typed key (or an array of them)."""
    return bool(jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key))


def key_shape(aval: Any) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype of the raw array behind an abstract value: a typed key is its uint32 words as a last dim."""
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended):
        words = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(aval.shape, aval.dtype))
        return tuple(words.shape), np.dtype(words.dtype)
    return tuple(aval.shape), np.dtype(aval.dtype)


def inline(b: Builder, jaxpr: core.Jaxpr, consts: Sequence[Any], args: Sequence[Value]) -> list[Value]:
    """Append the nodes of a jaxpr to ``b``; consts are arrays or Values."""
    env: dict[core.Var, Value] = {}
    for var, const in zip(jaxpr.constvars, consts, strict=True):
        env[var] = const if isinstance(const, Value) else b.array(raw(const))
    for var, arg in zip(jaxpr.invars, args, strict=True):
        shape, dtype = key_shape(var.aval)
        assert (arg.shape, arg.dtype) == (shape, dtype), f"{var.aval} bound to {arg.type}"
        env[var] = arg

    def read(atom: Any) -> Value:
        return b.array(np.asarray(atom.val, atom.aval.dtype)) if isinstance(atom, core.Literal) else env[atom]

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


def refuse(b: Builder, what: str, why: str, fix: str) -> NoReturn:
    """Stop: this equation can't become part of a kernel."""
    raise FusionError(Refusal(b.where, what, why, fix))


def refuse_dtypes(b: Builder, eqn: core.JaxprEqn) -> None:
    """Refuse values of a dtype that a kernel can't hold."""
    for var in (*eqn.invars, *eqn.outvars):
        aval = var.aval
        if not hasattr(aval, "dtype"):
            refuse(b, eqn.primitive.name, f"it works on {aval}, which is not an array", "It stays in XLA.")
        if not jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key) and aval.dtype not in TRITON_NAMES:
            refuse(b, eqn.primitive.name, f"a kernel has no values of dtype {aval.dtype}", DTYPE_FIX)


def inline_closed(b: Builder, closed: core.ClosedJaxpr, args: Sequence[Value]) -> list[Value]:
    return inline(b, closed.jaxpr, closed.consts, args)


def retrace(b: Builder, fun: Callable[..., Any], /, *args: Value, **static: Any) -> list[Value]:
    """Trace plain JAX code on the operands' types and append its nodes (rules written as JAX programs).

    ``static`` are hashable keyword arguments of ``fun``; one trace serves all equations that agree in everything.
    """
    key = (fun, tuple(a.type for a in args), tuple(sorted(static.items())))
    closed = b.memo.get(key)
    if closed is None:
        avals = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in args]
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


def raw(const: Any) -> np.ndarray:
    """A constant as numpy; typed keys become their words."""
    if jax.dtypes.issubdtype(getattr(const, "dtype", np.dtype(float)), jax.dtypes.extended):
        const = jax.random.key_data(const)
    return np.asarray(const)


def apply(b: Builder, eqn: core.JaxprEqn, args: list[Value]) -> Sequence[Value]:
    """Apply the rule of one equation; refuse by name what has none."""
    name = eqn.primitive.name
    found = RULES.get(name)
    if found is None:
        opened = open_foreign(b, eqn, args)
        if opened is not None:
            return opened
        refuse(b, name, *REFUSED.get(name, NO_RULE))
    if name in PHYSICAL and any(is_key(v.aval) for v in (*eqn.invars, *eqn.outvars)):
        return over_words(b, eqn, args)
    params = dict(eqn.params, _in=[v.aval for v in eqn.invars], _out=[v.aval for v in eqn.outvars])
    outs = found(b, params, *args)
    return (outs,) if isinstance(outs, Value) else tuple(outs)


def over_words(b: Builder, eqn: core.JaxprEqn, args: list[Value]) -> list[Value]:
    """Apply a primitive that moves typed keys to each of their words: it is batched over the words' dim."""
    axes = tuple(-1 if is_key(v.aval) else None for v in eqn.invars)

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
        avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
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
