"""Exponentials, logarithms, powers and hyperbolic functions."""

import triton
import triton.language as tl

from onelaunch.device.floating import as_int, copysign, div, ldexp, maximum, power_of_two, reciprocal, sqrt


@triton.jit
def exp(x):
    """e**x. f32: reduction and polynomial of Cephes expf (Moshier)."""
    if x.dtype == tl.float64:
        return tl.exp(x)
    else:
        y = tl.minimum(tl.maximum(x, -104.0), 89.0)
        n = tl.floor(y * 1.44269504088896341 + 0.5)
        r = (y - n * 0.693359375) - n * -2.12194440e-4
        p = r * 1.9875691500e-4 + 1.3981999507e-3
        p = p * r + 8.3334519073e-3
        p = p * r + 4.1665795894e-2
        p = p * r + 1.6666665459e-1
        p = p * r + 5.0000001201e-1
        return tl.where(x == x, ldexp((p * (r * r) + r) + 1.0, n.to(tl.int32)), x)


@triton.jit
def exp2(x):
    """2**x."""
    if x.dtype == tl.float64:
        return tl.exp2(x)
    else:
        y = tl.minimum(tl.maximum(x, -151.0), 129.0)
        n = tl.floor(y + 0.5)
        return tl.where(x == x, ldexp(exp((y - n) * 0.693147180559945309), n.to(tl.int32)), x)


@triton.jit
def log(x):
    """Natural logarithm. f32: polynomial of Cephes logf (Moshier)."""
    if x.dtype == tl.float64:
        return tl.log(x)
    else:
        small = x < 1.1754943508222875e-38
        bits = as_int(tl.where(small, x * 8388608.0, x))
        n = (bits - 0x3F3504F3) >> 23
        f = (bits - (n << 23)).to(tl.float32, bitcast=True) - 1.0
        e = (n - tl.where(small, 23, 0)).to(tl.float32)
        z = f * f
        p = f * 7.0376836292e-2 - 1.1514610310e-1
        p = p * f + 1.1676998740e-1
        p = p * f - 1.2420140846e-1
        p = p * f + 1.4249322787e-1
        p = p * f - 1.6668057665e-1
        p = p * f + 2.0000714765e-1
        p = p * f - 2.4999993993e-1
        p = p * f + 3.3333331174e-1
        p = p * f * z + e * -2.12194440e-4
        result = (f + (p - 0.5 * z)) + e * 0.693359375
        result = tl.where(x == float("inf"), x, result)
        result = tl.where(x == 0.0, float("-inf"), result)
        return tl.where(x >= 0.0, result, float("nan"))


@triton.jit
def log1p(x):
    """log(1 + x): the logarithm of the rounded sum, corrected for what the rounding lost."""
    u = 1.0 + x
    lost = div(x - (u - 1.0), u)
    result = log(u) + tl.where(tl.abs(u) < float("inf"), lost, 0.0)
    return tl.where((x == 0.0) | (u == float("inf")), x, tl.where(u == 0.0, float("-inf"), result))


