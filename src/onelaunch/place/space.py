"""Index spaces: the lane axes over which an expression is evaluated, and the ways to index a dim."""

from __future__ import annotations

from dataclasses import dataclass

from onelaunch.place.nodes import Var


def pow2(n: int) -> int:
    """The smallest power of two that is at least ``n``."""
    return 1 << max(0, n - 1).bit_length()


@dataclass(frozen=True, eq=False)
class Axis:
    """One dim of the tensors of a space: ``n`` real elements padded to ``p``.

    kind: "tile" (indices 0..n-1), "batch" (this program's part of the grid axis) or "chunk" (a piece of a long
    dim, at a moving start). ``index`` is the [p] index Var, ``mask`` the [p] validity Var or None if all are valid.
    """

    n: int
    p: int
    kind: str
    index: Var
    mask: Var | None

    def same(self, other: Axis) -> bool:
        """Tensors along the two axes line up lane by lane."""
        return self is other or (self.kind == other.kind and self.kind in ("tile", "batch") and self.p == other.p)


Space = tuple[Axis, ...]


@dataclass(frozen=True)
class Lane:
    """The index of a dim that runs with axis ``k`` of the space."""

    k: int


#: How a dim is indexed: a Python integer, an axis of the space, or a computed index.
Index = int | Lane | Var
