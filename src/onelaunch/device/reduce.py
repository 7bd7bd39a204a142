"""Combine functions of ``tl.reduce`` and ``tl.associative_scan``."""

import triton
import triton.language as tl

from onelaunch.device.exponential import logaddexp
from onelaunch.device.floating import maximum, minimum


@triton.jit
def combine_add(a, b):
    """a + b."""
    return a + b


@triton.jit
def combine_mul(a, b):
    """a * b."""
    return a * b


@triton.jit
def combine_max(a, b):
    """The greater; NaN wins."""
    if a.dtype.is_floating():
        return maximum(a, b)
    else:
        return tl.maximum(a, b)


@triton.jit
def combine_min(a, b):
    """The lesser; NaN wins."""
    if a.dtype.is_floating():
        return minimum(a, b)
    else:
        return tl.minimum(a, b)


@triton.jit
def combine_and(a, b):
    """a & b."""
    return a & b


@triton.jit
def combine_or(a, b):
    """a | b."""
    return a | b


@triton.jit
def combine_xor(a, b):
    """a ^ b."""
    return a ^ b


@triton.jit
def combine_argmax(a, i, b, j):
    """The greater value and its index; NaN wins, and the lower index on a tie."""
    first = (a > b) | ((a != a) & (b == b)) | (((a == b) | ((a != a) & (b != b))) & (i < j))
    return tl.where(first, a, b), tl.where(first, i, j)


@triton.jit
def combine_argmin(a, i, b, j):
    """The lesser value and its index; NaN wins, and the lower index on a tie."""
    first = (a < b) | ((a != a) & (b == b)) | (((a == b) | ((a != a) & (b != b))) & (i < j))
    return tl.where(first, a, b), tl.where(first, i, j)


@triton.jit
def combine_logaddexp(a, b):
    """log(e**a + e**b)."""
    return logaddexp(a, b)
