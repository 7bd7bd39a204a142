"""What a program in parts comes to: where each kernel stands, and launches and time of kernels and XLA together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from jax.extend import core

from onelaunch import compat
from onelaunch.ops.launches import LAUNCH_US, TEST_US, TURN_US, UNKNOWN_TURNS, Launches, estimate
from onelaunch.partition.parts import Parts, Step


@dataclass(frozen=True)
class Placed:
    """A kernel and the loops and branches that it stands in, outermost first."""

    kernel: Any
    within: tuple[core.JaxprEqn, ...] = ()

    def __str__(self) -> str:
        return ", ".join(f"in {describe(eqn)}" for eqn in self.within) or "once a call"


def describe(eqn: core.JaxprEqn) -> str:
    """A loop or branch in words."""
    where = compat.user_where(eqn.source_info)
    return f"{eqn.primitive.name} at {where or 'an unknown place'}"


def placed(parts: Parts, within: tuple[core.JaxprEqn, ...] = ()) -> Iterator[Placed]:
    """The kernels in order, those of bodies too."""
    for step in parts.steps:
        if step.kernel is not None:
            yield Placed(step.kernel, within)
        for body in step.bodies:
            yield from placed(body, (*within, step.eqn))


def after(parts: Parts, us: Callable[[Any], float]) -> Launches:
    """Launches and estimated time of a program in parts; ``us``: of a kernel."""
    total = Launches(0, 0)
    for step in parts.steps:
        total += _step(step, us)
    return total


def _step(step: Step, us: Callable[[Any], float]) -> Launches:
    if step.kernel is not None:
        return Launches(1, LAUNCH_US + us(step.kernel))
    bodies = [after(body, us) for body in step.bodies]
    match step.eqn.primitive.name if bodies else "":
        case "":
            return estimate(step.closed.jaxpr)
        case "scan":
            return (bodies[0] + Launches(1, TURN_US)).times(step.eqn.params["length"])
        case "while":
            return (bodies[0] + bodies[1] + Launches(1, TURN_US + TEST_US)).times(UNKNOWN_TURNS)
        case _:
            return max(bodies, key=lambda cost: cost.us) + Launches(1, TEST_US)
