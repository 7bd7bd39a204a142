"""A jaxpr as a flat list of equations: calls that hold something kept are opened, every variable is fresh."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from jax.extend import core
from jax.sharding import Sharding

from onelaunch import compat
from onelaunch.errors import Refusal
from onelaunch.ops.control import CALLEES

#: variable of a jaxpr -> fresh variable or literal
Env = dict[core.Var, Any]
#: calls whose only meaning is their jaxpr
CALLS = frozenset(("jit", "pjit", "closed_call", "core_call", "core_closed_call", "named_call", "onelaunch_fused"))
#: calls that carry a rule for their derivatives or batching, meaningless once all transformations are done
RULED = frozenset(("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_vmap_call"))


@dataclass(frozen=True)
class Item:
    """An equation, and why it is kept in XLA if it is."""

    eqn: core.JaxprEqn
    why: Refusal | None


class Flat:
    """Equations in order with fresh variables, and the constants among those variables.

    refusal: why an equation can't be in a kernel. derived: no transformation is to come, so calls that carry a rule
    for one may be opened.
    """

    def __init__(self, refusal: Callable[[core.JaxprEqn], Refusal | None], derived: bool) -> None:
        self.refusal, self.derived = refusal, derived
        self.items: list[Item] = []
        self.consts: dict[core.Var, Any] = {}

    def call(self, closed: core.ClosedJaxpr, args: Sequence[Any], source: Any = None) -> list[Any]:
        """Append a closed jaxpr on atoms; returns the atoms of its results.

        ``source``: of the call that it belongs to, for equations of JAX's own that have no place of the user.
        """
        jaxpr = closed.jaxpr
        env: Env = dict(zip(jaxpr.invars, args, strict=True))
        for var, const in zip(jaxpr.constvars, closed.consts, strict=True):
            env[var] = fresh = core.Var(var.aval)
            self.consts[fresh] = const
        for eqn in jaxpr.eqns:
            own = compat.user_where(eqn.source_info) is not None
            self.add(eqn.replace(source_info=eqn.source_info if own or source is None else source), env)
        return [_read(env, v) for v in jaxpr.outvars]

    def add(self, eqn: core.JaxprEqn, env: Env) -> None:
        """Append one equation, or those of the call that it is."""
        given = [_read(env, v) for v in eqn.invars]
        why = self.refusal(eqn)
        if why is not None and self.opens(eqn):
            results = self.call(callee(eqn), given, eqn.source_info)
        else:
            results = [core.Var(v.aval) for v in eqn.outvars]
            self.items.append(Item(eqn.replace(invars=given, outvars=results), why))
        env.update(zip(eqn.outvars, results, strict=True))

    def opens(self, eqn: core.JaxprEqn) -> bool:
        """Whether an equation may be replaced by those of the jaxpr it calls."""
        if any(isinstance(s, Sharding) for s in _shardings(eqn)):
            return False  # its operands are to be laid out over devices first
        return eqn.primitive.name in CALLS or (self.derived and eqn.primitive.name in RULED)


def jaxpr_of(
    eqns: Sequence[core.JaxprEqn],
    ins: Sequence[core.Var],
    outs: Sequence[core.Var],
    consts: Mapping[core.Var, Any] = MappingProxyType({}),
    names: Mapping[core.Var, str] = MappingProxyType({}),
) -> core.ClosedJaxpr:
    """Equations as a program from ``ins`` to ``outs``; ``names`` are the user's for some of its arguments."""
    effects = frozenset[Any]().union(*(eqn.effects for eqn in eqns))
    known = core.DebugInfo("jit", "part", tuple(names.get(v, "") for v in ins), ("",) * len(outs))
    jaxpr = core.Jaxpr(list(consts), list(ins), list(outs), list(eqns), effects, known)
    return core.ClosedJaxpr(jaxpr, list(consts.values()))


def callee(eqn: core.JaxprEqn) -> core.ClosedJaxpr:
    """The jaxpr that a call runs."""
    found = next(eqn.params[k] for k in (*CALLEES, "call") if k in eqn.params)
    return found if isinstance(found, core.ClosedJaxpr) else core.ClosedJaxpr(found, ())


def _read(env: Env, atom: Any) -> Any:
    return atom if isinstance(atom, core.Literal) else env[atom]


def _shardings(eqn: core.JaxprEqn) -> Iterator[Any]:
    for name in ("in_shardings", "out_shardings"):
        yield from eqn.params.get(name, ())
