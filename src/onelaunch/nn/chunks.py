"""Rows taken a chunk at a time by XLA: a loop that holds one chunk's intermediate values and sums in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

#: Least and most rows of a chunk where nobody asks for another: longer ones add to the sum less often, and hold more.
CHUNKS = 4096, 8192

#: Chunks are multiples of this many rows, so that the tiles of matrix products are full.
TILE = 128

Step = Callable[[Sequence[Any], Any], tuple[Any, Any]]


def length(features: int, itemsize: int) -> int:
    """The rule: within CHUNKS, as many tokens as make logits of the size of the weight gradient's f32 sum."""
    return min(max(4 * features // itemsize // TILE * TILE, CHUNKS[0]), CHUNKS[1])


def size_of(rows: int, limit: int, asked: bool = False) -> int:
    """Rows of a chunk: nearly equal chunks of at most ``limit`` rows, which somebody ``asked`` for or the rule says."""
    number = -(-rows // limit)
    if number <= 1:
        return rows
    # Of two chunks the second would be a loop of one turn, which XLA dissolves, and may hold both chunks' values.
    number = 3 if number == 2 and not asked else number
    size = -(-rows // number)
    return -(-size // TILE) * TILE if limit % TILE == 0 else size


def walk(step: Step, size: int, arrays: Sequence[Any], state: Any = None) -> tuple[Any, Any]:
    """All rows' results of ``step(rows of the arrays, state) -> (results, state)``, and the last state.

    Arrays and results may be None. The first step takes what the others leave, and gets ``state`` as it is given (say
    None): so sums need no zeros to start from. The others are a loop, whose results and state XLA updates in place.
    """
    rows = next(a.shape[0] for a in arrays if a is not None)
    first = rows % size or size
    found, state = step([None if a is None else a[:first] for a in arrays], state)
    if first == rows:
        return found, state

    def put(whole: jax.Array, part: jax.Array, start: Any) -> jax.Array:
        return lax.dynamic_update_slice_in_dim(whole, part, start, 0)

    def body(turn: Any, carry: Any) -> Any:
        start = first + turn * size
        parts = [None if a is None else lax.dynamic_slice_in_dim(a, start, size) for a in arrays]
        if turns == 1:
            # One chunk after the other, as far as XLA's scheduler heeds it.
            parts, carry = lax.optimization_barrier((parts, carry))
        wholes, state = carry
        found, state = step(parts, state)
        return jax.tree.map(lambda whole, part: put(whole, part, start), wholes, found), state

    turns = (rows - first) // size
    wholes = jax.tree.map(lambda part: put(jnp.zeros((rows, *part.shape[1:]), part.dtype), part, 0), found)
    result: tuple[Any, Any] = lax.fori_loop(0, turns, body, (wholes, state))
    return result
