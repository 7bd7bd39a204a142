"""Plan: a frozen choice of homes and launch parameters for one Graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from onelaunch.ir.nodes import Node, Value


class Home(Enum):
    """Where a value lives."""

    REGISTERS = "registers"  # lanes and unrolled dims, one Triton value per unrolled index
    MEMORY = "memory"  # global memory, read and written by index
    INLINE = "inline"  # nowhere: computed where it is used


@dataclass(frozen=True)
class Limits:
    """What decides homes; sizes in elements.

    unroll_dim: a dim up to this extent is unrolled; unroll_value: values unrolled into at most so many pieces;
    tile: a register value has at most so many (padded) elements; work: largest tile of a product or reduction;
    lanes: chains of the grid axis per program (0: no grid axis).
    """

    unroll_dim: int = 8
    unroll_value: int = 64
    tile: int = 4096
    work: int = 16384
    lanes: int = 0
    num_warps: int = 1
    #: bytes that one value, the same in every lane, may hold in registers through a loop it does not change in
    held: int = 1 << 20
    #: elements of stacked output (scan's ys) up to which they may stay in registers
    small_stack: int = 64


@dataclass(frozen=True, eq=False)
class Plan:
    """Homes of all values, which dims are lanes, which are the grid axis, and the launch."""

    limits: Limits
    home: dict[Value, Home] = field(repr=False)
    #: per value, per dim: "batch" (grid axis, several elements a program, in lanes), "grid" (grid axis, one element a
    #: program), "lane" or "unroll"
    dims: dict[Value, tuple[str, ...]] = field(repr=False)
    batch: int = 0  # extent of the grid axis, 0 if there is none
    grid: int = 1
    #: nodes that the last program to finish runs, alone, after all have stored what they read (schedule.late)
    late: frozenset[Node] = field(default=frozenset(), repr=False)
    #: estimated time of the kernel on an H200, in microseconds
    estimate_us: float = 0.0

    def __str__(self) -> str:
        counts = {h: sum(1 for v in self.home.values() if v is h) for h in Home}
        where = ", ".join(f"{c} in {h.value}" for h, c in counts.items() if c)
        axis = f"grid axis of {self.batch}, {self.limits.lanes} per program" if self.batch else "no grid axis"
        if self.late:
            axis += ", the last program to finish combines them"
        return f"{self.grid} program(s) of {self.limits.num_warps} warp(s); {axis}; values: {where}"
