"""What the row kernels share: offsets, widening, the cap, and a maximum that is safe to subtract."""

import triton
import triton.language as tl


@triton.jit
def start_of(row, n1, n2, s0, s1, s2):
    """Offset of each row's first element (i64)."""
    outer = row // n2
    return (outer // n1) * s0 + (outer % n1) * s1 + (row % n2) * s2


@triton.jit
def widen(x):
    """f32, or f64 as it is."""
    if x.dtype == tl.float64:
        return x
    else:
        return x.to(tl.float32)


@triton.jit
def saturate(v):
    """tanh(v), absolute error of a few ulp of 1."""
    return 1.0 - 2.0 / (tl.exp(2.0 * v) + 1.0)


@triton.jit
def place(start, stride, COLS: tl.constexpr, WIDE: tl.constexpr):
    """Offsets of the columns from ``start`` on."""
    column = start + tl.arange(0, COLS)
    if WIDE:
        return column.to(tl.int64) * stride
    else:
        return column * stride


@triton.jit
def finite(top):
    """``top``, or 0 where it is infinite: −inf − (−inf) never happens."""
    return tl.where(tl.abs(top) == float("inf"), 0.0, top)


@triton.jit
def within(live, start, cols, COLS: tl.constexpr, EVEN: tl.constexpr):
    """Which entries of a block are inside their live row; EVEN says that all columns are."""
    if EVEN:
        return tl.broadcast_to(live[:, None], (live.shape[0], COLS))
    else:
        return live[:, None] & (start + tl.arange(0, COLS) < cols)[None, :]


@triton.jit
def base(top):
    """k and t = top k, with exp(z - top) = 2 to the power of z k - t, of which the fused product is rounded once.

    k is log2(e), but 1 for a maximum so large that t is rounded by more than 64, an exponent that sums could not bear:
    scores there are equal or at least 64 apart. A fused product of its own, t is not taken into another one.
    """
    far: tl.constexpr = 2.0**59 if top.dtype == tl.float64 else 2.0**30
    k = tl.where(tl.abs(top) >= far, 1.0, tl.full((), 1.4426950408889634, top.dtype))
    return k, tl.fma(top, k, tl.zeros_like(top))


@triton.jit
def share_of(tops, top):
    """exp(tops - top) as the factor of sums of powers relative to ``base(tops)``, for those relative to ``base(top)``.

    0 for no score at all (−inf), and where the bases differ: those scores are at least 64 apart.
    """
    other, own = base(finite(tops))
    k, t = base(finite(top))
    known = ((k == other) & (tops != float("-inf"))) | (tl.abs(top) == float("inf"))
    return tl.where(known, tl.exp2(own - t), 0.0)
