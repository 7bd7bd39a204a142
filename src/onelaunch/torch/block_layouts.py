"""Block layouts as PyTorch's operators see them: a key, tables on a device, dense arrays in five dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onelaunch.sparse.layout import BlockLayout

#: Layouts that live as long as the process: compiled programs hold their keys, CUDA graphs addresses of their tables.
_held: dict[str, BlockLayout] = {}

#: Signatures of calls that a layout keeps launches for.
_PLANS = 256


def find(key: str, keep: bool = False) -> BlockLayout:
    """The layout of a key; ``keep`` it alive, as a compiled program needs. Raises RuntimeError where there is none."""
    try:
        layout = BlockLayout.find(key)
    except KeyError:
        raise RuntimeError(
            "this program's block layout is not there: make it before an exported program runs"
        ) from None
    if keep:
        _held[key] = layout
    return layout


def prepare(layout: BlockLayout, device: torch.device | str) -> None:
    """Put the layout's tables on a device. The first use of a layout does; a CUDA graph needs it done before."""
    tables(layout, torch.device(device))


def tables(layout: BlockLayout, device: torch.device) -> dict[str, Tensor]:
    """The layout's tables on ``device`` by name, int32; copied there at first use."""
    _hold_if_captured(layout)
    key = ("torch", str(device))
    if key not in layout.kept:
        if device.type == "cuda" and capturing():
            raise RuntimeError(f"{layout} was never used on {device}: call block_sparse.prepare(layout, device) first")
        arrays = layout.tables.arrays()
        layout.kept[key] = {name: torch.from_numpy(np.array(a)).to(device) for name, a in arrays.items()}
    found: dict[str, Tensor] = layout.kept[key]
    return found


def planned(layout: BlockLayout, key: Any, make: Callable[[], Any]) -> Any:
    """What ``make`` makes ready for calls of one signature, kept with the layout (the last ones)."""
    _hold_if_captured(layout)
    plans: dict[Any, Any] = layout.kept.setdefault("plans", {})
    found = plans.get(key)
    if found is None:
        if len(plans) >= _PLANS:
            plans.clear()
        found = plans[key] = make()
    return found


def _hold_if_captured(layout: BlockLayout) -> None:
    """A graph that is being captured reads the layout's tables at every replay, also after its caller let it go."""
    if capturing():
        _held[layout.key] = layout


def capturing() -> bool:
    """Whether a CUDA graph is being captured."""
    return torch.backends.cuda.is_built() and torch.cuda.is_current_stream_capturing()


def lead_of(x: Tensor, layout: BlockLayout) -> tuple[int, ...]:
    """The leading axes of values. Raises ValueError for values of another layout."""
    layout.check(x)
    return tuple(x.shape[:-3])


def fitted(
    t: Tensor | None, x: Tensor, layout: BlockLayout, name: str, last: int | None = None, between: int = 0
) -> Tensor | None:
    """A dense array with as many dimensions as ``(*lead, *layout.shape)``, to which it broadcasts.

    last: the size of its last axis, if not that of the layout. between: axes of size 1 put before the last.
    """
    if t is None:
        return None
    if t.device != x.device:
        raise ValueError(f"{name} is on {t.device}, the scores are on {x.device}")
    full = (*lead_of(x, layout), *layout.shape[:-1], layout.shape[-1] if last is None else last)
    want = full[: len(full) - 1 - between] + full[-1:]
    while t.ndim > len(want) and t.shape[0] == 1:
        t = t.squeeze(0)
    if t.ndim > len(want) or any(n not in (1, m) for n, m in zip(reversed(t.shape), reversed(want))):
        raise ValueError(f"{name} of shape {list(t.shape)} does not broadcast to {list(want)}")
    t = t.reshape((1,) * (len(want) - t.ndim) + tuple(t.shape))
    return t.reshape(*t.shape[:-1], *(1,) * between, t.shape[-1])


def five(t: Tensor | None, lead: Sequence[int], layout: BlockLayout, last: int | None = None) -> Tensor | None:
    """A fitted array as a view (items, batch items, heads, queries, keys or ``last``), stride 0 where it broadcasts."""
    if t is None:
        return None
    items = math.prod(lead)
    t = t.expand(*lead, *t.shape[len(lead) :]).reshape(items, *t.shape[len(lead) :])
    if layout.batch is None:
        t = t.unsqueeze(1)
    return t.expand(
        items, layout.batch or 1, layout.heads, layout.shape[-2], layout.shape[-1] if last is None else last
    )


def summed(dz: Tensor, layout: BlockLayout, shape: Sequence[int]) -> Tensor:
    """Values summed into a dense array of a fitted ``shape`` that they were spread from (its gradient)."""
    lead, b = dz.ndim - 3, layout.block
    for axis in range(lead):
        if shape[axis] == 1:
            dz = dz.sum(axis, keepdim=True)
    *planes, m, n = shape[lead:]
    heights, widths = m // b if m > 1 else 1, n // b if n > 1 else 1
    if m == 1:
        dz = dz.sum(-2, keepdim=True)
    if n == 1:
        dz = dz.sum(-1, keepdim=True)
    t = tables(layout, dz.device)
    plane, count = _planes(layout, planes, t["plane"])
    row = t["row"] if m > 1 else torch.zeros_like(t["row"])
    column = t["column"] if n > 1 else torch.zeros_like(t["column"])
    slot = (plane * heights + row) * widths + column
    tile = dz.shape[-2:]
    sums = dz.new_zeros(count * heights * widths, *dz.shape[:lead], *tile)
    # Several blocks may share a slot: an accumulating index_put adds them in a fixed order.
    sums = sums.index_put((slot,), dz.movedim(lead, 0), accumulate=True).movedim(0, lead)
    sums = sums.reshape(*dz.shape[:lead], count, heights, widths, *tile).swapaxes(-2, -3)
    return sums.reshape(shape)


def summed_by_distance(dz: Tensor, layout: BlockLayout, shape: Sequence[int]) -> Tensor:
    """``summed`` for relative logits: key k of query q has place ``k - q + extent - 1``, if there is one."""
    lead, b = dz.ndim - 3, layout.block
    for axis in range(lead):
        if shape[axis] == 1:
            dz = dz.sum(axis, keepdim=True)
    *planes, queries, extent = shape[lead:]
    t = tables(layout, dz.device)
    plane, count = _planes(layout, planes, t["plane"])
    inner = torch.arange(b, device=dz.device)
    query = (t["row"].long() * b)[:, None, None] + inner[:, None]
    key = (t["column"].long() * b)[:, None, None] + inner
    at = key - query + extent - 1
    row = plane[:, None, None] * queries + (query if queries > 1 else 0)
    size = count * queries * extent
    slot = torch.where((at >= 0) & (at < extent), row * extent + at, size).reshape(-1)
    sums = dz.new_zeros(size + 1, math.prod(dz.shape[:lead]))
    flat = dz.reshape(sums.shape[1], -1).movedim(0, 1)
    sums = sums.index_put((slot,), flat, accumulate=True)[:size]
    return sums.movedim(0, 1).reshape(shape)


def _planes(layout: BlockLayout, sizes: Sequence[int], plane: Tensor) -> tuple[Tensor, int]:
    """The plane of each block among those of an array with ``sizes`` ([batch items,] heads), 1 where it broadcasts."""
    plane = plane.long()
    item, head = plane // layout.heads, plane % layout.heads
    items = sizes[0] if layout.batch is not None else 1
    found = (item if items > 1 else 0) * sizes[-1] + (head if sizes[-1] > 1 else torch.zeros_like(head))
    return found, items * sizes[-1]
