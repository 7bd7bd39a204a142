"""What a face needs to launch a row kernel: which function, its numbers, grid and warps. No framework in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onelaunch.errors import OptionError
from onelaunch.kernels import tiles
from onelaunch.kernels.layout import Rows
from onelaunch.kernels.tiles import ANYWHERE, Machine

SOFTMAX, LOG_SOFTMAX, LOGSUMEXP = range(3)

#: Elements that one program of ``rescale`` looks at.
RESCALE_BLOCK = 8192

#: Programs of ``rescale``: some more than a GPU holds at once.
RESCALE_PROGRAMS = 1536

#: Labels that one program counts at most, and at a time: more take it longer than several small launches do.
COUNTED, COUNT_BLOCK = 65536, 8192

#: Of CUDA's grid in its second dimension.
_GRID_LIMIT = 65535


def check_cap(cap: float | None) -> None:
    """OptionError for a cap that is not a positive number."""
    if cap is not None and not 0.0 < cap < float("inf"):
        raise OptionError(f"softcap is a positive number, or None for no cap, not {cap}")


@dataclass(frozen=True)
class Scores:
    """Options of softmax: mode; ``cap(x * scale)``; ``offset`` of the diagonal (None: not causal)."""

    mode: int
    scale: float = 1.0
    cap: float | None = None
    offset: int | None = None

    def __post_init__(self) -> None:
        check_cap(self.cap)


@dataclass(frozen=True)
class Loss:
    """Options of cross-entropy: ``soft`` says that targets are probabilities, ``part`` that the columns are some of so
    many classes (0: all of them)."""

    ignore: int = -100
    smooth: float = 0.0
    zscale: float = 0.0
    scale: float = 1.0
    cap: float | None = None
    soft: bool = False
    part: int = 0

    def __post_init__(self) -> None:
        check_cap(self.cap)


@dataclass(frozen=True)
class Call:
    """A launch, but for its arrays."""

    family: str
    function: str
    numbers: dict[str, Any]
    grid: tuple[int, ...]
    warps: int
    #: of loads in flight in loops
    stages: int = 1
    #: at most so many a thread
    registers: int | None = None
    #: the function's argument ``words``: an array of that many 64-bit zeros (0: nothing); None: it has no such argument
    words: int | None = None


def softmax(
    rows: Rows,
    options: Scores,
    queries: int,
    backward: bool,
    size: int = 4,
    masked: bool = True,
    machine: Machine = ANYWHERE,
) -> Call:
    """Arrays x, mask, keep, y forward; y, g, x, mask, keep, dx backward; ``rows`` has their strides in that order.

    size: bytes of an element of x, or y; masked: there is a mask or keep.
    """
    numbers = {
        **rows.numbers("ygxmkd" if backward else "xmky"),
        "queries": queries,
        "MODE": options.mode,
        "SCALE": options.scale,
        "CAP": options.cap,
        "OFFSET": options.offset,
    }
    kind = "backward" if backward else "forward"
    where = ANYWHERE if options.mode == LOGSUMEXP else machine  # whose rows are read once in any case
    masked = masked or options.offset is not None
    tile = tiles.softmax(rows.count, rows.columns, _unit(rows), size, kind, masked, where)
    held = rows.columns <= tile.columns * tile.parts
    numbers |= _tile(rows, tile)
    if (held and options.mode != LOGSUMEXP) or (rows.columns <= tile.columns and not backward):
        numbers |= {**_parts(tile), "PTX": machine.arch is not None}
        if not backward:
            numbers["PACKED"] = tile.packed and not masked
        name = "softmax_held_backward" if backward else "softmax_held"
        words = rows.count * tile.parts if tile.parts > 1 else 0
        grid = (-(-rows.count // tile.rows) * tile.parts,)
        return Call("softmax", name, numbers, grid, tile.warps, registers=tile.registers, words=words)
    return Call("softmax", f"softmax_{kind}", numbers, _grid(rows, tile), tile.warps)


@dataclass(frozen=True)
class Gradient:
    """What decides whether loss and gradient may share one reading of a long row.

    ``size``: bytes of a logit; ``weighted``: there are class weights; ``best``, ``entropy``: they are asked for.
    """

    size: int
    weighted: bool
    best: bool
    entropy: bool
    machine: Machine


def cross_entropy(
    rows: Rows,
    options: Loss,
    double: bool,
    every: bool,
    factor_stride: int,
    padded: bool = False,
    gradient: Gradient | None = None,
) -> Call:
    """Arrays x, target (strides if probabilities), grad; ``every`` reads ignored rows too; ``padded``: has a width.

    ``gradient`` is given where the gradient is made as well.
    """
    if gradient is not None and (tile := _split(rows, options, double, gradient)) is not None:
        return _cross_entropy_split(rows, options, every, factor_stride, gradient, tile)
    # More is held for each element where every class has a weight of its own.
    block = tiles.BLOCK // 2 if options.soft or options.smooth else tiles.BLOCK
    tile = tiles.choose(rows.count, rows.columns, _unit(rows), block)
    numbers = {
        **rows.numbers("xtg"),
        **_loss(options, double),
        "fs": factor_stride,
        "ZSCALE": options.zscale,
        "ALL": every,
        "SINGLE": rows.columns <= tile.columns,
        **_tile(rows, tile, padded),
    }
    return Call("cross_entropy", "cross_entropy_forward", numbers, _grid(rows, tile), tile.warps)


def _split(rows: Rows, options: Loss, double: bool, gradient: Gradient) -> tiles.Tile | None:
    """The tile of a program that holds its piece of a long row in registers; None where the row is read twice."""
    if options.soft or double or gradient.entropy or (options.smooth and gradient.weighted):
        return None  # more is needed of each class than the registers hold
    unit = rows.strides[0][3] == 1 and rows.strides[2][3] == 1
    more = gradient.best or options.smooth != 0.0 or options.cap is not None
    return tiles.split_entropy(rows.count, rows.columns, unit, gradient.size, more, gradient.machine)


def _cross_entropy_split(
    rows: Rows, options: Loss, every: bool, factor_stride: int, gradient: Gradient, tile: tiles.Tile
) -> Call:
    loss = _loss(options, False)
    numbers = {
        **rows.numbers("xtg"),
        **{name: loss[name] for name in loss if name not in ("SOFT", "DOUBLE")},
        "fs": factor_stride,
        "ZSCALE": options.zscale,
        "ALL": every,
        "COLS": tile.columns,
        "PTX": gradient.machine.arch is not None,
        "WIDE": rows.wide,
        **_parts(tile),
    }
    kinds = 2 if options.smooth or gradient.best else 1
    words = kinds * rows.count * tile.parts if tile.parts > 1 else 0
    grid = (rows.count * tile.parts,)
    name = "cross_entropy_split"
    return Call(name, name, numbers, grid, tile.warps, registers=tile.registers, words=words)


def cross_entropy_backward(
    rows: Rows, options: Loss, double: bool, up_stride: int, extra_stride: int, padded: bool = False
) -> Call:
    """Arrays as for ``cross_entropy``."""
    tile = tiles.choose(rows.count, rows.columns, _unit(rows))
    while -(-rows.columns // tile.columns) > _GRID_LIMIT:
        tile = tiles.Tile(tile.rows, tile.columns * 2, tile.warps)
    numbers = {
        **rows.numbers("xtg"),
        **_loss(options, double),
        "us": up_stride,
        "es": extra_stride,
        **_tile(rows, tile, padded),
    }
    grid = (*_grid(rows, tile), -(-rows.columns // tile.columns))
    return Call("cross_entropy", "cross_entropy_backward", numbers, grid, tile.warps)


def rescale(size: int) -> Call:
    """Arrays grad, up, result."""
    # Few programs, since where the number is 1 they have nothing to do but start.
    programs = min(-(-size // RESCALE_BLOCK), RESCALE_PROGRAMS)
    numbers = {"size": size, "programs": programs, "BLOCK": RESCALE_BLOCK}
    return Call("cross_entropy", "cross_entropy_rescale", numbers, (programs,), 8)


def mean_factor(size: int, ignore: int) -> Call:
    """Arrays target, factor."""
    block = min(COUNT_BLOCK, tiles.power(size))
    numbers = {"size": size, "IGNORE": ignore, "BLOCK": block}
    return Call("labels", "labels_mean_factor", numbers, (1,), max(1, block // 256))


def _unit(rows: Rows) -> bool:
    return rows.columns == 1 or rows.strides[0][3] == 1 or rows.count == 1


def _tile(rows: Rows, tile: tiles.Tile, padded: bool = False) -> dict[str, Any]:
    even = rows.columns % tile.columns == 0 and not padded
    return {"ROWS": tile.rows, "COLS": tile.columns, "EVEN": even, "WIDE": rows.wide}


def _parts(tile: tiles.Tile) -> dict[str, Any]:
    return {"PARTS": tile.parts, "PLACES": tiles.power(tile.parts)}


def _grid(rows: Rows, tile: tiles.Tile) -> tuple[int, ...]:
    return (-(-rows.count // tile.rows),)


def _loss(options: Loss, double: bool) -> dict[str, Any]:
    return {
        "IGNORE": options.ignore,
        "SMOOTH": options.smooth,
        "SCALE": options.scale,
        "CAP": options.cap,
        "SOFT": options.soft,
        "DOUBLE": double,
        "PART": options.part,
    }
