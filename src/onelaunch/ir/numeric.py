"""The numpy meaning of scalar functions whose JAX semantics numpy lacks: edges of integers, casts, 16-bit floats."""

# mypy: disable-error-code="no-any-return, no-untyped-call"
# numpy and scipy give Any where a dtype is not known before the call.
from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import scipy.special as special  # type: ignore[import-untyped]

from onelaunch.ir.types import is_bool, is_float

Array = np.ndarray
Numpy = Callable[..., Array]


def quiet(fn: Numpy) -> Numpy:
    """Overflow, NaN and division by zero are ordinary values."""

    def call(*args: Array) -> Array:
        with np.errstate(all="ignore"):
            return fn(*args)

    return call


def halves(fn: Numpy) -> Numpy:
    """16-bit floats are computed in f32 and rounded once."""

    def call(*args: Array) -> Array:
        with np.errstate(all="ignore"):
            dtype = next((a.dtype for a in args if is_float(a.dtype)), None)
            if dtype is None or dtype.itemsize != 2:
                return fn(*args)
            out = fn(*(a.astype(np.float32) if is_float(a.dtype) else a for a in args))
            return out.astype(dtype) if out.dtype == np.float32 else out

    return call


def wide(fn: Numpy) -> Numpy:
    """Floats are computed in f64 and rounded once."""

    def call(*args: Array) -> Array:
        with np.errstate(all="ignore"):
            dtype = args[0].dtype
            out = fn(*(a.astype(np.float64) for a in args))
            return out.astype(np.float32).astype(dtype) if dtype.itemsize < 8 else out

    return call


def unsigned(x: Array) -> Array:
    return x.view(np.dtype(f"uint{x.dtype.itemsize * 8}")) if x.dtype.kind in "iu" else x


def signed(x: Array) -> Array:
    return x.view(np.dtype(f"int{x.dtype.itemsize * 8}"))


def divide(x: Array, y: Array) -> Array:
    """Quotient; of integers cut to zero, all bits set where y is 0."""
    if is_float(x.dtype):
        return np.divide(x, y)
    x, y = np.broadcast_arrays(x, y)
    plain = (y != 0) & ((y != -1) if x.dtype.kind == "i" else True)
    safe = np.where(plain, y, 1).astype(x.dtype)
    quotient = (x - np.fmod(x, safe)) // safe
    ones = np.invert(np.zeros((), x.dtype))
    return np.where(plain, quotient, np.where(y == 0, ones, np.zeros((), x.dtype) - x)).astype(x.dtype)


def remainder(x: Array, y: Array) -> Array:
    """Remainder with the sign of x; of integers x where y is 0."""
    if is_float(x.dtype):
        return np.fmod(x, y)
    x, y = np.broadcast_arrays(x, y)
    plain = (y != 0) & ((y != -1) if x.dtype.kind == "i" else True)
    rest = np.fmod(x, np.where(plain, y, 1).astype(x.dtype))
    return np.where(plain, rest, np.where(y == 0, x, 0)).astype(x.dtype)


def maximum(x: Array, y: Array) -> Array:
    """The greater; NaN wins, and -0 < +0."""
    top = np.maximum(x, y)
    if not is_float(top.dtype):
        return top
    return np.where((x == 0) & (y == 0), np.where(np.signbit(x), y, x), top)


def minimum(x: Array, y: Array) -> Array:
    """The lesser; NaN wins, and -0 < +0."""
    low = np.minimum(x, y)
    if not is_float(low.dtype):
        return low
    return np.where((x == 0) & (y == 0), np.where(np.signbit(x), x, y), low)


def sign(x: Array) -> Array:
    return np.where(x == 0, x, np.sign(x)) if is_float(x.dtype) else np.sign(x)


def round_away(x: Array) -> Array:
    size = np.abs(x)
    whole = np.floor(size)
    return np.copysign(np.where(size - whole >= 0.5, whole + x.dtype.type(1), whole), x)


def shift_left(x: Array, n: Array) -> Array:
    return shift(np.left_shift, x, x, n)


def shift_right_logical(x: Array, n: Array) -> Array:
    return shift(np.right_shift, x, unsigned(x), n)


def shift(fn: Numpy, x: Array, bits: Array, n: Array) -> Array:
    """0 where the count, read as unsigned, is not less than the width."""
    count = unsigned(n)
    ok = count < 8 * x.dtype.itemsize
    moved = fn(bits, np.where(ok, count, 0).astype(bits.dtype)).astype(bits.dtype)
    return np.where(ok, moved.view(x.dtype), np.zeros((), x.dtype))


def shift_right_arithmetic(x: Array, n: Array) -> Array:
    count = np.minimum(unsigned(n), 8 * x.dtype.itemsize - 1).astype(signed(x).dtype)
    return np.right_shift(signed(x), count).view(x.dtype)


