"""Integer device functions with JAX's meaning at the edges: division by zero, wide shifts, saturation."""

import triton
import triton.language as tl


@triton.jit
def as_unsigned(x):
    """The bits of an integer as unsigned."""
    if x.dtype.primitive_bitwidth == 8:
        return x.to(tl.uint8, bitcast=True)
    elif x.dtype.primitive_bitwidth == 16:
        return x.to(tl.uint16, bitcast=True)
    elif x.dtype.primitive_bitwidth == 32:
        return x.to(tl.uint32, bitcast=True)
    else:
        return x.to(tl.uint64, bitcast=True)


@triton.jit
def as_signed(x):
    """The bits of an integer as signed."""
    if x.dtype.primitive_bitwidth == 8:
        return x.to(tl.int8, bitcast=True)
    elif x.dtype.primitive_bitwidth == 16:
        return x.to(tl.int16, bitcast=True)
    elif x.dtype.primitive_bitwidth == 32:
        return x.to(tl.int32, bitcast=True)
    else:
        return x.to(tl.int64, bitcast=True)


@triton.jit
def int_div(x, y):
    """Quotient truncated to zero; x / 0 has all bits set, and the lowest integer / -1 is itself."""
    ones = (x ^ x) - 1
    if x.dtype.is_int_signed():
        plain = (y != 0) & (y != -1)
        quotient = x // tl.where(plain, y, 1)
        return tl.where(plain, quotient, tl.where(y == 0, ones, (x ^ x) - x)).to(x.dtype)
    else:
        return tl.where(y != 0, x // tl.where(y != 0, y, 1), ones).to(x.dtype)


@triton.jit
def int_rem(x, y):
    """Remainder with the dividend's sign; x rem 0 is x, and x rem -1 is 0."""
    if x.dtype.is_int_signed():
        plain = (y != 0) & (y != -1)
        remainder = x % tl.where(plain, y, 1)
        return tl.where(plain, remainder, tl.where(y == 0, x, x ^ x)).to(x.dtype)
    else:
        return tl.where(y != 0, x % tl.where(y != 0, y, 1), x).to(x.dtype)


@triton.jit
def shift_left(x, n):
    """x << n; 0 where n, read as unsigned, is not less than the width."""
    ok = as_unsigned(n) < x.dtype.primitive_bitwidth
    return tl.where(ok, x << tl.where(ok, n, n ^ n), x ^ x)


@triton.jit
def shift_right_logical(x, n):
    """x >> n filled with zeros; 0 where n, read as unsigned, is not less than the width."""
    ok = as_unsigned(n) < x.dtype.primitive_bitwidth
    shifted = as_unsigned(x) >> as_unsigned(tl.where(ok, n, n ^ n))
    return tl.where(ok, shifted.to(x.dtype, bitcast=True), x ^ x)


@triton.jit
def shift_right_arithmetic(x, n):
    """x >> n filled with the sign bit; n, read as unsigned, counts at most width - 1."""
    width: tl.constexpr = x.dtype.primitive_bitwidth
    count = tl.where(as_unsigned(n) < width, n, (n ^ n) + (width - 1))
    return (as_signed(x) >> as_signed(count)).to(x.dtype, bitcast=True)


@triton.jit
def population_count(x):
    """Number of set bits, in x's dtype (sideways addition, on 64 bits)."""
    v = as_unsigned(x).to(tl.uint64)
    v = v - ((v >> 1) & 0x5555555555555555)
    v = (v & 0x3333333333333333) + ((v >> 2) & 0x3333333333333333)
    v = (v + (v >> 4)) & 0x0F0F0F0F0F0F0F0F
    v = v + (v >> 8)
    v = v + (v >> 16)
    v = v + (v >> 32)
    return (v & 0x7F).to(x.dtype)


@triton.jit
def clz(x):
    """Number of leading zero bits, in x's dtype; the width for 0."""
    v = as_unsigned(x).to(tl.uint64)
    v = v | (v >> 1)
    v = v | (v >> 2)
    v = v | (v >> 4)
    v = v | (v >> 8)
    v = v | (v >> 16)
    v = v | (v >> 32)
    return x.dtype.primitive_bitwidth - population_count(v).to(x.dtype)


@triton.jit
def int_sign(x):
    """-1, 0 or 1 of a signed integer."""
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


@triton.jit
def mul_high(x, y):
    """The high half of the double-width product of two integers."""
    if x.dtype.primitive_bitwidth == 8:
        wide = x.to(tl.int16) * y.to(tl.int16)
        return (wide >> 8).to(x.dtype)
    elif x.dtype.primitive_bitwidth == 16:
        if x.dtype.is_int_signed():
            return ((x.to(tl.int32) * y.to(tl.int32)) >> 16).to(x.dtype)
        else:
            return ((x.to(tl.uint32) * y.to(tl.uint32)) >> 16).to(x.dtype)
    elif x.dtype.is_int_signed():
        high = as_signed(tl.umulhi(as_unsigned(x), as_unsigned(y)))
        zero = x ^ x
        return high - tl.where(x < 0, y, zero) - tl.where(y < 0, x, zero)
    else:
        return tl.umulhi(x, y)


@triton.jit
def to_int(x, dtype: tl.constexpr):
    """A float as an integer of ``dtype``: cut toward zero, saturated, NaN becomes 0."""
    bits: tl.constexpr = dtype.primitive_bitwidth
    limit: tl.constexpr = 2.0 ** (bits - 1) if dtype.is_int_signed() else 2.0**bits
    if dtype.is_int_signed():
        low = tl.full((), -(1 << (bits - 1)), dtype)
        high = tl.full((), (1 << (bits - 1)) - 1, dtype)
        inside = (x > -limit) & (x < limit)
    else:
        low = tl.full((), 0, dtype)
        high = tl.full((), (1 << bits) - 1, dtype)
        inside = (x > 0.0) & (x < limit)
    if bits < 32:
        whole = tl.where(inside, x, 0.0).to(tl.int32).to(dtype)
    else:
        whole = tl.where(inside, x, 0.0).to(dtype)
    return tl.where(x >= limit, high, tl.where(x < 0.0, tl.where(inside, whole, low), whole))
