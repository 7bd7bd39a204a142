"""Whether two results are the same result: structure, types, and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# The largest difference allowed, as a fraction of the largest magnitude in the array. A loop of a few steps amplifies
# the last-digit differences of reordered sums; a wrong rule shows as an error many times larger.
BOUND = {2: 2e-2, 4: 2e-4, 8: 1e-11}


@dataclass(frozen=True)
class Agreement:
    """`problems` is empty where the results agree; `worst` is the largest relative difference of the floats."""

    problems: tuple[str, ...]
    worst: float


def compare(got: Any, want: Any, bound: dict[int, float] = BOUND) -> Agreement:
    """Compares pytrees: same structure, dtype, weak type and shape; integers, bools and keys equal; floats near."""
    leaves_got, tree_got = jax.tree_util.tree_flatten_with_path(got)
    leaves_want, tree_want = jax.tree_util.tree_flatten_with_path(want)
    if tree_got != tree_want:
        return Agreement((f"structure {tree_got} instead of {tree_want}",), float("inf"))
    problems, worst = [], 0.0
    for (path, a), (_, b) in zip(leaves_got, leaves_want, strict=True):
        problem, difference = compare_arrays(a, b, bound)
        worst = max(worst, difference)
        if problem:
            problems.append(f"result{jax.tree_util.keystr(path)}: {problem}")
    return Agreement(tuple(problems), worst)


def compare_arrays(got: Any, want: Any, bound: dict[int, float]) -> tuple[str, float]:
    """What is wrong with one array ("" for nothing) and its relative difference."""
    type_got, type_want = jax.typeof(got), jax.typeof(want)
    if (type_got.shape, type_got.dtype, weak(type_got)) != (type_want.shape, type_want.dtype, weak(type_want)):
        return f"type {type_got} instead of {type_want}", float("inf")
    a, b = plain(got), plain(want)
    if not jnp.issubdtype(b.dtype, jnp.inexact):
        wrong = int((a != b).sum())
        return (f"{wrong} of {b.size} elements differ" if wrong else ""), 0.0
    a, b = wide(a), wide(b)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return "NaN or infinity in other places", float("inf")
    if not finite.any():
        return "", 0.0
    difference = float(abs(a[finite] - b[finite]).max() / max(abs(b[finite]).max(), 1e-30))
    limit = bound[plain(want).real.dtype.itemsize]
    return (f"relative difference {difference:.2e} (allowed {limit:.0e})" if difference > limit else ""), difference


def weak(aval: Any) -> bool:
    """Whether a type is weak (typed keys have no such property)."""
    return bool(getattr(aval, "weak_type", False))


def plain(array: Any) -> np.ndarray:
    """The array on the host; typed keys as their words."""
    if jnp.issubdtype(jax.typeof(array).dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    return np.asarray(jax.device_get(array))


def wide(array: np.ndarray) -> np.ndarray:
    """Floats as float64, complex as complex128."""
    return array.astype(np.complex128 if np.iscomplexobj(array) else np.float64)
