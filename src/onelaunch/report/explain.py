"""explain: what became a kernel, what did not, and why, as text for a terminal and as HTML for a notebook."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator
from dataclasses import dataclass

from onelaunch.build import Resources
from onelaunch.emit.kernel import Param
from onelaunch.errors import BuildError, Refusal


@dataclass(frozen=True)
class Explanation:
    """The facts about one function at given argument types.

    launches_before, us_before: launches of XLA and their time, estimated from the program (loops of unknown length are
    taken as 100 turns; infinite where nothing is known). launches_after: kernels of onelaunch. us_after: the kernel's
    estimated time. Estimates are for an H200, in microseconds.
    """

    name: str
    launches_before: float
    us_before: float
    launches_after: int
    us_after: float
    plan: str
    params: tuple[Param, ...]
    resources: Resources | BuildError | None
    refusals: tuple[Refusal, ...]

    def rows(self) -> Iterator[tuple[str, str]]:
        """Label and text, line by line."""
        before = f"about {self.launches_before:,.0f} launches, {_time(self.us_before)}"
        yield "under XLA", before if math.isfinite(self.us_before) else "loops of unknown length"
        after = f"{self.launches_after} launch, about {_time(self.us_after)}" if self.launches_after else "left to XLA"
        yield "with fuse", after
        if self.plan:
            yield "plan", self.plan
        for role in ("in", "out", "scratch"):
            found = [p for p in self.params if p.role == role]
            if found:
                yield role, f"{len(found)} array(s), {sum(p.nbytes for p in found):,} bytes"
        if isinstance(self.resources, BuildError):
            yield "build", str(self.resources)
        elif self.resources is not None:
            r = self.resources
            yield "resources", f"{r.registers} registers, {r.spilled} bytes spilled, {r.shared} bytes shared memory"
        for refusal in self.refusals:
            yield "refused", str(refusal)

    def __str__(self) -> str:
        return "\n".join([self.name, *(f"  {label:<10} {text}" for label, text in self.rows())])

    def _repr_html_(self) -> str:
        cells = "".join(f"<tr><th>{html.escape(a)}</th><td>{html.escape(b)}</td></tr>" for a, b in self.rows())
        return f"<table><caption>{html.escape(self.name)}</caption>{cells}</table>"


def _time(us: float) -> str:
    return f"{us / 1e6:.2f} s" if us >= 1e6 else f"{us / 1e3:.2f} ms" if us >= 1e3 else f"{us:.1f} us"