def population_count(x: Array) -> Array:
    return np.bitwise_count(unsigned(x)).astype(x.dtype)


def clz(x: Array) -> Array:
    v = unsigned(x)
    width = 8 * x.dtype.itemsize
    for n in (1, 2, 4, 8, 16, 32):
        if n < width:
            v = v | (v >> v.dtype.type(n))
    return (width - np.bitwise_count(v).astype(np.int64)).astype(x.dtype)


def mul_high(x: Array, y: Array) -> Array:
    return ((x.astype(object) * y.astype(object)) >> (8 * x.dtype.itemsize)).astype(x.dtype)


def cast(x: Array, dtype: np.dtype) -> Array:
    """convert_element_type: floats to integers are cut and saturated, NaN to 0; to 16-bit floats through f32."""
    dtype = np.dtype(dtype)
    with np.errstate(all="ignore"):
        if is_float(x.dtype) and dtype.kind in "iu":
            return saturate(x, dtype)
        if is_float(dtype) and dtype.itemsize == 2:
            return x.astype(np.float32).astype(dtype)
        return (x != 0) if is_bool(dtype) else x.astype(dtype)


def saturate(x: Array, dtype: np.dtype) -> Array:
    info = np.iinfo(dtype)
    x = x.astype(np.float64)
    limit = float(info.max + 1) if info.bits < 64 else 2.0 ** (info.bits - (dtype.kind == "i"))
    inside = (x < limit) & (x > info.min - 1.0)
    whole = np.where(inside, x, 0).astype(dtype)
    return np.where(x >= limit, info.max, np.where(x <= float(info.min), info.min, whole).astype(dtype)).astype(dtype)


def order_key(x: Array) -> Array:
    """Integers in the total order of floats (-NaN < -inf < ... < -0 < +0 < ... < NaN); other dtypes as they are."""
    if not is_float(x.dtype):
        return x
    bits = signed(x)
    return bits ^ ((bits >> bits.dtype.type(8 * bits.itemsize - 1)) & np.iinfo(bits.dtype).max)


def nextafter(x: Array, y: Array) -> Array:
    """The float next to x in the direction of y; y where they are equal."""
    if x.dtype.itemsize > 2 or x.dtype == np.float16:
        return np.where(x == y, y, np.nextafter(x, y))
    bits = signed(x)
    smallest = np.where(np.signbit(y), np.uint16(0x8001), np.uint16(1)).view(x.dtype)
    step = np.where((y > x) == (x > 0), bits + np.int16(1), bits - np.int16(1)).astype(np.int16).view(x.dtype)
    moved = np.where(x == 0, smallest, step)
    return np.where(x == y, y, np.where(np.isnan(x) | np.isnan(y), x + y, moved)).astype(x.dtype)


def reduce_precision(x: Array, exponent_bits: Array, mantissa_bits: Array) -> Array:
    """x rounded to a format of fewer bits: to nearest even, overflow to infinity, denormals to zero."""
    info = ml_dtypes.finfo(x.dtype)
    width, bias = info.nmant, int(info.maxexp) - 1
    bits = signed(x).astype(np.int64)
    size = bits & np.int64((1 << (8 * x.dtype.itemsize - 1)) - 1)
    infinity = np.int64((2 * bias + 1) << width)
    drop = width - mantissa_bits.astype(np.int64)
    kept = np.maximum(drop, 1)
    rounded = ((size + (np.int64(1) << (kept - 1)) - 1 + ((size >> kept) & 1)) >> kept) << kept
    rounded = np.where(drop > 0, rounded, size)
    top = np.minimum((np.int64(1) << np.minimum(exponent_bits.astype(np.int64) - 1, 11)) - 1, bias)
    rounded = np.where((top < bias) & (rounded >= ((top + bias + 1) << width)), infinity, rounded)
    rounded = np.where((top < bias) & (rounded < ((bias - top + 1) << width)), 0, rounded)
    result = np.where(size > infinity, bits, rounded | (bits ^ size))
    return result.astype(signed(x).dtype).view(x.dtype)


def rotate(x: Array, n: int) -> Array:
    return (x << np.uint32(n)) | (x >> np.uint32(32 - n))


def threefry2x32(k0: Array, k1: Array, x0: Array, x1: Array) -> tuple[Array, Array]:
    """Threefry-2x32, 20 rounds (Salmon et al., SC11)."""
    with np.errstate(all="ignore"):
        keys = (k0, k1, k0 ^ k1 ^ np.uint32(0x1BD11BDA))
        a, b = np.asarray(x0 + k0), np.asarray(x1 + k1)
        for i in range(5):
            for r in ((13, 15, 26, 6), (17, 29, 16, 24))[i % 2]:
                a = a + b
                b = rotate(b, r) ^ a
            a = a + keys[(i + 1) % 3]
            b = b + keys[(i + 2) % 3] + np.uint32(i + 1)
        return a, b


