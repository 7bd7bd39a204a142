"""The polynomials of the device library that are our own: Chebyshev fits by mpmath, printed with their errors.

python bench/fit.py [NAME ...]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import mpmath as mp

mp.mp.dps = 60
EIGHTH_TURN = mp.tan(mp.pi / 8) ** 2
ROOT = mp.findroot(mp.digamma, mp.mpf("1.46"))


@dataclass(frozen=True)
class Fit:
    """``terms`` coefficients for ``function`` of ``variable`` on [low, high], printed with ``digits`` digits."""

    function: Callable[[mp.mpf], mp.mpf]
    low: mp.mpf | float
    high: mp.mpf | float
    terms: int
    variable: str = "z"
    digits: int = 18


def arc_excess(arc: Callable[[mp.mpf], mp.mpf], at_zero: mp.mpf) -> Callable[[mp.mpf], mp.mpf]:
    """(arc(x) / x - 1) / x**2 as a function of z = x**2."""
    return lambda z: (arc(mp.sqrt(z)) / mp.sqrt(z) - 1) / z if z > 1e-30 else at_zero


def erfc_scaled(k: int) -> Callable[[mp.mpf], mp.mpf]:
    """(1 + 2 x) e**(x**2) erfc(x) as a function of q = (x - k) / (x + k)."""

    def of_q(q: mp.mpf) -> mp.mpf:
        x = k * (1 + q) / (1 - q)
        return mp.erfc(x) * mp.exp(x * x) * (1 + 2 * x)

    return of_q


def ratio(x: float, k: int) -> mp.mpf:
    return (mp.mpf(x) - k) / (mp.mpf(x) + k)


def stirling(w: mp.mpf) -> mp.mpf:
    """The rest of Stirling's series times x, as a function of w = 1 / x**2."""
    if w < 1e-20:
        return mp.mpf(1) / 12
    x = 1 / mp.sqrt(w)
    return (mp.loggamma(x) - (x - 0.5) * mp.log(x) + x - mp.log(2 * mp.pi) / 2) * x


def bessel_near(n: int) -> Callable[[mp.mpf], mp.mpf]:
    """e**-x In(x) / x**n for x = 4 (t + 1)."""

    def of_t(t: mp.mpf) -> mp.mpf:
        x = 4 * (t + 1)
        return mp.exp(-x) * mp.besseli(n, x) / x**n if x > 1e-20 else mp.mpf(1) / 2**n

    return of_t


def bessel_far(n: int) -> Callable[[mp.mpf], mp.mpf]:
    """sqrt(x) e**-x In(x) for x = 16 / (t + 1)."""
    return lambda t: (lambda x: mp.sqrt(x) * mp.exp(-x) * mp.besseli(n, x))(16 / (t + 1))


def digamma_slope(z: mp.mpf) -> mp.mpf:
    """digamma(x) / (x - root) for x = 1.5 + z."""
    x = mp.mpf(1.5) + z
    return mp.digamma(x) / (x - ROOT) if abs(x - ROOT) > 1e-25 else mp.psi(1, ROOT)


def gamma_slope(z: mp.mpf) -> mp.mpf:
    """lgamma(2 + z) / z."""
    return mp.loggamma(2 + z) / z if abs(z) > 1e-25 else mp.digamma(mp.mpf(2))


FITS = {
    "asin f32": Fit(arc_excess(mp.asin, mp.mpf(1) / 6), 1e-20, 0.25, 5, digits=10),
    "asin f64": Fit(arc_excess(mp.asin, mp.mpf(1) / 6), 1e-20, 0.25, 13),
    "atan f32": Fit(arc_excess(mp.atan, -mp.mpf(1) / 3), 1e-20, EIGHTH_TURN, 5, digits=10),
    "atan f64": Fit(arc_excess(mp.atan, -mp.mpf(1) / 3), 1e-20, EIGHTH_TURN, 11),
    "erfc f32": Fit(erfc_scaled(3), ratio(0.45, 3), ratio(10.1, 3), 10, "q", 10),
    "erfc f64": Fit(erfc_scaled(4), ratio(0.45, 4), ratio(28, 4), 23, "q"),
    "lgamma": Fit(gamma_slope, -0.5, 0.5, 20),
    "stirling": Fit(stirling, 1e-6, 1 / 64, 8, "w"),
    "digamma": Fit(digamma_slope, -0.5, 0.5, 21),
    "sin of turns": Fit(lambda z: mp.sin(mp.pi * mp.sqrt(z)) / mp.sqrt(z), 1e-20, 0.25, 10),
    "cos of turns": Fit(lambda z: mp.cos(mp.pi * mp.sqrt(z)), 1e-20, 0.25, 10),
    "i0e near": Fit(bessel_near(0), -1, 1, 30, "t"),
    "i0e far": Fit(bessel_far(0), mp.mpf("-0.999"), 1, 24, "t"),
    "i1e near": Fit(bessel_near(1), -1, 1, 30, "t"),
    "i1e far": Fit(bessel_far(1), mp.mpf("-0.999"), 1, 24, "t"),
}


def show(name: str, fit: Fit) -> None:
    """Horner's rule as the device library spells it."""
    coefficients, error = mp.chebyfit(fit.function, [mp.mpf(fit.low), mp.mpf(fit.high)], fit.terms, error=True)
    print(f"# {name}: absolute error {float(error):.2e}")
    texts = [mp.nstr(c, fit.digits) for c in coefficients]
    for i, text in enumerate(texts[1:]):
        factor = f"{fit.variable} * {texts[0]}" if i == 0 else f"p * {fit.variable}"
        print(f"p = {factor} {'- ' + text[1:] if text.startswith('-') else '+ ' + text}")


def main() -> None:
    for name in sys.argv[1:] or FITS:
        show(name, FITS[name])


if __name__ == "__main__":
    main()
