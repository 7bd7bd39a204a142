"""The memory-level form: registers, explicit loads and stores, structured control, buffers.

A ``Var`` is one Triton value: a scalar (shape ``()``) or a tensor whose dims are powers of two. A kernel is a list of
statements; control statements hold blocks of their own. Everything that emission prints is decided here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from onelaunch.errors import Where

Shape = tuple[int, ...]
#: An operand: a Var, or a Python int (an index literal).
Arg = "Var | int"


@dataclass(eq=False)
class Var:
    """One Triton value."""

    dtype: np.dtype
    shape: Shape
    hint: str = ""


@dataclass(eq=False)
class Buffer:
    """Global memory that a program reads or writes: a kernel argument or a piece of the scratch argument.

    strides are in elements, for the dims of the value it holds; ``offset`` is a Var added to every address (the
    program's own piece of a private scratch buffer) or None; ``start`` a number added likewise. A view of another
    buffer names it as ``base``.
    """

    name: str
    dtype: np.dtype
    shape: Shape
    strides: tuple[int, ...]
    role: str  # "in", "out" or "scratch"
    size: int
    offset: Var | None = None
    start: int = 0
    base: Buffer | None = None


@dataclass(eq=False)
class Op:
    """A pure operation: out(s) = fn(args); ``attrs`` are compile-time parameters."""

    fn: str
    args: tuple[Var | int, ...]
    outs: tuple[Var, ...]
    attrs: tuple[object, ...] = ()
    where: Where | None = None


@dataclass(eq=False)
class Load:
    """out = buffer[offset], masked lanes read zero."""

    buffer: Buffer
    offset: Var | int
    mask: Var | None
    out: Var
    where: Where | None = None


@dataclass(eq=False)
class Store:
    """buffer[offset] = value where mask.

    Stores of one ``group`` write different addresses, or the same ones from the same threads, unless ``overlaps``.
    """

    buffer: Buffer
    offset: Var | int
    value: Var
    mask: Var | None
    group: int = 0
    overlaps: bool = False
    where: Where | None = None


@dataclass(eq=False)
class Barrier:
    """Every thread of the program sees what the others wrote before."""


@dataclass(eq=False)
class Arrive:
    """Count this program in, after all that it stored; ``out``: how many had arrived before it."""

    buffer: Buffer
    out: Var
    where: Where | None = None


@dataclass(eq=False)
class For:
    """for index in range(start, stop, step) with loop-carried ``params``."""

    index: Var
    start: int
    stop: int
    step: int
    params: list[Var]
    inits: list[Var]
    body: list[Stmt] = field(default_factory=list)
    results: list[Var] = field(default_factory=list)
    where: Where | None = None
    #: no turn stores what another reads or stores: the loop goes over the elements of an array
    disjoint: bool = False


@dataclass(eq=False)
class While:
    """while cond: body, with loop-carried ``params``; ``test`` computes ``cond`` from the params."""

    params: list[Var]
    inits: list[Var]
    test: list[Stmt] = field(default_factory=list)
    cond: Var | None = None
    body: list[Stmt] = field(default_factory=list)
    results: list[Var] = field(default_factory=list)
    #: turns to expect, for estimates
    turns: int = 100
    where: Where | None = None


@dataclass(eq=False)
class If:
    """if cond: then, else: other; outs take the results of the side that ran."""

    cond: Var
    outs: list[Var]
    then: list[Stmt] = field(default_factory=list)
    then_results: list[Var] = field(default_factory=list)
    other: list[Stmt] = field(default_factory=list)
    other_results: list[Var] = field(default_factory=list)
    where: Where | None = None


Stmt = Op | Load | Store | Barrier | Arrive | For | While | If


def inner_blocks(stmt: Stmt) -> tuple[list[Stmt], ...]:
    """The statement lists inside a statement."""
    match stmt:
        case For():
            return (stmt.body,)
        case While():
            return (stmt.test, stmt.body)
        case If():
            return (stmt.then, stmt.other)
        case _:
            return ()


def direct_uses(stmt: Stmt) -> Iterator[Var]:
    """The Vars a statement reads itself, its blocks' results included, their statements not."""
    match stmt:
        case Op():
            yield from (a for a in stmt.args if isinstance(a, Var))
        case Load():
            yield from (a for a in (stmt.offset, stmt.mask, stmt.buffer.offset) if isinstance(a, Var))
        case Store():
            yield from (a for a in (stmt.offset, stmt.mask, stmt.value, stmt.buffer.offset) if isinstance(a, Var))
        case For():
            yield from stmt.inits
            yield from stmt.results
        case While():
            yield from stmt.inits
            yield from stmt.results
            if stmt.cond is not None:
                yield stmt.cond
        case If():
            yield stmt.cond
            yield from stmt.then_results
            yield from stmt.other_results
        case Barrier() | Arrive():
            return


def defined(stmt: Stmt) -> tuple[Var, ...]:
    """The Vars a statement defines for the statements after it."""
    match stmt:
        case Op():
            return stmt.outs
        case Load() | Arrive():
            return (stmt.out,)
        case For() | While():
            return tuple(stmt.params)
        case If():
            return tuple(stmt.outs)
        case _:
            return ()


def walk(block: list[Stmt]) -> Iterator[Stmt]:
    """Every statement, outer before inner."""
    for stmt in block:
        yield stmt
        for inner in inner_blocks(stmt):
            yield from walk(inner)


@dataclass(eq=False)
class Program:
    """A placed kernel: its arguments, the number of programs, and the statements of one program."""

    name: str
    inputs: list[Buffer]
    outputs: list[Buffer]
    scratch: list[Buffer]
    grid: int
    body: list[Stmt]
    constants: dict[Var, np.generic]
    #: the buffer that counts finished programs, if the last of them goes on (also the last of ``outputs``)
    counter: Buffer | None = None
