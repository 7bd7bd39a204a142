"""A jaxpr to kernels and what is kept between them, in an order that runs.

    y = f(x); debug.print(y); z = g(y)   ->   [kernel f] [kept debug.print] [kernel g]

Equations are kept if a rule refuses them (``kept.py``); the others form as few kernels as possible (``levels.py``).
Loops and branches that hold something kept are kept themselves, with kernels in their bodies.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from jax.extend import core

from onelaunch.errors import Refusal
from onelaunch.ops.control import argument_names
from onelaunch.ops.launches import estimate, inner_jaxprs, shape_of
from onelaunch.partition.flat import Flat, Item, jaxpr_of
from onelaunch.partition.kept import Judge, refusal
from onelaunch.partition.levels import Node, components, levels, sunk

#: Launches under XLA below which a kernel is not worth its own: XLA fuses element-wise work itself.
LEAST_LAUNCHES = 3
LOOPS = ("scan", "while", "cond")
REMATS = ("checkpoint", "remat", "remat2")


@dataclass(frozen=True, eq=False)
class Step:
    """Equations that run together: on the values of ``ins`` they give those of ``outs``.

    kernel: what ``judge`` made of them; None if they are XLA's. bodies: a kept loop's, branch's or checkpoint's jaxprs
    in parts; empty where they hold no kernel.
    """

    closed: core.ClosedJaxpr
    ins: tuple[core.Var, ...]
    outs: tuple[core.Var, ...]
    kernel: Any = None
    bodies: tuple[Parts, ...] = ()

    @property
    def eqn(self) -> core.JaxprEqn:
        """The equation whose bodies these are."""
        return self.closed.jaxpr.eqns[0]


@dataclass(frozen=True, eq=False)
class Parts:
    """A program in steps. outs: variables and literals; refusals: why equations are kept, those in bodies too."""

    ins: tuple[core.Var, ...]
    outs: tuple[Any, ...]
    consts: dict[core.Var, Any]
    steps: tuple[Step, ...]
    refusals: tuple[Refusal, ...]

    def kernels(self) -> list[Any]:
        """What ``judge`` made, in order, those in bodies too."""
        found: list[Any] = []
        for step in self.steps:
            found += [step.kernel] if step.kernel is not None else []
            found += [k for body in step.bodies for k in body.kernels()]
        return found


def split(closed: core.ClosedJaxpr, judge: Judge, *, derived: bool = True, lost: bool = False) -> Parts:
    """The parts of a program that is no single kernel.

    judge: makes a kernel of a closed jaxpr, or a Refusal of one that would lose. derived: no transformation is to
    come. lost: all of the program as one kernel was refused for its cost, so that is not tried again.
    """
    return _Splitter(closed, judge, derived).parts(lost)


class _Splitter:
    """The split of one jaxpr; bodies are split by splitters of their own."""

    def __init__(self, closed: core.ClosedJaxpr, judge: Judge, derived: bool):
        self.judge, self.derived = judge, derived
        flat = Flat(partial(refusal, judge=judge), derived)
        self.ins = tuple(core.Var(v.aval) for v in closed.jaxpr.invars)
        self.outs = tuple(flat.call(closed, self.ins))
        self.read_outs = frozenset(_variables(self.outs))
        self.names = dict(zip(self.ins, argument_names(closed), strict=True))
        self.items, self.consts = flat.items, flat.consts
        self.readers = _readers(self.items)

    def parts(self, lost: bool) -> Parts:
        nodes = self.relaxed(_graph(self.items))
        results = {at for at, item in enumerate(self.items) if not self.read_outs.isdisjoint(item.eqn.outvars)}
        level = sunk(nodes, levels(nodes), results)
        steps: list[Step] = []
        refusals: list[Refusal] = []
        for one in sorted(set(level)):
            free = [at for at in range(len(nodes)) if level[at] == one and not nodes[at].kept]
            steps += self.cluster(free, nodes, lost and len(free) == len(nodes))
            for at in (at for at in range(len(nodes)) if level[at] == one and nodes[at].kept):
                step, why = self.kept(at)
                steps.append(step)
                refusals += why
        refusals = list(dict.fromkeys(refusals))
        return Parts(self.ins, self.outs, self.consts, tuple(steps), tuple(refusals))

    def relaxed(self, nodes: list[Node]) -> list[Node]:
        """The graph with little work that only prepares what is kept left to XLA with it: no kernel has to wait."""
        while True:
            level = levels(nodes)
            small: set[int] = set()
            for one in set(level):
                members = [at for at in range(len(nodes)) if level[at] == one and not nodes[at].kept]
                for part in components(members, nodes):
                    feeds = any(nodes[r].kept for at in part for r in self.readers[at])
                    if feeds and self.is_small(self.step(part)):
                        small.update(part)
            if not small:
                return nodes
            nodes = [dataclasses.replace(n, kept=True) if at in small else n for at, n in enumerate(nodes)]

    def is_small(self, step: Step) -> bool:
        return estimate(step.closed.jaxpr).count < LEAST_LAUNCHES

    def cluster(self, members: list[int], nodes: Sequence[Node], lost: bool) -> list[Step]:
        """The steps of one level's free equations: one kernel if it pays, else one of each part that does."""
        if not members:
            return []
        if not lost and (whole := self.tried(members)).kernel is not None:
            return [whole]
        parts = components(members, nodes)
        if len(parts) == 1:
            return self.loops_alone(members)
        steps = []
        for part in parts:
            step = self.tried(part)
            steps += [step] if step.kernel is not None else self.loops_alone(part)
        return steps

    def loops_alone(self, members: list[int]) -> list[Step]:
        """A part that loses as one kernel: each of its loops as one, what stands between left to XLA."""
        loops = [at for at in members if self.items[at].eqn.primitive.name in LOOPS]
        kernels = {at: self.tried([at]) for at in loops} if len(members) > 1 else {}
        steps, run = [], list[int]()
        for at in members:
            if at in kernels and kernels[at].kernel is not None:
                steps += [*self.left(run), kernels[at]]
                run = []
            else:
                run.append(at)
        return [*steps, *self.left(run)]

    def left(self, members: list[int]) -> list[Step]:
        """Equations left to XLA."""
        return [self.step(members)] if members else []

    def tried(self, members: list[int]) -> Step:
        """A step with its kernel, if it should be one."""
        step = self.step(members)
        if not step.outs or self.is_small(step):
            return step
        made = self.judge(step.closed)
        return step if isinstance(made, Refusal) else dataclasses.replace(step, kernel=made)

    def step(self, members: Iterable[int]) -> Step:
        """Some equations as a program of their own."""
        within = set(members)
        eqns = [self.items[at].eqn for at in sorted(within)]
        made = {v: None for eqn in eqns for v in eqn.outvars}
        used = dict.fromkeys(v for eqn in eqns for v in _variables(eqn.invars))
        free = [v for v in used if v not in made]
        consts, ins = [v for v in free if v in self.consts], [v for v in free if v not in self.consts]
        readers = {r for at in within for r in self.readers[at]} - within
        outside = {*self.read_outs, *(v for at in readers for v in _variables(self.items[at].eqn.invars))}
        outs = [v for v in made if v in outside]
        closed = jaxpr_of(eqns, ins, outs, {v: self.consts[v] for v in consts}, self.names)
        return Step(closed, tuple(ins), tuple(outs))

    def kept(self, at: int) -> tuple[Step, Sequence[Refusal]]:
        """An equation left to XLA, with kernels in its bodies where there are any, and why it is kept."""
        step, item = self.step([at]), self.items[at]
        why = [item.why] if item.why is not None else []
        if not why or not self.has_bodies(item):
            return step, why
        bodies = tuple(_Splitter(body, self.judge, self.derived).parts(lost=False) for body in bodies_of(item.eqn))
        why = [r for body in bodies for r in body.refusals] or why
        if not any(body.kernels() for body in bodies):
            bodies = ()
        return dataclasses.replace(step, bodies=bodies), why

    def has_bodies(self, item: Item) -> bool:
        name = item.eqn.primitive.name
        return name in LOOPS or (self.derived and name in REMATS)


