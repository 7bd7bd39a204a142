"""Incomplete gamma and beta functions, their derivatives, and zeta. f32 is computed in f64 and rounded once."""

import triton
import triton.language as tl

from onelaunch.device.exponential import log1p, power
from onelaunch.device.floating import any_true
from onelaunch.device.gamma import digamma, digamma_positive, lgamma_positive, stirling


@triton.jit
def gamma_density(a, x):
    """x**a e**-x / Gamma(a) for a, x > 0 (f64), through Stirling's series where a is large."""
    large = a >= 8.0
    b = tl.where(large, a, 8.0)
    t = (x - b) / b
    grown = tl.where(tl.abs(t) < 0.5, log1p(tl.where(tl.abs(t) < 0.5, t, 0.0)), tl.log(x / b))
    far = (0.5 * tl.log(b) - 0.9189385332046727) - b * (t - grown) - stirling(b)
    b = tl.where(large, 1.0, a)
    small = tl.where(b < 0.5, b + 1.0, b)
    scale = tl.where(b < 0.5, b, 1.0)
    return tl.where(large, tl.exp(far), scale * tl.exp(b * tl.log(x) - x - lgamma_positive(small)))


@triton.jit
def gamma_series(a, x, running):
    """P(a, x) / gamma_density and its derivative by a: the sum of x**k / (a (a + 1) ... (a + k))."""
    r = a
    term = 1.0 / a
    slope = term * term * -1.0
    total = term
    total_slope = slope
    while any_true(running):
        r = r + 1.0
        slope = (slope - term / r) * (x / r)
        term = term * (x / r)
        total = tl.where(running, total + term, total)
        total_slope = tl.where(running, total_slope + slope, total_slope)
        small = (term <= 1.1e-16 * total) & (tl.abs(slope) <= 1.1e-16 * tl.abs(total_slope))
        running = running & (small == 0)
    return total, total_slope


@triton.jit
def gamma_fraction(a, x, running):
    """Q(a, x) / gamma_density and its derivative by a: the continued fraction by forward recurrence (Cephes igamc)."""
    zero = x - x
    c = zero
    y = 1.0 - a
    z = x + y + 1.0
    p0, p1, q0, q1 = zero + 1.0, x + 1.0, x, z * x
    dp0, dp1, dq0, dq1 = zero, zero, zero, x * -1.0
    value = p1 / q1
    slope = value * x / q1
    while any_true(running):
        c = c + 1.0
        y = y + 1.0
        z = z + 2.0
        p2 = p1 * z - p0 * (y * c)
        q2 = q1 * z - q0 * (y * c)
        dp2 = (dp1 * z - p1) - (dp0 * (y * c) - p0 * c)
        dq2 = (dq1 * z - q1) - (dq0 * (y * c) - q0 * c)
        next_value = p2 / q2
        next_slope = (dp2 - next_value * dq2) / q2
        near = tl.abs(next_value - value) <= 1.1e-16 * tl.abs(next_value)
        near = near & (tl.abs(next_slope - slope) <= 1.0e-15 * tl.abs(next_slope))
        value = tl.where(running, next_value, value)
        slope = tl.where(running, next_slope, slope)
        running = running & (near == 0) & (c < 2000.0)
        shrink = tl.where(tl.abs(p2) > 4503599627370496.0, 2.220446049250313e-16, zero + 1.0)
        p0, p1, q0, q1 = p1 * shrink, p2 * shrink, q1 * shrink, q2 * shrink
        dp0, dp1, dq0, dq1 = dp1 * shrink, dp2 * shrink, dq1 * shrink, dq2 * shrink
    return value, slope


@triton.jit
def gamma_parts(a, x):
    """P(a, x), Q(a, x), the density d = x**a e**-x / Gamma(a), and dP/da / d, in f64; NaN outside the domain."""
    a = a.to(tl.float64)
    x = x.to(tl.float64)
    ok = (a > 0.0) & (x >= 0.0)
    inside = ok & (x > 0.0) & (x < float("inf")) & (a < float("inf"))
    b = tl.where(inside, a, 1.0)
    y = tl.where(inside, x, 1.0)
    upper = (y > 1.0) & (y > b)
    density = gamma_density(b, y)
    lower_total, lower_slope = gamma_series(b, y, inside & (upper == 0))
    upper_total, upper_slope = gamma_fraction(tl.where(upper, b, 0.5), tl.where(upper, y, 2.0), inside & upper)
    rate = tl.log(y) - digamma_any(b)
    p = tl.where(upper, 1.0 - density * upper_total, density * lower_total)
    q = tl.where(upper, density * upper_total, 1.0 - density * lower_total)
    ratio = tl.where(upper, (upper_slope + upper_total * rate) * -1.0, lower_slope + lower_total * rate)
    edge = tl.where(x > 0.0, tl.where(a < float("inf"), 1.0, 0.0), 0.0).to(tl.float64)
    p = tl.where(inside, p, edge)
    q = tl.where(inside, q, 1.0 - edge)
    wrong = tl.where(ok, 0.0, float("nan")).to(tl.float64)
    return p + wrong, q + wrong, tl.where(inside, density, 0.0), tl.where(inside, ratio, 0.0) + wrong


@triton.jit
def digamma_any(x):
    """digamma(x) for x > 0."""
    return digamma_positive(tl.where(x < 0.5, x + 1.0, x)) - tl.where(x < 0.5, 1.0 / x, 0.0)


@triton.jit
def igamma(a, x):
    """Regularised lower incomplete gamma function P(a, x)."""
    lower, _, _, _ = gamma_parts(a, x)
    return lower.to(x.dtype)


@triton.jit
def igammac(a, x):
    """Regularised upper incomplete gamma function Q(a, x)."""
    _, upper, _, _ = gamma_parts(a, x)
    return upper.to(x.dtype)


