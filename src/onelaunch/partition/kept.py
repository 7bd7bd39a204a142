"""Which equations can't be in a kernel, or should not be: each with the refusal that says why."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator

from jax.extend import core

from onelaunch import compat, trace
from onelaunch.errors import FusionError, Refusal
from onelaunch.ops.launches import inner_jaxprs, shape_of
from onelaunch.partition.flat import jaxpr_of

#: Makes the kernel of a closed jaxpr, or says why there should be none by a Refusal.
Judge = Callable[[core.ClosedJaxpr], object]

#: Operations of one equation from which a kernel of its own is weighed against XLA: 20 us of one multiprocessor.
HEAVY = 2e6
#: Primitives that work harder than their operands are long, and the power of the longest matrix side they take.
CUBIC = ("dot_general", "conv_general_dilated", "cholesky", "triangular_solve", "lu", "qr", "geqrf", "eigh", "svd")
EFFECT = ("it has an effect outside the program ({})", "It stays in XLA; what surrounds it can still be in kernels.")


def closed_of(eqn: core.JaxprEqn) -> core.ClosedJaxpr:
    """One equation as a program of its own."""
    ins = list(dict.fromkeys(v for v in eqn.invars if not isinstance(v, core.Literal)))
    return jaxpr_of([eqn], ins, eqn.outvars)


def refusal(eqn: core.JaxprEqn, judge: Judge) -> Refusal | None:
    """Why an equation stays in XLA: no rule takes it, it has an effect, or it is work for a whole GPU."""
    where = compat.user_where(eqn.source_info)
    name = eqn.primitive.name
    try:
        trace.to_checked_graph(closed_of(eqn))
    except FusionError as error:
        return dataclasses.replace(error.refusal, where=error.refusal.where or where)
    except Exception as error:  # a rule that fails on what it should refuse: the rest can still be fused
        return Refusal.internal(where, name, error)
    if eqn.effects:
        effects = ", ".join(sorted(str(type(e).__name__) for e in eqn.effects))
        return Refusal(where, name, EFFECT[0].format(effects), EFFECT[1])
    if any(work(inner) >= HEAVY for inner in equations(eqn)):
        verdict = judge(closed_of(eqn))
        return dataclasses.replace(verdict, where=where, what=name) if isinstance(verdict, Refusal) else None
    return None


def equations(eqn: core.JaxprEqn) -> Iterator[core.JaxprEqn]:
    """An equation and those of the jaxprs inside it."""
    yield eqn
    for jaxpr in inner_jaxprs(eqn.params):
        for inner in jaxpr.eqns:
            yield from equations(inner)


def work(eqn: core.JaxprEqn) -> float:
    """Multiplications and additions of a matrix product, convolution or factorisation; 0 for other primitives."""
    name = eqn.primitive.name
    if name not in CUBIC:
        return 0.0
    first, out = shape_of(eqn.invars[0]), shape_of(eqn.outvars[0])
    if name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        return 2.0 * math.prod(first[d] for d in contracted) * math.prod(out)
    if name == "conv_general_dilated":
        kernel, features = shape_of(eqn.invars[1]), eqn.params["dimension_numbers"].rhs_spec[0]
        return 2.0 * math.prod(out) * math.prod(kernel) / max(kernel[features], 1)
    return 2.0 * math.prod(first) * max(first[-2:], default=1)