def polynomial(x: Array, coefficients: tuple[float, ...]) -> Array:
    """Horner's rule in x's dtype, highest power first."""
    result = np.zeros_like(x)
    for c in coefficients:
        result = result * x + x.dtype.type(c)
    return result


def erf_inv(x: Array) -> Array:
    """Inverse error function as XLA has it: Giles's approximations, of log(1 - x**2) with x**2 rounded."""
    w = -np.log1p(-x * x)
    root = np.sqrt(w)
    if x.dtype == np.float64:
        p = np.where(w < 16, polynomial(root - 3.25, GILES_TAIL), polynomial(root - 5, GILES_FAR))
        p = np.where(w < 6.25, polynomial(w - 3.125, GILES_CENTRE), p)
    else:
        near = polynomial(w - np.float32(2.5), GILES_CENTRE_F32)
        p = np.where(w < 5, near, polynomial(root - np.float32(3), GILES_TAIL_F32))
    return np.where(np.abs(x) == 1, x * x.dtype.type(np.inf), p * x)


def lgamma(x: Array) -> Array:
    """log |Gamma(x)|; inf of -inf too, as XLA has it."""
    return np.where(np.isinf(x), np.inf, special.gammaln(x))


def digamma(x: Array) -> Array:
    """Derivative of lgamma; NaN of 0 and of the negative integers."""
    return np.where((x <= 0) & (x == np.floor(x)), np.nan, special.digamma(x))


def bessel_i1e(x: Array) -> Array:
    return np.copysign(special.i1e(x), x)


#: M. Giles, "Approximating the erfinv function", GPU Computing Gems 2 (2011), tables 5 (double) and 4 (single).
GILES_CENTRE = (
    -3.6444120640178196996e-21,
    -1.685059138182016589e-19,
    1.2858480715256400167e-18,
    1.115787767802518096e-17,
    -1.333171662854620906e-16,
    2.0972767875968561637e-17,
    6.6376381343583238325e-15,
    -4.0545662729752068639e-14,
    -8.1519341976054721522e-14,
    2.6335093153082322977e-12,
    -1.2975133253453532498e-11,
    -5.4154120542946279317e-11,
    1.051212273321532285e-09,
    -4.1126339803469836976e-09,
    -2.9070369957882005086e-08,
    4.2347877827932403518e-07,
    -1.3654692000834678645e-06,
    -1.3882523362786468719e-05,
    0.0001867342080340571352,
    -0.00074070253416626697512,
    -0.0060336708714301490533,
    0.24015818242558961693,
    1.6536545626831027356,
)
GILES_TAIL = (
    2.2137376921775787049e-09,
    9.0756561938885390979e-08,
    -2.7517406297064545428e-07,
    1.8239629214389227755e-08,
    1.5027403968909827627e-06,
    -4.013867526981545969e-06,
    2.9234449089955446044e-06,
    1.2475304481671778723e-05,
    -4.7318229009055733981e-05,
    6.8284851459573175448e-05,
    2.4031110387097893999e-05,
    -0.0003550375203628474796,
    0.00095328937973738049703,
    -0.0016882755560235047313,
    0.0024914420961078508066,
    -0.0037512085075692412107,
    0.005370914553590063617,
    1.0052589676941592334,
    3.0838856104922207635,
)
GILES_FAR = (
    -2.7109920616438573243e-11,
    -2.5556418169965252055e-10,
    1.5076572693500548083e-09,
    -3.7894654401267369937e-09,
    7.6157012080783393804e-09,
    -1.4960026627149240478e-08,
    2.9147953450901080826e-08,
    -6.7711997758452339498e-08,
    2.2900482228026654717e-07,
    -9.9298272942317002539e-07,
    4.5260625972231537039e-06,
    -1.9681778105531670567e-05,
    7.5995277030017761139e-05,
    -0.00021503011930044477347,
    -0.00013871931833623122026,
    1.0103004648645343977,
    4.8499064014085844221,
)
GILES_CENTRE_F32 = (
    2.81022636e-08,
    3.43273939e-07,
    -3.5233877e-06,
    -4.39150654e-06,
    0.00021858087,
    -0.00125372503,
    -0.00417768164,
    0.246640727,
    1.50140941,
)
GILES_TAIL_F32 = (
    -0.000200214257,
    0.000100950558,
    0.00134934322,
    -0.00367342844,
    0.00573950773,
    -0.0076224613,
    0.00943887047,
    1.00167406,
    2.83297682,
)