@triton.jit
def exp_parts(x):
    """n (int32) and p with e**x = 2**n (1 + p), |x| <= 2000; Taylor series for p on |r| <= ln(2) / 2."""
    n = tl.floor(x * 1.44269504088896341 + 0.5)
    if x.dtype == tl.float64:
        r = (x - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10
        q = r * (1.0 / 87178291200.0) + (1.0 / 6227020800.0)
        q = q * r + (1.0 / 479001600.0)
        q = q * r + (1.0 / 39916800.0)
        q = q * r + (1.0 / 3628800.0)
        q = q * r + (1.0 / 362880.0)
        q = q * r + (1.0 / 40320.0)
        q = q * r + (1.0 / 5040.0)
    else:
        r = (x - n * 0.693359375) - n * -2.12194440e-4
        q = r * (1.0 / 40320.0) + (1.0 / 5040.0)
    q = q * r + (1.0 / 720.0)
    q = q * r + (1.0 / 120.0)
    q = q * r + (1.0 / 24.0)
    q = q * r + (1.0 / 6.0)
    q = q * r + 0.5
    return n.to(tl.int32), q * (r * r) + r


@triton.jit
def expm1(x):
    """e**x - 1."""
    if x.dtype == tl.float64:
        y = tl.minimum(tl.maximum(x, -45.0), 710.0)
    else:
        y = tl.minimum(tl.maximum(x, -20.0), 89.0)
    n, p = exp_parts(y)
    one = power_of_two(n - 1, x)
    result = 2.0 * (one * p + (one - 0.5))
    return tl.where((x == 0.0) | (x != x), x, tl.where(x == float("inf"), x, result))


@triton.jit
def logistic(x):
    """1 / (1 + e**-x)."""
    return reciprocal(1.0 + exp(x * -1.0))


@triton.jit
def sinh(x):
    """Hyperbolic sine: (E - 1/E) / 2 with E - 1 known to full precision."""
    size = tl.abs(x)
    if x.dtype == tl.float64:
        n, p = exp_parts(tl.minimum(size, 712.0))
    else:
        n, p = exp_parts(tl.minimum(size, 91.0))
    quarter = power_of_two(n - 2, x)
    part = quarter * p + (quarter - 0.25)
    rest = div(part, part * 4.0 + 1.0)
    result = 2.0 * (part + tl.where(size < 30.0, rest, 0.25))
    result = tl.where((size == float("inf")) | (size != size), size, result)
    return copysign(tl.where(size == 0.0, size, result), x)


@triton.jit
def cosh(x):
    """Hyperbolic cosine."""
    size = tl.abs(x)
    if x.dtype == tl.float64:
        n, p = exp_parts(tl.minimum(size, 712.0))
    else:
        n, p = exp_parts(tl.minimum(size, 91.0))
    quarter = power_of_two(n - 2, x)
    grown = quarter * p + quarter
    result = 2.0 * (grown + div(0.0 * grown + 0.0625, grown))
    return tl.where((size == float("inf")) | (size != size), size, result)


@triton.jit
def tanh(x):
    """Hyperbolic tangent."""
    size = tl.abs(x)
    grown = expm1(2.0 * tl.minimum(size, 22.0))
    return copysign(tl.where(x == x, div(grown, grown + 2.0), size), x)


@triton.jit
def asinh(x):
    """Inverse hyperbolic sine."""
    size = tl.abs(x)
    large = size > 1.0e8
    y = tl.where(large, 1.0, size)
    near = log1p(y + div(y * y, 1.0 + sqrt(y * y + 1.0)))
    return copysign(tl.where(large, log(size) + 0.693147180559945309, near), x)


@triton.jit
def acosh(x):
    """Inverse hyperbolic cosine; NaN below 1."""
    large = x > 1.0e8
    y = tl.where(large, 1.0, x) - 1.0
    near = log1p(y + sqrt(2.0 * y + y * y))
    return tl.where(large, log(x) + 0.693147180559945309, near)


@triton.jit
def atanh(x):
    """Inverse hyperbolic tangent; NaN outside [-1, 1]."""
    size = tl.abs(x)
    return copysign(0.5 * log1p(div(2.0 * size, 1.0 - size)), x)


@triton.jit
def power(x, y):
    """x**y with IEEE 754's special cases."""
    size = tl.abs(x)
    whole = tl.floor(y) == y
    odd = whole & (tl.floor(y * 0.5) != y * 0.5)
    result = power_of_positive(size, y)
    result = tl.where(
        (x < 0.0) & (whole == 0) & (tl.abs(y) < float("inf")) & (size < float("inf")), float("nan"), result
    )
    result = tl.where(odd, copysign(result, x), result)
    return tl.where((x == 1.0) | (y == 0.0), 1.0, result)


@triton.jit
def power_of_positive(x, y):
    """x**y for x >= 0."""
    return exp(y * log(x))


@triton.jit
def logaddexp(x, y):
    """log(e**x + e**y)."""
    top = maximum(x, y)
    apart = tl.abs(x - y)
    return tl.where(apart == apart, top + log1p(exp(apart * -1.0)), x + y)
