"""Writer: appends statements to nested blocks, reusing equal pure operations (common subexpressions)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from onelaunch.errors import Where
from onelaunch.ir.scalars import SCALARS
from onelaunch.ir.types import BFLOAT16, is_float
from onelaunch.place.nodes import Buffer, For, If, Load, Op, Shape, Stmt, Store, Var, While
from onelaunch.place.space import Axis, Space

BOOL = np.dtype(bool)
INT32 = np.dtype("int32")
INT64 = np.dtype("int64")
FLOAT32 = np.dtype("float32")
COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
#: What changes nothing as an operand; but for mul and div, of bools.
NEUTRAL = {"mul": 1, "div": 1, "and": True, "or": False, "xor": False, "ne": False, "eq": True}
HALVES = (np.dtype("float16"), BFLOAT16)

Number = Var | int


def broadcast_shape(args: Sequence[Number]) -> Shape:
    """The shape of an operation on ``args`` (equal rank, or scalars)."""
    shapes = [a.shape for a in args if isinstance(a, Var) and a.shape]
    if not shapes:
        return ()
    return tuple(max(sizes) for sizes in zip(*shapes, strict=True))


class Writer:
    """Statements under construction."""

    def __init__(self) -> None:
        self.preamble: list[Stmt] = []
        self.body: list[Stmt] = []
        self.block = self.body
        self.known: list[dict[tuple[object, ...], tuple[Var, ...]]] = [{}]
        self.constants: dict[Var, np.generic] = {}
        #: bounds (inclusive) of index Vars where they are known
        self.ranges: dict[Var, tuple[int, int]] = {}
        self.counters: dict[Var, Var] = {}
        self.makers: dict[Var, tuple[str, tuple[Number, ...], tuple[object, ...]]] = {}
        self.where: Where | None = None
        self.group = 0
        self.overlaps = False

    @contextmanager
    def inside(self, block: list[Stmt]) -> Iterator[None]:
        """Append to ``block``; what is computed there is not reused outside it."""
        outer, self.block = self.block, block
        self.known.append({})
        try:
            yield
        finally:
            self.block = outer
            self.known.pop()

    def add(self, stmt: Stmt) -> None:
        stmt.where = self.where  # type: ignore[union-attr]
        self.block.append(stmt)

    # --- pure operations ------------------------------------------------------------------------------
    def ops(
        self,
        fn: str,
        args: Sequence[Number],
        types: Sequence[tuple[np.dtype, Shape]],
        attrs: tuple[object, ...] = (),
        hint: str = "",
    ) -> tuple[Var, ...]:
        """A pure operation with outputs of ``types``, or the earlier equal one."""
        folded = self._folded(fn, args, types)
        if folded is not None:
            return folded
        if fn == "mul" and self._like_a_dot(*args):
            args = args[::-1]
        key = (fn, tuple(a if isinstance(a, int) else id(a) for a in args), tuple(types), attrs)
        for scope in reversed(self.known):
            if key in scope:
                return scope[key]
        outs = tuple(Var(dtype, shape, hint) for dtype, shape in types)
        if len(outs) == 1:
            self.makers[outs[0]] = (fn, tuple(args), attrs)
        self.add(Op(fn, tuple(args), outs, attrs))
        self.known[-1][key] = outs
        return outs

    def _folded(
        self, fn: str, args: Sequence[Number], types: Sequence[tuple[np.dtype, Shape]]
    ) -> tuple[Var, ...] | None:
        """The result of a scalar row on constants alone."""
        if fn not in SCALARS or len(types) > 1 or not args:
            return None
        if fn == "select" and args[0] in self.constants:
            chosen = args[1] if self.constants[args[0]] else args[2]
            return (chosen,) if isinstance(chosen, Var) else None
        if fn in COMPARISONS and (known := self.decided(fn, *args)) is not None:
            return (self.const(known, BOOL),)
        if (kept := self._neutral(fn, args)) is not None:
            return (kept,)
        if not all(a in self.constants for a in args):
            return None
        ((dtype, _),) = types
        values: list[object] = [self.constants[a] for a in args if isinstance(a, Var)]
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            value = np.asarray(SCALARS[fn].numpy(*values, *((dtype,) if fn == "cast" else ())))
        return (self.const(value, dtype),) if (value.dtype, value.shape) == (dtype, ()) else None

    def _like_a_dot(self, a: Number, b: Number) -> bool:
        """Whether Triton would make a product, summed over its middle dim, a ``tl.dot`` in TF32 (docs/notes/triton.md).

        It looks for a[..., None] * b[None, ...] and not for b[None, ...] * a[..., None].
        """
        spreads = [self.makers.get(x, ("", (), ())) if isinstance(x, Var) else ("", (), ()) for x in (a, b)]
        if any(fn != "spread" for fn, _, _ in spreads):
            return False
        (left, rank), (right, _) = spreads[0][2], spreads[1][2]
        return rank == 3 and left in ((0, 1), (1,)) and right == (1, 2)

    def _neutral(self, fn: str, args: Sequence[Number]) -> Var | None:
        """What x * 1, x / 1, x ^ False, x & True and x | False leave as it was; x & False is False."""
        if fn not in NEUTRAL or len(args) != 2:
            return None
        for x, y in (args, args[::-1]) if fn != "div" else (args,):
            if isinstance(x, Var) and y in self.constants and (x.dtype.kind == "b" or fn in ("mul", "div")):
                if self.constants[y] == NEUTRAL[fn]:
                    return x
                if fn in ("and", "or"):
                    assert isinstance(y, Var)
                    return y
        return None

    def op(
        self,
        fn: str,
        args: Sequence[Number],
        dtype: np.dtype,
        shape: Shape | None = None,
        attrs: tuple[object, ...] = (),
        hint: str = "",
    ) -> Var:
        return self.ops(fn, args, [(dtype, broadcast_shape(args) if shape is None else shape)], attrs, hint)[0]

    def top(
        self,
        fn: str,
        args: Sequence[Number],
        dtype: np.dtype,
        shape: Shape,
        attrs: tuple[object, ...] = (),
        hint: str = "",
    ) -> Var:
        """A pure operation at the top of the kernel, visible everywhere."""
        block, known = self.block, self.known
        self.block, self.known = self.preamble, self.known[:1]
        try:
            return self.op(fn, args, dtype, shape, attrs, hint)
        finally:
            self.block, self.known = block, known

    def const(self, value: object, dtype: np.dtype) -> Var:
        """A typed scalar constant."""
        typed: np.generic = np.asarray(value).astype(dtype)[()]  # type: ignore[assignment]
        var = self.top("const", (), dtype, (), (typed.tobytes(),))
        self.constants[var] = typed
        return var

    def cast(self, x: Var, dtype: np.dtype) -> Var:
        return x if x.dtype == dtype else self.scalar("cast", (x,), dtype)

    def scalar(self, fn: str, args: Sequence[Var], dtype: np.dtype) -> Var:
        return self.scalars(fn, args, (dtype,))[0]

    def scalars(self, fn: str, args: Sequence[Var], dtypes: Sequence[np.dtype]) -> tuple[Var, ...]:
        """A row of the scalar table; 16-bit floats are computed in f32 and rounded, as XLA does."""
        if fn == "identity":
            return (args[0],)
        if fn == "cast" and args[0] in self.counters and dtypes[0].itemsize >= 4:
            return (self.counted(self.counters[args[0]], dtypes[0]),)
        half = SCALARS[fn].half == "f32" and fn != "cast" and any(a.dtype in HALVES for a in args)
        shape = broadcast_shape(args)
        if not half:
            return self.ops(fn, args, [(d, shape) for d in dtypes])
        wide = [self.cast(a, FLOAT32) if a.dtype in HALVES else a for a in args]
        outs = self.ops(fn, wide, [(FLOAT32 if d in HALVES else d, shape) for d in dtypes])
        return tuple(self.cast(o, d) for o, d in zip(outs, dtypes))

    def select(self, cond: Var, yes: Var, no: Var) -> Var:
        return yes if yes is no else self.op("select", (cond, yes, no), yes.dtype)

    # --- index arithmetic (int32, or int64 where an operand is) ------------------------------------------
    def index_op(self, fn: str, a: Number, b: Number) -> Number:
        if isinstance(a, int) and isinstance(b, int):
            return {"add": a + b, "sub": a - b, "mul": a * b, "min": min(a, b), "max": max(a, b)}[fn]
        wide = any(isinstance(x, Var) and x.dtype == INT64 for x in (a, b))
        return self.op(f"index_{fn}", (a, b), INT64 if wide else INT32)

    def plus(self, a: Number, b: Number) -> Number:
        if isinstance(a, int) and a == 0:
            return b
        if isinstance(b, int) and b < 0:
            return self.index_op("sub", a, -b)
        return a if isinstance(b, int) and b == 0 else self.index_op("add", a, b)

    def minus(self, a: Number, b: Number) -> Number:
        return a if isinstance(b, int) and b == 0 else self.index_op("sub", a, b)

    def times(self, a: Number, b: Number) -> Number:
        for x, y in ((a, b), (b, a)):
            if isinstance(x, int) and x in (0, 1):
                return y if x else 0
        return self.index_op("mul", a, b)

    def clip(self, a: Number, low: int, high: int) -> Number:
        """``a`` into [low, high]."""
        if isinstance(a, int):
            return max(low, min(a, high))
        if low == high:
            return low
        least, most = self.bounds(a)
        a = self.index_op("max", a, low) if least < low else a
        return self.index_op("min", a, high) if most > high else a

    def divmod(self, a: Number, b: int) -> tuple[Number, Number]:
        if isinstance(a, int):
            return divmod(a, b)
        if b == 1:
            return a, 0
        return self.op("index_div", (a, b), a.dtype), self.op("index_mod", (a, b), a.dtype)

    def compare(self, fn: str, a: Number, b: Number) -> Var | bool:
        """lt, ge, eq of indices; a Python bool if both are integers."""
        if isinstance(a, int) and isinstance(b, int):
            return {"lt": a < b, "ge": a >= b, "eq": a == b}[fn]
        known = self.decided(fn, a, b)
        return self.op(f"index_{fn}", (a, b), BOOL) if known is None else known

    def both(self, a: Var | bool, b: Var | bool) -> Var | bool:
        """Logical and."""
        if isinstance(a, bool):
            return b if a else False
        if isinstance(b, bool):
            return a if b else False
        return a if a is b else self.op("and", (a, b), BOOL)

    def as_index(self, x: Var, wide: bool = False) -> Var:
        """An integer Var as int32 index (int64 if ``wide``), values outside saturating."""
        target = INT64 if wide else INT32
        x = self.counters.get(x, x)
        if x.dtype == target:
            return x
        if (x.dtype.kind == "u" and x.dtype.itemsize >= 4) or (x.dtype.itemsize == 8 and target == INT32):
            return self.op("index_saturate", (x,), target)
        return self.op("index_cast", (x,), target)

    def bounds(self, x: Number) -> tuple[int, int]:
        """The least and the greatest that an index can be, as far as its making tells."""
        if isinstance(x, int):
            return x, x
        if x in self.constants:
            return (int(self.constants[x]),) * 2
        if x not in self.ranges:
            whole = np.iinfo(x.dtype)
            low, high = self._range(x) or (whole.min, whole.max)
            fits = whole.min <= low and high <= whole.max
            self.ranges[x] = (low, high) if fits else (int(whole.min), int(whole.max))
        return self.ranges[x]

    def _range(self, x: Var) -> tuple[int, int] | None:
        """The bounds of what made an integer, before it wraps; None where they are not known."""
        fn, args, attrs = self.makers.get(x, ("", (), ()))
        if fn == "arange":
            return 0, int(str(attrs[0])) - 1
        if not args or any(isinstance(a, Var) and a.dtype.kind not in "iu" for a in args):
            return None
        sides = [self.bounds(a) for a in args]
        (a, b), (c, d) = sides[0], sides[-1]
        match fn.removeprefix("index_"):
            case "spread" | "broadcast" | "to" | "cast":
                return a, b
            case "add":
                return a + c, b + d
            case "sub":
                return a - d, b - c
            case "mul":
                corners = [x * y for x in (a, b) for y in (c, d)]
                return min(corners), max(corners)
            case "min":
                return min(a, c), min(b, d)
            case "max":
                return max(a, c), max(b, d)
            case "div" if c == d and c > 0 and a >= 0:
                return a // c, b // c
            case "mod" | "rem" if c == d and c > 0 and a >= 0:
                return 0, min(b, c - 1)
            case "sign" if a > 0:
                return 1, 1
        return None

    def decided(self, fn: str, a: Number, b: Number) -> bool | None:
        """What a comparison of integers gives whatever they are; None if it depends."""
        if any(isinstance(x, Var) and x.dtype.kind not in "iu" for x in (a, b)):
            return None
        (low, high), (least, most) = self.bounds(a), self.bounds(b)
        match fn:
            case "lt":
                return True if high < least else False if low >= most else None
            case "ge":
                return True if low >= most else False if high < least else None
            case "le":
                return True if high <= least else False if low > most else None
            case "gt":
                return True if low > most else False if high <= least else None
            case "eq" | "ne" if high < least or low > most:
                return fn == "ne"
        return None

    def counted(self, i: Number, dtype: np.dtype) -> Var:
        """An index as a value of ``dtype``: a loop's counter may be a Python integer when Triton interprets."""
        if isinstance(i, int):
            return self.const(i, dtype)
        if i.shape:
            return self.cast(i, dtype)
        plain = dtype.itemsize >= 4
        var = self.op("index_to", (i,), dtype if plain else INT32)
        if plain and dtype == i.dtype:
            self.counters[var] = i
        return self.cast(var, dtype)

    # --- lanes ----------------------------------------------------------------------------------------
    def spread(self, x: Var, positions: tuple[int, ...], rank: int) -> Var:
        """A tensor's dims put at ``positions`` (increasing) of a space of ``rank`` dims; the others get size 1."""
        if not x.shape or positions == tuple(range(rank)):
            return x
        shape = [1] * rank
        for k, size in zip(positions, x.shape):
            shape[k] = size
        return self.op("spread", (x,), x.dtype, tuple(shape), (positions, rank))

    def lane(self, space: Space, k: int) -> Var:
        """The index along axis ``k``, shaped for the space."""
        return self.spread(space[k].index, (k,), len(space))

    def lane_mask(self, space: Space, k: int) -> Var | bool:
        mask = space[k].mask
        return True if mask is None else self.spread(mask, (k,), len(space))

    def squeeze(self, x: Var, shape: Shape) -> Var:
        """``x`` without some dims of size 1."""
        return x if x.shape == shape else self.op("squeeze", (x,), x.dtype, shape, (shape,))

    def full(self, x: Var, shape: Shape) -> Var:
        """``x`` broadcast to exactly ``shape``."""
        return x if x.shape == shape else self.op("broadcast", (x,), x.dtype, shape, (shape,))

    def tile(self, n: int, p: int) -> Axis:
        """The axis 0..n-1 padded to ``p`` lanes."""
        index = self.top("arange", (), INT32, (p,), (p,))
        return Axis(n, p, "tile", index, None if n == p else self.top("index_lt", (index, n), BOOL, (p,)))

    # --- memory ---------------------------------------------------------------------------------------
    def load(self, buffer: Buffer, offset: Number, mask: Var | None) -> Var:
        shape = broadcast_shape([offset, *([mask] if mask is not None else [])])
        key = ("load", id(buffer), offset if isinstance(offset, int) else id(offset), id(mask))
        for scope in reversed(self.known) if buffer.role == "in" else self.known[-1:]:
            if key in scope:
                return scope[key][0]
        out = Var(buffer.dtype, shape, buffer.name.removesuffix("_ptr") if buffer.role == "in" else "")
        self.add(Load(buffer, offset, mask, out))
        self.known[-1][key] = (out,)
        return out

    def store(self, buffer: Buffer, offset: Number, value: Var, mask: Var | None) -> None:
        self.add(Store(buffer, offset, value, mask, self.group, self.overlaps))
        for scope in self.known:  # what was loaded from the buffer may have changed
            for key in [k for k in scope if k[0] == "load" and k[1] == id(buffer)]:
                del scope[key]

    def new_group(self, overlaps: bool = False) -> None:
        """The stores from here on belong together (see Store)."""
        self.group += 1
        self.overlaps = overlaps


__all__ = ["BOOL", "For", "If", "Number", "While", "Writer", "is_float"]
