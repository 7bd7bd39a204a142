"""Floating-point device functions that are exact or correctly rounded: extrema, rounding, remainder, roots."""

import triton
import triton.language as tl


@triton.jit
def as_int(x):
    """The bits of a float as a signed integer."""
    if x.dtype == tl.float64:
        return x.to(tl.int64, bitcast=True)
    elif x.dtype == tl.float32:
        return x.to(tl.int32, bitcast=True)
    else:
        return x.to(tl.int16, bitcast=True)


@triton.jit
def copysign(x, y):
    """|x| with the sign of y."""
    if x.dtype == tl.float64:
        bits = (as_int(x) & 0x7FFFFFFFFFFFFFFF) | (as_int(y) & -0x8000000000000000)
        return bits.to(tl.float64, bitcast=True)
    else:
        bits = (as_int(x) & 0x7FFFFFFF) | (as_int(y) & -0x80000000)
        return bits.to(tl.float32, bitcast=True)


@triton.jit
def div(x, y):
    """x / y rounded to nearest."""
    if x.dtype == tl.float64:
        return x / y
    else:
        return tl.div_rn(x, y)


@triton.jit
def sqrt(x):
    """Square root rounded to nearest."""
    if x.dtype == tl.float64:
        return tl.sqrt(x)
    else:
        return tl.sqrt_rn(x)


@triton.jit
def reciprocal(x):
    """1 / x rounded to nearest."""
    if x.dtype == tl.float64:
        return 1.0 / x
    else:
        return tl.div_rn(1.0, x)


@triton.jit
def rsqrt(x):
    """1 / sqrt(x)."""
    return reciprocal(sqrt(x))


@triton.jit
def maximum(x, y):
    """The greater of two floats; NaN if either is NaN."""
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(x, y):
    """The lesser of two floats; NaN if either is NaN."""
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def sign(x):
    """-1, +-0 or 1 with the sign of x; NaN of NaN."""
    return tl.where(x > 0.0, 1.0, tl.where(x < 0.0, -1.0, x))


@triton.jit
def is_finite(x):
    """True where x is neither infinite nor NaN."""
    return tl.abs(x) < float("inf")


@triton.jit
def round_even(x):
    """Nearest whole number, halves to the even one."""
    size = tl.abs(x)
    if x.dtype == tl.float64:
        whole = tl.where(size < 4503599627370496.0, (size + 4503599627370496.0) - 4503599627370496.0, size)
    else:
        whole = tl.where(size < 8388608.0, (size + 8388608.0) - 8388608.0, size)
    return copysign(whole, x)


@triton.jit
def round_away(x):
    """Nearest whole number, halves away from zero."""
    size = tl.abs(x)
    whole = tl.floor(size)
    return copysign(tl.where(size - whole >= 0.5, whole + 1.0, whole), x)


@triton.jit
def truncate(x):
    """The whole part, toward zero."""
    return copysign(tl.floor(tl.abs(x)), x)


@triton.jit
def next_bits(x, y, bits, unit, lowest):
    """Bits of the float next to x in the direction of y; ``unit``: of the smallest float, ``lowest``: of -0."""
    moved = tl.where((y > x) == (x > 0.0), bits + unit, bits - unit)
    return tl.where(x == 0.0, tl.where(y > 0.0, unit, unit | lowest), moved)


@triton.jit
def nextafter(x, y):
    """The float next to x in the direction of y."""
    bits = as_int(x)
    zero = bits ^ bits
    if x.dtype == tl.float64:
        moved = next_bits(x, y, bits, zero + 1, (zero - 1) << 63).to(tl.float64, bitcast=True)
    elif x.dtype == tl.float32:
        moved = next_bits(x, y, bits, zero + 1, (zero - 1) << 31).to(tl.float32, bitcast=True)
    else:
        moved = next_bits(x, y, bits, zero + 1, (zero - 1) << 15).to(tl.float16, bitcast=True)
    return tl.where((x != x) | (y != y), x + y, tl.where(x == y, y, moved))


