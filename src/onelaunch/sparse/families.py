"""The layout families of DeepSpeed's sparse attention, with its parameter names; sizes in blocks.

Where there is a random choice, ``seed`` makes it again. Different from DeepSpeed: its sliding-window family under
attention "unidirectional" is ``rules.sliding_window``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onelaunch.errors import OptionError
from onelaunch.sparse.layout import BlockLayout

ATTENTION = ("unidirectional", "bidirectional")


def fixed(
    num_heads: int, seq_len: int, block: int = 16, different_layout_per_head: bool = False, num_local_blocks: int = 4,
    num_global_blocks: int = 1, attention: str = "bidirectional", horizontal_global_attention: bool = False,
    num_different_global_patterns: int = 1,
) -> BlockLayout:  # fmt: skip
    """Windows of ``num_local_blocks`` side by side; the last blocks of each are seen by all (Child et al. 2019).

    With ``num_different_global_patterns`` heads take turns in which blocks of a window those are, from the last on.
    Attention "unidirectional" keeps to blocks on and below the diagonal of windows, and to rows from a global block on.
    """
    blocks = _blocks(seq_len, block)
    _check_direction(attention, horizontal_global_attention)
    if num_local_blocks % num_global_blocks:
        raise OptionError(f"num_local_blocks, {num_local_blocks}, is no multiple of num_global_blocks")
    if num_different_global_patterns > 1 and not different_layout_per_head:
        raise OptionError("num_different_global_patterns needs different_layout_per_head=True")
    if num_different_global_patterns > num_local_blocks // num_global_blocks:
        raise OptionError(f"num_different_global_patterns is at most {num_local_blocks // num_global_blocks}")
    row, column = np.ogrid[:blocks, :blocks]
    one_way = attention == "unidirectional"
    local = (row // num_local_blocks == column // num_local_blocks) & ((column <= row) | (not one_way))
    heads = []
    for head in range(num_heads if different_layout_per_head else 1):
        first = num_local_blocks - (1 + head % num_different_global_patterns) * num_global_blocks
        whole = blocks - blocks % num_local_blocks
        starts = list(range(first, whole, num_local_blocks))
        if whole < blocks:  # a short window at the end
            starts.append(max(0, min(whole + first, blocks - num_global_blocks)))
        spans = [(start, start + num_global_blocks) for start in starts]
        heads.append(local | _seen(blocks, spans, one_way, horizontal_global_attention))
    return BlockLayout(np.stack(heads), block, heads=num_heads)


def variable(
    num_heads: int, seq_len: int, block: int = 16, different_layout_per_head: bool = False, num_random_blocks: int = 0,
    local_window_blocks: Sequence[int] = (4,), global_block_indices: Sequence[int] = (0,),
    global_block_end_indices: Sequence[int] | None = None, attention: str = "bidirectional",
    horizontal_global_attention: bool = False, seed: int = 0,
) -> BlockLayout:  # fmt: skip
    """Windows of the sizes given (the last one repeats), chosen global blocks, and random blocks in each row."""
    blocks = _blocks(seq_len, block)
    _check_direction(attention, horizontal_global_attention)
    if not local_window_blocks or min(local_window_blocks) < 1:
        raise OptionError(f"local_window_blocks are positive, not {list(local_window_blocks)}")
    one_way = attention == "unidirectional"
    window = np.repeat(np.arange(len(local_window_blocks)), local_window_blocks)[:blocks]
    rest = np.arange(blocks - len(window)) // local_window_blocks[-1] + len(local_window_blocks)
    window = np.concatenate([window, rest])
    row, column = np.ogrid[:blocks, :blocks]
    local = (window[:, None] == window) & ((column <= row) | (not one_way))
    spans = _spans(global_block_indices, global_block_end_indices)
    mask = local | _seen(blocks, spans, one_way, horizontal_global_attention)
    heads = num_heads if different_layout_per_head else 1
    return BlockLayout(mask | _drawn(heads, blocks, num_random_blocks, False, seed), block, heads=num_heads)


def big_bird(
    num_heads: int, seq_len: int, block: int = 16, different_layout_per_head: bool = False, num_random_blocks: int = 1,
    num_sliding_window_blocks: int = 3, num_global_blocks: int = 1, attention: str = "bidirectional", seed: int = 0,
) -> BlockLayout:  # fmt: skip
    """A sliding window, the first blocks global both ways, and random blocks in each row (Zaheer et al. 2020)."""
    blocks = _blocks(seq_len, block)
    _check_direction(attention, False)
    one_way = attention == "unidirectional"
    for name, count in (
        ("num_sliding_window_blocks", num_sliding_window_blocks),
        ("num_global_blocks", num_global_blocks),
    ):
        _at_most(name, count, blocks)
    mask = _window(blocks, num_sliding_window_blocks) | _seen(blocks, [(0, num_global_blocks)], False, True)
    heads = num_heads if different_layout_per_head else 1
    mask = mask | _drawn(heads, blocks, num_random_blocks, one_way, seed)
    return BlockLayout(np.tril(mask) if one_way else mask, block, heads=num_heads)


def longformer(
    num_heads: int, seq_len: int, block: int = 16, different_layout_per_head: bool = False,
    num_sliding_window_blocks: int = 3, global_block_indices: Sequence[int] = (0,),
    global_block_end_indices: Sequence[int] | None = None, attention: str = "bidirectional",
) -> BlockLayout:  # fmt: skip
    """A sliding window, and chosen blocks global both ways, by blocks (Beltagy et al. 2020)."""
    blocks = _blocks(seq_len, block)
    _check_direction(attention, False)
    _at_most("num_sliding_window_blocks", num_sliding_window_blocks, blocks)
    spans = _spans(global_block_indices, global_block_end_indices)
    mask = _window(blocks, num_sliding_window_blocks) | _seen(blocks, spans, False, True)
    return BlockLayout(np.tril(mask) if attention == "unidirectional" else mask, block, heads=num_heads)


def _blocks(seq_len: int, block: int) -> int:
    if seq_len % block or seq_len < block:
        raise ValueError(f"a sequence of {seq_len} is no multiple of the block, {block}")
    return seq_len // block


def _check_direction(attention: str, horizontal: bool) -> None:
    if attention not in ATTENTION:
        raise OptionError(f"attention is one of {', '.join(ATTENTION)}, not {attention!r}")
    if horizontal and attention != "bidirectional":
        raise OptionError("horizontal_global_attention needs attention 'bidirectional'")


def _at_most(name: str, count: int, blocks: int) -> None:
    if count > blocks:
        raise OptionError(f"{name} is {count}, but a row has {blocks} blocks")


def _spans(starts: Sequence[int], ends: Sequence[int] | None) -> list[tuple[int, int]]:
    """Global blocks from each start to its end (exclusive; without ends: one block each)."""
    if ends is None:
        return [(start, start + 1) for start in starts]
    if len(starts) != len(ends) or any(a >= b for a, b in zip(starts, ends)):
        raise OptionError("global_block_end_indices has one end, beyond the start, for each of global_block_indices")
    return list(zip(starts, ends))


def _seen(blocks: int, spans: Sequence[tuple[int, int]], one_way: bool, horizontal: bool) -> np.ndarray:
    """Columns of global blocks (``one_way``: from their row down), and their rows if ``horizontal``."""
    mask = np.zeros((blocks, blocks), bool)
    for start, end in spans:
        mask[start if one_way else 0 :, start:end] = True
        if horizontal:
            mask[start:end] = True
    return mask


def _window(blocks: int, width: int) -> np.ndarray:
    row, column = np.ogrid[:blocks, :blocks]
    return abs(row - column) <= width // 2


def _drawn(heads: int, blocks: int, count: int, one_way: bool, seed: int) -> np.ndarray:
    """``count`` blocks of each row, without repetition; ``one_way``: of those up to the diagonal."""
    _at_most("num_random_blocks", count, blocks)
    row, column = np.ogrid[:blocks, :blocks]
    score = np.random.default_rng(seed).random((heads, blocks, blocks))
    score = np.where((column <= row) | (not one_way), score, 2.0)
    rank = score.argsort(-1).argsort(-1)
    return (rank < count) & (score < 2.0)
