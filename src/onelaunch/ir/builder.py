"""Builder: appends nodes with inferred types; the only way rules make nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from onelaunch.errors import Where
from onelaunch.ir import nodes as n
from onelaunch.ir.nodes import Block, Value, Window
from onelaunch.ir.types import Type

INT32 = np.dtype("int32")

#: dims of the left and of the right operand
Dims = tuple[Sequence[int], Sequence[int]]

#: Turns to expect of a loop that ends when its data say so: of the user's, and of those in rules (sweeps, rejections).
UNKNOWN_TURNS, OWN_TURNS = 100, 8


class Builder:
    """Collects the nodes of one block; ``where`` is attached to each node made."""

    def __init__(self, where: Where | None = None):
        self.nodes: list[n.Node] = []
        self.where = where
        #: False while a rule's own JAX code is inlined: its frames are ours, so the outer place holds
        self.places = True
        self.consts: list[tuple[Value, np.ndarray]] = []
        #: value -> the node that defines it (rules look at producers)
        self.defs: dict[Value, n.Node] = {}
        #: notes that rules keep for the length of one trace (jaxprs traced again, names being opened)
        self.memo: dict[object, object] = {}

    def value(self, shape: Sequence[int], dtype: np.dtype, hint: str = "") -> Value:
        return Value(Type(tuple(int(s) for s in shape), np.dtype(dtype)), hint)

    def add(self, node: n.Node) -> n.Node:
        self.nodes.append(node)
        for out in n.outputs(node):
            self.defs[out] = node
        return node

    # --- leaves ---------------------------------------------------------------------------------------
    def const(self, x: object, dtype: np.dtype) -> Value:
        """A scalar constant of ``dtype``."""
        out = self.value((), dtype)
        self.add(n.Const(np.asarray(x).astype(dtype).reshape(1)[0], out, where=self.where))
        return out

    def full(self, shape: Sequence[int], x: object, dtype: np.dtype) -> Value:
        return self.broadcast(self.const(x, dtype), shape, ())

    def array(self, x: np.ndarray) -> Value:
        """A constant array: a scalar becomes Const, anything else an input bound to ``x``."""
        x = np.asarray(x)
        if x.ndim == 0:
            return self.const(x, x.dtype)
        for value, known in self.consts:
            if known is x:
                return value
        out = self.value(x.shape, x.dtype)
        self.consts.append((out, x))
        return out

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> Value:
        out = self.value(shape, dtype)
        self.add(n.Empty(out, where=self.where))
        return out

    def iota(self, shape: Sequence[int], dim: int, dtype: np.dtype) -> Value:
        out = self.value(shape, dtype)
        self.add(n.Iota(dim, out, where=self.where))
        return out

    # --- element-wise ---------------------------------------------------------------------------------
    def maps(self, fn: str, args: Sequence[Value], dtypes: Sequence[np.dtype]) -> tuple[Value, ...]:
        """A Map with several outputs."""
        shape = np.broadcast_shapes(*(a.shape for a in args))
        outs = tuple(self.value(shape, d) for d in dtypes)
        self.add(n.Map(fn, tuple(args), outs, where=self.where))
        return outs

    def map(self, fn: str, *args: Value, dtype: np.dtype | None = None) -> Value:
        """A Map with one output, of the first operand's dtype unless given."""
        return self.maps(fn, args, (args[0].dtype if dtype is None else dtype,))[0]

    def cast(self, x: Value, dtype: np.dtype) -> Value:
        return x if x.dtype == dtype else self.map("cast", x, dtype=np.dtype(dtype))

    # --- reductions -----------------------------------------------------------------------------------
    def reduce(self, monoid: str, x: Value, axes: Sequence[int], dtype: np.dtype | None = None) -> Value:
        axes = tuple(sorted(axes))
        shape = [s for d, s in enumerate(x.shape) if d not in axes]
        out = self.value(shape, x.dtype if dtype is None else dtype)
        self.add(n.Reduce(monoid, x, axes, out, where=self.where))
        return out

    def scan(self, monoid: str, x: Value, axis: int, reverse: bool = False) -> Value:
        out = self.value(x.shape, x.dtype)
        self.add(n.Scan(monoid, x, axis, reverse, out, where=self.where))
        return out

    # --- moves ----------------------------------------------------------------------------------------
    def move(self, op: n.MoveOp, args: Sequence[Value], shape: Sequence[int]) -> Value:
        out = self.value(shape, args[0].dtype)
        self.add(n.Move(op, tuple(args), out, where=self.where))
        return out

    def slice(
        self, x: Value, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int] | None = None
    ) -> Value:
        first, steps = tuple(map(int, starts)), tuple(map(int, strides or (1,) * x.ndim))  # JAX's may be numpy's
        shape = [max(0, -(-(int(e) - s) // t)) for s, e, t in zip(first, limits, steps)]
        return self.move(n.Slice(first, steps), (x,), shape)

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        return x if tuple(shape) == x.shape else self.move(n.Reshape(), (x,), shape)

    def transpose(self, x: Value, permutation: Sequence[int]) -> Value:
        return self.move(n.Transpose(tuple(permutation)), (x,), [x.shape[p] for p in permutation])

    def broadcast(self, x: Value, shape: Sequence[int], dims: Sequence[int]) -> Value:
        return self.move(n.Broadcast(tuple(dims)), (x,), shape)

    def reverse(self, x: Value, axes: Sequence[int]) -> Value:
        return self.move(n.Reverse(tuple(axes)), (x,), x.shape)

    def pad(self, x: Value, fill: Value, config: Sequence[tuple[int, int, int]]) -> Value:
        shape = [max(0, int(lo + hi) + s + max(0, s - 1) * int(i)) for s, (lo, hi, i) in zip(x.shape, config)]
        return self.move(n.Pad(tuple(int(c[0]) for c in config), tuple(int(c[2]) for c in config)), (x, fill), shape)

    def concatenate(self, xs: Sequence[Value], axis: int) -> Value:
        shape = list(xs[0].shape)
        shape[axis] = sum(x.shape[axis] for x in xs)
        return self.move(n.Concatenate(axis), tuple(xs), shape)

    # --- indexing -------------------------------------------------------------------------------------
    def gather(
        self, x: Value, starts: Sequence[Value], window: Window, shape: Sequence[int], fill: Value | None = None
    ) -> Value:
        out = self.value(shape, x.dtype)
        self.add(n.Gather(x, tuple(starts), window, fill, out, where=self.where))
        return out

    def update(
        self, monoid: str, x: Value, starts: Sequence[Value], updates: Value, window: Window, unique: bool = False
    ) -> Value:
        out = self.value(x.shape, x.dtype)
        self.add(n.Update(monoid, x, tuple(starts), updates, window, out, unique, where=self.where))
        return out

    def take(self, x: Value, i: Value) -> Value:
        """x[i] along the first dim, i a scalar inside the array."""
        return self.gather(x, (i,), leading_window(x.shape), x.shape[1:])

    def put(self, x: Value, i: Value, item: Value) -> Value:
        """x with x[i] = item along the first dim, i a scalar inside the array."""
        return self.update("set", x, (i,), item, leading_window(x.shape), unique=True)

    # --- the rest -------------------------------------------------------------------------------------
    def dot(
        self, lhs: Value, rhs: Value, contract: Dims, batch: Dims, dtype: np.dtype, precision: str = "ieee"
    ) -> Value:
        shape = [lhs.shape[d] for d in batch[0]]
        for x, side in ((lhs, 0), (rhs, 1)):
            shape += [s for d, s in enumerate(x.shape) if d not in contract[side] and d not in batch[side]]
        out = self.value(shape, dtype)
        pairs = [tuple(tuple(int(d) for d in side) for side in p) for p in (contract, batch)]
        self.add(n.Dot(lhs, rhs, pairs[0], pairs[1], out, precision, where=self.where))  # type: ignore[arg-type]
        return out

    def sort(self, args: Sequence[Value], dim: int, num_keys: int, stable: bool) -> tuple[Value, ...]:
        outs = tuple(self.value(a.shape, a.dtype) for a in args)
        self.add(n.Sort(tuple(args), dim, num_keys, stable, outs, where=self.where))
        return outs

    @contextmanager
    def block(self) -> Iterator[list[n.Node]]:
        """Collect the nodes made inside the ``with`` into a list of their own."""
        outer, self.nodes = self.nodes, []
        try:
            yield self.nodes
        finally:
            self.nodes = outer

    def loop(
        self,
        init: Sequence[Value],
        body: Callable[..., Sequence[Value]],
        *,
        cond: Callable[..., Value] | None = None,
        trip: int | None = None,
        names: Sequence[str] = (),
    ) -> tuple[Value, ...]:
        """A Loop; ``body(*carry)`` (``body(i, *carry)`` with ``trip``) and ``cond(*carry)`` build the blocks.

        ``names`` are the user's for the first carries; where there is none a carry is named like its start.
        """
        hints = [(names[k] if k < len(names) else "") or v.hint for k, v in enumerate(init)]
        carry = tuple(self.value(v.shape, v.dtype, hint) for v, hint in zip(init, hints, strict=True))
        index = self.value((), INT32, "i") if trip is not None else None
        condition = None
        if cond is not None:
            with self.block() as made:
                result = cond(*carry)
            condition = Block(tuple(made), (result,))
        with self.block() as made:
            results = tuple(body(*((index,) if index is not None else ()), *carry))
        for c, r in zip(carry, results, strict=True):
            if c.type != r.type:
                raise TypeError(f"loop carry changes type: {c.type} -> {r.type}")
        outs = tuple(self.value(v.shape, v.dtype, hint) for v, hint in zip(init, hints, strict=True))
        self.add(
            n.Loop(
                carry,
                tuple(init),
                Block(tuple(made), results),
                outs,
                condition,
                trip,
                index,
                turns=UNKNOWN_TURNS if self.places else OWN_TURNS,
                where=self.where,
            )
        )
        return outs

    def branch(self, index: Value, bodies: Sequence[Callable[[], Sequence[Value]]]) -> tuple[Value, ...]:
        """A Branch on an i32 scalar."""
        made_blocks = []
        for body in bodies:
            with self.block() as made:
                results = tuple(body())
            made_blocks.append(Block(tuple(made), results))
        outs = tuple(self.value(v.shape, v.dtype) for v in made_blocks[0].results)
        self.add(n.Branch(index, tuple(made_blocks), outs, where=self.where))
        return outs


def leading_window(shape: tuple[int, ...]) -> Window:
    """The window of one item along the first dim: scalar start, the other dims whole."""
    rest = len(shape) - 1
    return Window(
        offset=(None, *range(rest)),
        start=(0,) + (None,) * rest,
        batching=(None,) * len(shape),
        batch=(),
        sizes=(1, *shape[1:]),
    )