@triton.jit
def igamma_grad_a(a, x):
    """Derivative of P(a, x) by a."""
    _, _, density, ratio = gamma_parts(a, x)
    return (density * ratio).to(x.dtype)


@triton.jit
def random_gamma_grad(a, x):
    """Derivative by a of a gamma variate x: -(dP/da) / (dP/dx)."""
    _, _, _, ratio = gamma_parts(a, x)
    return (ratio * x.to(tl.float64) * -1.0).to(x.dtype)


@triton.jit
def beta_fraction(a, b, x, running):
    """The continued fraction of the incomplete beta function, by Lentz's method (Numerical Recipes, 6.4)."""
    zero = x - x
    m = zero
    c = zero + 1.0
    d = 1.0 / (1.0 - (a + b) * x / (a + 1.0))
    h = d
    while any_true(running):
        m = m + 1.0
        even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m))
        d = 1.0 / (1.0 + even * d)
        c = 1.0 + even / c
        step = d * c
        odd = (a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0)) * -1.0
        d = 1.0 / (1.0 + odd * d)
        c = 1.0 + odd / c
        h = tl.where(running, h * step * (d * c), h)
        running = running & (tl.abs(step * (d * c) - 1.0) > 2.3e-16) & (m < 5000.0)
    return h


@triton.jit
def lgamma_any(x):
    """lgamma(x) for x > 0 (f64)."""
    return lgamma_positive(tl.where(x < 0.5, x + 1.0, x)) - tl.log(tl.where(x < 0.5, x, 1.0))


@triton.jit
def betainc(a, b, x):
    """Regularised incomplete beta function I_x(a, b); NaN outside its domain."""
    a64 = a.to(tl.float64)
    b64 = b.to(tl.float64)
    x64 = x.to(tl.float64)
    ok = (a64 > 0.0) & (b64 > 0.0) & (x64 >= 0.0) & (x64 <= 1.0)
    inside = ok & (x64 > 0.0) & (x64 < 1.0)
    y = tl.where(inside, x64, 0.5)
    p = tl.where(inside, a64, 1.0)
    q = tl.where(inside, b64, 1.0)
    swap = y > (p + 1.0) / (p + q + 2.0)
    weight = p * tl.log(y) + q * log1p(y * -1.0) + (lgamma_any(p + q) - lgamma_any(p) - lgamma_any(q))
    first = tl.where(swap, q, p)
    part = tl.exp(weight) / first * beta_fraction(first, tl.where(swap, p, q), tl.where(swap, 1.0 - y, y), inside)
    result = tl.where(inside, tl.where(swap, 1.0 - part, part), x64)
    return tl.where(ok, result, float("nan")).to(x.dtype)


@triton.jit
def zeta(s, q):
    """Hurwitz zeta function, the sum of (q + k)**-s over k >= 0; inf at its poles, NaN outside its domain."""
    return zeta_wide(s.to(tl.float64), q.to(tl.float64)).to(q.dtype)


@triton.jit
def zeta_wide(s, q):
    """``zeta`` of f64: twelve terms, then Euler and Maclaurin's formula."""
    whole = q == tl.floor(q)
    ok = (s > 1.0) & ((q > 0.0) | ((whole == 0) & (s == tl.floor(s))))
    t = tl.where(ok, s, 2.0)
    y = tl.where(ok, q, 1.0)
    total = y - y
    for _ in range(12):
        total = total + power(y, t * -1.0)
        y = y + 1.0
    rest = y / (t - 1.0) + 0.5 + zeta_rest(tl.minimum(t, 1.0e4), y)
    total = total + power(y, t * -1.0) * rest
    pole = (s == 1.0) | ((s > 1.0) & (q <= 0.0) & whole)
    total = tl.where(ok & (q == float("inf")), 0.0, total)
    return tl.where(ok, total, tl.where(pole, float("inf"), float("nan")))


@triton.jit
def zeta_rest(s, y):
    """The sum over j <= 10 of B_2j / (2 j)! s (s + 1) ... (s + 2 j - 2) y**(1 - 2 j)."""
    w = 1.0 / (y * y)
    p = (s + 17.0) * (s + 18.0) * w * -2.174868698558062e-16 + 8.586062056277845e-15
    p = p * ((s + 15.0) * (s + 16.0) * w) - 3.3896802963225829e-13
    p = p * ((s + 13.0) * (s + 14.0) * w) + 1.3382536530684679e-11
    p = p * ((s + 11.0) * (s + 12.0) * w) - 5.284190138687493e-10
    p = p * ((s + 9.0) * (s + 10.0) * w) + 2.0876756987868098e-08
    p = p * ((s + 7.0) * (s + 8.0) * w) - 8.267195767195767e-07
    p = p * ((s + 5.0) * (s + 6.0) * w) + 3.3068783068783068e-05
    p = p * ((s + 3.0) * (s + 4.0) * w) - 0.0013888888888888889
    p = p * ((s + 1.0) * (s + 2.0) * w) + 0.08333333333333333
    return p * (s / y)


@triton.jit
def polygamma(n, x):
    """The n-th derivative of digamma for whole n >= 0; NaN for other n."""
    order = n.to(tl.float64)
    y = x.to(tl.float64)
    ok = (order >= 0.0) & (order == tl.floor(order))
    m = tl.where(ok & (order > 0.0), order, 1.0)
    size = tl.exp(lgamma_positive(m + 1.0)) * zeta_wide(m + 1.0, y)
    odd = tl.floor(m * 0.5) != m * 0.5
    result = tl.where(order == 0.0, digamma(y), tl.where(odd, size, size * -1.0))
    return tl.where(ok, result, float("nan")).to(x.dtype)
