"""Monoids of reductions, prefix scans and updates."""

from __future__ import annotations

import numpy as np

from onelaunch.ir.types import is_bool, is_float


def identity(monoid: str, dtype: np.dtype) -> object:
    """The neutral element of a monoid."""
    if monoid in ("add", "or", "xor"):
        return -0.0 if is_float(dtype) else 0
    if monoid == "mul":
        return 1
    if monoid == "and":
        return True if is_bool(dtype) else -1 if dtype.kind == "i" else np.iinfo(dtype).max
    lowest = monoid in ("max", "argmax", "logaddexp")
    if is_float(dtype):
        return -np.inf if lowest else np.inf
    if is_bool(dtype):
        return not lowest
    info = np.iinfo(dtype)
    return info.min if lowest else info.max
