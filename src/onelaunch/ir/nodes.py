"""The Graph: about a dozen kinds of node over immutable values.

Scoping is lexical: the blocks of a ``Loop`` or ``Branch`` may use any value defined before the node in
an enclosing block. A value is defined once; a value's identity is the object itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from onelaunch.errors import Where
from onelaunch.ir.types import Type


@dataclass(frozen=True, eq=False)
class Value:
    """One array of a Graph; ``hint`` is the user's name for it where known (a valid identifier or '')."""

    type: Type
    hint: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> np.dtype:
        return self.type.dtype

    @property
    def size(self) -> int:
        return self.type.size

    @property
    def ndim(self) -> int:
        return self.type.ndim

    def __repr__(self) -> str:
        return f"<{self.hint or 'v'} {self.type}>"


# --- index maps of Move: out index -> operand index ---------------------------------------------------


@dataclass(frozen=True)
class Slice:
    """out[i] = x[starts + i * strides]."""

    starts: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Pad:
    """out[i] = x[(i - low) / (interior + 1)] where that is a whole number inside x, else args[1] (a scalar)."""

    low: tuple[int, ...]
    interior: tuple[int, ...]


@dataclass(frozen=True)
class Reverse:
    """out[i] = x[n - 1 - i] along ``axes``."""

    axes: tuple[int, ...]


@dataclass(frozen=True)
class Transpose:
    """out dim k is operand dim ``permutation[k]``."""

    permutation: tuple[int, ...]


@dataclass(frozen=True)
class Reshape:
    """Same elements in row-major order."""


@dataclass(frozen=True)
class Broadcast:
    """Operand dim d is out dim ``dims[d]`` (size 1 repeats); the other out dims repeat."""

    dims: tuple[int, ...]


@dataclass(frozen=True)
class Concatenate:
    """The operands one after the other along ``axis``."""

    axis: int


MoveOp = Slice | Pad | Reverse | Transpose | Reshape | Broadcast | Concatenate


@dataclass(frozen=True)
class Window:
    """How a Gather's output (or an Update's updates) lies over its operand.

    Along operand dim d, the operand index of window element w is
      start + window offset + batching index, where
      start          = starts[start[d]][batch index], clamped by ``mode`` so that sizes[d] fit; 0 if start[d] is None,
      window offset  = w[offset[d]]; 0 if offset[d] is None (a collapsed window dim),
      batching index = w[batching[d]]; 0 if batching[d] is None.
    ``batch`` lists the dims of the window array that index the starts, in the order of the starts' dims; every
    starts value has exactly the shape of those dims (shape () for a dynamic_slice). ``sizes`` is the window's extent
    along each operand dim (1 where collapsed or batching).
    ``mode``: "clip" clamps starts to [0, n - size]; "fill": a window that is not wholly inside reads ``fill``
    (Gather) or is dropped (Update).
    """

    offset: tuple[int | None, ...]
    start: tuple[int | None, ...]
    batching: tuple[int | None, ...]
    batch: tuple[int, ...]
    sizes: tuple[int, ...]
    mode: str = "clip"


# --- nodes ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class Base:
    where: Where | None = None


@dataclass(frozen=True, eq=False)
class Const(Base):
    """A scalar constant (shape ()); arrays closed over by the user are inputs of the Graph (``Graph.consts``)."""

    value: np.generic
    out: Value


@dataclass(frozen=True, eq=False)
class Empty(Base):
    """An array whose elements are all written before they are read (stacked outputs of a scan)."""

    out: Value


@dataclass(frozen=True, eq=False)
class Iota(Base):
    """out[i] = i[dim]."""

    dim: int
    out: Value


@dataclass(frozen=True, eq=False)
class Map(Base):
    """A scalar function (a row of ``ir.scalars``) over operands that broadcast as in numpy (equal rank or rank 0)."""

    fn: str
    args: tuple[Value, ...]
    outs: tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class Reduce(Base):
    """Reduction over ``axes`` by a monoid: add mul max min and or xor, or argmax/argmin (one operand, index out)."""

    monoid: str
    arg: Value
    axes: tuple[int, ...]
    out: Value


@dataclass(frozen=True, eq=False)
class Scan(Base):
    """Inclusive prefix along ``axis`` by a monoid: add mul max min logaddexp."""

    monoid: str
    arg: Value
    axis: int
    reverse: bool
    out: Value


@dataclass(frozen=True, eq=False)
class Move(Base):
    """Elements moved, none computed."""

    op: MoveOp
    args: tuple[Value, ...]
    out: Value


