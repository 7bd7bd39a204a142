"""Calls, loops and branches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend import core

from onelaunch.ir import nodes
from onelaunch.ir.builder import Builder
from onelaunch.ir.nodes import Value
from onelaunch.ops.checks import passed
from onelaunch.ops.table import REFUSED, Params, inline, inline_closed, rule
from onelaunch.ops.words import identifier, key_shape

INT32 = np.dtype("int32")

CALLBACK_FIX = "It stays in XLA with kernels around it; in a loop that should be one kernel, return what it is given."
for _name in ("debug_callback", "pure_callback", "io_callback", "debug_print", "outside_call", "infeed", "outfeed"):
    REFUSED[_name] = ("it calls back to Python on the host, which a kernel can't do", CALLBACK_FIX)
REFUSED["pure_callback"] = (
    "it calls back to Python on the host, which a kernel can't do",
    "It stays in XLA with kernels around it. A check that only raises (equinox's error_if) can be part of a kernel "
    "where one flag and one integer decide it.",
)

#: where a called jaxpr stands in the parameters of a call-like primitive
CALLEES = ("call_jaxpr", "jaxpr", "fun_jaxpr")


@rule(
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "call",
    "custom_jvp_call",
    "custom_vjp_call",
    "custom_vjp_call_jaxpr",
    "remat",
    "remat2",
    "checkpoint",
    "xla_call",
    "named_call",
    "composite",
    "eval_jaxpr",
    "core_closed_call",
    "onelaunch_fused",
)
def call(b: Builder, params: Params, *args: Value) -> list[Value]:
    """A call: its jaxpr in place."""
    callee = next(params[k] for k in CALLEES if k in params)
    return inline_any(b, callee, args)


def inline_any(b: Builder, callee: Any, args: Sequence[Value]) -> list[Value]:
    """Inline a closed jaxpr, or an open one without constants."""
    if isinstance(callee, core.ClosedJaxpr):
        return inline_closed(b, callee, args)
    return inline(b, callee, (), args)


def scan_counts(params: Params) -> tuple[int, int]:
    """Where a scan's operands part into constants, carries and xs; JAX 0.11 says it by a tree of placeholders."""
    if "ft_in" in params:
        consts, carry, _ = params["ft_in"].unpack()
        return len(consts), len(consts) + len(carry)
    return params["num_consts"], params["num_consts"] + params["num_carry"]


def argument_names(closed: core.ClosedJaxpr) -> list[str]:
    """The user's names for a jaxpr's parameters (``carry[0]`` is ``carry_0``); '' where unknown."""
    jaxpr = closed.jaxpr
    known = getattr(jaxpr.debug_info, "arg_names", None) or ()
    names = [identifier(name) if name else "" for name in known]
    return names if len(names) == len(jaxpr.invars) else [""] * len(jaxpr.invars)


@rule("scan")
def scan(b: Builder, params: Params, *args: Value) -> list[Value]:
    """xs are read at index i, ys are arrays carried along and written at index i."""
    jaxpr, trip, reverse = params["jaxpr"], int(params["length"]), params["reverse"]
    first, last = scan_counts(params)
    consts, init, xs = args[:first], args[first:last], args[last:]
    stacked = [key_shape(aval) for aval in params["_out"][len(init) :]]
    if trip == 0:
        return [*init, *(b.full(shape, 0, dtype) for shape, dtype in stacked)]

    def body(i: Value, *carry: Value) -> list[Value]:
        at = b.map("sub", b.const(trip - 1, INT32), i) if reverse else i
        items = [b.take(x, at) for x in xs]
        outs = inline_closed(b, jaxpr, [*consts, *carry[: len(init)], *items])
        ys = [b.put(y, at, item) for y, item in zip(carry[len(init) :], outs[len(init) :], strict=True)]
        return outs[: len(init)] + ys

    names = argument_names(jaxpr)[first:last]
    return list(b.loop([*init, *(b.empty(*type_) for type_ in stacked)], body, trip=trip, names=names))


@rule("while")
def while_(b: Builder, params: Params, *args: Value) -> list[Value]:
    """A while loop; its predicate may be batched."""
    first, last = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    cond_consts, body_consts, init = args[:first], args[first:last], args[last:]

    def cond(*carry: Value) -> Value:
        return inline_closed(b, params["cond_jaxpr"], [*cond_consts, *carry])[0]

    def body(*carry: Value) -> list[Value]:
        return inline_closed(b, params["body_jaxpr"], [*body_consts, *carry])

    return list(b.loop(init, body, cond=cond, names=argument_names(params["body_jaxpr"])[last - first :]))


@rule("cond")
def cond(b: Builder, params: Params, index: Value, *args: Value) -> list[Value]:
    """A choice of branches, clamped; one known now is inlined."""
    branches = params["branches"]
    known = b.defs.get(index)
    if isinstance(known, nodes.Const) or len(branches) == 1:
        at = int(known.value) if isinstance(known, nodes.Const) else 0
        return inline_closed(b, branches[min(max(at, 0), len(branches) - 1)], args)
    if (kept := passed(b, branches, index, args)) is not None:
        return kept
    return list(b.branch(b.cast(index, INT32), [branch_body(b, branch, args) for branch in branches]))


def branch_body(b: Builder, branch: core.ClosedJaxpr, args: Sequence[Value]) -> Any:
    return lambda: inline_closed(b, branch, args)


@rule("platform_index")
def platform_index(b: Builder, params: Params) -> Value:
    """Which branch a GPU takes; the default where no branch names one."""
    platforms = params["platforms"]
    for at, names in enumerate(platforms):
        if names is None or "cuda" in names:
            return b.const(at, INT32)
    return b.const(len(platforms), INT32)
