"""The account of a program for ``explain``: what XLA launches for it, what onelaunch does, and the reason."""

from __future__ import annotations

import jax
from jax.extend import core

from onelaunch import build, partition
from onelaunch.errors import BuildError, Refusal
from onelaunch.launch import jax as launch
from onelaunch.ops.launches import Launches, turns
from onelaunch.partition import Placed, describe, placed
from onelaunch.primitive import Program
from onelaunch.report import hlo
from onelaunch.report.explain import Before, Explanation, KernelFacts, Turns, time
from onelaunch.single import place_of
from onelaunch.target import Target


def explain(name: str, program: Program, machine: Target | None, spread: Refusal | None = None) -> Explanation:
    """The account of a program; its kernels are compiled for ``machine``, unless that is None.

    ``spread``: why it is left to XLA where its arguments lie on several devices.
    """
    if spread is not None:
        before = _before(program)
        reason = f"refused: {spread.why}"
        return Explanation(name, spread.where, before, (), before.launches, before.us, reason, (spread,))
    found = [Placed(program)] if program.fused.kernel is not None else []
    total = Launches(len(found), program.fused.kernel_us)
    if program.parts is not None:
        found = list(placed(program.parts))
        total = partition.after(program.parts, lambda part: part.fused.kernel_us)
    before = _before(program)
    facts = tuple(_facts(one, machine) for one in found)
    reason = _reason(program, len(facts), total)
    where = place_of(program.closed)
    return Explanation(name, where, before, facts, total.count, total.us, reason, program.refusals)


def _before(program: Program) -> Before:
    """The program under XLA: counted where there is a GPU to compile it for, estimated elsewhere."""
    estimated = program.fused.before
    text = _module(program) if launch.has_gpu() else None
    if text is not None:
        found = [Turns(turn.count, trips, "a loop of the module") for turn, trips in hlo.loops(text)]
        return Before(hlo.count_launches(text).count, estimated.us, True, tuple(found))
    loops = [Turns(turn.count, eqn.params.get("length"), describe(eqn)) for eqn, turn in turns(program.closed.jaxpr)]
    return Before(estimated.count, estimated.us, False, tuple(loops))


def _module(program: Program) -> str | None:
    """XLA's compiled module of a program, as text; None where it can't be compiled outside of its caller."""
    avals = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in program.closed.in_avals]
    try:
        return jax.jit(core.jaxpr_as_fun(program.closed)).lower(*avals).compile().as_text()
    except Exception:  # collectives over an axis of the caller's, symbolic shapes
        return None


def _facts(one: Placed, machine: Target | None) -> KernelFacts:
    fused = one.kernel.fused
    place = "all of the program" if one.kernel.fused.kernel is not None and not one.kernel.part else str(one)
    resources: build.Resources | BuildError | None = None
    if machine is not None:
        try:
            resources = build.compile(fused.kernel, machine).resources
        except BuildError as error:
            resources = error
    return KernelFacts(
        fused.kernel.name, place, fused.plan, fused.kernel.params, fused.kernel_us, str(machine or ""), resources
    )


def _reason(program: Program, kernels: int, total: Launches) -> str:
    """Why a program is one kernel, several or none, with the numbers behind it."""
    fused = program.fused
    against = f"{time(total.us)} against {time(fused.before.us)} under XLA"
    if fused.kernel is not None:
        return f"one kernel, estimated {against}"
    if kernels:
        return f"{kernels} kernel(s) with XLA between them, estimated {against}"
    if fused.refusals[0].stage == "cost":
        return (
            f"it would lose as one kernel: estimated {time(fused.kernel_us)} against {time(fused.before.us)} under XLA"
        )
    if program.parts is None and fused.refusals[0].stage == "trace":
        return "what surrounds the parts that stay in XLA is too little to gain by a kernel"
    return f"refused: {fused.refusals[0].why}"
