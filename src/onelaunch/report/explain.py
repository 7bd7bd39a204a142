"""explain: what became kernels, what did not, and why, as text for a terminal and as HTML for a notebook."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from onelaunch.build import Resources
from onelaunch.emit.kernel import Param
from onelaunch.errors import BuildError, Refusal, Where
from onelaunch.schedule.plan import Plan

#: columns of a terminal that text is wrapped to
WIDTH = 120
#: label and text of one line, and how deep it stands
Row = tuple[int, str, str]


@dataclass(frozen=True)
class Turns:
    """A loop under XLA: launches of one turn, how many turns (None: not known), where."""

    launches: float
    turns: int | None
    where: str

    def __str__(self) -> str:
        turns = f"{self.turns:,} turns" if self.turns is not None else "turns not known"
        return f"{_launches(self.launches)}, {turns}, {self.where}"


@dataclass(frozen=True)
class Before:
    """A program under XLA. counted: whether launches are those of its compiled module, or estimated from its equations.

    Estimates take loops of unknown length as 100 turns, and are infinite where nothing is known.
    """

    launches: float
    us: float
    counted: bool
    loops: tuple[Turns, ...] = ()

    def rows(self) -> Iterator[Row]:
        about = "" if self.counted else "about "
        how = "counted in its compiled module" if self.counted else "estimated: not compiled for a GPU here"
        if math.isfinite(self.launches):
            yield 1, "under XLA", f"{about}{_launches(self.launches)} ({how}), estimated {time(self.us)}"
        else:
            yield 1, "under XLA", "loops of unknown length"
        for loop in self.loops:
            yield 2, "each turn", f"{about}{loop}"


@dataclass(frozen=True)
class KernelFacts:
    """One kernel: where it stands in the program, its plan, arguments, estimated time and what Triton made of it.

    resources: registers and memory of one program on ``target``; the error where Triton failed; None if not compiled.
    """

    name: str
    place: str
    plan: Plan
    params: tuple[Param, ...]
    us: float
    target: str = ""
    resources: Resources | BuildError | None = None

    def rows(self) -> Iterator[Row]:
        yield 1, f"kernel {self.name}", f"{self.place}, estimated {time(self.us)}"
        yield 2, "plan", str(self.plan)
        if found := axes(self.plan):
            yield 2, "axes", found
        for role in ("in", "out", "scratch"):
            of_role = [p for p in self.params if p.role == role]
            if of_role:
                yield 2, role, f"{len(of_role)} array(s), {sum(p.nbytes for p in of_role):,} bytes"
        if isinstance(self.resources, BuildError):
            yield 2, "build", str(self.resources)
        elif self.resources is not None:
            r = self.resources
            memory = f"{r.spilled} bytes spilled, {r.shared} bytes shared memory"
            yield 2, "resources", f"{self.target}: {r.registers} registers a thread, {memory}, {r.num_warps} warp(s)"


@dataclass(frozen=True)
class Explanation:
    """The facts about one function at given argument types.

    before: the program under XLA. launches_after, us_after: its kernels and what XLA does between them, estimated.
    reason: why it is one kernel, several or none. Times are in microseconds, estimated for an H200.
    """

    name: str
    where: Where | None
    before: Before
    kernels: tuple[KernelFacts, ...]
    launches_after: float
    us_after: float
    reason: str
    refusals: tuple[Refusal, ...]

    @property
    def launches_before(self) -> float:
        return self.before.launches

    def rows(self) -> Iterator[Row]:
        """Depth, label and text, line by line."""
        yield from self.before.rows()
        if self.kernels:
            count = f"{len(self.kernels)} kernel(s), about {_launches(self.launches_after)}"
            count = "1 launch" if len(self.kernels) == 1 and not self.refusals else count
            yield 1, "with fuse", f"{count}, estimated {time(self.us_after)}"
        else:
            yield 1, "with fuse", "left to XLA"
        yield 1, "reason", self.reason
        for kernel in self.kernels:
            yield from kernel.rows()
        for refusal in self.refusals:
            yield 1, "in XLA", str(refusal)

    @property
    def title(self) -> str:
        return self.name + (f"  {self.where.file}:{self.where.line}" if self.where else "")

    def __str__(self) -> str:
        return "\n".join(
            [self.title, *(_wrapped("  " * d + f"{label:<{14 - 2 * d}} ", text) for d, label, text in self.rows())]
        )

    def _repr_html_(self) -> str:
        cells = "".join(
            f'<tr><th style="text-align:left;padding-left:{d - 1}em">{html.escape(a)}</th>'
            f'<td style="text-align:left">{html.escape(b)}</td></tr>'
            for d, a, b in self.rows()
        )
        return f"<table><caption>{html.escape(self.title)}</caption>{cells}</table>"


def _wrapped(label: str, text: str) -> str:
    """A label and its text, the lines after the first below the text's beginning."""
    return textwrap.fill(
        text, WIDTH, initial_indent=label, subsequent_indent=" " * 15, break_long_words=False, break_on_hyphens=False
    )


def axes(plan: Plan) -> str:
    """What a plan does with the dims of its values, by their extents."""
    found: dict[str, set[int]] = {}
    for value, kinds in plan.dims.items():
        for size, kind in zip(value.shape, kinds, strict=False):
            if size > 1:
                found.setdefault(kind, set()).add(size)
    names = {"batch": "over programs, several in each", "grid": "over programs", "lane": "lanes", "unroll": "unrolled"}
    texts = (f"{name}: {', '.join(map(str, sorted(found[kind])))}" for kind, name in names.items() if kind in found)
    return "; ".join(texts)


def _launches(count: float) -> str:
    return f"{count:,.0f} launch" + ("es" if round(count) != 1 else "")


def time(us: float) -> str:
    """Microseconds in the unit that reads best."""
    return f"{us / 1e6:.2f} s" if us >= 1e6 else f"{us / 1e3:.2f} ms" if us >= 1e3 else f"{us:.1f} us"
