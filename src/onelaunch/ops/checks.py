"""Run-time checks that raise on the host (equinox's ``error_if``): the kernel notes the first to fail, then it raises.

    cond(failed, raise by a callback, hand x on)(x)  ->  x, and a number kept: 0, or the check that failed first

The number, and the integer that the check's message depends on, go through every loop and branch beside the program's
own values and come out as two results more. ``raise_failed`` runs the original branch outside the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

from onelaunch.ir.builder import Builder
from onelaunch.ir.nodes import Value
from onelaunch.ops.words import is_key

INT32 = np.dtype("int32")
BOOL = np.dtype(bool)
#: What a callback that raised never returns: comparing with it keeps the callback from being dropped.
NEVER = 0.12345678


@dataclass(frozen=True)
class Check:
    """A branch that raises; ``used`` is the operand (an integer) that its message depends on, or None."""

    branch: core.ClosedJaxpr
    used: int | None


class CheckingBuilder(Builder):
    """A builder that carries along which check failed first (from 1; 0 if none) and the number it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.checks: list[Check] = []
        self.state: tuple[Value, Value] = (self.const(0, INT32), self.const(0, INT32))

    def note(self, check: Check, failed: Value, number: Value) -> None:
        """Keep a failure, unless one came before."""
        self.checks.append(check)
        first = self.map("and", failed, self.map("eq", self.state[0], self.const(0, INT32), dtype=BOOL))
        new = (self.const(len(self.checks), INT32), number)
        code, argument = (
            self.map("select", first, x, old, dtype=INT32) for x, old in zip(new, self.state, strict=True)
        )
        self.state = (code, argument)

    def loop(
        self, init: Sequence[Value], body: Callable[..., Any], *, cond: Callable[..., Value] | None = None, **how: Any
    ) -> tuple[Value, ...]:
        """A loop that carries the state; a ``while`` ends at the first failure."""

        def threaded(*values: Value) -> list[Value]:
            self.state = (values[-2], values[-1])
            return [*body(*values[:-2]), *self.state]

        def going(*values: Value) -> Value:
            assert cond is not None
            self.state = (values[-2], values[-1])
            result = cond(*values[:-2])
            if self.state != (values[-2], values[-1]):
                raise ValueError("a check in the condition of a loop")
            fine = self.map("eq", self.state[0], self.const(0, INT32), dtype=BOOL)
            return self.map("and", result, fine)

        outs = super().loop([*init, *self.state], threaded, cond=going if cond is not None else None, **how)
        self.state = (outs[-2], outs[-1])
        return outs[:-2]

    def branch(self, index: Value, bodies: Sequence[Callable[[], Sequence[Value]]]) -> tuple[Value, ...]:
        """A branch whose blocks hand the state on."""
        before = self.state

        def threaded(body: Callable[[], Sequence[Value]]) -> list[Value]:
            self.state = before
            return [*body(), *self.state]

        outs = super().branch(index, [partial(threaded, body) for body in bodies])
        self.state = (outs[-2], outs[-1])
        return outs[:-2]


def passed(b: Builder, branches: Sequence[core.ClosedJaxpr], index: Value, args: Sequence[Value]) -> list[Value] | None:
    """What a check hands on, its failure noted; None if a choice of branches is no check."""
    if not isinstance(b, CheckingBuilder) or len(branches) != 2:
        return None
    for k, branch in enumerate(branches):
        kept, used = handed_on(branches[1 - k].jaxpr), used_operands(branch.jaxpr)
        if not calls_back(branch.jaxpr) or kept is None or any(args[i].type != index.type for i in used) or used[1:]:
            continue
        failed = b.map("ne" if k else "eq", index, b.const(0, index.dtype), dtype=BOOL)
        number = b.cast(args[used[0]], INT32) if used else b.const(0, INT32)
        b.note(Check(branch, used[0] if used else None), failed, number)
        return [args[i] for i in kept]
    return None


def calls_back(jaxpr: core.Jaxpr) -> bool:
    """Whether a jaxpr, or one inside it, calls back to the host."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "pure_callback":
            return True
        inner = jax.tree.leaves(list(eqn.params.values()), is_leaf=_is_jaxpr)
        if any(calls_back(getattr(x, "jaxpr", x)) for x in inner if _is_jaxpr(x)):
            return True
    return False


def _is_jaxpr(x: object) -> bool:
    return isinstance(x, core.Jaxpr | core.ClosedJaxpr)


def handed_on(jaxpr: core.Jaxpr) -> list[int] | None:
    """Which operands a branch returns; None if it returns anything else."""
    at = {var: i for i, var in enumerate(jaxpr.invars)}
    outs = [None if isinstance(v, core.Literal) else at.get(v) for v in jaxpr.outvars]
    found = [i for i in outs if i is not None]
    return found if len(found) == len(outs) else None


def used_operands(jaxpr: core.Jaxpr) -> list[int]:
    """The operands that a branch reads."""
    read = {v for eqn in jaxpr.eqns for v in eqn.invars if not isinstance(v, core.Literal)}
    read |= {v for v in jaxpr.outvars if not isinstance(v, core.Literal)}
    return [i for i, var in enumerate(jaxpr.invars) if var in read]


def raise_failed(checks: Sequence[Check], code: jax.Array, number: jax.Array, outs: list[Any]) -> list[Any]:
    """``outs``, after the branch of the check that failed was run where one did."""
    at = next((i for i, x in enumerate(outs) if x.size and not is_key(x)), 0)

    def failed(out: Any) -> Any:
        returned = lax.switch(code - 1, [partial(_run, check) for check in checks], number)
        return jnp.where(returned == NEVER, jnp.zeros_like(out), out)

    checked = lax.cond(code > 0, failed, lambda out: out, outs[at])
    return [*outs[:at], checked, *outs[at + 1 :]]


def _run(check: Check, number: jax.Array) -> jax.Array:
    """A check's branch on its number (its other operands are not read): some number of what it returns."""
    avals = [v.aval for v in check.branch.jaxpr.invars]
    args = [number.astype(a.dtype) if i == check.used else jnp.zeros(a.shape, a.dtype) for i, a in enumerate(avals)]
    outs = core.jaxpr_as_fun(check.branch)(*args)
    return sum((jnp.ravel(x)[0].astype(jnp.float32) for x in outs if x.size), jnp.float32(0))