def bodies_of(eqn: core.JaxprEqn) -> list[core.ClosedJaxpr]:
    """The jaxprs of a scan (its body), while (its condition and body), cond (its branches) or checkpoint."""
    params = eqn.params
    match eqn.primitive.name:
        case "while":
            return [params["cond_jaxpr"], params["body_jaxpr"]]
        case "cond":
            return list(params["branches"])
        case "scan":
            return [params["jaxpr"]]
        case _:
            return [core.ClosedJaxpr(params["jaxpr"], ())]


def _variables(atoms: Iterable[Any]) -> Iterator[core.Var]:
    """The atoms that are no literals."""
    return (v for v in atoms if not isinstance(v, core.Literal))


def _readers(items: Sequence[Item]) -> list[set[int]]:
    """The equations that read each equation's results."""
    maker = {v: at for at, item in enumerate(items) for v in item.eqn.outvars}
    readers: list[set[int]] = [set() for _ in items]
    for at, item in enumerate(items):
        for v in _variables(item.eqn.invars):
            if v in maker:
                readers[maker[v]].add(at)
    return readers


def _graph(items: Sequence[Item]) -> list[Node]:
    """What each equation waits for: the makers of its operands, and the effect before its own."""
    waits: list[set[int]] = [set() for _ in items]
    for at, reading in enumerate(_readers(items)):
        for reader in reading:
            waits[reader].add(at)
    effects = [at for at, item in enumerate(items) if item.eqn.effects]
    for before, after in itertools.pairwise(effects):
        waits[after].add(before)
    return [Node(tuple(sorted(w)), i.why is not None, _spreads(i.eqn)) for w, i in zip(waits, items, strict=True)]


def _spreads(eqn: core.JaxprEqn) -> bool:
    """Whether an equation gives more elements than it takes."""
    taken, given = (sum(math.prod(shape_of(v)) for v in vs) for vs in (eqn.invars, eqn.outvars))
    return taken < given and not inner_jaxprs(eqn.params)
