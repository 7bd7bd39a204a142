"""The numpy meaning of the incomplete gamma function's derivative, which scipy lacks, and of polygamma and zeta."""

# mypy: disable-error-code="no-any-return, no-untyped-call"
# numpy and scipy give Any where a dtype is not known before the call.
from __future__ import annotations

import numpy as np
import scipy.special as special  # type: ignore[import-untyped]

Array = np.ndarray


def gamma_density(a: Array, x: Array) -> Array:
    """x**a e**-x / Gamma(a)."""
    large = a >= 8
    b = np.where(large, a, 8.0)
    t = (x - b) / b
    w = 1 / (b * b)
    rest = (
        1 / 12 - w * (1 / 360 - w * (1 / 1260 - w * (1 / 1680 - w * (1 / 1188 - w * (691 / 360360 - w / 156)))))
    ) / b
    grown = np.where(np.abs(t) < 0.5, np.log1p(np.maximum(t, -0.5)), np.log(x / b))
    far = 0.5 * np.log(b / (2 * np.pi)) - b * (t - grown) - rest
    return np.exp(np.where(large, far, special.xlogy(a, x) - x - special.gammaln(a)))


def gamma_ratio(a: Array, x: Array) -> Array:
    """dP/da of the regularised lower incomplete gamma function over ``gamma_density``, for f64 a, x > 0."""
    rate = np.log(x) - special.digamma(a)
    upper = (x > 1) & (x > a)
    low, low_slope = series(a, np.where(upper, 1.0, x))
    high, high_slope = fraction(np.where(upper, a, 0.5), np.where(upper, x, 2.0))
    return np.where(upper, -(high_slope + high * rate), low_slope + low * rate)


def series(a: Array, x: Array) -> tuple[Array, Array]:
    """Sum of x**k / (a (a + 1) ... (a + k)) and its derivative by a."""
    r, term = a, 1 / a
    slope = -term * term
    total, total_slope = term, slope
    for _ in range(10000):
        r = r + 1
        slope = (slope - term / r) * (x / r)
        term = term * (x / r)
        total, total_slope = total + term, total_slope + slope
        if not np.any((term > 1e-17 * total) | (np.abs(slope) > 1e-17 * np.abs(total_slope))):
            break
    return total, total_slope


def fraction(a: Array, x: Array) -> tuple[Array, Array]:
    """The continued fraction of Gamma(a, x) e**x x**-a and its derivative by a, by forward recurrence."""
    zero = np.zeros(np.broadcast_shapes(a.shape, x.shape))
    c, y, z = zero, 1 - a, x + 2 - a
    p0, p1, q0, q1 = zero + 1, x + 1 + zero, x + zero, z * x
    dp0, dp1, dq0, dq1 = zero, zero, zero, -x + zero
    for _ in range(2000):
        c, y, z = c + 1, y + 1, z + 2
        p2, q2 = p1 * z - p0 * (y * c), q1 * z - q0 * (y * c)
        dp2 = (dp1 * z - p1) - (dp0 * (y * c) - p0 * c)
        dq2 = (dq1 * z - q1) - (dq0 * (y * c) - q0 * c)
        s = np.where(np.abs(p2) > 2.0**52, 2.0**-52, 1.0)
        p0, p1, q0, q1 = p1 * s, p2 * s, q1 * s, q2 * s
        dp0, dp1, dq0, dq1 = dp1 * s, dp2 * s, dq1 * s, dq2 * s
    value = p1 / q1
    return value, (dp1 - value * dq1) / q1


def igamma_grad_a(a: Array, x: Array) -> Array:
    """dP/da; NaN outside a > 0, x >= 0."""
    inside = (a > 0) & (x > 0) & np.isfinite(a) & np.isfinite(x)
    b, y = np.where(inside, a, 1.0), np.where(inside, x, 1.0)
    slope = gamma_ratio(b, y) * gamma_density(b, y)
    return np.where(inside, slope, np.where((a > 0) & (x >= 0), 0.0, np.nan))


def random_gamma_grad(a: Array, x: Array) -> Array:
    """-(dP/da) / (dP/dx)."""
    inside = (a > 0) & (x > 0) & np.isfinite(a) & np.isfinite(x)
    result = -gamma_ratio(np.where(inside, a, 1.0), np.where(inside, x, 1.0)) * x
    return np.where(inside, result, np.where((a > 0) & (x == 0), 0.0, np.nan))


def zeta(s: Array, q: Array) -> Array:
    """Hurwitz zeta function; inf at its poles, NaN outside its domain."""
    whole = q == np.floor(q)
    ok = (s > 1) & ((q > 0) | (~whole & (s == np.floor(s))))
    t, y = np.where(ok, s, 2.0), np.where(ok, q, 1.0)
    shift = np.where(y < 0, np.ceil(-y), 0.0)
    total = special.zeta(t, y + shift)
    for k in range(int(np.max(shift, initial=0.0))):
        total = total + np.where(k < shift, np.power(y + k, -t), 0.0)
    pole = (s == 1) | ((s > 1) & (q <= 0) & whole)
    return np.where(ok, total, np.where(pole, np.inf, np.nan))


def polygamma(n: Array, x: Array) -> Array:
    """The n-th derivative of digamma for whole n >= 0; NaN for other n."""
    ok = (n >= 0) & (n == np.floor(n))
    m = np.where(ok & (n > 0), n, 1.0)
    size = np.exp(special.gammaln(m + 1)) * zeta(m + 1, x)
    first = np.where((x <= 0) & (x == np.floor(x)), np.nan, special.digamma(x))
    return np.where(ok, np.where(n == 0, first, np.where(m % 2 == 1, size, -size)), np.nan)
