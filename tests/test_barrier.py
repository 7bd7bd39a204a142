"""Barriers: between threads that share memory, and what holds for one address expression."""

from __future__ import annotations

import numpy as np
import pytest

from onelaunch.place import barrier
from onelaunch.place.nodes import Barrier, Buffer, Load, Stmt, Store, Var

F32, I32 = np.dtype("float32"), np.dtype("int32")


def stored_and_loaded(elements: int) -> list[Stmt]:
    """A tile stored and read again by the same address expression."""
    memory = Buffer("work", F32, (elements,), (1,), "scratch", elements)
    at = Var(I32, (elements,))
    value, again = Var(F32, (elements,)), Var(F32, (elements,))
    return [Store(memory, at, value, None), Load(memory, at, None, again)]


@pytest.mark.parametrize("warps, elements, waits", [(1, 8, False), (8, 64, True), (8, 1024, False), (4, 64, True)])
def test_a_tile_that_stands_in_several_warps_is_stored_by_one(warps: int, elements: int, waits: bool) -> None:
    block = stored_and_loaded(elements)
    barrier.insert(block, warps)
    assert [type(s) for s in block] == ([Store, Barrier, Load] if waits else [Store, Load])
