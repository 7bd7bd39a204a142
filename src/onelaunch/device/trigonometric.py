"""Trigonometric functions and their inverses; polynomials are Chebyshev fits of our own (bench/fit.py)."""

import triton
import triton.language as tl

from onelaunch.device.floating import as_int, copysign, div, sqrt


@triton.jit
def sin(x):
    """Sine; denormals keep their value."""
    return tl.where(tl.abs(x) < 1.1754943508222875e-38, x, tl.sin(x))


@triton.jit
def cos(x):
    """Cosine."""
    return tl.cos(x)


@triton.jit
def tan(x):
    """Tangent, as a quotient."""
    return div(sin(x), tl.cos(x))


@triton.jit
def asin_excess(z):
    """(asin(x) / x - 1) / x**2 in z = x**2, for |x| <= 1/2."""
    if z.dtype == tl.float64:
        p = z * 0.0287578513674215647 - 0.0148518870712472032
        p = p * z + 0.0174008794426940224
        p = p * z + 0.0054575067186403583
        p = p * z + 0.0103228143501857793
        p = p * z + 0.0114791774151849059
        p = p * z + 0.0139712129735529333
        p = p * z + 0.0173523927208699729
        p = p * z + 0.0223721729421498879
        p = p * z + 0.0303819441385312473
        p = p * z + 0.0446428571463554298
        p = p * z + 0.0749999999999843293
        p = p * z + 0.166666666666666678
        return p
    else:
        p = z * 0.03808502356 + 0.02655454221
        p = p * z + 0.04500138007
        p = p * z + 0.07498855073
        p = p * z + 0.1666667241
        return p


@triton.jit
def asin(x):
    """Inverse sine; NaN outside [-1, 1]."""
    size = tl.abs(x)
    outer = size > 0.5
    z = tl.where(outer, 0.5 * (1.0 - size), size * size)
    root = tl.where(outer, sqrt(z), size)
    inner = root + root * (z * asin_excess(z))
    if x.dtype == tl.float64:
        folded = 1.5707963267948966 - (2.0 * inner - 6.123233995736766e-17)
    else:
        folded = 1.57079637050628662 - (2.0 * inner + 4.37113882867379e-8)
    return copysign(tl.where(outer, folded, inner), x)


@triton.jit
def acos(x):
    """Inverse cosine; NaN outside [-1, 1]."""
    size = tl.abs(x)
    outer = size > 0.5
    z = tl.where(outer, 0.5 * (1.0 - size), size * size)
    root = tl.where(outer, sqrt(z), x)
    inner = root + root * (z * asin_excess(z))
    if x.dtype == tl.float64:
        right = 1.5707963267948966 - (inner - 6.123233995736766e-17)
        left = 3.141592653589793 - (2.0 * inner - 1.2246467991473532e-16)
    else:
        right = 1.57079637050628662 - (inner + 4.37113882867379e-8)
        left = 3.14159274101257324 - (2.0 * inner + 8.74227765734758e-8)
    return tl.where(outer, tl.where(x > 0.0, 2.0 * inner, left), right)


@triton.jit
def atan_excess(z):
    """(atan(x) / x - 1) / x**2 in z = x**2, for |x| <= tan(pi / 8)."""
    if z.dtype == tl.float64:
        p = z * -0.019176887119062259 + 0.0392316582955871913
        p = p * z - 0.0508544973794025986
        p = p * z + 0.0585814891280220988
        p = p * z - 0.06664511447381948
        p = p * z + 0.0769218319082608656
        p = p * z - 0.0909090457812390189
        p = p * z + 0.111111110152563617
        p = p * z - 0.142857142846665429
        p = p * z + 0.199999999999955207
        p = p * z - 0.333333333333333302
        return p
    else:
        p = z * -0.06451928208 + 0.1074373149
        p = p * z - 0.142639556
        p = p * z + 0.1999954048
        p = p * z - 0.3333333176
        return p


@triton.jit
def angle(y, x):
    """atan(y / x) in [0, pi / 2] for y, x >= 0 not both zero or both infinite, as a high and a low part."""
    flat = y <= 0.41421356237309503 * x
    steep = y >= 2.414213562373095 * x
    top = tl.where(flat, y, tl.where(steep, x * -1.0, y - x))
    bottom = tl.where(flat, x, tl.where(steep, y, y + x))
    t = div(top, bottom)
    z = t * t
    rest = t + t * (z * atan_excess(z))
    turns = tl.where(flat, 0.0, tl.where(steep, 1.0, tl.full(x.shape, 0.5, x.dtype)))
    if x.dtype == tl.float64:
        return turns * 1.5707963267948966, rest + turns * 6.123233995736766e-17
    else:
        return turns * 1.57079637050628662, rest - turns * 4.37113882867379e-8


@triton.jit
def atan(x):
    """Inverse tangent."""
    high, low = angle(tl.abs(x), tl.full(x.shape, 1.0, x.dtype))
    return copysign(high + low, x)


@triton.jit
def atan2(y, x):
    """Angle of the point (x, y) in [-pi, pi]; zeros and infinities as in C."""
    if x.dtype == tl.float64:
        huge: tl.constexpr = 1.0e300
        tiny: tl.constexpr = 1.0e-290
    else:
        huge: tl.constexpr = 1.0e37
        tiny: tl.constexpr = 1.0e-28
    up = tl.abs(y)
    right = tl.abs(x)
    top = tl.maximum(up, right)
    factor = tl.where(top > huge, 0.0625, tl.where(top < tiny, 16777216.0, tl.full(top.shape, 1.0, top.dtype)))
    both = (up == right) & ((up == 0.0) | (up == float("inf")))
    high, low = angle(
        tl.where(both, tl.where(up == 0.0, 0.0, 1.0).to(x.dtype), up * factor), tl.where(both, 1.0, right * factor)
    )
    behind = as_int(x) < 0
    if x.dtype == tl.float64:
        result = tl.where(behind, 3.141592653589793 - high - (low - 1.2246467991473532e-16), high + low)
    else:
        result = tl.where(behind, 3.14159274101257324 - high - (low + 8.74227765734758e-8), high + low)
    return tl.where((x == x) & (y == y), copysign(result, y), x + y)
