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

from onelaunch.errors import FusionError, Refusal
from onelaunch.ir.builder import Builder
from onelaunch.ir.nodes import Value
from onelaunch.ops.words import is_key

INT32 = np.dtype("int32")
BOOL = np.dtype(bool)
JAXPRS = (core.Jaxpr, core.ClosedJaxpr)
TEST_FIX = "It stays in XLA with kernels around it; check in the loop's body, or after the loop."
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
        zero = self.const(0, INT32)
        code, number = self.const(len(self.checks), INT32), self.map("select", failed, number, zero, dtype=INT32)
        self.state = self._first(self.state, (self.map("select", failed, code, zero, dtype=INT32), number))

    def loop(
        self, init: Sequence[Value], body: Callable[..., Any], *, cond: Callable[..., Value] | None = None, **how: Any
    ) -> tuple[Value, ...]:
        """A loop that carries the state, for each element of a batched condition; a ``while`` ends at a failure."""
        before, known = self.state, len(self.checks)
        shape = self._shape(cond, init)
        start = [self.broadcast(x, shape, ()) for x in before] if shape else before

        def threaded(*values: Value) -> list[Value]:
            kept = (values[-2], values[-1])
            self.state = self._nothing() if shape else kept
            results = body(*values[:-2])
            return [*results, *(self._first(kept, self.state) if shape else self.state)]

        def going(*values: Value) -> Value:
            assert cond is not None
            self.state = state = self._nothing()
            result = cond(*values[:-2])
            if self.state is not state:
                raise FusionError(Refusal(self.where, "while", "its test has a check that raises", TEST_FIX))
            return self.map("and", result, self._none(values[-2]))

        outs = super().loop([*init, *start], threaded, cond=going if cond is not None else None, **how)
        self.state = (outs[-2], outs[-1]) if len(self.checks) > known else before
        if shape and len(self.checks) > known:
            self.state = self._over_elements(outs[-2], outs[-1])
        return outs[:-2]

    def _nothing(self) -> tuple[Value, Value]:
        return self.const(0, INT32), self.const(0, INT32)

    def _none(self, code: Value) -> Value:
        return self.map("eq", code, self.const(0, INT32), dtype=BOOL)

    def _first(self, old: tuple[Value, Value], new: tuple[Value, Value]) -> tuple[Value, Value]:
        """``new`` where ``old`` holds no failure."""
        free = self._none(old[0])
        code, number = (self.map("select", free, x, y, dtype=INT32) for x, y in zip(new, old, strict=True))
        return code, number

    def _shape(self, cond: Callable[..., Value] | None, init: Sequence[Value]) -> tuple[int, ...]:
        """The shape of a loop's condition."""
        if cond is None:
            return ()
        before = self.state
        with self.block():
            shape = cond(*init).shape
        self.state = before
        return shape

    def _over_elements(self, codes: Value, numbers: Value) -> tuple[Value, Value]:
        """One state of a batch's: the elements that still ran when a check failed hold the same."""
        axes = range(codes.ndim)
        low = self.const(np.iinfo(INT32).min, INT32)
        numbers = self.map("select", self._none(codes), low, numbers, dtype=INT32)
        return self.reduce("max", codes, axes), self.reduce("max", numbers, axes)

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
        inner = jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda x: isinstance(x, JAXPRS))
        if any(calls_back(x.jaxpr if isinstance(x, core.ClosedJaxpr) else x) for x in inner if isinstance(x, JAXPRS)):
            return True
    return False


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
