"""Exponentials, logarithms, powers and hyperbolic functions."""

import triton
import triton.language as tl

from onelaunch.device.floating import any_true, as_int, copysign, div, ldexp, maximum, power_of_two, reciprocal, sqrt


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
def cbrt(x):
    """Cube root: a guess from the exponent, Halley's iterations, and a last step of Newton's."""
    size = tl.abs(x)
    plain = (size > 0.0) & (size < float("inf"))
    y = tl.where(plain, size, 1.0)
    if x.dtype == tl.float64:
        small = y < 2.2250738585072014e-308
        y = tl.where(small, y * 18014398509481984.0, y)
        t = ((as_int(y) // 3) + 0x2A9F7893782DA1CE).to(tl.float64, bitcast=True)
        t = t * div(t * t * t + 2.0 * y, 2.0 * (t * t * t) + y)
        back = tl.where(small, 3.814697265625e-06, 1.0).to(tl.float64)
    else:
        small = y < 1.1754943508222875e-38
        y = tl.where(small, y * 16777216.0, y)
        t = ((as_int(y) // 3) + 0x2A5119F2).to(tl.float32, bitcast=True)
        back = tl.where(small, 0.00390625, 1.0)
    t = t * div(t * t * t + 2.0 * y, 2.0 * (t * t * t) + y)
    t = t * div(t * t * t + 2.0 * y, 2.0 * (t * t * t) + y)
    t = t - div(t - div(y, t * t), t + (t + t)) * t
    return copysign(tl.where(plain, t * back, size), x)


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
def grown_parts(size):
    """2**(n - 3) and p with e**size = 2**n (1 + p), for size >= 0; just above the largest finite sinh from there on."""
    if size.dtype == tl.float64:
        n, p = exp_parts(tl.minimum(size, 711.0))
    else:
        n, p = exp_parts(tl.minimum(size, 90.0))
    return power_of_two(n - 3, size), p


@triton.jit
def sinh(x):
    """Hyperbolic sine: (E - 1/E) / 2 with E - 1 known to full precision."""
    size = tl.abs(x)
    eighth, p = grown_parts(size)
    part = eighth * p + (eighth - 0.125)
    rest = div(part, part * 8.0 + 1.0)
    result = 4.0 * (part + tl.where(size < 30.0, rest, 0.125))
    return copysign(tl.where((size > 0.0) & (size < float("inf")), result, size), x)


@triton.jit
def cosh(x):
    """Hyperbolic cosine."""
    size = tl.abs(x)
    eighth, p = grown_parts(size)
    part = eighth * p + eighth
    result = 4.0 * (part + 0.015625 * reciprocal(part))
    return tl.where(size < float("inf"), result, size)


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
    return tl.where(large, log(x) + 0.693147180559945309, tl.where(x >= 1.0, near, float("nan")))


@triton.jit
def atanh(x):
    """Inverse hyperbolic tangent; NaN outside [-1, 1]."""
    size = tl.abs(x)
    return copysign(0.5 * log1p(div(2.0 * size, 1.0 - size)), x)


@triton.jit
def power(x, y):
    """x**y with IEEE 754's special cases."""
    size = tl.abs(x)
    broken = tl.floor(y) != y
    odd = (broken == 0) & (tl.floor(y * 0.5) != y * 0.5)
    result = power_of_positive(size, y)
    result = tl.where((size == 1.0) & (y == y), 1.0, result)
    result = tl.where((x < 0.0) & broken & (size < float("inf")), float("nan"), result)
    result = tl.where(odd, copysign(result, x), result)
    return tl.where((x == 1.0) | (y == 0.0), 1.0, result)


@triton.jit
def log_parts(x):
    """log(x) as a high and a low part, x > 0 and finite: 2 atanh((m - 1) / (m + 1)) + n log(2) with x = 2**n m."""
    if x.dtype == tl.float64:
        small = x < 2.2250738585072014e-308
        bits = as_int(tl.where(small, x * 18014398509481984.0, x))
        n = (bits - 0x3FE6A09E667F3BCD) >> 52
        m = (bits - (n << 52)).to(tl.float64, bitcast=True)
        e = (n - tl.where(small, 54, 0)).to(tl.float64)
    else:
        small = x < 1.1754943508222875e-38
        bits = as_int(tl.where(small, x * 8388608.0, x))
        n = (bits - 0x3F3504F3) >> 23
        m = (bits - (n << 23)).to(tl.float32, bitcast=True)
        e = (n - tl.where(small, 23, 0)).to(tl.float32)
    f = m - 1.0
    t = m + 1.0
    s = div(f, t)
    s_low = div(tl.fma(s * -1.0, t, f) - s * (m - (t - 1.0)), t)
    v, v_low = atanh_excess(s, s_low)
    u = s * v
    u_low = tl.fma(s, v, u * -1.0) + (s * v_low + s_low * v)
    if x.dtype == tl.float64:
        a = e * 6.93147180369123816490e-01
        a_low = e * 1.90821492927058770002e-10
    else:
        a = e * 0.693359375
        a_low = e * -2.12194440e-4
    high, low = two_sum(2.0 * s, 2.0 * u)
    total, rest = two_sum(a, high)
    return two_sum(total, rest + (low + a_low + 2.0 * (s_low + u_low)))


@triton.jit
def two_sum(a, b):
    """a + b rounded, and what the rounding lost (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


@triton.jit
def atanh_excess(s, s_low):
    """atanh(s) / s - 1 as a high and a low part, for |s| < 0.172: z (1/3 + z (1/5 + z / 7 + ...)), z = s**2."""
    z = s * s
    z_low = tl.fma(s, s, z * -1.0) + 2.0 * (s * s_low)
    if s.dtype == tl.float64:
        q = z * (1.0 / 25.0) + (1.0 / 23.0)
        q = q * z + (1.0 / 21.0)
        q = q * z + (1.0 / 19.0)
        q = q * z + (1.0 / 17.0)
        q = q * z + (1.0 / 15.0)
        q = q * z + (1.0 / 13.0)
        q = q * z + (1.0 / 11.0)
        q = q * z + (1.0 / 9.0)
        third_low: tl.constexpr = 1.8503717077085941e-17
    else:
        q = z * (1.0 / 11.0) + (1.0 / 9.0)
        third_low: tl.constexpr = -9.934107462565104e-09
    q = q * z + (1.0 / 7.0)
    q = q * z + (1.0 / 5.0)
    third = tl.full(s.shape, 1.0 / 3.0, s.dtype)
    c, c_low = two_sum(third, q * z)
    c_low += third_low
    v = z * c
    return v, tl.fma(z, c, v * -1.0) + (z * c_low + z_low * c)


@triton.jit
def power_of_positive(x, y):
    """x**y for x >= 0: e**(y log(x)), with the exponent in two parts where a rounded one would cost over 2 ulp."""
    plain = (x > 0.0) & (x < float("inf"))
    base = tl.where(plain, x, 1.0)
    p = y * log(base)
    result = exp(p)
    far = (tl.abs(p) > 2.0) & plain
    if any_true(far):
        high, low = log_parts(base)
        product = y * high
        rest = tl.fma(y, high, product * -1.0) + y * low
        finite = tl.abs(product) < 1.0e4
        grown = exp(product)
        grown = tl.where(finite & (grown < float("inf")), grown + grown * tl.where(finite, rest, 0.0), grown)
        result = tl.where(far, grown, result)
    up = (y > 0.0) == (x > 0.0)
    result = tl.where(plain, result, tl.where(up, float("inf"), 0.0).to(x.dtype))
    return tl.where((x == x) & (y == y), result, x + y)


@triton.jit
def logaddexp(x, y):
    """log(e**x + e**y)."""
    top = maximum(x, y)
    apart = tl.abs(x - y)
    return tl.where(apart == apart, top + log1p(exp(apart * -1.0)), x + y)
