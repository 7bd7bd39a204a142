"""Pictures of layouts, for machines with matplotlib."""

from __future__ import annotations

from typing import Any

from matplotlib import pyplot

from onelaunch.sparse.layout import BlockLayout

#: Planes that are drawn.
_MOST = 8


def draw(layout: BlockLayout, axes: Any = None) -> Any:
    """The figure: a picture of each of the first planes, its blocks dark. ``axes``: where to draw plane 0 alone."""
    shown = 1 if axes is not None else min(layout.planes, _MOST)
    if axes is None:
        _, grid = pyplot.subplots(1, shown, squeeze=False, figsize=(3.2 * shown, 3.2), layout="constrained")
        places = list(grid[0])
    else:
        places = [axes]
    for plane, place in enumerate(places):
        place.imshow(layout.planes_mask[plane], cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
        place.set(title=f"head {plane % layout.heads}", xlabel="key block", ylabel="query block")
    places[0].figure.suptitle(f"{layout.nnz} blocks of {layout.block}, density {layout.density:.3g}")
    return places[0].figure