@dataclass(frozen=True, eq=False)
class Gather(Base):
    """Dynamic read; also dynamic_slice (scalar starts, no batch dims) and a scan's ``xs[i]``."""

    operand: Value
    starts: tuple[Value, ...]
    window: Window
    fill: Value | None
    out: Value


@dataclass(frozen=True, eq=False)
class Update(Base):
    """Dynamic write of ``updates`` into ``operand`` by set, add, mul, min or max; out has operand's type.

    Windows that overlap are applied in row-major order of the batch dims (so the last one wins under set).
    """

    monoid: str
    operand: Value
    starts: tuple[Value, ...]
    updates: Value
    window: Window
    out: Value
    unique: bool = False


@dataclass(frozen=True, eq=False)
class Dot(Base):
    """Batched contraction; out dims are batch, lhs free, rhs free. Accumulates in out's dtype (f32 at the least)."""

    lhs: Value
    rhs: Value
    contract: tuple[tuple[int, ...], tuple[int, ...]]
    batch: tuple[tuple[int, ...], tuple[int, ...]]
    out: Value
    precision: str = "ieee"


@dataclass(frozen=True, eq=False)
class Sort(Base):
    """Lexicographic sort of several arrays along ``dim`` by the first ``num_keys``."""

    args: tuple[Value, ...]
    dim: int
    num_keys: int
    stable: bool
    outs: tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class Block:
    """Nodes in order, then the values handed out."""

    nodes: tuple[Node, ...]
    results: tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class Loop(Base):
    """carry = init; repeat body while any(cond(carry)), or ``trip`` times; outs = the last carry.

    Exactly one of ``trip`` and ``cond`` is set. ``index`` (i32, counts from 0) exists only with ``trip``. ``carry``
    are the parameters of both blocks. A cond result of shape s (vmapped while) freezes: a carry, whose leading dims
    are s, keeps its old value wherever cond is False.
    """

    carry: tuple[Value, ...]
    init: tuple[Value, ...]
    body: Block
    outs: tuple[Value, ...]
    cond: Block | None = None
    trip: int | None = None
    index: Value | None = None
    #: how often it turns, as far as an estimate needs to know; without meaning where ``trip`` is set
    turns: int = 100


@dataclass(frozen=True, eq=False)
class Branch(Base):
    """outs = blocks[clamp(index)]()  (index: an i32 scalar)."""

    index: Value
    blocks: tuple[Block, ...]
    outs: tuple[Value, ...]


Node = Const | Empty | Iota | Map | Reduce | Scan | Move | Gather | Update | Dot | Sort | Loop | Branch


@dataclass(frozen=True, eq=False)
class Graph:
    """A whole program: parameters, arrays closed over, and a block."""

    name: str
    params: tuple[Value, ...]
    consts: tuple[tuple[Value, np.ndarray], ...]
    block: Block


def outputs(node: Node) -> tuple[Value, ...]:
    """The values a node defines in its own block."""
    if isinstance(node, Map | Sort | Loop | Branch):
        return node.outs
    return (node.out,)


def operands(node: Node) -> tuple[Value, ...]:
    """The values a node uses directly (not those captured by its blocks)."""
    match node:
        case Const() | Empty() | Iota():
            return ()
        case Map(args=args) | Sort(args=args) | Move(args=args):
            return args
        case Reduce(arg=arg) | Scan(arg=arg):
            return (arg,)
        case Gather():
            return (node.operand, *node.starts, *((node.fill,) if node.fill is not None else ()))
        case Update():
            return (node.operand, *node.starts, node.updates)
        case Dot():
            return (node.lhs, node.rhs)
        case Loop():
            return node.init
        case Branch():
            return (node.index,)


def blocks(node: Node) -> tuple[Block, ...]:
    """The blocks inside a node."""
    match node:
        case Loop():
            return ((node.cond,) if node.cond is not None else ()) + (node.body,)
        case Branch():
            return node.blocks
        case _:
            return ()


def walk(block: Block) -> Iterator[Node]:
    """Every node of a block and of the blocks inside it, outer before inner."""
    for node in block.nodes:
        yield node
        for inner in blocks(node):
            yield from walk(inner)


def uses(node: Node) -> Iterator[Value]:
    """Every value a node uses, those used inside its blocks included (some may be defined there)."""
    yield from operands(node)
    for inner in blocks(node):
        for child in inner.nodes:
            yield from uses(child)
        yield from inner.results
