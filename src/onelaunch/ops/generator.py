"""``rng_bit_generator``: XLA's counter-based generators, bit for bit, and the key kinds ``rbg`` and ``unsafe_rbg``.

The state is four uint32 words: a key and a counter, low word first. XLA's default algorithm on CPUs and GPUs is Philox.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.random import threefry2x32_p

from onelaunch.ir.builder import Builder
from onelaunch.ir.nodes import Value
from onelaunch.ops.table import Params, refuse, retrace, rule

Words = list[jax.Array]
#: Philox 4x32 (Salmon, Moraes, Dror and Shaw, SC11): what its rounds multiply by, what each adds to the key
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
WEYL = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10


def product_words(a: int, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """High and low word of the product of two uint32 numbers."""
    x = jnp.uint32(a)
    low, carry = (x & 0xFFFF) * (b & 0xFFFF), (x >> 16) * (b & 0xFFFF)
    carry = carry + (low >> 16)
    middle = (x & 0xFFFF) * (b >> 16) + (carry & 0xFFFF)
    return (x >> 16) * (b >> 16) + (carry >> 16) + (middle >> 16), x * b


def philox4x32(counter: Words, key: Words) -> Words:
    """Four random words for each counter."""
    x, k = counter, key
    for turn in range(ROUNDS):
        if turn:
            k = [word + jnp.uint32(step) for word, step in zip(k, WEYL, strict=True)]
        (high0, low0), (high1, low1) = (product_words(m, x[j]) for m, j in zip(MULTIPLIERS, (0, 2), strict=True))
        x = [high1 ^ x[1] ^ k[0], low1, high0 ^ x[3] ^ k[1], low0]
    return x


def advanced(words: Words, by: jax.Array) -> Words:
    """A number of several words, low word first, plus uint32 numbers."""
    result, carry = [], by
    for word in words:
        total = word + carry
        carry = (total < carry).astype(jnp.uint32)
        result.append(total)
    return result


def philox_bits(state: Words, count: int) -> tuple[Words, jax.Array]:
    """The next state and ``count`` words: four of each counter, in order."""
    blocks = -(-count // 4)
    start = [*state[2:], *state[:2]]
    counter = advanced([jnp.broadcast_to(w, (blocks,)) for w in start], jnp.arange(blocks, dtype=jnp.uint32))
    words = jnp.stack(philox4x32(counter, state[:2]), axis=1).reshape(-1)[:count]
    return [*state[:2], *advanced(state[2:], jnp.uint32(blocks))], words


def threefry_pairs(state: Words, blocks: int) -> tuple[Words, jax.Array, jax.Array]:
    """The next state and the two words of each of ``blocks`` counters."""
    counter = advanced([jnp.broadcast_to(w, (blocks,)) for w in state[2:]], jnp.arange(blocks, dtype=jnp.uint32))
    keys = [jnp.broadcast_to(w, (blocks,)) for w in state[:2]]
    first, second = threefry2x32_p.bind(*keys, *counter)
    return [*state[:2], *advanced(state[2:], jnp.uint32(blocks))], first, second


def threefry_bits(state: Words, shape: tuple[int, ...]) -> tuple[Words, jax.Array]:
    """The next state and words that alternate along the first even dim, or along the longest where all are odd."""
    if not shape:
        after, first, _ = threefry_pairs(state, 1)
        return after, first.reshape(())
    even = [d for d, size in enumerate(shape) if size % 2 == 0]
    dim = even[0] if even else max(range(len(shape)), key=lambda d: shape[d])
    half = (*shape[:dim], -(-shape[dim] // 2), *shape[dim + 1 :])
    after, first, second = threefry_pairs(state, math.prod(half))
    pairs = jnp.stack([first.reshape(half), second.reshape(half)], axis=dim + 1)
    whole = pairs.reshape(*shape[:dim], 2 * half[dim], *shape[dim + 1 :])
    return after, lax.slice_in_dim(whole, 0, shape[dim], axis=dim)


def as_wide(low: jax.Array, high: jax.Array) -> jax.Array:
    """uint64 numbers from their words."""
    return lax.bitcast_convert_type(jnp.stack([low, high], axis=-1), jnp.uint64)


def generate(state: jax.Array, *, shape: tuple[int, ...], dtype: str, threefry: bool) -> tuple[jax.Array, jax.Array]:
    """The next state and random bits, from uint32[4] or uint64[2]; bits of 8 and 16 are the low ones of words."""
    words = list(
        state if state.ndim == 1 and state.size == 4 else lax.bitcast_convert_type(state, jnp.uint32).reshape(4)
    )
    count = math.prod(shape)
    if threefry and dtype == "uint64":
        after, low, high = threefry_pairs(words, count)
        bits = as_wide(low, high)
    elif threefry:
        after, bits = threefry_bits(words, shape)
    elif dtype == "uint64":
        after, drawn = philox_bits(words, 2 * count)
        bits = as_wide(drawn[::2], drawn[1::2])
    else:
        after, bits = philox_bits(words, count)
    following = jnp.stack(after)
    if state.dtype == jnp.uint64:
        following = lax.bitcast_convert_type(following.reshape(2, 2), jnp.uint64)
    return following, bits.reshape(shape).astype(dtype)


@rule("rng_bit_generator")
def rng_bit_generator(b: Builder, params: Params, state: Value) -> list[Value]:
    shape, dtype = tuple(params["shape"]), np.dtype(params["dtype"])
    if math.prod(shape) >= 1 << 32:
        refuse(b, "rng_bit_generator", "the array has 2^32 elements or more", "Draw it in parts.")
    threefry = params["algorithm"] == lax.RandomAlgorithm.RNG_THREE_FRY
    return retrace(b, generate, state, shape=shape, dtype=dtype.name, threefry=threefry)
