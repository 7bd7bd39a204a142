"""A program in parts, run: kernels bound one by one, kept loops and branches rebuilt around theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend import core

from onelaunch.ops.control import scan_counts
from onelaunch.partition.parts import Parts, Step

#: Calls what ``judge`` made of a part on its operands.
Call = Callable[[Any, Sequence[Any]], Sequence[Any]]


def run(parts: Parts, args: Sequence[Any], call: Call) -> list[Any]:
    """The results of a program in parts, on arrays or tracers; effects happen in the order of the program."""
    env: dict[core.Var, Any] = dict(zip(parts.ins, args, strict=True)) | parts.consts
    for step in parts.steps:
        env.update(zip(step.outs, _step(step, [env[v] for v in step.ins], call), strict=True))
    return [v.val if isinstance(v, core.Literal) else env[v] for v in parts.outs]


def _step(step: Step, args: Sequence[Any], call: Call) -> Sequence[Any]:
    if step.kernel is not None:
        return call(step.kernel, args)
    if not step.bodies:
        return core.jaxpr_as_fun(step.closed)(*args)
    env = dict(zip(step.ins, args, strict=True)) | dict(
        zip(step.closed.jaxpr.constvars, step.closed.consts, strict=True)
    )
    given = [v.val if isinstance(v, core.Literal) else env[v] for v in step.eqn.invars]
    outs = BODIED[step.eqn.primitive.name](step, given, call)
    made = dict(zip(step.eqn.outvars, outs, strict=True))
    return [made[v] for v in step.outs]


# --- equations whose bodies hold kernels -------------------------------------------------------------------


def _scan(step: Step, args: Sequence[Any], call: Call) -> list[Any]:
    params = step.eqn.params
    first, last = scan_counts(params)

    def body(carry: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
        outs = run(step.bodies[0], [*args[:first], *carry, *xs], call)
        return outs[: last - first], outs[last - first :]

    how = {"length": params["length"], "reverse": params["reverse"], "unroll": params["unroll"]}
    carry, ys = lax.scan(body, list(args[first:last]), list(args[last:]), **how)
    return [*carry, *ys]


def _while(step: Step, args: Sequence[Any], call: Call) -> list[Any]:
    """A loop; where its predicate is batched, elements that are done stay as they are."""
    params, (test, body) = step.eqn.params, step.bodies
    first = params["cond_nconsts"]
    last = first + params["body_nconsts"]
    batched = bool(test.outs[0].aval.shape)

    def going(carry: Any) -> Any:
        return jnp.any(run(test, [*args[:first], *carry], call)[0])

    def turn(carry: Any) -> Any:
        outs = run(body, [*args[first:last], *carry], call)
        if not batched:
            return outs
        goes = run(test, [*args[:first], *carry], call)[0]
        return [_where(goes, new, old) for new, old in zip(outs, carry, strict=True)]

    return list(lax.while_loop(going, turn, list(args[last:])))


def _where(goes: Any, new: Any, old: Any) -> Any:
    shape = jnp.shape(new)
    return lax.select(lax.broadcast_in_dim(goes, shape, tuple(range(goes.ndim))), new, old)


def _cond(step: Step, args: Sequence[Any], call: Call) -> list[Any]:
    index, *given = args

    def branch(body: Parts) -> Callable[..., list[Any]]:
        return lambda *xs: run(body, xs, call)

    return list(lax.switch(index, [branch(body) for body in step.bodies], *given))


def _remat(step: Step, args: Sequence[Any], call: Call) -> list[Any]:
    """A checkpoint, as JAX lowers it: what it recomputes stays apart from what was computed before."""
    params = step.eqn.params
    if params.get("differentiated") and params.get("prevent_cse"):
        args = lax.optimization_barrier(list(args))
    return run(step.bodies[0], args, call)


BODIED: dict[str, Callable[[Step, Sequence[Any], Call], list[Any]]] = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    **dict.fromkeys(("checkpoint", "remat", "remat2"), _remat),
}
