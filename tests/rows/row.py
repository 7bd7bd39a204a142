"""Row: one small program of the table, with inputs and tolerance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Row:
    """A function of arrays (typed keys are made inside it from raw words) and what it is called on.

    ulps: how many units in the last place of the output's dtype a float may be off.
    floor: the least magnitude errors are measured against, as a part of the output's largest finite magnitude
        (0 for element-wise functions, 1 for sums).
    x64: trace and run with 64-bit types.
    classic: draw random bits in the older, non-partitionable layout.
    """

    name: str
    fn: Callable[..., Any]
    args: tuple[Array, ...]
    ulps: float = 4
    floor: float = 0.0
    x64: bool = False
    classic: bool = False


def row(name: str, fn: Callable[..., Any], *args: Any, **options: Any) -> Row:
    return Row(name, fn, tuple(np.asarray(a) for a in args), **options)


def f32(*xs: float) -> Array:
    return np.asarray(xs, np.float32)


def i32(*xs: int) -> Array:
    return np.asarray(xs, np.int32)


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    """Standard normal numbers, the same in every run."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def integers(low: int, high: int, *shape: int, seed: int = 0, dtype: Any = np.int32) -> Array:
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def key(seed: int = 0) -> Array:
    """The words of a threefry key."""
    return np.asarray([seed >> 32, seed & 0xFFFFFFFF], np.uint32)
