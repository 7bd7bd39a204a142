"""Which blocks of a matrix of scores are there."""

from __future__ import annotations

import functools
import hashlib
import importlib
import io
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from onelaunch.errors import OptionError
from onelaunch.sparse import tables
from onelaunch.sparse.tables import Tables

#: Sides that a block may have.
BLOCKS = (16, 32, 64, 128)

#: Block numbers are int32.
_MOST = 2**31 - 1

#: The first of the layouts that are equal and alive, by key; it lives as long as any of them.
_known: weakref.WeakValueDictionary[str, BlockLayout] = weakref.WeakValueDictionary()


class BlockLayout:
    """Which ``block`` × ``block`` blocks of (heads, rows · block, columns · block) matrices are there; immutable.

    mask: bool or 0/1 ([[batch,] heads,] rows, columns), of NumPy, PyTorch or JAX; ``heads`` and ``batch`` broadcast
    leading axes of size 1. A mask whose batch items are all alike is one without a batch axis.

    The values of such matrices are (..., nnz, block, block): plane by plane (a plane is a head, or a head of a batch
    item), row by row, column by column. Any leading axes share the layout; where layouts differ by batch item, the
    values of all items are in the one nnz axis. Equal layouts are equal, hash alike and share a ``key``.

    Raises OptionError for another block, ValueError for a mask of another shape, TypeError for one that is not 0/1.
    """

    def __init__(self, mask: Any, block: int, *, heads: int | None = None, batch: int | None = None):
        if block not in BLOCKS:
            raise OptionError(f"block is one of {', '.join(map(str, BLOCKS))}, not {block!r}")
        self.block = int(block)
        self.mask = _settled(_host(mask), heads, batch)
        self.mask.flags.writeable = False
        #: Batch items that have layouts of their own; None where all share one.
        self.batch: int | None = self.mask.shape[0] if self.mask.ndim == 4 else None
        #: Heads (1 may stand for any number of them: ``expand``), blocks down, blocks across.
        self.heads, self.rows, self.columns = (int(n) for n in self.mask.shape[-3:])
        #: Blocks that are there, in all planes.
        self.nnz = int(self.mask.sum())
        if self.nnz > _MOST:
            raise ValueError(f"{self.nnz} blocks; block numbers are int32, so there may be {_MOST}")
        #: A digest of the layout's value.
        self.key = _digest(self.block, self.mask)
        first = _known.setdefault(self.key, self)
        self._first = None if first is self else first  # kept alive, and no circle
        #: What the faces keep (tables on a device); equal layouts share it.
        self.kept: dict[Any, Any] = {} if self._first is None else self._first.kept

    @staticmethod
    def find(key: str) -> BlockLayout:
        """The living layout with this key. Raises KeyError where all have been let go."""
        return _known[key]

    # --- sizes -----------------------------------------------------------------------------------------------

    @property
    def planes(self) -> int:
        """Matrices that the layout describes: heads, times batch where items differ."""
        return self.heads * (self.batch or 1)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the dense matrices, in elements: ([batch,] heads, rows · block, columns · block)."""
        lead = () if self.batch is None else (self.batch,)
        return (*lead, self.heads, self.rows * self.block, self.columns * self.block)

    @property
    def density(self) -> float:
        """Share of the blocks that are there."""
        return self.nnz / self.mask.size if self.mask.size else 0.0

    @functools.cached_property
    def tables(self) -> Tables:
        """The look-up tables, made at first use."""
        return tables.make(self.planes_mask)

    @property
    def planes_mask(self) -> np.ndarray:
        """The mask as (planes, rows, columns)."""
        return self.mask.reshape(self.planes, self.rows, self.columns)

    @functools.cached_property
    def longest_row(self) -> int:
        """The largest number of blocks in a row."""
        return int(self.mask.sum(-1).max(initial=0))

    @functools.cached_property
    def longest_column(self) -> int:
        """The largest number of blocks in a column."""
        return int(self.mask.sum(-2).max(initial=0))

    # --- other layouts ---------------------------------------------------------------------------------------

    @functools.cached_property
    def transpose(self) -> BlockLayout:
        """The layout of the transposed matrices. Values: ``x[..., tables.column_block, :, :]``, each transposed."""
        return BlockLayout(self.mask.swapaxes(-1, -2), self.block)

    def expand(self, heads: int) -> BlockLayout:
        """The layout for ``heads`` heads, of one for a single head (or for as many)."""
        return self if self.heads == heads else BlockLayout(self.mask, self.block, heads=heads)

    def crop(self, rows: int, columns: int | None = None) -> BlockLayout:
        """The layout of the first rows and columns, in blocks."""
        columns = rows if columns is None else columns
        if not (0 < rows <= self.rows and 0 < columns <= self.columns):
            raise ValueError(f"{rows} × {columns} blocks of {self}")
        return BlockLayout(self.mask[..., :rows, :columns], self.block)

    def __or__(self, other: BlockLayout) -> BlockLayout:
        return BlockLayout(self.mask | self._mask_of(other), self.block)

    def __and__(self, other: BlockLayout) -> BlockLayout:
        return BlockLayout(self.mask & self._mask_of(other), self.block)

    def _mask_of(self, other: BlockLayout) -> np.ndarray:
        if self.block != other.block or self.mask.shape[-2:] != other.mask.shape[-2:]:
            raise ValueError(f"{self} and {other} differ in block, rows or columns")
        return other.mask

    # --- values ----------------------------------------------------------------------------------------------

    def check(self, values: Any) -> None:
        """ValueError, in one line, unless ``values`` has the shape (..., nnz, block, block)."""
        shape, want = tuple(values.shape), (self.nnz, self.block, self.block)
        if len(shape) < 3 or shape[-3:] != want:
            raise ValueError(f"values of shape {list(shape)}; this layout takes [..., {', '.join(map(str, want))}]")

    def from_dense(self, dense: Any) -> Any:
        """Values of dense matrices (..., *shape), of NumPy, PyTorch or JAX; the rest is dropped."""
        lead = len(dense.shape) - len(self.shape)
        if lead < 0 or tuple(dense.shape[lead:]) != self.shape:
            raise ValueError(f"a dense array of shape {list(dense.shape)}; this layout takes [..., {self.shape}]")
        b, t = self.block, self._indices(dense)
        split = dense.reshape(*dense.shape[:lead], self.planes, self.rows, b, self.columns, b)
        return split.swapaxes(-2, -3)[..., t["plane"], t["row"], t["column"], :, :]

    def to_dense(self, values: Any, fill: float = 0.0) -> Any:
        """Dense matrices (..., *shape) of values (..., nnz, block, block); ``fill`` outside the blocks."""
        self.check(values)
        space, b = _namespace(values), self.block
        lead = tuple(values.shape[:-3])
        if self.nnz == 0:
            return space.full((*lead, *self.shape), fill, dtype=values.dtype, **_device(values))
        t = self._indices(values)
        spread = values[..., t["number"], :, :]
        spread = space.where(t["there"], spread, fill).reshape(*lead, self.planes, self.rows, self.columns, b, b)
        dense = spread.swapaxes(-2, -3).reshape(*lead, *self.shape)
        return dense if dense.dtype == values.dtype else dense.astype(values.dtype)

    def _indices(self, like: Any) -> dict[str, Any]:
        """Index arrays in the framework and on the device of ``like``, kept."""
        space, where = _namespace(like), _device(like)
        key = ("indices", space.__name__, str(where))
        if key not in self.kept:
            number = np.maximum(np.cumsum(self.planes_mask.reshape(-1)) - 1, 0)
            there = self.planes_mask.reshape(-1)[:, None, None]
            found = {
                "number": number,
                "there": there,
                **{n: getattr(self.tables, n) for n in ("plane", "row", "column")},
            }
            if space.__name__ != "torch":  # constants of a traced JAX function too
                return found
            self.kept[key] = {n: space.asarray(np.array(a), **where) for n, a in found.items()}
        return self.kept[key]

    # --- identity --------------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BlockLayout) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        kind = " × ".join(map(str, self.mask.shape))
        return f"BlockLayout({kind} blocks of {self.block}, {self.nnz} there, density {self.density:.3g})"

    def __reduce__(self) -> Any:
        return BlockLayout.from_bytes, (self.to_bytes(),)

    # --- files and pictures ----------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """An .npz archive; ``from_bytes`` reads it."""
        stream = io.BytesIO()
        np.savez_compressed(stream, block=self.block, shape=self.mask.shape, bits=np.packbits(self.mask))
        return stream.getvalue()

    @staticmethod
    def from_bytes(data: bytes) -> BlockLayout:
        """The layout written by ``to_bytes``. Raises ValueError for anything else."""
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as entry:
                shape = tuple(int(n) for n in entry["shape"])
                bits, block = entry["bits"], int(entry["block"])
        except Exception as error:
            raise ValueError(f"no block layout: {error}") from error
        return BlockLayout(np.unpackbits(bits, count=int(np.prod(shape))).reshape(shape), block)

    def save(self, path: str | Path) -> None:
        """Write ``to_bytes`` to a file."""
        Path(path).write_bytes(self.to_bytes())

    @staticmethod
    def load(path: str | Path) -> BlockLayout:
        """The layout of a file that ``save`` wrote."""
        return BlockLayout.from_bytes(Path(path).read_bytes())

    def plot(self, axes: Any = None) -> Any:
        """Draw the first planes, one picture each, with matplotlib; returns the figure."""
        return importlib.import_module("onelaunch.sparse.plot").draw(self, axes)


def _host(mask: Any) -> np.ndarray:
    """As a NumPy array of bool."""
    array = np.asarray(mask.detach().cpu() if hasattr(mask, "detach") else mask)
    if array.dtype != bool:
        if array.dtype.kind not in "iuf" or not np.isin(array, (0, 1)).all():
            raise TypeError(f"a block mask is bool or 0 and 1, not {array.dtype} with other values")
        array = array.astype(bool)
    return array


def _digest(block: int, mask: np.ndarray) -> str:
    head = repr((block, mask.shape)).encode()
    return hashlib.blake2b(head + np.packbits(mask).tobytes(), digest_size=16).hexdigest()


def _settled(mask: np.ndarray, heads: int | None, batch: int | None) -> np.ndarray:
    """A copy as (heads, rows, columns), or with a batch axis in front where items differ."""
    if not 2 <= mask.ndim <= 4 or 0 in mask.shape:
        raise ValueError(f"a block mask is [[batch,] heads,] rows, columns, none of them 0; got {list(mask.shape)}")
    mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    want = (batch or mask.shape[0], heads or mask.shape[1], *mask.shape[2:])
    if any(n not in (1, m) for n, m in zip(mask.shape, want, strict=True)):
        raise ValueError(f"a block mask of shape {list(mask.shape)} does not broadcast to {list(want)}")
    alike = bool((mask == mask[:1]).all())
    return np.array(np.broadcast_to(mask, want)[0] if alike else np.broadcast_to(mask, want))


def _namespace(array: Any) -> Any:
    """The module with an array's functions: numpy, torch or jax.numpy, none of which is imported here."""
    kind = type(array).__module__.partition(".")[0]
    return sys.modules["torch"] if kind == "torch" else array.__array_namespace__()


def _device(array: Any) -> dict[str, Any]:
    """Arguments that put a new array where this one is (PyTorch: JAX and NumPy choose themselves)."""
    return {"device": array.device} if _namespace(array).__name__ == "torch" else {}
