"""Barriers: between threads that share memory, and what holds for one address expression."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import onelaunch
from onelaunch.place import barrier
from onelaunch.place.nodes import Barrier, Buffer, For, Load, Op, Stmt, Store, Var

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


@pytest.mark.parametrize("disjoint, moves, waits", [(False, True, True), (True, True, False), (False, False, False)])
def test_an_address_that_moves_between_turns_waits(disjoint: bool, moves: bool, waits: bool) -> None:
    """for i: x[i : i + 512] = f(x[i : i + 512]) reads in each turn what another thread wrote in the one before."""
    memory = Buffer("x", F32, (600,), (1,), "out", 600)
    i, lane, at, value = Var(I32, ()), Var(I32, (512,)), Var(I32, (512,)), Var(F32, (512,))
    loop = For(i, 0, 10, 1, [], [], disjoint=disjoint)
    loop.body += [
        Op("add", (i if moves else 1, lane), (at,)),
        Load(memory, at, None, value),
        Store(memory, at, value, None),
    ]
    barrier.insert([loop], 4)
    assert [type(s) for s in loop.body] == ([Op, Barrier, Load, Store] if waits else [Op, Load, Store])


def test_a_window_that_slides_over_an_array_in_memory_waits() -> None:
    def slide(i: jax.Array, x: jax.Array) -> jax.Array:
        window = jax.lax.dynamic_slice(x, (i,), (512,))
        return jax.lax.dynamic_update_slice(x, 2 * window, (i,))

    f = onelaunch.fuse(lambda x: jax.lax.fori_loop(0, 10, slide, x), fallback="error")
    low = f.lower(jax.ShapeDtypeStruct((60000,), F32))
    assert low.plan.limits.num_warps > 1
    assert "tl.debug_barrier()" in low.source.split("for i in")[1].split("tl.store")[0]


def test_overlapping_windows_of_one_sum_wait_for_each_other() -> None:
    """The transpose of a gather of windows adds them one by one."""

    def add(x: jax.Array, starts: jax.Array, windows: jax.Array) -> jax.Array:
        def gather(x: jax.Array) -> jax.Array:
            return jax.vmap(lambda start: jax.lax.dynamic_slice(x, (start,), (1024,)))(starts)

        return jax.vjp(gather, x)[1](windows)[0]

    def step(i: jax.Array, x: jax.Array, starts: jax.Array, windows: jax.Array) -> jax.Array:
        return windows + add(x, starts + i, windows)[:4096].reshape(4, 1024)

    f = onelaunch.fuse(
        lambda x, starts, w: jax.lax.fori_loop(0, 3, lambda i, w: step(i, x, starts, w), w), fallback="error"
    )
    shapes = (jax.ShapeDtypeStruct((8192,), F32), jax.ShapeDtypeStruct((4,), I32), jax.ShapeDtypeStruct((4, 1024), F32))
    low = f.lower(*shapes)
    assert low.plan.limits.num_warps > 1
    turn = low.source.split("in range(4):")[1].split("tl.store")[0]
    assert turn.index("tl.debug_barrier()") < turn.index("tl.load(work0_ptr")


def test_unique_indices_are_those_of_one_turn() -> None:
    """for i: x[p + i] = ... : each turn another thread writes an element, also where one turn writes each once."""

    def rotate(x: jax.Array, p: jax.Array, y: jax.Array) -> jax.Array:
        w = jax.numpy.sort(y)
        return jax.lax.fori_loop(0, 5, lambda i, c: c.at[p + i].set(w[p * i % 9000], unique_indices=True), x * 2)

    f = onelaunch.fuse(rotate, fallback="error")
    low = f.lower(*(jax.ShapeDtypeStruct((n,), dtype) for n, dtype in ((60000, F32), (512, I32), (9000, F32))))
    assert low.plan.limits.num_warps > 1
    turn = low.source.split("in range(5):")[1]
    assert turn.index("tl.debug_barrier()") < turn.index("tl.store(out0_ptr")