@triton.jit
def nextafter_bfloat16(x, y):
    """The bfloat16 next to x in the direction of y; both in f32, of whose bits a bfloat16 has the upper half."""
    bits = as_int(x)
    zero = bits ^ bits
    moved = next_bits(x, y, bits, zero + 0x10000, (zero - 1) << 31)
    kept = as_int(tl.where((x != x) | (y != y), x + y, y))
    bits = tl.where((x != x) | (y != y) | (x == y), kept, moved)
    return (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def power_of_two(n, like):
    """2**n as a float of ``like``'s dtype, for n (int32) inside its normal range."""
    if like.dtype == tl.float64:
        return ((n.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)
    else:
        return ((n + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def ldexp(x, n):
    """x * 2**n rounded once, for n (int32) up to about twice the exponent range."""
    half = n >> 1
    return (x * power_of_two(half, x)) * power_of_two(n - half, x)


@triton.jit
def exponent(x):
    """floor(log2(|x|)) as int32 for finite x != 0, denormals included."""
    size = tl.abs(x)
    if x.dtype == tl.float64:
        small = size < 2.2250738585072014e-308
        bits = as_int(tl.where(small, size * 18014398509481984.0, size)) >> 52
        return (bits - tl.where(small, 1077, 1023)).to(tl.int32)
    else:
        small = size < 1.1754943508222875e-38
        bits = as_int(tl.where(small, size * 33554432.0, size)) >> 23
        return bits - tl.where(small, 152, 127)


@triton.jit
def any_true(condition):
    """Whether any element is true."""
    if condition.type.is_block():
        return tl.max(condition.to(tl.int32)) > 0
    else:
        return condition


@triton.jit
def fmod_step(x, y):
    """One step of long division: x >= 0 less a multiple of y > 0, exactly; below y where x < 2**20 y."""
    apart = tl.maximum(exponent(x) - exponent(y) - 20, 0)
    unit = ldexp(y, apart)
    quotient = tl.floor(div(x, unit))
    rest = tl.fma(quotient * -1.0, unit, x)
    rest = tl.where(rest < 0.0, rest + unit, rest)
    return tl.where(rest >= unit, rest - unit, rest)


@triton.jit
def fmod(x, y):
    """x - y * trunc(x / y), exactly, with the sign of x (C's fmod)."""
    ok = (tl.abs(x) < float("inf")) & (tl.abs(y) > 0.0)
    size = tl.where(ok, tl.abs(x), 0.0)
    divisor = tl.where(ok, tl.abs(y), 1.0)
    endless = divisor == float("inf")
    divisor = tl.where(endless, 1.0, divisor)
    size = tl.where(endless, 0.0, size)
    while any_true(size >= divisor):
        size = tl.where(size >= divisor, fmod_step(size, divisor), size)
    result = copysign(tl.where(endless, tl.abs(x), size), x)
    return tl.where(ok, result, float("nan"))


@triton.jit
def order_key(x):
    """An integer that orders floats totally: -NaN < -inf < ... < -0 < +0 < ... < inf < NaN."""
    bits = as_int(x)
    if x.dtype == tl.float64:
        return bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFF)
    else:
        return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def reduce_precision(x, exponent_bits, mantissa_bits):
    """x rounded to a float format of fewer bits (to nearest even, overflow to infinity, denormals to zero)."""
    bits = as_int(x)
    one = (bits ^ bits) + 1
    if x.dtype == tl.float64:
        width: tl.constexpr = 52
        bias: tl.constexpr = 1023
    elif x.dtype == tl.float32:
        width: tl.constexpr = 23
        bias: tl.constexpr = 127
    elif x.dtype == tl.float16:
        width: tl.constexpr = 10
        bias: tl.constexpr = 15
    else:
        width: tl.constexpr = 7
        bias: tl.constexpr = 127
    infinity = (one * (2 * bias + 1)) << width
    size = bits & ((one << (x.dtype.primitive_bitwidth - 1)) - 1)
    drop = one * width - mantissa_bits.to(bits.dtype)
    kept = tl.where(drop > 1, drop, one)
    rounded = ((size + (one << (kept - 1)) - 1 + ((size >> kept) & 1)) >> kept) << kept
    rounded = tl.where(drop > 0, rounded, size)
    top = (one << (tl.minimum(exponent_bits, 12) - 1).to(bits.dtype)) - 1
    narrow = top < bias
    top = tl.where(narrow, top, one * bias)
    rounded = tl.where(narrow & (rounded >= ((top + bias + 1) << width)), infinity, rounded)
    rounded = tl.where(narrow & (rounded < ((one * bias - top + 1) << width)), 0, rounded)
    rounded = rounded | (bits ^ size)
    return tl.where(size > infinity, bits, rounded).to(x.dtype, bitcast=True)
