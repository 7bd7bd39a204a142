"""Placer: the state of placing one Graph, and ``fetch``: the element of a value at an index, whatever its home."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

from onelaunch.ir import nodes as n
from onelaunch.ir.nodes import Value
from onelaunch.place.nodes import Buffer, Var
from onelaunch.place.space import Axis, Index, Lane, Space, pow2
from onelaunch.place.writer import BOOL, INT32, INT64, Number, Writer
from onelaunch.schedule.plan import Home, Plan

#: Node kind -> elem(placer, node, output, index, space): the element of ``output`` at ``index``.
Elem = Callable[..., Var]
ELEM: dict[type, Elem] = {}

WIDE = 2**31 - 1


class NeedsMemory(Exception):
    """A value must live in memory for some access to be possible; placing starts again with it there."""

    def __init__(self, value: Value):
        super().__init__(repr(value))
        self.value = value


class NeedsNoGrid(Exception):
    """An access crosses the grid axis after all; placing starts again without one."""


def elem(kind: type) -> Callable[[Elem], Elem]:
    """Register the elem function of a node kind."""

    def register(fn: Elem) -> Elem:
        ELEM[kind] = fn
        return fn

    return register


def needs_memory_where_lanes(p: Placer, v: Value) -> None:
    """Raise NeedsMemory for the values behind ``v`` that hold lanes in registers."""
    if p.plan.home[v] is Home.INLINE and v in p.producer:
        for a in n.operands(p.producer[v]):
            needs_memory_where_lanes(p, a)
    elif p.plan.home[v] is Home.REGISTERS and "lane" in p.plan.dims[v]:
        raise NeedsMemory(v)


class Placer:
    """One Graph being placed under one Plan."""

    def __init__(self, graph: n.Graph, plan: Plan):
        self.graph, self.plan = graph, plan
        self.w = Writer()
        self.producer = {v: node for node in n.walk(graph.block) for v in n.outputs(node)}
        self.regs: dict[Value, dict[tuple[int, ...], Var]] = {}
        self.buffers: dict[Value, Buffer] = {}
        #: elements of a region computed so far, and the index they stand at
        self.local: tuple[dict[Value, Var], tuple[Index, ...]] = ({}, ())
        self.batch: Axis | None = None
        self.program: Var | None = None
        self._grid_axis()

    def _grid_axis(self) -> None:
        """The grid axis: this program's lanes of it, or its one element."""
        extent, lanes = self.plan.batch, self.plan.limits.lanes
        if not extent:
            return
        w = self.w
        dtype = INT64 if extent > WIDE else INT32
        program = w.top("program_id", (), dtype, ())
        ragged = extent % lanes != 0
        if lanes == 1:
            self.program = program
            return
        lane = w.top("arange", (), INT32, (lanes,), (lanes,))
        first = w.top("index_mul", (program, lanes), dtype, ())
        index = w.top("index_add", (first, lane), dtype, (lanes,), hint="" if ragged else "lane")
        if not ragged:
            self.batch = Axis(extent, lanes, "batch", index, None)
            return
        mask = w.top("index_lt", (index, extent), BOOL, (lanes,))
        inside = w.top("index_min", (index, extent - 1), dtype, (lanes,), hint="lane")
        self.batch = Axis(extent, lanes, "batch", inside, mask)

    # --- a value's own space --------------------------------------------------------------------------
    def axis(self, v: Value, d: int) -> Axis:
        """The axis of a lane or batch dim."""
        if self.plan.dims[v][d] == "batch":
            assert self.batch is not None
            return self.batch
        return self.w.tile(v.shape[d], pow2(v.shape[d]))

    def own_space(self, v: Value) -> Space:
        """The lane axes of a value in the order of its dims."""
        return tuple(self.axis(v, d) for d, kind in enumerate(self.plan.dims[v]) if kind in ("lane", "batch"))

    def coordinates(self, v: Value) -> list[tuple[int, ...]]:
        """Every combination of a value's unrolled indices."""
        return list(itertools.product(*(range(s) for s, k in zip(v.shape, self.plan.dims[v]) if k == "unroll")))

    def own_index(self, v: Value, coords: Sequence[int]) -> tuple[Index, ...]:
        """The index of one unrolled piece: integers on unrolled dims, lanes on the others."""
        numbers, lanes = iter(coords), itertools.count()
        return tuple(
            next(numbers) if k == "unroll" else self.element_of_grid() if k == "grid" else Lane(next(lanes))
            for k in self.plan.dims[v]
        )

    def element_of_grid(self) -> Var:
        """The index along the grid axis of a program that has one element of it."""
        assert self.program is not None
        return self.program

    def own_shape(self, v: Value) -> tuple[int, ...]:
        """The shape of a piece of a register value."""
        return tuple(axis.p for axis in self.own_space(v))

    # --- indices --------------------------------------------------------------------------------------
    def number(self, i: Index, space: Space) -> Number:
        """An index as an integer or a Var shaped for ``space``."""
        return self.w.lane(space, i.k) if isinstance(i, Lane) else i

    def respace(self, i: Index, positions: tuple[int, ...], rank: int) -> Index:
        """An index moved into a larger space where old axis k stands at ``positions[k]``."""
        if isinstance(i, Lane):
            return Lane(positions[i.k])
        return i if isinstance(i, int) else self.w.spread(i, positions, rank)

    def read_index(self, v: Value, idx: tuple[Index, ...], space: Space) -> Number:
        """The element of an integer value as an index; an integer where it is a known constant."""
        var = self.fetch(v, idx, space)
        if var in self.w.constants:
            return int(self.w.constants[var])
        return self.w.as_index(var)

    # --- fetch ----------------------------------------------------------------------------------------
    def fetch(self, v: Value, idx: tuple[Index, ...], space: Space) -> Var:
        """The element of ``v`` at ``idx``: a Var of the space's rank (or a scalar, the same in every lane)."""
        idx = tuple(
            0 if s == 1 and not (isinstance(i, Lane) and space[i.k].kind == "batch") else i
            for i, s in zip(idx, v.shape, strict=True)
        )
        home = self.plan.home[v]
        if home is Home.INLINE:
            node = self.producer[v]
            return ELEM[type(node)](self, node, v, idx, space)
        if home is Home.MEMORY:
            made, here = self.local
            if v in made:
                assert idx == here, f"{v!r} is read beside the element at hand"
                return made[v]
            return self._read_memory(v, idx, space)
        return self._read_registers(v, idx, space)

    def _read_memory(self, v: Value, idx: tuple[Index, ...], space: Space) -> Var:
        buffer = self.buffers[v]
        offset, mask = self.address(buffer, idx, space, clamped=True)
        return self.w.load(buffer, offset, mask)

    def address(
        self, buffer: Buffer, idx: tuple[Index, ...], space: Space, *, clamped: bool
    ) -> tuple[Number, Var | None]:
        """Offset in elements and mask; ``clamped``: batch lanes past the end repeat the last one and need no mask."""
        w = self.w
        offset: Number = buffer.start
        for i, stride in zip(idx, buffer.strides, strict=True):
            term = self.number(i, space)
            if buffer.size > WIDE and isinstance(term, Var):
                term = w.as_index(term, wide=True)
            offset = w.plus(offset, w.times(term, stride))
        mask: Var | bool = True
        for k, axis in enumerate(space):
            varies = isinstance(offset, Var) and bool(offset.shape) and offset.shape[k] > 1
            if axis.mask is not None and varies and not (clamped and axis.kind == "batch"):
                mask = w.both(mask, w.lane_mask(space, k))
        return offset, mask if isinstance(mask, Var) else None

    def _read_registers(self, v: Value, idx: tuple[Index, ...], space: Space) -> Var:
        kinds = self.plan.dims[v]
        for d, i in enumerate(idx):
            if kinds[d] == "unroll" and not isinstance(i, int):
                return self._select_piece(v, d, idx, space)
            if kinds[d] == "grid" and i is not self.program:
                raise NeedsNoGrid
        coords = tuple(i for i, k in zip(idx, kinds) if k == "unroll" and isinstance(i, int))
        lanes = [i for i, k in zip(idx, kinds) if k in ("lane", "batch")]
        return self.align(v, self.regs[v][coords], lanes, list(self.own_space(v)), space)

    def _select_piece(self, v: Value, d: int, idx: tuple[Index, ...], space: Space) -> Var:
        """An unrolled dim at a computed index: a chain of selects."""
        w = self.w
        number = self.number(idx[d], space)
        at = lambda k: self.fetch(v, (*idx[:d], k, *idx[d + 1 :]), space)  # noqa: E731
        result = at(v.shape[d] - 1)
        for k in reversed(range(v.shape[d] - 1)):
            here = w.compare("eq", number, k)
            if isinstance(here, Var):
                result = w.select(here, at(k), result)
            elif here:
                result = at(k)
        return result

    def align(self, v: Value, var: Var, idx: list[Index], own: list[Axis], space: Space) -> Var:
        """A piece of a register value, whose dims are ``own`` axes, as a tensor over ``space`` indexed by ``idx``."""
        if not var.shape:
            return var
        straight = [isinstance(i, Lane) and a.same(space[i.k]) for i, a in zip(idx, own)]
        for j, ok in enumerate(straight):
            if not ok and own[j].kind == "batch" and not (isinstance(idx[j], int) and own[j].n == 1):
                raise NeedsNoGrid
            if not ok and (var.shape[j] == 1 or not self._varies(idx[j])):
                return self._drop(v, var, j, idx, own, space)
        positions = [i.k for i, ok in zip(idx, straight) if ok and isinstance(i, Lane)]
        if len(set(positions)) < len(positions) or straight.count(False) > 1:
            raise NeedsMemory(v)
        if all(straight):
            return self._arrange(var, positions, len(space))
        return self._gather(v, var, straight.index(False), idx, space)

    @staticmethod
    def _varies(i: Index) -> bool:
        return isinstance(i, Lane) or (isinstance(i, Var) and bool(i.shape))

    def _drop(self, v: Value, var: Var, j: int, idx: list[Index], own: list[Axis], space: Space) -> Var:
        """Take one element along own dim ``j``."""
        shape = (*var.shape[:j], *var.shape[j + 1 :])
        if var.shape[j] == 1:
            rest = self.w.squeeze(var, shape)
        else:
            number = idx[j]
            assert not isinstance(number, Lane)
            lane = self.w.lane(tuple(own), j)
            rest = self.w.op("pick", (var, lane, number), var.dtype, shape, (j,))
        return self.align(v, rest, [*idx[:j], *idx[j + 1 :]], [*own[:j], *own[j + 1 :]], space)

    def _arrange(self, var: Var, positions: list[int], rank: int) -> Var:
        """Put own dims at ``positions`` of a space."""
        order = tuple(sorted(range(len(positions)), key=positions.__getitem__))
        if order != tuple(range(len(positions))):
            shape = tuple(var.shape[o] for o in order)
            var = self.w.op("permute", (var,), var.dtype, shape, (order,))
        return self.w.spread(var, tuple(sorted(positions)), rank)

    def _gather(self, v: Value, var: Var, j: int, idx: list[Index], space: Space) -> Var:
        """Own dim ``j`` indexed by a tensor that varies along one axis no other dim uses: ``tl.gather``."""
        index = self.number(idx[j], space)
        assert isinstance(index, Var)
        free = [k for k, s in enumerate(index.shape) if s > 1]
        others = [i.k for m, i in enumerate(idx) if m != j and isinstance(i, Lane)]
        if not free:  # a tensor of one element
            free = [k for k in range(len(space)) if k not in others][:1]
        if len(free) != 1 or free[0] in others:
            raise NeedsMemory(v)
        positions = [
            i.k if isinstance(i, Lane) and m != j else free[0]
            for m, i in enumerate(idx)
            if m == j or isinstance(i, Lane)
        ]
        source = self._arrange(var, positions, len(space))
        low, high = self.w.bounds(index)
        if low < 0:  # padding lanes may point anywhere
            index = self.w.index_op("max", index, 0)
        if high >= var.shape[j]:
            index = self.w.index_op("min", index, var.shape[j] - 1)
        assert isinstance(index, Var)
        axis, rest = free[0], math.prod(source.shape) // source.shape[free[0]]
        if rest == 1:
            return self._gather_row(var, index, axis, space)
        shape = tuple(space[axis].p if k == axis else s for k, s in enumerate(source.shape))
        if self._gather_fails(var.shape[j], space[axis].p, rest):
            raise NeedsMemory(v)
        return self.w.op("gather", (source, self.w.full(index, shape)), var.dtype, shape, (axis,))

    def _gather_row(self, var: Var, index: Var, axis: int, space: Space) -> Var:
        """A gather of one row, without the dims of size 1 around it: Triton 3.6 fails on those (docs/notes)."""
        row, at = (self.w.squeeze(x, (math.prod(x.shape),)) for x in (var, index))
        at = self.w.full(at, (space[axis].p,))
        found = self.w.op("gather", (row, at), var.dtype, at.shape, (0,))
        return self.w.spread(found, (axis,), len(space))

    def _gather_fails(self, count: int, wanted: int, rest: int) -> bool:
        """Whether Triton 3.6 can't lay out a gather of ``wanted`` from ``count`` elements in each of ``rest`` rows."""
        rows_of_threads = max(1, 32 // count) * self.plan.limits.num_warps
        return wanted > count and self.plan.limits.num_warps > 1 and rows_of_threads > rest

    # --- known shapes ---------------------------------------------------------------------------------
    def full_shape(self, space: Space) -> tuple[int, ...]:
        return tuple(axis.p for axis in space)

    def pieces(self, v: Value) -> list[Var]:
        """The pieces of a register value in the order of ``coordinates``."""
        return [self.regs[v][c] for c in self.coordinates(v)]

    def constant(self, v: Value) -> np.generic | None:
        """The constant behind a value, if it is one."""
        node = self.producer.get(v)
        while isinstance(node, n.Move) and isinstance(node.op, n.Broadcast | n.Reshape):
            node = self.producer.get(node.args[0])
        return node.value if isinstance(node, n.Const) else None
