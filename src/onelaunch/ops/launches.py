"""What a jaxpr costs under XLA on a GPU where launches dominate: an estimate from its equations.

XLA fuses element-wise work, so only what ends a fusion counts as a launch; a loop adds its own per turn. Microseconds,
fitted to H200 timings of the programs in ``tests/programs`` (docs/notes/cost.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from jax.extend import core

LAUNCH_US = 1.5
#: a turn of a scan, and what a while adds because its test is read by the host
TURN_US, TEST_US = 4.0, 8.0
#: turns assumed of a loop whose number of turns is not known
UNKNOWN_TURNS = 100
#: multiplications and additions of a large f32 matrix product in a microsecond
FLOPS_PER_US = 40e6
#: primitives that end a fusion or are launches of their own
ROOTS = (
    "dot_general",
    "reduce",
    "argm",
    "cum",
    "sort",
    "top_k",
    "scatter",
    "dynamic_update_slice",
    "conv_",
    "cholesky",
    "triangular_solve",
    "lu",
    "qr",
    "geqrf",
    "eigh",
    "fft",
    "custom_linear_solve",
)
#: microseconds of calls of the linear algebra library, by the beginning of a primitive's name
LIBRARY_US = {"eigh": 300.0, "cholesky": 30.0, "lu": 40.0, "geqrf": 40.0, "qr": 60.0, "triangular_solve": 10.0}
#: primitives that hide loops of unknown length: nothing is known of their cost
OPEN_ENDED = ("random_gamma", "igamma", "igammac", "random_gamma_grad")


@dataclass(frozen=True)
class Launches:
    """Launches of one execution, and its estimated time in microseconds."""

    count: float
    us: float

    def __add__(self, other: Launches) -> Launches:
        return Launches(self.count + other.count, self.us + other.us)

    def times(self, n: float) -> Launches:
        return Launches(self.count * n, self.us * n)


def estimate(jaxpr: core.Jaxpr) -> Launches:
    """The launches of a jaxpr, inner jaxprs included."""
    total, loose = _roots(jaxpr)
    return total + Launches(1, LAUNCH_US) if loose else total


def turns(jaxpr: core.Jaxpr) -> list[tuple[core.JaxprEqn, Launches]]:
    """The outermost loops of a jaxpr, through calls, and what one turn of each takes."""
    found: list[tuple[core.JaxprEqn, Launches]] = []
    for eqn in jaxpr.eqns:
        inner = inner_jaxprs(eqn.params)
        if eqn.primitive.name in ("scan", "while"):
            found.append((eqn, sum((estimate(j) for j in inner), Launches(1, TURN_US))))
        elif eqn.primitive.name != "cond":
            found += [loop for j in inner for loop in turns(j)]
    return found


def _roots(jaxpr: core.Jaxpr) -> tuple[Launches, bool]:
    """The launches that end fusions, and whether element-wise work is left that none has taken up."""
    total, loose = Launches(0, 0), False
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        inner = list(inner_jaxprs(eqn.params))
        if name == "while":
            turn = sum((estimate(j) for j in inner), Launches(1, TURN_US + TEST_US))
            total, loose = total + turn.times(UNKNOWN_TURNS), False
        elif name == "scan":
            turn = sum((estimate(j) for j in inner), Launches(1, TURN_US))
            total, loose = total + turn.times(eqn.params["length"]), False
        elif name == "cond":
            total += max((estimate(j) for j in inner), key=lambda cost: cost.us) + Launches(1, TEST_US)
        elif name in OPEN_ENDED:
            total += Launches(float("inf"), float("inf"))
        elif inner:  # a call: XLA sees through it
            for j in inner:
                within, open_end = _roots(j)
                total, loose = total + within, loose or open_end
        elif name.startswith(ROOTS):
            total, loose = total + Launches(1, LAUNCH_US + arithmetic_us(eqn) + library_us(name)), False
        else:
            loose = True
    return total, loose


def library_us(name: str) -> float:
    """Time that a library routine takes beyond its launch, whatever the size (of small matrices)."""
    return next((us for start, us in LIBRARY_US.items() if name.startswith(start)), 0.0)


def arithmetic_us(eqn: core.JaxprEqn) -> float:
    """Time of a matrix product's multiplications, spread over a whole GPU."""
    if eqn.primitive.name != "dot_general":
        return 0.0
    (contracted, _), _ = eqn.params["dimension_numbers"]
    depth = math.prod(shape_of(eqn.invars[0])[d] for d in contracted)
    return 2 * depth * math.prod(shape_of(eqn.outvars[0])) / FLOPS_PER_US


def shape_of(atom: Any) -> tuple[int, ...]:
    """The shape of a variable or literal."""
    return tuple(atom.aval.shape)


def inner_jaxprs(params: dict[str, Any]) -> list[core.Jaxpr]:
    """The jaxprs among an equation's parameters."""
    found = []
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, core.ClosedJaxpr):
                found.append(item.jaxpr)
            elif isinstance(item, core.Jaxpr):
                found.append(item)
    return found
